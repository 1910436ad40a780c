"""What a linear readout of activations can tell: cross-validated classifiers and their controls.

Linear probes after arXiv 1610.01644. An accuracy means little without what it would be anyway:
the most frequent class (*chance*), the same fit to shuffled labels, and what a variable that goes
along with the labels gives away (`correlation_floor`, `balanced`).

All shuffles of a fold are fitted together. They share the states, so their L2-regularised losses
are one smooth convex problem, which scipy's L-BFGS solves in the states' principal axes, scaled so
that the curvature is 1 at most. That changes the coordinates and not the optimum, which is that of
scikit-learn's ``LogisticRegression`` and ``LinearSVC``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from mechcore import progress
from mechcore.errors import InputError, MechcoreError, shown
from mechcore.evaluate import Interval, bootstrap_mean

Classifier: TypeAlias = Literal["logistic", "svm"]
States: TypeAlias = Float[Tensor, "example unit"] | Float[np.ndarray, "example unit"]

RESOLUTION = 1e-4
"""Smallest standard deviation of a unit that is read, as a share of all units' root mean square.

Rounding differs with the shape of a batch, by about 1e-6 of that size in float32. Batches hold
examples of similar length, so that in units that are constant but for rounding, standardising
would bring out the length, and what goes along with it, before the model has read it.
"""

RESAMPLES = 1000
TOLERANCE = 1e-6
"""How far over its minimum the loss of a fit may be, as a share of it."""

_MAX_ITERATIONS = 5000
_TOGETHER = 64
"""Shuffles that are fitted in one problem."""


@dataclass(frozen=True, eq=False)
class Decoding:
    """How well labels can be read from states by a classifier that has not seen the example.

    Attributes:
        classes: the labels that occur.
        labels: of every example, as a number in ``classes``.
        predictions: of every example while it was held out, as a number in ``classes``.
        folds: the fold in which every example was held out.
        interval: of the accuracy, 95 %, by the bootstrap over held-out examples, or over groups if
            there are any. It holds the classifiers fixed: how much they would change with other
            training data is not in it, nor that the folds share training data; it has no width
            where all examples are right.
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
    def fold_accuracies(self) -> Float[np.ndarray, " fold"]:
        """Accuracy in each fold."""
        return np.bincount(self.folds, self.correct) / np.bincount(self.folds)

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
    folds as the real ones; spread less evenly, they would do worse than chance. With groups of one
    label each, groups swap their labels. With other groups, labels are shuffled within groups;
    what groups of one label give away is then in the shuffled accuracies too, so that `p` is
    rather too large.

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
    _check_options(classifier, folds, c, shuffles, resolution)
    values = _matrix(states)
    classes, codes = _coded("labels", labels, len(values))
    grouping = None if groups is None else _coded("groups", groups, len(values))[1]
    fold_of = _folds(classes, codes, grouping, folds, seed)
    targets = np.concatenate([codes[None], _shuffled(codes, fold_of, grouping, shuffles, seed)])
    loss = _Loss.of(classifier, len(classes))
    predictions = np.empty_like(targets)
    for fold in range(folds):
        held_out = fold_of == fold
        fits = _Fold(values[~held_out], values[held_out], loss, c, resolution)
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
    labels: Mapping[str, Sequence[Hashable]],
    *,
    given: Mapping[str, Sequence[Hashable]] | None = None,
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
        One row per site and variable: ``site``, ``variable``, ``accuracy``, its 95 % interval
        ``low`` and ``high``, ``chance``, ``floor`` (the largest `correlation_floor` of one given
        variable, at least chance), ``shuffled`` and ``shuffled_high`` (mean and 95th percentile of
        the accuracies with shuffled labels), ``p`` and ``n`` (examples). Accuracies are shares.

    Raises:
        InputError: see `decode`; or there is no site or variable.
        MechcoreError: a fit did not converge.
    """
    if not states or not labels:
        raise InputError(
            f"decode_table: {len(states)} sites and {len(labels)} variables; expected at least one "
            "of each"
        )
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
                    found = decode(values, wanted, **options)
                except MechcoreError as error:
                    raise type(error)(f"{name!r} from {site!r}: {error}") from error
                rows.append(
                    {
                        "site": site,
                        "variable": name,
                        "accuracy": found.accuracy,
                        "low": found.low,
                        "high": found.high,
                        "chance": found.chance,
                        "floor": max([found.chance, *floors[name]]),
                        "shuffled": found.shuffled,
                        "shuffled_high": found.shuffled_high,
                        "p": found.p,
                        "n": found.n,
                    }
                )
                advance()
    return pd.DataFrame(rows)


def correlation_floor(labels: Sequence[Hashable], given: Sequence[Hashable]) -> float:
    """Accuracy of answering the most frequent label for each value of another variable.

    What decodes that variable decodes the labels this well without any trace of them. For what
    several variables allow together, pass their values zipped.

    Args:
        labels: one per example.
        given: the other variable's values.

    Raises:
        InputError: there is no example, or the two differ in length.
    """
    wanted = _values("labels", labels)
    known = _values("given", given, len(wanted))
    best: dict[Hashable, int] = {}
    for (value, _), count in Counter(zip(known, wanted, strict=True)).items():
        best[value] = max(count, best.get(value, 0))
    return sum(best.values()) / len(wanted)


def balanced(labels: Sequence[Hashable], *against: Sequence[Hashable], seed: int) -> list[int]:
    """Rows in which every label occurs equally often with every value of ``against``.

    As few rows as possible are dropped, at random. In what is left, ``against`` says nothing of
    the labels: their `correlation_floor`, also given all of ``against`` together, is chance.

    Balancing against one variable leaves open what it says together with others. In the cognitive
    task, the sign of motion balanced against the choice is still settled by the choice wherever
    the context is motion; it is free of both where the context is color.

    Args:
        labels: one per example.
        against: variables whose correlation with the labels is to go.
        seed: of the draw.

    Returns:
        Rows, in the order of the data.

    Raises:
        InputError: a label never occurs with some of the values that occur in ``against``.
    """
    wanted = _values("labels", labels)
    columns = [_values(f"variable {i} of against", v, len(wanted)) for i, v in enumerate(against)]
    known = list(zip(*columns, strict=True)) if columns else [()] * len(wanted)
    cells: dict[tuple[Hashable, Hashable], list[int]] = {
        (label, value): [] for value in dict.fromkeys(known) for label in dict.fromkeys(wanted)
    }
    for row, cell in enumerate(zip(wanted, known, strict=True)):
        cells[cell].append(row)
    _check_cells(cells)
    size = min(map(len, cells.values()))
    generator = np.random.default_rng(seed)
    return sorted(
        int(row) for rows in cells.values() for row in generator.choice(rows, size, replace=False)
    )


def _check_cells(cells: Mapping[tuple[Hashable, Hashable], Sequence[int]]) -> None:
    empty = [cell for cell, rows in cells.items() if not rows]
    if not empty:
        return
    settled = {value for _, value in empty}
    free = {value: 0 for _, value in cells if value not in settled}
    for (_, value), rows in cells.items():
        if value in free:
            free[value] += len(rows)
    named = ", ".join(f"{label!r} with {value!r}" for label, value in empty[:4])
    advice = "balance against fewer variables"
    if free:
        where = shown(", ".join(map(repr, free)))
        advice += f", or balance only the {sum(free.values())} rows where all labels occur: {where}"
    raise InputError(
        f"balanced: {len(empty)} of {len(cells)} combinations of label and `against` never occur: "
        f"{named}{', ...' * (len(empty) > 4)}; expected every label with every value, as no choice "
        f"of rows hides what `against` settles: {advice}"
    )


# -- labels, folds, shuffles ----------------------------------------------------------------------


def _matrix(states: States) -> Float[np.ndarray, "example unit"]:
    if torch.is_tensor(states):
        states = states.detach().cpu().double().numpy()
    matrix = np.asarray(states, dtype=float)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"states: found shape {matrix.shape}; expected [example, unit], not empty: flatten "
            "further axes, or take one position or head at a time"
        )
    broken = ~np.isfinite(matrix).all(1)
    if broken.any():
        raise InputError(
            f"states: row {int(broken.argmax())} is not finite, {int(broken.sum())} rows in all; "
            "expected numbers: does the model overflow in its precision?"
        )
    return matrix


def _values(name: str, values: Any, n: int | None = None) -> list[Hashable]:
    """As plain Python values: elements of tensors are not equal to one another."""
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    if not found or (n is not None and len(found) != n):
        expected = "at least one" if n is None else f"{n}, one per example"
        raise InputError(f"{name}: found {len(found)} values; expected {expected}")
    for row, value in enumerate(found):
        if not _can_be_told_apart(value):
            raise InputError(
                f"{name}: found {value!r} in row {row}; expected something hashable that equals "
                "itself, such as a string or a number"
            )
    return found


def _can_be_told_apart(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return bool(value == value)  # NaN does not


def _coded(
    name: str, values: Sequence[Hashable], n: int
) -> tuple[tuple[Hashable, ...], Int[np.ndarray, " example"]]:
    """Distinct values, sorted if they can be, and the number of each example's."""
    found = _values(name, values, n)
    distinct: list[Any] = list(dict.fromkeys(found))
    try:
        distinct.sort()
    except TypeError:  # of different kinds: in order of first appearance
        distinct = list(dict.fromkeys(found))
    number = {value: i for i, value in enumerate(distinct)}
    return tuple(distinct), np.array([number[value] for value in found])


def _check_options(classifier: str, folds: int, c: float, shuffles: int, resolution: float) -> None:
    for good, found in (
        (classifier in ("logistic", "svm"), f"classifier {classifier!r}; expected logistic or svm"),
        (folds >= 2, f"folds is {folds}; expected at least 2"),
        (0 < c < np.inf, f"c is {c}; expected a number over 0"),
        (shuffles >= 0, f"shuffles is {shuffles}; expected 0 or more"),
        (0 <= resolution < 1, f"resolution is {resolution}; expected 0 or more, under 1"),
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
    unit, block = np.arange(len(codes)), folds
    if groups is not None:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        if (codes == codes[first][group]).all():
            unit, block, codes = group, folds[first], codes[first]
        else:
            block = groups
    generator = np.random.default_rng(seed)
    places = np.argsort(block, kind="stable")
    found = np.empty((shuffles, len(codes)), dtype=codes.dtype)
    for row in found:
        row[places] = codes[np.lexsort((generator.random(len(codes)), block))]
    return found[:, unit]


def _interval(
    correct: Float[np.ndarray, " example"], groups: Int[np.ndarray, " example"] | None, seed: int
) -> Interval:
    if groups is None:
        return bootstrap_mean(correct, n_resamples=RESAMPLES, seed=seed)
    sizes, right = np.bincount(groups), np.bincount(groups, correct)
    even = np.full(len(sizes), 1 / len(sizes))
    draws = np.random.default_rng(seed).multinomial(len(sizes), even, size=RESAMPLES)
    low, high = np.quantile((draws @ right) / (draws @ sizes), [0.025, 0.975])
    return Interval(float(correct.mean()), float(low), float(high))


# -- classifiers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loss:
    """What is minimised, as a function of the scores [example, labelling, output].

    Attributes:
        value: sum and derivative, given scores and targets (1 and -1, or 1 and 0 for softmax).
        curvature: largest second derivative there is.
        n_outputs: scores of one example and labelling: one for two classes, or one per class.
        off: target of the outputs that are not the label's.
        penalised_intercept: whether the penalty is on the intercept too, as in LinearSVC.
    """

    value: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    curvature: float
    n_outputs: int
    off: int
    penalised_intercept: bool

    @classmethod
    def of(cls, classifier: Classifier, n_classes: int) -> _Loss:
        n_outputs = 1 if n_classes == 2 else n_classes
        if classifier == "svm":
            return cls(_squared_hinge, 2.0, n_outputs, -1, True)
        if n_classes == 2:
            return cls(_logistic, 0.25, 1, -1, False)
        return cls(_softmax, 0.5, n_outputs, 0, False)

    def targets(
        self, codes: Int[np.ndarray, "labelling example"]
    ) -> Float[np.ndarray, "example labelling output"]:
        outputs = np.arange(self.n_outputs) if self.n_outputs > 1 else np.ones(1, dtype=int)
        hits = np.ascontiguousarray(codes.T)[..., None] == outputs
        return np.where(hits, 1.0, self.off)


def _logistic(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    margins = scores * targets
    return np.logaddexp(0, -margins).sum((0, 2)), -targets * expit(-margins)


def _softmax(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logs = scores - logsumexp(scores, axis=-1, keepdims=True)
    return -(logs * targets).sum((0, 2)), np.exp(logs) - targets


def _squared_hinge(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    missing = np.maximum(1 - scores * targets, 0)
    return np.square(missing).sum((0, 2)), -2 * targets * missing


class _Fold:
    """One fold's states, in the coordinates in which all its classifiers are fitted.

    These are the training states' principal axes, each scaled so that the loss curves by 1 at
    most; the penalty of an axis is scaled with it. The last axis is the intercept.
    """

    def __init__(
        self, train: np.ndarray, held_out: np.ndarray, loss: _Loss, c: float, resolution: float
    ) -> None:
        self.loss, self.c = loss, c
        mean, spread = train.mean(0), train.std(0)
        smallest = resolution * np.sqrt(np.square(train).mean()) + 1e-12 * np.abs(mean)
        read = spread > smallest
        train, held_out = (
            ((x - mean) / np.where(read, spread, 1))[:, read] for x in (train, held_out)
        )
        if train.shape[1] > len(train):  # the weights at the optimum are a sum of training states
            basis = np.linalg.qr(train.T)[0]
            train, held_out = train @ basis, held_out @ basis
        power, axes = np.linalg.eigh(train.T @ train)
        axes = axes / np.sqrt(c * loss.curvature * np.maximum(power, 0) + 1)
        intercept = 1 / np.sqrt(c * loss.curvature * len(train) + loss.penalised_intercept)
        self.train, self.held_out = (
            np.column_stack([x @ axes, np.full(len(x), intercept)]) for x in (train, held_out)
        )
        penalty = [*np.square(axes).sum(0), intercept**2 * loss.penalised_intercept]
        self.penalty = np.array(penalty)[:, None]

    def predict(
        self, codes: Int[np.ndarray, "labelling example"]
    ) -> Int[np.ndarray, "labelling held_out"]:
        """Classes of the held-out examples under classifiers fitted to each labelling."""
        scores = self.held_out @ self._fitted(self.loss.targets(codes))
        scores = scores.reshape(len(scores), len(codes), -1).swapaxes(0, 1)
        return scores.argmax(-1) if self.loss.n_outputs > 1 else (scores[..., 0] > 0).astype(int)

    def _fitted(
        self, targets: Float[np.ndarray, "example labelling output"]
    ) -> Float[np.ndarray, "axis output"]:
        """Weights at the optimum, as nearly as `TOLERANCE` says.

        The penalty is strongly convex, so that half the squared gradient with respect to the
        weights bounds what the loss still exceeds its minimum by. The intercept, where it has no
        penalty, is taken at its largest curvature.
        """
        shape = (len(self.penalty), *targets.shape[1:])
        strength = np.where(self.penalty > 0, self.penalty, 1)
        excess = np.full(shape[1], np.inf)

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal excess
            weights = flat.reshape(len(self.penalty), -1)
            scores = (self.train @ weights).reshape(targets.shape)
            losses, slopes = self.loss.value(scores, targets)
            pull = self.penalty * weights
            gradient = self.c * (self.train.T @ slopes.reshape(len(slopes), -1)) + pull
            penalties = (weights * pull).reshape(shape).sum((0, 2)) / 2
            total = self.c * losses + penalties
            gaps = (gradient**2 / strength).reshape(shape).sum((0, 2)) / 2
            excess = gaps / total
            return float(total.sum()), gradient.ravel()

        def stop_when_done(intermediate_result: Any) -> None:
            if excess.max() <= TOLERANCE:
                raise StopIteration

        found = minimize(
            objective,
            np.zeros(np.prod(shape)),
            jac=True,
            method="L-BFGS-B",
            callback=stop_when_done,
            options={
                "gtol": 0,
                "ftol": 0,
                "maxiter": _MAX_ITERATIONS,
                "maxfun": 2 * _MAX_ITERATIONS,
            },
        )
        objective(found.x)
        if excess.max() > TOLERANCE:
            raise MechcoreError(
                f"decode: a fit with c = {self.c} did not converge: after {found.nit} iterations "
                f"its loss may be over the minimum by {excess.max():.1e} of it; expected at most "
                f"{TOLERANCE:.0e}: lower c"
            )
        return found.x.reshape(len(self.penalty), -1)
