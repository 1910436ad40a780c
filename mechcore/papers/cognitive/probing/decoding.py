"""What a linear readout of activations can tell: cross-validated classifiers and their controls.

Linear probes after arXiv 1610.01644. An accuracy means little without what it would be anyway:
the most frequent class (*chance*), the same fit to shuffled labels, and what a variable that goes
along with the labels gives away (`correlation_floor`, `balanced`).

All shuffles of a fold are fitted together (`mechcore.papers.cognitive.probing.linear`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from mechcore import progress
from mechcore.errors import InputError, MechcoreError
from mechcore.evaluation.intervals import Interval, share_interval
from mechcore.papers.cognitive.probing.controls import correlation_floor
from mechcore.papers.cognitive.probing.inputs import coded, matrix_of
from mechcore.papers.cognitive.probing.linear import Classifier, Fold, Loss
from mechcore.showing import Shown

States: TypeAlias = Float[Tensor, "example unit"] | Float[np.ndarray, "example unit"]

RESOLUTION = 1e-4
"""Smallest standard deviation of a unit that is read, as a share of all units' root mean square.

Rounding differs with the shape of a batch, by about 1e-6 of that size in float32. Batches hold
examples of similar length, so that in units that are constant but for rounding, standardising
would bring out the length, and what goes along with it, before the model has read it.
"""

RESAMPLES = 1000
_FIGURES = ("accuracy", "low", "high", "chance", "floor", "shuffled", "shuffled_high", "p", "n")
_TOGETHER = 64
"""Shuffles that are fitted in one problem."""


@dataclass(frozen=True, eq=False, repr=False)
class Decoding(Shown):
    """How well labels can be read from states by a classifier that has not seen the example.

    Attributes:
        classes: the labels that occur.
        labels: of every example, as a number in ``classes``.
        predictions: of every example while it was held out, as a number in ``classes``.
        folds: the fold in which every example was held out.
        interval: of the accuracy, 95 %, Wilson's over held-out examples; with groups by the
            bootstrap over these, or Wilson's over these where all examples are right, or none. It
            holds the classifiers fixed: how much they would change with other training data is not
            in it, nor that the folds share training data.
        shuffled_accuracies: of fits to shuffled labels.
    """

    classes: tuple[Hashable, ...]
    labels: Int[np.ndarray, " example"]
    predictions: Int[np.ndarray, " example"]
    folds: Int[np.ndarray, " example"]
    interval: Interval
    shuffled_accuracies: Float[np.ndarray, " shuffle"]

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def correct(self) -> Bool[np.ndarray, " example"]:
        """Whether the prediction is right."""
        return self.predictions == self.labels

    @property
    def predicted(self) -> list[Hashable]:
        """Label that was predicted for every example while it was held out."""
        return [self.classes[i] for i in self.predictions]

    @property
    def accuracy(self) -> float:
        """Share of held-out examples that are right."""
        return float(self.correct.mean())

    @property
    def low(self) -> float:
        """Lower end of `interval`."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Upper end of `interval`."""
        return self.interval.high

    @property
    def chance(self) -> float:
        """Accuracy of always answering the most frequent class."""
        return float(np.bincount(self.labels).max() / self.n)

    @property
    def shuffled(self) -> float:
        """Mean accuracy with shuffled labels; NaN without shuffles."""
        return float(self.shuffled_accuracies.mean()) if len(self.shuffled_accuracies) else np.nan

    @property
    def shuffled_high(self) -> float:
        """95th percentile of the accuracies with shuffled labels; NaN without shuffles."""
        found = self.shuffled_accuracies
        return float(np.quantile(found, 0.95)) if len(found) else np.nan

    @property
    def p(self) -> float:
        """(1 + shuffles at least as accurate) / (1 + shuffles); NaN without shuffles."""
        found = self.shuffled_accuracies
        if not len(found):
            return np.nan
        return float((1 + (found >= self.accuracy).sum()) / (1 + len(found)))

    def _summary(self) -> str:
        accuracy = f"accuracy={self.accuracy:.3f} ({self.low:.3f} to {self.high:.3f})"
        return f"n={self.n}, {self.n_classes} classes, {accuracy}, chance={self.chance:.3f}"


def decode(
    states: States,
    labels: Sequence[Hashable],
    *,
    classifier: Classifier = "logistic",
    folds: int = 5,
    c: float = 1.0,
    shuffles: int = 20,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    resolution: float = RESOLUTION,
) -> Decoding:
    """Cross-validate a linear classifier from states to labels.

    Units are standardised with mean and standard deviation of each fold's training part. Folds are
    stratified. Labels are shuffled within folds, so that shuffled labels are as evenly spread over
    folds as the real ones; spread less evenly, they would do worse than chance. Groups of a fold
    swap their labels: each takes those of another, in random order, repeated or cut to its size.

    Args:
        states: [example, unit].
        labels: of any kind that can be told apart, one per example.
        classifier: ``"logistic"``, as scikit-learn's ``LogisticRegression``: L2, softmax for more
            than two classes; or ``"svm"``, as ``LinearSVC``: squared hinge, L2, one class against
            the rest.
        folds: of the cross-validation.
        c: weight of the loss over that of the penalty, ``C`` of scikit-learn.
        shuffles: fits to shuffled labels; the smallest `p` there can be is 1 / (1 + shuffles).
        groups: examples of one group stay in one fold together. Give equal or nearly equal
            examples one group: a classifier that has seen one of them knows the other.
        seed: of folds, shuffles and bootstrap.
        resolution: see `RESOLUTION`; 0 reads every unit that is not constant.

    Raises:
        InputError: states and labels do not fit together, states are not finite, or classes or
            groups are too few for the folds.
        MechcoreError: a fit did not converge.
    """
    _check_options(classifier, folds, c, shuffles, seed, resolution)
    values, _ = matrix_of(states)
    classes, codes = coded("labels", labels, len(values))
    grouping = None if groups is None else coded("groups", groups, len(values))[1]
    fold_of = _folds(classes, codes, grouping, folds, seed)
    targets = np.concatenate([codes[None], _shuffled(codes, fold_of, grouping, shuffles, seed)])
    loss = Loss.of(classifier, len(classes))
    predictions = np.empty_like(targets)
    for fold in range(folds):
        held_out = fold_of == fold
        fits = Fold(values[~held_out], values[held_out], loss, c, resolution)
        # The real labels alone, so that their answer is the same with any number of shuffles.
        for start in (0, *range(1, len(targets), _TOGETHER)):
            part = slice(start, start + _TOGETHER if start else 1)
            predictions[part, held_out] = fits.predict(targets[part][:, ~held_out])
    correct = predictions == targets
    return Decoding(
        classes,
        codes,
        predictions[0],
        fold_of,
        _interval(correct[0].astype(float), grouping, seed),
        correct[1:].mean(1),
    )


def decode_table(
    states: Mapping[Any, States],
    labels: Mapping[str, Sequence[Hashable]] | pd.DataFrame,
    *,
    given: Mapping[str, Sequence[Hashable]] | pd.DataFrame | None = None,
    **options: Any,
) -> pd.DataFrame:
    """`decode` every variable from every site.

    Nothing is corrected for the number of rows: of a hundred with nothing to find, five have
    a p of at most 0.05.

    Args:
        states: by site (a name, or a tuple as of `Activations.sites`), each [example, unit].
        labels: by variable.
        given: variables for the floor; None takes those of ``labels``. A variable of the same
            name as the one that is decoded does not count.
        options: of `decode`.

    Returns:
        One row per site and variable: ``site``, ``variable``, ``floor`` (the largest
        `correlation_floor` of one given variable, at least chance), and attributes of `Decoding`.

    Raises:
        InputError: see `decode`; or there is no site or variable.
        MechcoreError: a fit did not converge.
    """
    variables: dict[Any, Any] = dict(labels.items())
    if not states or not variables:
        raise InputError(
            f"decode_table: {len(states)} sites and {len(variables)} variables; expected at least "
            "one of each"
        )
    others: dict[Any, Any] = variables if given is None else dict(given.items())
    floors = {
        name: [correlation_floor(wanted, other) for key, other in others.items() if key != name]
        for name, wanted in variables.items()
    }
    rows = []
    with progress.bar("decoding", len(states) * len(variables)) as advance:
        for site, values in states.items():
            for name, wanted in variables.items():
                try:
                    found = decode(values, wanted, **options)
                except MechcoreError as error:
                    raise type(error)(f"{name!r} from {site!r}: {error}") from error
                row = {each: getattr(found, each, None) for each in _FIGURES}
                floor = max([found.chance, *floors[name]])
                rows.append({"site": site, "variable": name, **row, "floor": floor})
                advance()
    return pd.DataFrame(rows)


# -- folds, shuffles ------------------------------------------------------------------------------


def _check_options(
    classifier: str, folds: int, c: float, shuffles: int, seed: int, resolution: float
) -> None:
    def is_whole(value: Any, least: int) -> bool:
        return isinstance(value, Integral) and int(value) >= least

    def is_number(value: Any) -> bool:
        return isinstance(value, Real)

    for good, found in (
        (classifier in ("logistic", "svm"), f"classifier {classifier!r}; expected logistic or svm"),
        (is_whole(folds, 2), f"folds is {folds}; expected at least 2, a whole number"),
        (is_number(c) and 0 < c < np.inf, f"c is {c}; expected a number over 0"),
        (is_whole(shuffles, 0), f"shuffles is {shuffles}; expected 0 or more, a whole number"),
        (is_whole(seed, 0), f"seed is {seed}; expected 0 or more, a whole number"),
        (
            is_number(resolution) and 0 <= resolution < 1,
            f"resolution is {resolution}; expected 0 or more, under 1",
        ),
    ):
        if not good:
            raise InputError(f"decode: {found}")


def _folds(
    classes: Sequence[Hashable],
    codes: Int[np.ndarray, " example"],
    groups: Int[np.ndarray, " example"] | None,
    folds: int,
    seed: int,
) -> Int[np.ndarray, " example"]:
    """The fold in which every example is held out."""
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
        missing = np.bincount(codes[train], minlength=len(classes)) == 0
        if missing.any() or not len(held_out):
            what = f"leaves no {classes[int(missing.argmax())]!r} to train on"
            raise InputError(
                f"decode: fold {fold} {what if missing.any() else 'is empty'}, as groups stay "
                "together; expected groups that can be spread evenly: use fewer folds or smaller "
                "groups"
            )
    return fold_of


def _shuffled(
    codes: Int[np.ndarray, " example"],
    folds: Int[np.ndarray, " example"],
    groups: Int[np.ndarray, " example"] | None,
    shuffles: int,
    seed: int,
) -> Int[np.ndarray, "shuffle example"]:
    """Labels shuffled as `decode` says."""
    generator = np.random.default_rng(seed)
    found = np.empty((shuffles, len(codes)), dtype=codes.dtype)
    if groups is None:
        places = np.argsort(folds, kind="stable")
        for row in found:
            row[places] = codes[np.lexsort((generator.random(len(codes)), folds))]
        return found
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    sizes, fold_of = np.bincount(group), folds[first]
    starts, places = sizes.cumsum() - sizes, np.argsort(fold_of, kind="stable")
    nth = np.empty_like(group)
    nth[np.argsort(group, kind="stable")] = np.arange(len(group)) - np.repeat(starts, sizes)
    other = np.empty_like(places)
    for row in found:
        other[places] = np.lexsort((generator.random(len(sizes)), fold_of))
        members = np.lexsort((generator.random(len(group)), group))
        taken = other[group]
        row[:] = codes[members[starts[taken] + nth % sizes[taken]]]
    return found


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
