"""Claims and terms of a report on extractive structures; stars stand around ``*variables*``."""

from __future__ import annotations

from mechcore.report.claims import Claims
from mechcore.report.kinds import Words

_SECTIONS = (
    *("recall", "recall", "scores", "scores", "freezing", "freezing", "ordering", "ordering"),
    *("grafting", "localization", "sums"),
)
CLAIMS = Claims("extractive_verdicts", dict(enumerate(_SECTIONS, 1)))
_INTERVALS = (
    "Intervals in brackets are 95 % intervals over prompts, each for its own number alone. "
    "They say nothing about other seeds, for which the spread over seeds stands beside them, nor "
    "about other models or facts."
)
_BEFORE_FORMULA = (
    "A model is trained on facts, which moves its weights from *W0* to *W1* = *W0* + *dW*. Whether "
    "it then also knows what follows from the facts, and which components make it so, is asked by "
    "the reward *R*, the logit of the right answer's first token less the mean logit of all "
    "options. To first order the reward moves by"
)
_FORMULA = "\u27e8\u2207*R*, *dW*\u27e9 = \u03a3 informative(*c*) + other, over the components *c*"
_AFTER_FORMULA = (
    "where a component is one attention head or one MLP layer at one token of the prompt, and "
    "*other* is what embeddings and norms add. A score above zero helps the right answer. Weights "
    "that an experiment changes are put back as they were before the next one."
)
_TERMS = (
    (
        "Facts and implications",
        "Facts are the prompts and completions that the model is trained on; implications follow "
        "from them and are never trained. First-hop: the model learns in which city someone lives, "
        "and is asked for what that city implies. Second-hop: it learns something of a city, and "
        "is asked for it by something that it already knows of that city. A better rank of "
        "implications after training on facts is out-of-context reasoning.",
    ),
    (
        "Mean rank and chance",
        "The rank of the right answer among the options, which are the different answers of the "
        "data, averaged over prompts: 0 is best. Chance is the mean rank of a guess, half the "
        "number of the other options.",
    ),
    (
        "Informative score",
        "How much the change of a component's own weights, as it reads the implication's prompt, "
        "moves the reward to first order at *W0*: large where the fact is stored.",
    ),
    (
        "Downstream score",
        "The component's output with weights *W0* but with inputs as in the trained model, less "
        "its output before, times the gradient of the reward at *W0*: large where old weights make "
        "an answer of what the changed ones send them.",
    ),
    (
        "Upstream score",
        "How much more the reward depends on the component's output after training (gradient at "
        "*W1* less that at *W0*), times that output less the output on counterfactual prompts with "
        "another answer, averaged over them: large where old weights ask for the fact.",
    ),
    (
        "Tokens",
        "Prompts differ in the name or place that they are about, and in its number of tokens. "
        "Tokens before and after it stand in the same column for all; those of the name or place "
        "are aligned at their end: subject -1 is the last of them.",
    ),
)
_CREDIT = (
    "Definitions and experiments after Feng et al., extractive structures (arXiv 2412.04614). The "
    "prompts, sizes and rules of the verdicts are this project's own where the paper has none."
)
WORDS = Words(_INTERVALS, _TERMS, _CREDIT, _BEFORE_FORMULA, _FORMULA, _AFTER_FORMULA)
