"""What the parts of a study of extractive structures are called and in which order they stand."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mechcore.papers.claims import Claims
from mechcore.papers.extractive.evidence import TASKS
from mechcore.papers.extractive.experiments.freezing import FREEZING
from mechcore.papers.extractive.results import KINDS as SCORE_KINDS
from mechcore.papers.extractive.results import PARTS
from mechcore.papers.seeds import in_order, ordered, seeds_in, whole_range
from mechcore.report.drawing import BLACK, shorten
from mechcore.report.kinds import Words
from mechcore.wording import count

MEAN_RANK = "mean rank (0 best)"
CHANCE_LINE: dict[str, Any] = {"color": BLACK, "lw": 0.9, "ls": (0, (4, 2))}
LETTERS = 14
KINDS = PARTS[0].names
ORDERS = {order: order for order in ("joint", "facts first", "implications first")}
STATES = {"before": "before training", "after": "after training"}
GRAFTED = {"other facts": "without graft", "graft": "graft", "control graft": "control graft"}
WAYS = FREEZING["way"].names
IMPLICATIONS = "implications"
TEST_IMPLICATIONS, OTHER_IMPLICATIONS = f"test {IMPLICATIONS}", f"other {IMPLICATIONS}"
DATA = (TEST_IMPLICATIONS, "test facts", OTHER_IMPLICATIONS, "other facts", IMPLICATIONS, "facts")


def tasks_of(table: pd.DataFrame) -> list[str]:
    """The tasks of a table."""
    return in_order(table["task"], TASKS)


def sorted_parts(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The same rows by these columns, whose values have an order of their own."""
    known = {"task": TASKS, "score": SCORE_KINDS, "kind": KINDS, "data": DATA[::-1], "way": WAYS}
    known["state"] = tuple(STATES)
    return ordered(table, **{name: known[name] for name in columns})


def basis(table: pd.DataFrame) -> str:
    """What the numbers of a table are over: prompts and seeds, as a sentence."""
    return f"n = {whole_range(table['n'])} prompts; {count(len(seeds_in(table)), 'seed')}."


def kind_name(kind: str) -> str:
    """What components of a kind are called."""
    return KINDS.get(kind, shorten(kind, LETTERS))


def replay_name(replay: bool) -> str:
    """Whether old data was mixed in."""
    return "with replay" if replay else "without replay"


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name[:40].lower())


_SECTIONS = (
    *("recall", "recall", "scores", "scores", "freezing", "freezing", "ordering", "ordering"),
    *("grafting", "localization", "sums"),
)
CLAIMS = Claims("extractive_verdicts", dict(enumerate(_SECTIONS, 1)))
_INTERVALS = (
    "Intervals in brackets are 95 % intervals over prompts, not corrected for multiple "
    "comparisons. They do not cover other seeds, for which the spread over seeds is given, nor "
    "other models or facts."
)
_BEFORE_FORMULA = (
    "A model is trained on facts, which moves its weights from *W0* to *W1* = *W0* + *dW*. The "
    "reward *R*, the logit of the right answer's first token minus the mean logit of all options, "
    "measures whether it then also knows what follows from the facts, and because of which "
    "components. To first order the reward changes by"
)
_FORMULA = "\u27e8\u2207*R*, *dW*\u27e9 = \u03a3 informative(*c*) + other, over the components *c*"
_AFTER_FORMULA = (
    "where a component is one attention head or one MLP layer at one token of the prompt, and "
    "*other* is the contribution of embeddings and norms. A score above zero helps the right "
    "answer. Weights changed by an experiment are restored before the next one."
)
_TERMS = (
    (
        "Facts and implications",
        "Facts are the prompts and completions that the model is trained on; implications follow "
        "from them and are never trained. First-hop: the model learns in which city someone lives, "
        "and is asked what that city implies. Second-hop: it learns something about a city, and "
        "is asked for it through something that it already knows about that city. A better rank of "
        "implications after training on facts is out-of-context reasoning.",
    ),
    (
        "Mean rank and chance",
        "The rank of the right answer among the options (the distinct answers in the "
        "data), averaged over prompts: 0 is best. Chance is the mean rank of a guess, half the "
        "number of the other options.",
    ),
    (
        "Informative score",
        "How much the change in a component's own weights changes the reward of the implication's "
        "prompt, to first order at *W0*: large where the fact is stored.",
    ),
    (
        "Downstream score",
        "The component's output with weights *W0* but with inputs as in the trained model, minus "
        "its output before, times the gradient of the reward at *W0*: large where old weights turn "
        "the output of changed ones into an answer.",
    ),
    (
        "Upstream score",
        "How much more the reward depends on the component's output after training (gradient at "
        "*W1* minus that at *W0*), times that output minus the output on counterfactual prompts "
        "with another answer, averaged over them: large where old weights query the fact.",
    ),
    (
        "Tokens",
        "Prompts differ in the name or place that they are about, and in its number of tokens. "
        "Tokens before and after it are in the same column for all; those of the name or place "
        "are aligned at their end: subject -1 is the last of them.",
    ),
)
_CREDIT = (
    "Definitions and experiments after Feng et al., extractive structures (arXiv 2412.04614). The "
    "prompts, sizes and rules of the verdicts are this project's own where the paper has none."
)
WORDS = Words(_INTERVALS, _TERMS, _CREDIT, (_BEFORE_FORMULA, _FORMULA, _AFTER_FORMULA))
