"""One bias per label, for the best balanced accuracy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter1d

_ROUNDS = 4  # how often each bias is refitted given the others, for three or more labels
_BANDWIDTH = 1.0  # of the kernel, in standard deviations of the scores times n^(-1/5)
_STEPS = 4  # grid points per bandwidth
_GRID = 512  # grid points on either side of the mean score


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
