"""What a linear readout of activations can tell: cross-validated classifiers and their controls.

Linear probes after arXiv 1610.01644.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from mechcore import progress
from mechcore.errors import InputError, MechcoreError
from mechcore.evaluation.intervals import Interval, share_interval
from mechcore.papers.cognitive.probing.activations import coded, matrix_of
from mechcore.papers.cognitive.probing.linear import Classifier, Fold, Loss
from mechcore.showing import Shown

States: TypeAlias = Float[Tensor, "example unit"] | Float[np.ndarray, "example unit"]

RESAMPLES = 1000
_FIGURES = ("accuracy", "low", "high", "chance", "floor", "shuffled", "shuffled_high", "p", "n")
_TOGETHER = 64


@dataclass(frozen=True, eq=False, repr=False)
class Decoding(Shown):
    """How well labels can be read from states by a classifier that has not seen the example.

    Attributes:
        accuracy: share of held-out examples that are right.
        low, high: its 95 % interval with the classifiers held fixed, Wilson's over examples; with
            groups by the bootstrap over these (Wilson's where all examples are right, or none).
        chance: accuracy of always answering the most frequent class.
        shuffled, shuffled_high: mean accuracy of fits to shuffled labels, and 95th percentile.
        p: (1 + shuffles at least as accurate) / (1 + shuffles).
        predictions, folds: label predicted for every example in the fold that held it out.
    """

    n: int
    accuracy: float
    low: float
    high: float
    chance: float
    shuffled: float
    shuffled_high: float
    p: float
    predictions: list[Hashable]
    folds: Int[np.ndarray, " example"]
    shuffled_accuracies: Float[np.ndarray, " shuffle"]


def decode(
    states: States,
    labels: Sequence[Hashable],
    *,
    classifier: Classifier = "logistic",
    folds: int = 5,
    shuffles: int = 20,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Decoding:
    """Cross-validate a linear classifier from states [example, unit] to labels.

    Units are standardised with mean and standard deviation of each fold's training part. Folds are
    stratified. Labels are shuffled within folds; groups of a fold swap theirs: each takes those of
    another, in random order, repeated or cut to its size. Examples of one group stay in one fold
    together: give equal or nearly equal examples one group, as a classifier that has seen one of
    them knows the other. The classifiers are scikit-learn's ``LogisticRegression`` and
    ``LinearSVC``. No p is below 1 / (1 + shuffles).

    Raises:
        InputError: states and labels do not fit together, or classes or groups are too few.
        MechcoreError: a fit did not converge.
    """
    values, _ = matrix_of(states)
    classes, codes = coded("labels", labels, len(values))
    grouping = None if groups is None else coded("groups", groups, len(values))[1]
    fold_of = _folds(classes, codes, grouping, folds, seed)
    targets = np.concatenate([codes[None], _shuffled(codes, fold_of, grouping, shuffles, seed)])
    loss = Loss.of(classifier, len(classes))
    predictions = np.empty_like(targets)
    for fold in range(folds):
        held_out = fold_of == fold
        fits = Fold(values[~held_out], values[held_out], loss)
        # The real labels alone, so that their answer is the same with any number of shuffles.
        for start in (0, *range(1, len(targets), _TOGETHER)):
            part = slice(start, start + _TOGETHER if start else 1)
            predictions[part, held_out] = fits.predict(targets[part][:, ~held_out])
    correct = predictions == targets
    accuracy, *shuffled = correct.mean(1).tolist()
    interval = _interval(correct[0].astype(float), grouping, seed)
    return Decoding(
        n=len(codes),
        accuracy=accuracy,
        low=interval.low,
        high=interval.high,
        chance=float(np.bincount(codes).max() / len(codes)),
        shuffled=float(np.mean(shuffled)),
        shuffled_high=float(np.quantile(shuffled, 0.95)),
        p=(1 + sum(other >= accuracy for other in shuffled)) / (1 + shuffles),
        predictions=[classes[i] for i in predictions[0]],
        folds=fold_of,
        shuffled_accuracies=np.array(shuffled),
    )


def decode_table(
    states: Mapping[Any, States],
    labels: Mapping[str, Sequence[Hashable]],
    *,
    given: Mapping[str, Sequence[Hashable]] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """`decode` every variable from every site; nothing is corrected for the number of rows.

    States are by site, [example, unit], labels by variable. One row per site and variable:
    ``site``, ``variable``, ``floor`` (the largest `correlation_floor` of another variable in
    ``given``, by default of ``labels``, at least chance), and figures of `Decoding`.
    """
    others = labels if given is None else given
    floors = {
        name: [correlation_floor(wanted, other) for key, other in others.items() if key != name]
        for name, wanted in labels.items()
    }
    rows = []
    with progress.bar("decoding", len(states) * len(labels)) as advance:
        for site, values in states.items():
            for name, wanted in labels.items():
                try:
                    decoded = decode(values, wanted, **options)
                except MechcoreError as error:
                    raise type(error)(f"{name!r} from {site!r}: {error}") from error
                row = {figure: getattr(decoded, figure, None) for figure in _FIGURES}
                floor = max([decoded.chance, *floors[name]])
                rows.append({"site": site, "variable": name, **row, "floor": floor})
                advance()
    return pd.DataFrame(rows)


# -- what other variables give away ---------------------------------------------------------------


def correlation_floor(labels: Sequence[Hashable], given: Sequence[Hashable]) -> float:
    """Accuracy of answering the most frequent label for each value of another variable."""
    _, wanted = coded("labels", labels, len(labels))
    _, known = coded("given", given, len(wanted))
    return float(pd.crosstab(known, wanted).max(axis=1).sum() / len(wanted))


def balanced(
    labels: Sequence[Hashable], against: Sequence[Hashable] | None = None, *, seed: int
) -> list[int]:
    """Rows, in order, in which every label occurs equally often with every value of ``against``.

    Few rows are dropped, at random. Without ``against``, labels are equally frequent.

    Raises:
        InputError: a label never occurs with some value.
    """
    _, wanted = coded("labels", labels, len(labels))
    known = np.zeros_like(wanted) if against is None else coded("against", against, len(wanted))[1]
    cells = [
        np.flatnonzero((known == value) & (wanted == label))
        for value in pd.unique(known)
        for label in pd.unique(wanted)
    ]
    size = min(map(len, cells))
    if size == 0:
        raise InputError(
            "balanced: a label never occurs with one of the values of `against`; expected every "
            "label with every value: balance only the rows where all labels occur"
        )
    generator = np.random.default_rng(seed)
    return sorted(int(r) for rows in cells for r in generator.choice(rows, size, replace=False))


# -- folds, shuffles ------------------------------------------------------------------------------


def _folds(
    classes: Sequence[Hashable],
    codes: Int[np.ndarray, " example"],
    groups: Int[np.ndarray, " example"] | None,
    folds: int,
    seed: int,
) -> Int[np.ndarray, " example"]:
    if len(classes) < 2:
        raise InputError(f"decode: all labels are {classes[0]!r}; expected at least two classes")
    counts = np.bincount(codes)
    if groups is not None:  # a class can be spread over no more folds than it has groups
        counts = np.bincount(np.unique(np.stack([codes, groups], 1), axis=0)[:, 0])
    rarest = int(counts.argmin())
    if counts[rarest] < folds:
        what = "examples" if groups is None else "groups"
        raise InputError(
            f"decode: class {classes[rarest]!r} has {counts[rarest]} {what} for {folds} folds; "
            f"expected at least {folds}: use fewer folds, more data, or leave the class out"
        )
    make = StratifiedKFold if groups is None else StratifiedGroupKFold
    splits = make(folds, shuffle=True, random_state=seed).split(codes, codes, groups)
    fold_of = np.empty_like(codes)
    for fold, (train, held_out) in enumerate(splits):
        fold_of[held_out] = fold
        if len(np.unique(codes[train])) < len(classes) or not len(held_out):
            raise InputError(
                f"decode: fold {fold} is empty or leaves a class without examples to train on, as "
                "groups stay together; expected groups that can be spread evenly: use fewer folds "
                "or smaller groups"
            )
    return fold_of


def _shuffled(
    codes: Int[np.ndarray, " example"],
    folds: Int[np.ndarray, " example"],
    groups: Int[np.ndarray, " example"] | None,
    shuffles: int,
    seed: int,
) -> Int[np.ndarray, "shuffle example"]:
    generator = np.random.default_rng(seed)
    shuffled = np.empty((shuffles, len(codes)), dtype=codes.dtype)
    if groups is None:
        places = np.argsort(folds, kind="stable")
        for row in shuffled:
            row[places] = codes[np.lexsort((generator.random(len(codes)), folds))]
        return shuffled
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    sizes, fold_of = np.bincount(group), folds[first]
    starts, places = sizes.cumsum() - sizes, np.argsort(fold_of, kind="stable")
    nth = np.empty_like(group)
    nth[np.argsort(group, kind="stable")] = np.arange(len(group)) - np.repeat(starts, sizes)
    other = np.empty_like(places)
    for row in shuffled:
        other[places] = np.lexsort((generator.random(len(sizes)), fold_of))
        members = np.lexsort((generator.random(len(group)), group))
        taken = other[group]
        row[:] = codes[members[starts[taken] + nth % sizes[taken]]]
    return shuffled


def _interval(
    correct: Float[np.ndarray, " example"], groups: Int[np.ndarray, " example"] | None, seed: int
) -> Interval:
    if groups is None:
        return share_interval(correct)
    sizes, right = np.bincount(groups), np.bincount(groups, correct)
    if correct.min() == correct.max():
        return share_interval(right / sizes)
    even = np.full(len(sizes), 1 / len(sizes))
    draws = np.random.default_rng(seed).multinomial(len(sizes), even, size=RESAMPLES)
    low, high = np.quantile((draws @ right) / (draws @ sizes), [0.025, 0.975])
    return Interval(float(correct.mean()), float(low), float(high))
