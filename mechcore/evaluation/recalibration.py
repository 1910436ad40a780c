"""Lost information and shifted thresholds, parts of a change: docs/concepts/recalibration.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats
from scipy.ndimage import gaussian_filter1d
from typing_extensions import Unpack

from mechcore.errors import InputError
from mechcore.evaluation.intervals import Interval, Sample, Statistics, mean_errors, mean_intervals
from mechcore.evaluation.p_values import paired_p
from mechcore.showing import Shown

LEAST = 50
"""Fewest examples of every label; with fewer, a handful near the threshold decides."""

Numbers: TypeAlias = Int[np.ndarray, " example"]
Correct: TypeAlias = Bool[np.ndarray, "example cls"]
Logits: TypeAlias = Float[np.ndarray, "*sets example cls"]
Scores: TypeAlias = Float[np.ndarray, "*sets example label"]

TOO_FEW = "too few examples"
FOLDS = 5
CANNOT_TELL = "cannot be distinguished from a shifted threshold"
ONE_LABEL = f"one label only: lost information {CANNOT_TELL}"

_BLOCK = 2**22  # scores that are worked on at once
_ROUNDS = 4  # how often each bias is refitted given the others, for three or more labels
_BANDWIDTH = 1.0  # of the kernel, in standard deviations of the scores times n^(-1/5)
_STEPS = 4  # grid points per bandwidth
_GRID = 512  # grid points on either side of the mean score


@dataclass(frozen=True, eq=False, repr=False)
class Effect(Shown):
    """A change of the full model's share, as values whose mean over examples it is.

    Their spread is that of a mean over labels: intervals and t tests of it are those of the change.
    ``unit`` is the weight of one answer of the rarest label, 1 where labels are equally frequent;
    ``n_choices`` of how many figures it is the one that changes most.
    """

    full: float
    values: Float[np.ndarray, "set example"]
    unit: float = 1.0
    n_choices: int = 1
    sample: Sample = field(default_factory=Sample)

    def drawn(self, sample: Sample) -> Effect:
        """The same for the population of ``sample``; clusters stay those of the folds."""
        return self if sample.clusters is not None else replace(self, sample=sample)

    @property
    def changes(self) -> Float[np.ndarray, " set"]:
        """Figure of the model without each set minus that of the full model."""
        return self.values.mean(1)

    @property
    def in_answers(self) -> Float[np.ndarray, "set example"]:
        """The values, with 1 for what one answer counts: those that intervals are made of."""
        return self.values / self.unit

    def intervals(
        self, *, answers: bool = True, **statistics: Unpack[Statistics]
    ) -> list[Interval]:
        """Intervals of the changes, see `mean_intervals`, corrected for the choice (Bonferroni)."""
        statistics["level"] = 1 - (1 - statistics.get("level", 0.95)) / self.n_choices
        sample: dict[str, Any] = {"answers": answers, "clusters": self.sample}
        intervals = mean_intervals(self.in_answers, **sample, **statistics)
        both = zip(self.changes, intervals, strict=True)
        return [Interval(float(x), self.unit * of.low, self.unit * of.high) for x, of in both]

    def errors(self, *, answers: bool = True) -> Float[np.ndarray, " set"]:
        """Standard errors of the changes, see `mean_errors`."""
        return self.unit * mean_errors(self.in_answers, answers=answers, clusters=self.sample)

    def p_values(self, *, answers: bool = True) -> Float[np.ndarray, " set"]:
        """P-values of their being 0, see `paired_p`, corrected for the choice (Bonferroni)."""
        p = paired_p(self.in_answers, answers=answers, clusters=self.sample)
        return np.minimum(self.n_choices * p, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Shown):
    """Change in balanced accuracy of each set, in two parts that add up to it.

    For two labels there is that of the area under the curve of the margin. ``shift`` is the largest
    change in how often a label is said; its ``full`` is NaN.
    """

    accuracy: Effect
    information: Effect
    auc: Effect | None
    shift: Effect

    @property
    def threshold(self) -> Effect:
        """The rest: what the biases make good in the full model, less what they make good."""
        whole, part = self.accuracy, self.information
        return replace(whole, full=whole.full - part.full, values=whole.values - part.values)


def labels_of(correct: Correct) -> tuple[Bool[np.ndarray, "label cls"], Numbers]:
    """The labels, by the classes that are correct for them, and the number of each example's."""
    labels, number = np.unique(correct, axis=0, return_inverse=True)
    return labels, number.reshape(-1)


def reason_against(correct: Correct) -> str:
    """Why a change cannot be taken apart, given which classes are correct; empty if it can."""
    labels, counts = np.unique(correct, axis=0, return_counts=True)
    if len(labels) < 2:
        return ONE_LABEL
    if (labels.sum(0) > 1).any():
        return "labels overlap: a class is correct for two of them, which have no threshold"
    if counts.min() < LEAST:
        return f"{TOO_FEW}: {counts.min()} of the rarest label, at least {LEAST} of each are needed"
    return ""


def decompose(
    full: Logits, without: Logits, correct: Correct, *, clusters: Any = None, seed: int = 0
) -> Decomposition:
    """Take the changes in balanced accuracy from the full model to those without each set apart.

    Examples with equal ``correct`` have the same label; ``seed`` is that of the folds.

    Raises:
        InputError: there is one label only, labels overlap, or a label has fewer than `LEAST`
            examples.
    """
    reason = reason_against(correct)
    if reason:
        raise InputError(f"decomposition of a change: {reason}")
    labels, label = labels_of(correct)
    sample = across_labels(Sample.of(clusters, len(correct)), label)
    folds = folds_of(label, seed, sample.clusters)
    answered, recalibrated, placed, said = [], [], [], []
    for logits in _blocks(full, without):
        chosen = logits.argmax(-1)
        answered.append(correct[np.arange(len(correct)), chosen])
        said.append(labels.T[chosen])
        recalibrated.append(refitted(scores_of(logits, labels), label, folds))
        if len(labels) == 2:
            placed.append(_placements(_log_odds(logits, labels), label))
    return Decomposition(
        effect_over_labels(np.concatenate(answered).astype(float), label, sample),
        effect_over_labels(np.concatenate(recalibrated).astype(float), label, sample),
        effect_over_labels(np.concatenate(placed), label, sample, shared=True) if placed else None,
        _shift(np.concatenate(said).astype(float), label, sample),
    )


def across_labels(sample: Sample, label: Numbers) -> Sample:
    """The sample; as one cluster, without intervals, where all examples of a label are in one."""
    if sample.clusters is None or _clusters_of_labels(sample.clusters, label).min() > 1:
        return sample
    return Sample(np.zeros(len(label), dtype=int))


def scores_of(logits: Logits, labels: Bool[np.ndarray, "label cls"]) -> Scores:
    """The largest logit among the classes of each label."""
    return np.stack([logits[..., classes].max(-1) for classes in labels], axis=-1)


def _shift(said: Scores, label: Numbers, sample: Sample) -> Effect:
    """The change of the label that is said more or less often than any other, by set."""
    effects = [effect_over_labels(said[..., i], label, sample) for i in range(said.shape[-1])]
    changes = np.stack([effect.changes for effect in effects])  # [label, set]
    # Of labels that change alike, that which is said less often.
    most = (np.abs(changes) - 1e-12 * np.sign(changes)).argmax(0)
    every = np.stack([effect.values for effect in effects])
    # Of two labels one is said less often by as much as the other is said more often.
    mirrored = len(effects) == 2 and bool((said.sum(-1) == 1).all())
    n_choices = 1 if mirrored else len(effects)
    values = every[most, np.arange(len(most))]
    return replace(effects[0], full=float("nan"), values=values, n_choices=n_choices)


def _blocks(full: np.ndarray, without: np.ndarray) -> Iterator[np.ndarray]:
    """The full model's logits, then those of the sets, float64 [set, example, cls]."""
    yield full[None].astype(float)
    size = max(1, _BLOCK // full.size)
    for start in range(0, len(without), size):
        yield without[start : start + size].astype(float)


def folds_of(
    label: Numbers, seed: int, clusters: Numbers | None = None, n_folds: int = FOLDS
) -> Numbers:
    """Fold of every example; each label's examples are dealt out at random, clusters as one."""
    generator, folds = np.random.default_rng(seed), np.empty(len(label), dtype=int)
    if clusters is not None and clusters.any():
        number = np.unique(clusters, return_inverse=True)[1].reshape(-1)
        shares = np.zeros((number.max() + 1, label.max() + 1))
        np.add.at(shares, (number, label), 1 / np.bincount(label)[label])
        held, fold_of = np.zeros((n_folds, shares.shape[1])), np.empty(len(shares), dtype=int)
        for cluster in generator.permutation(len(shares)):
            # To the fold that has least of the same labels, of these to the emptiest.
            fold_of[cluster] = np.lexsort((held.sum(1), held @ shares[cluster]))[0]
            held[fold_of[cluster]] += shares[cluster]
        return fold_of[number]
    for one in np.unique(label):
        rows = np.flatnonzero(label == one)
        folds[generator.permutation(rows)] = np.arange(len(rows)) % n_folds
    return folds


def effect_over_labels(
    values: Float[np.ndarray, "model example"],
    label: Numbers,
    sample: Sample,
    *,
    shared: bool = False,
) -> Effect:
    """Changes of the mean over labels, from values (the full model's first) by example.

    Means within labels are its parts, or, if ``shared``, each the figure itself.
    """
    n_labels, counts = label.max() + 1, np.bincount(label)
    weight = len(label) / counts[label] / (1 if shared else n_labels)
    changes = values[1:] - values[:1]
    within = np.stack([changes[:, label == i].mean(1) for i in range(n_labels)], axis=1)
    centred = weight * (changes - within[:, label])
    if sample.clusters is not None and sample.clusters.any():
        # Of each label there are fewer, and vary about its own mean.
        n_clusters = _clusters_of_labels(sample.clusters, label)
        all_clusters = len(np.unique(sample.clusters))
        centred *= np.sqrt((1 - 1 / all_clusters) / (1 - 1 / n_clusters))[label]
    full = np.mean([values[0, label == i].mean() for i in range(n_labels)])
    unit = len(label) / (int(counts.min()) * int(n_labels))
    values = within.mean(1, keepdims=True) + centred
    return Effect(float(full), values, unit, sample=sample)


def _clusters_of_labels(clusters: Numbers, label: Numbers) -> Int[np.ndarray, " label"]:
    """In how many clusters each label is."""
    return np.bincount(np.unique(np.stack([label, clusters]), axis=1)[0])


def refitted(scores: Scores, label: Numbers, folds: Numbers) -> Bool[np.ndarray, "set example"]:
    """Whether answers are correct with the biases fitted to the other folds."""
    right = np.empty(scores.shape[:2], dtype=bool)
    for fold in range(FOLDS):
        test = folds == fold
        biases = fit_biases(scores[:, ~test], label[~test])
        right[:, test] = (scores[:, test] + biases[:, None]).argmax(-1) == label[test]
    return right


def area_under_curve(logits: Logits, correct: Correct) -> float:
    """AUC of the log-odds of two labels; NaN where there are not two, or where they overlap."""
    labels, label = labels_of(correct)
    if len(labels) != 2 or (labels.sum(0) > 1).any():
        return float("nan")
    placed = _placements(_log_odds(logits.astype(float), labels)[None], label)
    return float(placed[0, label == 0].mean())


def _log_odds(logits: Logits, labels: Correct) -> Float[np.ndarray, "*sets example"]:
    """Of the second of two labels against the first."""
    first, second = (np.logaddexp.reduce(logits[..., c], axis=-1) for c in labels)
    return np.asarray(second - first)


def _placements(margin: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Share of the other label's examples that each example is on the right side of."""
    placements = np.empty(margin.shape)
    among = stats.rankdata(margin, axis=1)
    for one in (0, 1):
        mine = label == one
        below = among[:, mine] - stats.rankdata(margin[:, mine], axis=1)
        share = below / (~mine).sum()
        placements[:, mine] = share if one else 1 - share
    return placements


def fit_biases(
    scores: Float[np.ndarray, "set example label"], label: Int[np.ndarray, " example"]
) -> Float[np.ndarray, "set label"]:
    """One bias per label, in nats, for the best balanced accuracy, smoothed over the scores.

    docs/concepts/recalibration.md says why not the likeliest. Of two labels the maximum is searched
    over all values; of more labels each bias is maximised in turn, given the others.
    """
    n_labels = scores.shape[-1]
    weights = 1 / np.bincount(label)[label]
    if n_labels == 2:
        threshold = scores[..., 0] - scores[..., 1]
        steps = np.where(label == 1, weights, -weights)
        second = _best(threshold, np.broadcast_to(steps, threshold.shape))
        return np.stack([np.zeros_like(second), second], axis=1)
    biases = -np.average(scores, axis=1, weights=weights)
    own = label[None, :, None]
    for _ in range(_ROUNDS):
        for one in range(n_labels):
            now = scores + biases[:, None]
            now[..., one] = -np.inf
            best = now.max(-1)  # of the other labels
            reached = np.take_along_axis(now, np.broadcast_to(own, (*best.shape, 1)), -1)[..., 0]
            falls = np.where(reached == best, -weights, 0.0)
            steps = np.where(label == one, weights, falls)
            biases[:, one] = _best(best - scores[..., one], steps)
    return biases


def _best(
    at: Float[np.ndarray, "set example"], steps: Float[np.ndarray, "set example"]
) -> Float[np.ndarray, " set"]:
    """Where a smoothed sum of steps, each up or down at its place, is largest: in the middle."""
    n_sets, n = at.shape
    used = steps != 0
    weights = np.abs(steps)
    total = weights.sum(1, keepdims=True)
    middle = (weights * at).sum(1, keepdims=True) / total
    spread = np.sqrt((weights * (at - middle) ** 2).sum(1, keepdims=True) / total)
    width = _BANDWIDTH * spread * n ** (-1 / 5) / _STEPS
    width = np.where(width > 0, width, 1.0)
    place = np.clip(np.rint((at - middle) / width), -_GRID, _GRID).astype(int) + _GRID
    points = 2 * _GRID + 1
    flat = (np.arange(n_sets)[:, None] * points + place)[used]
    jumps = np.bincount(flat, weights=steps[used], minlength=n_sets * points)
    height = jumps.reshape(n_sets, points).cumsum(1)
    smooth = gaussian_filter1d(height, _STEPS, axis=1, mode="nearest")
    high = smooth >= smooth.max(1, keepdims=True) - 1e-9
    first = high.argmax(1)
    after = ~high & (np.arange(points) > first[:, None])
    last = np.where(after.any(1), after.argmax(1), points) - 1
    return middle[:, 0] + ((first + last) / 2 + 0.5 - _GRID) * width[:, 0]
