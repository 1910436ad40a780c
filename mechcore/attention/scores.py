"""Sums over the queries of any number of examples, and the table made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from mechcore.attention.categories import OTHER, TokenInfo, categories
from mechcore.attention.labels import (
    DEFAULT_THRESHOLDS,
    FEWEST_EXAMPLES,
    LabelAgreement,
    Thresholds,
    categorise,
    label_agreement,
)
from mechcore.attention.reduction import BatchPatterns
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.intervals import FEWEST
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import hooked
from mechcore.models.protocol import (
    check_hooks,
    device_of,
    forward,
    hook_pattern,
    is_causal,
    reach_of,
)
from mechcore.session import plain_session

QUANTILES = (0.025, 0.975)


@dataclass(eq=False)
class Tally:
    """Sums over the queries of some examples, float64.

    Attributes:
        mass: attention on each category, [*group layer head category].
        uniform: the same under uniform attention, [*group layer category].
        defined: queries with a key of the category in reach, [*group layer category].
    """

    mass: Float[Tensor, "*group layer head category"]
    uniform: Float[Tensor, "*group layer category"]
    defined: Float[Tensor, "*group layer category"]

    @classmethod
    def zeros(cls, group: Sequence[int], shape: ModelShape, n: int) -> Tally:
        """Nothing counted yet."""
        heads = (shape.n_layers, shape.n_heads)
        sizes = ((*group, *heads, n), *[(*group, shape.n_layers, n)] * 2)
        return cls(*(torch.zeros(*size, dtype=torch.float64) for size in sizes))

    def add(self, weights: Float[Tensor, "*group example"], examples: Tally) -> None:
        """Count examples, each as often as its weight says."""
        self.mass += torch.tensordot(weights, examples.mass, 1)
        self.uniform += torch.tensordot(weights, examples.uniform, 1)
        self.defined += torch.tensordot(weights, examples.defined, 1)

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean mass, and ratio to uniform, where defined, [*group, layer, head, category]."""
        mass = self.mass / self.defined[..., None, :]
        ratio = self.mass / self.uniform[..., None, :]
        return mass.numpy(), ratio.numpy()


class HeadScores:
    """What the heads of a model attend to, on the data counted so far.

    Each end of an interval is the wider of a bootstrap over examples, in which every example counts
    as often as an independent Poisson draw says (Hanley and MacGibbon 2006), and of Student's t for
    a ratio of sums over examples, linearised (Cochran, Sampling Techniques, 1977, section 6.4).
    Where examples form clusters, resamples draw whole clusters, the error is the spread of the
    resamples, t has one degree of freedom less than there are clusters, and under 8 clusters there
    is no interval.

    Attributes:
        names: the categories without those to ignore, ``other`` last.
        tally, halves, resamples: sums over all examples, over those of even and of odd number (or
            cluster), and over the resamples.
        kept, distance, entropy: sums over queries, [layer, head]; ``kept`` is the attention that
            is not on keys left out.
        mass_squares, mass_queries, query_squares: sums over examples of the square of the mass, of
            the mass times the queries that count, and of the square of these queries.

    Raises:
        InputError: ``resamples`` or ``seed`` is negative or no integer, or a category to ignore
            is unknown.
    """

    def __init__(
        self,
        shape: ModelShape,
        causal: bool,
        resamples: int,
        seed: int = 0,
        ignore: Collection[str] = (),
    ) -> None:
        for name, value in (("resamples", resamples), ("seed", seed)):
            if not isinstance(value, Integral) or not 0 <= value < 2**63:
                raise InputError(
                    f"attention scores: {name} is {value}; expected a whole number, 0 or more"
                )
        known = [category.name for category in categories(causal)]
        unknown = [name for name in ignore if name not in known]
        if unknown:
            raise InputError(
                f"attention scores: no category {unknown[0]!r} to ignore; expected one of "
                f"{', '.join(known)}"
            )
        self.shape, self.seed, self.ignore = shape, seed, frozenset(ignore)
        self.names = [*(name for name in known if name not in self.ignore), OTHER]
        n, heads = len(self.names), (shape.n_layers, shape.n_heads)
        self.n_examples, self.n_queries = 0, torch.zeros(shape.n_layers, dtype=torch.long)
        self.tally = Tally.zeros((), shape, n)
        self.halves = Tally.zeros((2,), shape, n)
        self.resamples = Tally.zeros((resamples,), shape, n)

        def zeros(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.float64)

        self.share, self.example_sum, self.example_squares = (zeros(*heads, n) for _ in range(3))
        self.mass_squares, self.mass_queries = zeros(*heads, n), zeros(*heads, n)
        self.kept, self.distance, self.entropy = (zeros(*heads) for _ in range(3))
        self.n_defined, self.query_squares = (zeros(shape.n_layers, n) for _ in range(2))
        self.clusters: dict[int, Tensor] = {}

    def count(
        self, patterns: BatchPatterns, index: Sequence[int], clusters: Sequence[int] | None = None
    ) -> None:
        """Count a batch, whose examples and their clusters have these numbers in the data."""
        sums = patterns.sums(self.shape.n_layers)
        n = len(self.names)
        mass, share = sums[..., :n], sums[..., n : 2 * n]
        batch = Tally(mass, patterns.uniform, patterns.defined)
        number = torch.as_tensor(index if clusters is None else clusters)
        self.tally.add(torch.ones(len(number), dtype=torch.float64), batch)
        self.halves.add(torch.stack([number % 2 == 0, number % 2 == 1]).double(), batch)
        self.resamples.add(self._weights(number.tolist()), batch)
        self.share += share.sum(0)
        for place, total in enumerate((self.kept, self.distance, self.entropy), start=-3):
            total += sums[..., place].sum(0)
        own = (mass / patterns.defined[:, :, None]).nan_to_num(0.0)  # undefined: 0 / 0
        self.example_sum += own.sum(0)
        self.example_squares += own.square().sum(0)
        self.mass_squares += mass.square().sum(0)
        self.mass_queries += (mass * patterns.defined[:, :, None]).sum(0)
        self.query_squares += patterns.defined.square().sum(0)
        self.n_defined += (patterns.defined > 0).double().sum(0)
        for cluster, defined in zip(number.tolist(), patterns.defined > 0, strict=True):
            if clusters is not None:
                self.clusters[cluster] = self.clusters.get(cluster, defined) | defined
        self.n_examples += len(number)
        self.n_queries += patterns.n_queries

    def _weights(self, index: Sequence[int]) -> Float[Tensor, "resample example"]:
        """How often each resample draws each example: the same however batches are formed."""
        n = len(self.resamples.mass)
        draws = [
            np.random.Generator(np.random.Philox(key=[self.seed, number])).poisson(1.0, n)
            for number in index
        ]
        return torch.from_numpy(np.stack(draws, 1)).double()

    # -- results --------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """One row per head, with the columns of `HEAD_CATEGORIES` that need no label.

        Masses are shares of a query's attention, over the queries for which a category is
        *defined*, those with such a key. Intervals are NaN where fewer than ten examples,
        or eight clusters, define the category.
        """
        heads, n_queries = self.shape.heads, self.n_queries[:, None]
        columns: dict[str, Any] = {
            "component": [str(head) for head in heads],
            "layer": [head.layer for head in heads],
            "head": [head.head for head in heads],
            "n_examples": self.n_examples,
            "n_queries": n_queries.expand_as(self.kept).flatten().numpy(),
            "entropy": (self.entropy / n_queries).flatten().numpy(),
            "distance": (self.distance / n_queries).flatten().numpy(),
        }
        if self.ignore:
            left_out = 1 - self.kept / n_queries
            columns["left_out"] = left_out.clamp(min=0).flatten().numpy()
        mass, ratio = self.tally.means()
        low, high = self._interval()
        uniform = (self.tally.uniform / self.tally.defined)[:, None]
        examples = self.n_defined.long()[:, None]
        measures = {
            "mass": mass,
            "low": low,
            "high": high,
            "uniform": uniform.expand_as(self.tally.mass).numpy(),
            "ratio": ratio,
            "sd": self._spread(),
            "share": (self.share / n_queries[..., None]).numpy(),
            "examples": examples.expand_as(self.tally.mass).numpy(),
        }
        for measure, values in measures.items():
            for i, name in enumerate(self.names):
                columns[f"{measure}_{name}"] = values[..., i].ravel()
        return pd.DataFrame(columns)

    def categorised(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> pd.DataFrame:
        """The table by `categorise`, and ``stability``: resamples with the same label."""
        table = categorise(self.table(), thresholds)
        drawn = (self.resamples.defined.sum((-1, -2)) > 0).numpy()  # few examples: some draw none
        same = self._labels(self.resamples, thresholds)[drawn] == table["category"].to_numpy()
        known = self.n_examples > 1 and len(same) > 0
        place = 1 + list(table.columns).index("also")
        table.insert(place, "stability", same.mean(0) if known else np.nan)
        return table

    def agreement(self, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> LabelAgreement:
        """How far the labels from one half of the examples are those from the other half."""
        if self.n_examples < 2:
            raise InputError("label agreement: found one example; expected two halves of several")
        first, second = self._labels(self.halves, thresholds)
        return label_agreement(first, second)

    def _labels(self, tally: Tally, thresholds: Thresholds) -> np.ndarray:
        """[group, head]."""
        labels = thresholds.labels(self.names[:-1], *(values[..., :-1] for values in tally.means()))
        return labels.reshape(len(labels), len(self.shape.heads))

    def _interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the masses; NaN for what fewer than `FEWEST_EXAMPLES`, or 8 clusters, define."""
        enough = self.n_defined.numpy() >= FEWEST_EXAMPLES
        if self.clusters:
            enough &= self._n_clusters() >= FEWEST
        resampled, mass = self.resamples.means()[0], self.tally.means()[0]
        ends, spread = np.full((2, *mass.shape), np.nan), np.full(mass.shape, np.nan)
        if len(resampled) == 0:
            return ends[0], ends[1]
        for layer, i in np.argwhere(enough):
            drawn = (self.resamples.defined[:, layer, i] > 0).numpy()
            if drawn.any():
                of_heads = resampled[drawn, layer, :, i]
                ends[:, layer, :, i] = np.quantile(of_heads, QUANTILES, axis=0)
                spread[layer, :, i] = of_heads.std(0)
        reach = self._reach(mass)
        if self.clusters:
            n = np.maximum(self._n_clusters(), 2)[:, None]
            reach = spread * np.sqrt(n / (n - 1)) * stats.t.ppf(QUANTILES[1], n - 1)
        low, high = np.maximum(mass - reach, 0), np.minimum(mass + reach, 1)
        return np.minimum(ends[0], low), np.maximum(ends[1], high)

    def _n_clusters(self) -> np.ndarray:
        """Clusters for which a category is defined, [layer, category]."""
        return torch.stack([*self.clusters.values()]).sum(0).numpy()

    def _reach(self, mass: np.ndarray) -> np.ndarray:
        """How far Student's t interval goes from the masses, [layer, head, category]."""
        n, queries = self.n_defined[:, None].numpy(), self.tally.defined[:, None].numpy()
        squares = (
            self.mass_squares.numpy()
            - 2 * mass * self.mass_queries.numpy()
            + mass**2 * self.query_squares[:, None].numpy()
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # undefined, or by one example
            error = np.sqrt(np.maximum(squares, 0) * n / (n - 1)) / queries
            reach: np.ndarray = stats.t.ppf(QUANTILES[1], n - 1) * error
        return reach

    def _spread(self) -> np.ndarray:
        n = self.n_defined[:, None]
        variance = (self.example_squares - self.example_sum**2 / n) / (n - 1)
        return variance.clamp(min=0).sqrt().where(n > 1, torch.nan).numpy()


def categorize_heads(
    model: Any,
    data: Any,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    **options: Any,
) -> pd.DataFrame:
    """Say of every attention head what it attends to, see `mechcore.attention.categorise`.

    Returns:
        The table of `HeadScores.table` with three more columns after ``head``: ``category``, the
        label, ``"mixed"`` where no category reaches the thresholds; ``also``, the other
        categories that reach them; and ``stability``, the share of bootstrap resamples of the
        examples that give the same label. Options and errors are those of `score_heads`.
    """
    return score_heads(model, data, **options).categorised(thresholds)


@plain_session()
def score_heads(
    model: Any,
    data: Any,
    *,
    tokenizer: Any = None,
    batch_size: int = 64,
    resamples: int = 1000,
    seed: int = 0,
    ignore: Collection[str] = (),
    progress: Callable[[], None] | None = None,
) -> HeadScores:
    """Attention of every head on every category of keys, see `HeadScores.table`.

    Queries and keys are real tokens; in causal models keys lie at or before the query, and in
    layers that attend to a window (ModernBERT, Mistral) within that. ``data`` are examples of any
    form, encoded ones with ``words=True``. Without ``resamples`` of the bootstrap there are no
    intervals and no stability. Keys of categories to ``ignore`` are left out, so that the rest of a
    query's attention is scaled up to 1: what a head attends to beside the attention sink with
    ``("first",)``; a query that has no other key does not count. ``progress`` is called after every
    batch.

    Raises:
        InputError: the tokens of ``data`` are not known well enough, the batch size or the number
            of resamples is out of range, or the model gives no attention patterns.
    """
    shape = ModelShape.of(model)
    names = [hook_pattern(layer) for layer in range(shape.n_layers)]
    check_hooks(model, names)
    reach = [reach_of(model, layer) for layer in range(shape.n_layers)]
    causal = is_causal(model)
    scores = HeadScores(shape, causal, resamples, seed, ignore)
    data = as_encoded(model, data, tokenizer=tokenizer, labelled=False, words=True)
    clusters = data.examples.clusters
    for batch in data.batches(batch_size):
        tokens = TokenInfo.of(batch, causal=causal).to(device_of(model))
        patterns = BatchPatterns(tokens, shape.n_heads, scores.ignore, reach)
        hooks = [(name, partial(patterns.add, layer)) for layer, name in enumerate(names)]
        with torch.no_grad(), hooked(model, hooks):
            forward(model, batch)
        index = batch["index"]
        scores.count(patterns, index, None if clusters is None else clusters[index])
        if progress is not None:
            progress()
    return scores
