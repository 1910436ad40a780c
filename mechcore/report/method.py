"""What the terms of a report mean, and what was run: the same words for every format.

Stars stand around ``*variables*``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechcore.report.blocks import Table
from mechcore.report.cognitive import words as cognitive
from mechcore.report.cognitive.tables import KIND as COGNITIVE
from mechcore.report.extractive import words as extractive
from mechcore.report.extractive.tables import KIND as EXTRACTIVE
from mechcore.report.run_folder import kind_of
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


_OF_KIND = {
    COGNITIVE: Words(cognitive.INTERVALS, terms=cognitive.TERMS, credit=cognitive.CREDIT),
    EXTRACTIVE: Words(
        extractive.INTERVALS,
        before_formula=extractive.BEFORE_FORMULA,
        formula=extractive.FORMULA,
        after_formula=extractive.AFTER_FORMULA,
        terms=extractive.TERMS,
        credit=extractive.CREDIT,
    ),
}


def words_of(config: Mapping[str, Any]) -> Words:
    """The fixed texts for a run of this configuration."""
    kind = kind_of(config)
    return Words() if kind is None else _OF_KIND[kind]


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
