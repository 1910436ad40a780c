"""How faithful circuits are that keep the components a ranking puts first.

Circuits are nested: each keeps the k components of the largest scores, and all others are ablated
together. A circuit keeps components, not edges between them (MIB's circuits of nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation import Answers, ComponentSet, ablate
from mechcore.bench.areas import Axis, CircuitSizes, Compat, cmd, cpr, faithfulness
from mechcore.bench.scores import Ranking, by_component
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError, MismatchError
from mechcore.evaluation.intervals import Interval, bootstrap_weights
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.showing import Shown
from mechcore.tables import Column, Schema, estimate

CircuitMetric: TypeAlias = Literal["margin", "accuracy", "kl"]

FAITHFULNESS = Schema(
    "faithfulness",
    "How faithful circuits are that keep the first components of a ranking, by size.",
    (
        Column("share", "share", "of the components; where the circuit is on the axis"),
        Column("kept", "whole", "components kept"),
        Column("value", "number", "mean of the metric over examples"),
        *estimate(
            "faithfulness",
            "number",
            "its distance from the ablated model's, as a share of the full model's distance",
            low="faithfulness_low",
            high="faithfulness_high",
        ),
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness(Shown):
    """How faithful the circuits of a ranking are.

    Attributes:
        curve: the columns of `FAITHFULNESS`, a row per size.
        cpr: area under the curve.
        cmd: area between the curve and 1.
        full: the full model's mean of the metric.
        ablated: that of the model with everything ablated.
        metric: which; ``"kl"`` from the full model's answers, nats.
    """

    curve: pd.DataFrame
    cpr: Interval
    cmd: Interval
    full: float
    ablated: float
    metric: CircuitMetric

    def _summary(self) -> str:
        ends = f"{self.metric} {self.full:.3f} in full, {self.ablated:.3f} ablated"
        return f"CPR={self.cpr.mean:.3f}, CMD={self.cmd.mean:.3f}, {len(self.curve)} sizes, {ends}"


def faithfulness_of(
    model: Any,
    scores: Ranking,
    data: Any,
    means: MeanActivations | None = None,
    *,
    kept: Iterable[int] | None = None,
    compat: Compat | None = None,
    axis: Axis = "linear",
    absolute: bool = False,
    metric: CircuitMetric = "margin",
    fill: FillName = "mean",
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> Faithfulness:
    """Keep the first components of a ranking, more and more of them, and ablate all others.

    Args:
        model: any TransformerLens model.
        scores: of all components, or by name of some; those without a score are always kept.
        data: labelled examples of any form, see `mechcore.evaluate`.
        means: the model's mean activations, where the fill needs them.
        kept: sizes of the circuits, see `CircuitSizes.of`.
        compat: ``"mib"`` for MIB's sizes.
        axis: of the sizes, see `mechcore.bench.areas.cpr`.
        absolute: whether scores are ranked by size, without sign.
        metric: ``"margin"`` (nats), ``"accuracy"`` or ``"kl"`` from the full model (nats).
        fill: what replaces the others' outputs, by name.
        n_resamples: bootstrap resamples of the examples, in which all circuits and both ends are
            averaged over the same ones.
        level: of the intervals, which are percentiles over resamples. They are NaN where there is
            one example, or where examples do not tell the full model from the ablated one: the
            interval of their difference has 0 in it, or a resample has no difference.
        seed: of the resamples and of what is random in the fill.
        options: of `mechcore.ablate`, such as ``split`` and ``batch_size``.

    Raises:
        InputError: the ranking cannot be used, a size is out of range, the metric is unknown, or
            it is the same for the full and for the ablated model; see also `mechcore.ablate`.
        MismatchError: the ranking has the shape of another model.

    >>> faithfulness_of(case.model, scores, case.data["id"], means)  # doctest: +SKIP
    """
    if metric not in ("margin", "accuracy", "kl"):
        raise InputError(f"faithfulness: metric is {metric!r}; expected margin, accuracy or kl")
    order = ranked(scores, ModelShape.of(model), absolute=absolute)
    sizes = CircuitSizes.of(len(order), kept, axis=axis, compat=compat)
    without = {k: ComponentSet.of(order[k:]) for k in sorted({0, *sizes.kept}) if k < len(order)}
    found = ablate(model, list(without.values()), data, means, fill=fill, seed=seed, **options)
    values = {k: _values(found.without[each], metric) for k, each in without.items()}
    full = np.zeros(len(found.full.subsets)) if metric == "kl" else found.full.values(metric)
    rows = np.stack([*(values.get(k, full) for k in sizes.kept), full, values[0]]).astype(float)
    *value, of_full, of_ablated = rows.mean(1)
    if not np.isfinite(gap := of_full - of_ablated) or gap == 0:
        raise InputError(
            f"faithfulness: the mean {metric} is {of_full:g} for the full model and "
            f"{of_ablated:g} with everything ablated; expected two different finite numbers"
        )
    sample = found.full.samples()[""]
    again = (rows @ bootstrap_weights(len(full), n_resamples, seed, sample)).T
    f = faithfulness(value, of_full, of_ablated)
    again_f = faithfulness(again[:, :-2], again[:, -2], again[:, -1])
    gaps = (again[:, -2] - again[:, -1]) * np.sign(gap)
    if (
        len(full) == 1
        or sample.reason
        or (gaps == 0).any()
        or np.quantile(gaps, (1 - level) / 2) <= 0
    ):
        again_f[:] = np.nan

    def ends(resampled: np.ndarray) -> np.ndarray:
        return np.asarray(np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0))

    def area(under: Callable[..., np.ndarray]) -> Interval:
        low, high = ends(under(sizes.shares, again_f, axis=axis))
        return Interval(float(under(sizes.shares, f, axis=axis)), float(low), float(high))

    columns = (sizes.shares, sizes.kept, value, f, *ends(again_f))
    curve = pd.DataFrame(dict(zip(FAITHFULNESS.names, columns, strict=True)))
    return Faithfulness(curve, area(cpr), area(cmd), float(of_full), float(of_ablated), metric)


def _values(answers: Answers, metric: CircuitMetric) -> Float[np.ndarray, " example"]:
    return answers.kl if metric == "kl" else answers.values(metric)


def ranked(scores: Ranking, shape: ModelShape, *, absolute: bool = False) -> list[Component]:
    """Components by falling score; of equal scores in the order of the model.

    Args:
        scores: the ranking.
        shape: of the model.
        absolute: whether the signs of scores are left out.

    Raises:
        InputError: see `by_component`; or a component is out of range.
        MismatchError: an array has not the model's shape.
    """
    values = by_component(scores, has_mlps=shape.has_mlps)
    if not isinstance(scores, pd.Series) and list(values) != shape.components:
        raise MismatchError(
            f"ranking: found the shape {tuple(scores.shape)}; the model has {shape}, expected "
            f"({shape.n_layers}, {shape.columns})"
        )
    for component in values:
        shape.index(component)
    return sorted(values, key=lambda c: (-(abs(values[c]) if absolute else values[c]), c))
