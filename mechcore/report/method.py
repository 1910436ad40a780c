"""What the terms of a report mean, and what was run: the same words for every format.

Stars stand around ``*variables*``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechcore.report.blocks import Table
from mechcore.report.run_folder import is_cognitive
from mechcore.report.wording import number, plain

_INTERVALS = (
    "Intervals in brackets are bootstrap intervals over examples, each for its own number alone: "
    "among many sets some leave out zero by chance. They say nothing about other seeds, other data "
    "or other models."
)
_NOTHING = "There is nothing to sum up: no step of this run has left a table."
_BEFORE_FORMULA = (
    "A component is one attention head or one MLP layer. A mask gives every component a number *m* "
    "from 0 to 1, and whatever the component adds to the model is changed to"
)
_FORMULA = "*mean* + *m* · (*x* \u2212 *mean*)"
_AFTER_FORMULA = (
    "where *x* is its output and *mean* its average output over training data. With *m* = 1 "
    "nothing changes; with *m* = 0 the component still adds a constant but no longer says anything "
    "about the input: it is ablated. The weights of the model are never touched."
)
_TERMS: Sequence[tuple[str, str]] = (
    (
        "In-domain and out-of-domain",
        "Data like the training data, and data that differs from it, usually so that a shallow "
        "rule which works in-domain fails.",
    ),
    (
        "Means over subsets",
        "Where a number is a mean over subsets, every subset counts the same, however many "
        "examples it has; a number of a data set is over all its examples.",
    ),
    (
        "Subnetwork",
        "The model with a mask of zeros and ones. Pruning trains the mask, not the model, to keep "
        "the answers on training data close to the full model's (Kullback\u2013Leibler divergence, "
        "KL) while a set share of the components, the target sparsity, is removed. Each seed may "
        "find another subnetwork.",
    ),
    (
        "Heuristic core",
        "The heads that every subnetwork keeps, at every seed and sparsity. The size expected by "
        "chance is that of subnetworks that keep as many heads, each picked at random.",
    ),
    (
        "Margin",
        "The log-odds of the correct class or classes, in nats, averaged over examples. Unlike "
        "accuracy it has no floor or ceiling.",
    ),
    (
        "Drop and interaction",
        "The drop *D*(*S*) is the full model's accuracy or margin less that of the model with the "
        "set *S* ablated. The interaction of *S* is *D*(*S*) less the sum of *D*({*i*}) over its "
        "members *i*. Above zero the set is superadditive: taking its heads together costs more "
        "than taking them one by one, as happens where heads can stand in for one another. "
        "Accuracy cannot fall below zero, so joint drops saturate near that floor and interactions "
        "on accuracy come out too low.",
    ),
    (
        "Attention mass",
        "The share of a head's attention that goes to one category of tokens (the same word "
        "repeated elsewhere, the token before or after, a separator, the first token, the token "
        "itself), averaged over the query tokens that have such a token to attend to.",
    ),
    (
        "Effective size",
        "The share of components that the sparsest subnetwork keeps whose accuracy is not below "
        "the full model's by more than a set margin, the faithful one; 100 % where there is none.",
    ),
)
_CREDIT = "Method after the heuristic core of fine-tuned language models (arXiv 2403.03942)."

_COGNITIVE_INTERVALS = (
    "Intervals in brackets are bootstrap intervals over test trials, each for its own number "
    "alone: among many heads some leave out zero by chance. They say nothing about other seeds, "
    "for which the spread over seeds stands beside them, nor about other models or wordings. "
    "Intervals over seeds are called so."
)
_COGNITIVE_TERMS: Sequence[tuple[str, str]] = (
    (
        "Task",
        "A prompt names a context, motion or colour, and gives evidence for left or right in both. "
        "The right answer is the side of the evidence that the context names. The answer is read "
        "at the last token, among the words left and right unless it is called unrestricted: then "
        "among the whole vocabulary.",
    ),
    (
        "Congruent and incongruent trials",
        "Both evidences are on the same side, or on different sides; half of the trials are of "
        "either kind. A model that ignores the context and follows one kind of evidence is right "
        "on 75 % of all trials and on 50 % of the incongruent ones.",
    ),
    (
        "Arms",
        "The pretrained model, which was not trained on the task; the same model fine-tuned on it; "
        "and a model of the same architecture trained on it from new random weights. A seed is "
        "that of an arm's training samples, their order and, from scratch, the new weights.",
    ),
    (
        "Matched",
        "The two trained models of a seed are matched if their test accuracies are at most 2 "
        "points apart. If they are not, differences between them may come of how well they do the "
        "task and not of how they do it.",
    ),
    (
        "Drop",
        "The accuracy of the whole model less that of the model with one head ablated. Mean "
        "ablation puts the head's average output *mean* in place of *x*, zero ablation puts zeros.",
    ),
    (
        "Centre of mass",
        "The mean layer of all heads, each weighted with its drop if that is above zero: from 0, "
        "all in the first layer, to the number of the last one. Noise gives small positive drops "
        "in all layers and pulls it to the middle, so the centre is also taken of those heads "
        "alone whose drop has an interval above zero.",
    ),
    (
        "Attention to the numbers",
        "The share of a head's attention that goes to the tokens of numbers, averaged over the "
        "tokens that can see one. A uniform head attends to all tokens before it alike; above 1 "
        "times uniform a head attends to numbers more than that.",
    ),
    (
        "Decoding, chance and floor",
        "Logistic regression with cross-validation tells a variable from the states (the residual "
        "stream after a layer, at one token); the choice is the right answer. Chance is the "
        "accuracy of guessing, and shuffled labels show what the fit finds where there is nothing "
        "to find. The floor is what the best of the other variables gives away: the right answer "
        "agrees with the side of either evidence on 75 % of the trials. Balanced trials are free "
        "of that: the side is not the one to answer by, and equally often with either answer.",
    ),
    (
        "Mixed selectivity",
        "Each unit of the last layer is regressed on context, motion, colour and choice, with a "
        "permutation test for every variable. A unit that follows several of them is of mixed "
        "selectivity. A follower of motion or colour is one of its side; strengths of evidence and "
        "products of variables are in the regression beside them. Expected is the share if no unit "
        "followed anything.",
    ),
    (
        "Decoding from single heads",
        "A linear support vector machine with cross-validation on the output of one head at the "
        "last token: the model's answer (choice), whether it is right (of as many right as wrong "
        "answers), whether the trial is congruent, and which of the 8 conditions (context and both "
        "sides) it is.",
    ),
    (
        "Silhouette",
        "How much nearer a state is to those of its own group than to those of the nearest other "
        "one, averaged: 1 for groups far apart, 0 for none. It is taken of the states themselves "
        "and of the projected points, for a projection can draw groups where there are none.",
    ),
)
_COGNITIVE_CREDIT = (
    "Claims after arXiv 2406.18926; the task after Mante et al. 2013 (doi 10.1038/nature12742), "
    "mixed selectivity after Rigotti et al. 2013 (doi 10.1038/nature12160). The wording of the "
    "prompts, the numbers and the sizes are this project's own."
)


@dataclass(frozen=True)
class Words:
    """The fixed texts of a report: what intervals mean, the method, and whom it is after."""

    intervals: str = _INTERVALS
    nothing: str = _NOTHING
    before_formula: str = _BEFORE_FORMULA
    formula: str = _FORMULA
    after_formula: str = _AFTER_FORMULA
    terms: Sequence[tuple[str, str]] = _TERMS
    credit: str = _CREDIT


def words_of(config: Mapping[str, Any]) -> Words:
    """The fixed texts for a run of this configuration."""
    if not is_cognitive(config):
        return Words()
    return Words(_COGNITIVE_INTERVALS, terms=_COGNITIVE_TERMS, credit=_COGNITIVE_CREDIT)


def method_tables(config: Mapping[str, Any], shown: Collection[str] = ()) -> list[Table]:
    """What was run, on what and how, as far as the configuration says.

    Args:
        config: what ``config.json`` holds.
        shown: facts of the data that stand elsewhere on the page, and need not be repeated.
    """
    model = dict(config.get("model") or {})
    run = {key: config[key] for key in ("command", "seeds", "sparsities") if key in config}
    if "label_mapping" in config:
        run["label mapping"] = config["label_mapping"]
    data = [
        (f"{part} {key}".replace("_", " "), value)
        for part, entries in dict(config.get("data") or {}).items()
        for entry in (entries if isinstance(entries, list) else [entries])
        for key, value in _flat(entry if isinstance(entry, dict) else {"name": entry})
        if key.replace(" ", "_") not in shown
    ]
    versions = {"mechcore": config.get("mechcore", ""), **dict(config.get("versions") or {})}
    settings = dict(config.get("settings") or {})
    settings |= {name: config[name] for name in ("prune", "means") if name in config}
    seconds = dict(config.get("seconds") or {})
    groups: Sequence[tuple[str, Iterable[tuple[str, Any]], bool]] = [
        ("Run", _flat(run), False),
        ("Model", _flat(model), False),
        ("Data", data, False),
        ("Settings", _flat(settings), True),
        ("Versions", versions.items(), False),
        (
            "Time by step (s)",
            _flat({name: _tenths(value) for name, value in seconds.items()}),
            True,
        ),
    ]
    tables = []
    for caption, pairs, folded in groups:
        rows = [[name, plain(value)] for name, value in pairs]
        if rows:
            tables.append(Table(caption, ["name", "value"], rows, frozenset({0, 1}), folded))
    return tables


def _tenths(value: Any) -> Any:
    return number(value, 1) if isinstance(value, int | float) else value


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: ")
        else:
            yield name, value
