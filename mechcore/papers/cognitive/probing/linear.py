"""Linear classifiers of many labellings of the same examples, fitted together.

The optimum is that of scikit-learn's ``LogisticRegression`` and ``LinearSVC`` with ``C`` = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from mechcore.errors import MechcoreError

Classifier: TypeAlias = Literal["logistic", "svm"]

TOLERANCE = 1e-6
"""How far over its minimum the loss of a fit may be, as a share of it."""

RESOLUTION = 1e-4
"""Smallest standard deviation of a unit that is read, as a share of all units' root mean square.

Below it is rounding, which differs with the shape of a batch, and so tells the examples' length."""

_MAX_ITERATIONS = 5000


@dataclass(frozen=True)
class Loss:
    """What is minimised: sum and derivative of scores [example, labelling, output] and targets."""

    value: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    curvature: float  # the largest second derivative
    n_outputs: int
    off: int  # target of the outputs that are not the label's
    penalised_intercept: bool  # as in LinearSVC

    @classmethod
    def of(cls, classifier: Classifier, n_classes: int) -> Loss:
        """That of a classifier."""
        n_outputs = 1 if n_classes == 2 else n_classes
        if classifier == "svm":
            return cls(_squared_hinge, 2.0, n_outputs, -1, True)
        if n_classes == 2:
            return cls(_logistic, 0.25, 1, -1, False)
        return cls(_softmax, 0.5, n_outputs, 0, False)

    def targets(
        self, codes: Int[np.ndarray, "labelling example"]
    ) -> Float[np.ndarray, "example labelling output"]:
        """What the scores are to be, given the number of every example's class."""
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


class Fold:
    """One fold's states, in the coordinates in which all its classifiers are fitted.

    The labellings share the states, so their L2-regularised losses are one smooth convex problem.
    The axes are the training states' principal ones, each scaled so that the loss curves by 1 at
    most; the penalty of an axis is scaled with it. The last axis is the intercept.
    """

    def __init__(self, train: np.ndarray, held_out: np.ndarray, loss: Loss) -> None:
        self.loss = loss
        mean, spread = train.mean(0), train.std(0)
        smallest = RESOLUTION * np.sqrt(np.square(train).mean()) + 1e-12 * np.abs(mean)
        read = spread > smallest
        train, held_out = (
            ((x - mean) / np.where(read, spread, 1))[:, read] for x in (train, held_out)
        )
        if train.shape[1] > len(train):  # the weights at the optimum are a sum of training states
            basis = np.linalg.qr(train.T)[0]
            train, held_out = train @ basis, held_out @ basis
        power, axes = np.linalg.eigh(train.T @ train)
        axes = axes / np.sqrt(loss.curvature * np.maximum(power, 0) + 1)
        intercept = 1 / np.sqrt(loss.curvature * len(train) + loss.penalised_intercept)
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
        """Weights at the optimum; half the squared gradient bounds what the loss exceeds it by."""
        shape = (len(self.penalty), *targets.shape[1:])
        strength = np.where(self.penalty > 0, self.penalty, 1)
        excess = np.full(shape[1], np.inf)

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal excess
            weights = flat.reshape(len(self.penalty), -1)
            scores = (self.train @ weights).reshape(targets.shape)
            losses, slopes = self.loss.value(scores, targets)
            pull = self.penalty * weights
            gradient = self.train.T @ slopes.reshape(len(slopes), -1) + pull
            total = losses + (weights * pull).reshape(shape).sum((0, 2)) / 2
            gaps = (gradient**2 / strength).reshape(shape).sum((0, 2)) / 2
            excess = gaps / total
            return float(total.sum()), gradient.ravel()

        def stop_when_done(intermediate_result: Any) -> None:
            if excess.max() <= TOLERANCE:
                raise StopIteration

        limits = {"maxiter": _MAX_ITERATIONS, "maxfun": 2 * _MAX_ITERATIONS}
        fit = minimize(
            objective,
            np.zeros(np.prod(shape)),
            jac=True,
            method="L-BFGS-B",
            callback=stop_when_done,
            options={"gtol": 0, "ftol": 0, **limits},
        )
        objective(fit.x)
        if excess.max() > TOLERANCE:
            raise MechcoreError(
                f"decode: a fit did not converge: after {fit.nit} iterations its loss may exceed "
                f"the minimum by {excess.max():.1e} of it; expected at most {TOLERANCE:.0e}"
            )
        return fit.x.reshape(len(self.penalty), -1)
