"""How effects depend on the core (arXiv 2403.03942, section 5): docs/concepts/paths.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from typing_extensions import Unpack

from mechcore.ablation.effects.changes import (
    CONTROL_COLUMNS,
    Ablations,
    Answers,
    drawn_from,
    own_ends,
)
from mechcore.ablation.sets import ComponentSet, Cut, matched_random, paths
from mechcore.ablation.sweeps import ablate
from mechcore.components import Component, ComponentLike, ModelShape, parse_components
from mechcore.components.names import PathSet
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import CLASS_METRICS, Evaluation
from mechcore.evaluation.intervals import Statistics, ratio_intervals
from mechcore.evaluation.metrics import Measured
from mechcore.evaluation.p_values import ROUNDING, among_controls
from mechcore.evaluation.recalibration import Effect, decompose, reason_against
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import dtype_of
from mechcore.tables import CLUSTERS, PLACE, Column, N, Schema
from mechcore.wording import count

_PARTS = ("information", "threshold")

CORE_DEPENDENCE = Schema(
    "core_dependence",
    "Changes from cutting the paths from the core to a single component; shares, for margins nats; "
    "negative: worse when cut.",
    (
        Column("receiver", "text", "component whose paths from the core are cut"),
        *PLACE,
        N,
        *CLUSTERS,
        Column(
            "metric",
            "text",
            "``information``, ``threshold``, ``accuracy``, ``margin``; others",
        ),
        *own_ends("change", "number", "without the component"),
        *own_ends("blind_change", "number", "with the component blind to the core"),
        *own_ends("share", "number", "blind_change / change, if the interval of change excludes 0"),
        *CONTROL_COLUMNS,
    ),
)


@dataclass(frozen=True, eq=False)
class Readers:
    """Answers without each component, and with each alone blind to the core, on one data set.

    Controls are, for each set of random heads, answers with each of the same components blind to
    them. Sets with the same heads before a component share one object, and count once.
    """

    full: Evaluation
    without: Mapping[Component, Answers]
    blind: Mapping[Component, Answers]
    controls: Sequence[Mapping[Component, Answers]]
    data: str
    split: str

    def effects(
        self, answers: Iterable[Answers], members: Bool[np.ndarray, " example"], seed: int
    ) -> dict[str, Effect]:
        """Changes of each metric."""
        full, given = self.full, list(answers)
        measured = full.metric.name if isinstance(full, Measured) else None
        sample = full.samples(members)[""]
        clusters = None if full.clusters is None else full.clusters[members]
        effects: dict[str, Effect] = {}
        for metric in (measured,) if measured else CLASS_METRICS:
            own = full.values(metric)[members]
            without = np.stack([without_one.values(metric)[members] for without_one in given])
            effects[metric] = Effect(float(own.mean()), without - own, sample=sample)
        if measured:
            return effects
        correct = full.correct_classes.numpy()[members]
        logits = [without_one.logits for without_one in given]
        if reason_against(correct) or any(of_one is None for of_one in logits):
            return effects
        without = np.stack([of_one[members] for of_one in logits if of_one is not None])
        options: dict[str, Any] = {"clusters": clusters, "seed": seed}
        parts = decompose(full.logits.numpy()[members], without, correct, **options)
        return {name: getattr(parts, name).drawn(sample) for name in _PARTS} | effects

    def different(self, receivers: Sequence[Component]) -> list[int]:
        """Numbers of the controls that differ for these components."""
        controls: dict[tuple[Answers, ...], int] = {}
        for i, control in enumerate(self.controls):
            if all(receiver in control for receiver in receivers):
                controls.setdefault(tuple(control[receiver] for receiver in receivers), i)
        return [*controls.values()]


def random_senders(
    core: Sequence[Component], shape: ModelShape, n_controls: int, seed: int = 0
) -> list[tuple[Component, ...]]:
    """Up to ``n_controls`` random sets of as many other heads of each layer, or `InputError`."""
    for layer in sorted({component.layer for component in core}) if n_controls else ():
        members = {component for component in core if component.layer == layer}
        if mlps := [component for component in members if not component.is_head]:
            raise InputError(f"senders: found {mlps[0]}; expected heads")
        if (others := shape.n_heads - len(members)) < len(members):
            raise InputError(
                f"controls: layer {layer} has {count(others, 'head')} outside the core; expected "
                f"at least the {len(members)} of the core: leave controls out"
            )
    drawn = matched_random(core, shape, n_controls, fewer=True, seed=seed)
    return [heads.components for heads in drawn.values()]


def _cuts_behind(
    senders: Iterable[Component], receivers: Iterable[Component], model: Any
) -> dict[Component, PathSet]:
    """The paths to each receiver from the senders that run before it."""
    cuts = paths(senders, receivers, model)
    return {to.component: cut for cut in cuts for to in cut.senders if to.component is not None}


def readers_of(
    model: Any,
    core: Iterable[ComponentLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    receivers: Iterable[ComponentLike] | None = None,
    known: Ablations | None = None,
    split: Literal["id", "ood"] = "id",
    seed: int = 0,
    **options: Any,
) -> Readers:
    """Answers of the model when single components do not see the heads of the core.

    Receivers are by default all that run after a core head; ``known`` ablations of single
    components on these examples, by the same ``metric``, are reused. Everything else is as in
    `mechcore.ablate`.

    Raises:
        InputError: see `mechcore.ablate`; or no component runs after the core, or ``known`` comes
            from other examples, another model, fill or metric.
    """
    heads, shape = parse_components(core), ModelShape.of(model)
    possible = shape.components if receivers is None else parse_components(receivers)
    cut = _cuts_behind(heads, possible, model)
    alone = {r: ComponentSet((r,)) for r in cut}
    sizes: dict[ComponentSet, float] = {}
    if known is not None:
        there = [single for single in alone.values() if single in known.without]
        sizes = {one: np.abs(known.changes(one, known.metrics[-1])).mean() for one in there}
    left = [single for single in alone.values() if single not in sizes]
    again = sorted(sizes, key=lambda single: -sizes[single])[:1]  # to compare with
    sets: list[Cut] = [*left, *again, *cut.values()]
    ablations = ablate(model, sets, data, means, split=split, seed=seed, **options)
    if known is not None:
        _check_same(known.full, ablations.full)
        for single in again:
            _check_same_ablation(single, known, ablations, dtype_of(model))
        ablations = known.with_more(ablations)
    return Readers(
        ablations.full,
        {r: ablations.without[single] for r, single in alone.items()},
        {r: ablations.without[paths] for r, paths in cut.items()},
        [],
        ablations.data,
        split,
    )


def beside_random(
    readers: Readers,
    model: Any,
    core: Iterable[ComponentLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    receivers: Iterable[ComponentLike] | None = None,
    n_controls: int = 39,
    seed: int = 0,
    **options: Any,
) -> Readers:
    """The same readers, whose ``receivers`` are also blind to each of ``n_controls`` random sets.

    The other arguments are those of `readers_of`, errors those of `random_senders`.
    """
    wanted = readers.blind if receivers is None else set(parse_components(receivers))
    behind = [receiver for receiver in readers.blind if receiver in wanted]
    drawn = random_senders(parse_components(core), ModelShape.of(model), n_controls, seed)
    beside = [_cuts_behind(senders, behind, model) for senders in drawn if behind]
    cuts = list(dict.fromkeys(cut for control in beside for cut in control.values()))
    if not cuts:
        return readers
    options |= {"split": readers.split, "seed": seed}
    ablations = ablate(model, cuts, data, means, **options)
    _check_same(readers.full, ablations.full)
    controls = [{r: ablations.without[cut] for r, cut in control.items()} for control in beside]
    return replace(readers, controls=controls)


def _check_same(known: Evaluation, again: Evaluation) -> None:
    """Check that two evaluations are of one model on the same examples."""
    before, now = (
        of.by_example if isinstance(of, Measured) else of.logits.numpy() for of in (known, again)
    )
    if not (before.shape == now.shape and np.allclose(before, now, rtol=1e-3, atol=1e-3)):
        raise InputError(
            f"core: the full model's answers in the known ablations ({len(before)}) differ from "
            f"those on these examples ({len(now)}); expected ablations of the same model on the "
            "same examples"
        )


def _check_same_ablation(
    of: ComponentSet, known: Ablations, again: Ablations, dtype: torch.dtype
) -> None:
    """Check that a set was ablated in the same way in both."""
    metric = known.metrics[-1]
    before, now = (ablations.without[of].values(metric) for ablations in (known, again))
    near = 1e-2 if dtype.itemsize >= 4 else 0.1
    if not np.allclose(before, now, rtol=near, atol=near * max(1.0, float(np.abs(now).mean()))):
        raise InputError(
            f"core: without {of}, the mean {metric} is {before.mean():.4g} in the known ablations "
            f"but {now.mean():.4g} when ablated again; expected ablations with the same fill, "
            "means and seed"
        )


def core_dependence_table(
    readers: Readers,
    groups: Mapping[str, Sequence[str]] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Changes with each component blind to the core, `CORE_DEPENDENCE`; see `information_table`."""
    seed, level = statistics.get("seed", 0), statistics.get("level", 0.95)
    rows: list[dict[str, Any]] = []
    names = list(readers.blind)
    controlled = [*readers.controls[0]] if readers.controls else []
    for subset, members in readers.full.groups(groups) if names else []:
        own = readers.effects((readers.without[r] for r in names), members, seed)
        blind = readers.effects((readers.blind[r] for r in names), members, seed)
        controls = [
            readers.effects((control[r] for r in controlled), members, seed)
            for control in (readers.controls if controlled else [])
        ]
        for metric in own:
            answers = metric in (*_PARTS, "accuracy")
            changes, blind_changes = (
                effects[metric].intervals(answers=answers, **statistics) for effects in (own, blind)
            )
            both = (blind[metric].in_answers, own[metric].in_answers)
            how: dict[str, Any] = {"answers": answers, "clusters": own[metric].sample}
            shares = ratio_intervals(*both, **how, level=level)
            of_controls = np.array([effects[metric].changes for effects in controls])
            for i, receiver in enumerate(names):
                row: dict[str, Any] = {"receiver": str(receiver), "data": readers.data}
                row |= {"split": readers.split, "subset": subset, "n": int(members.sum())}
                row |= {"metric": metric, "n_controls": 0} | drawn_from(readers.full, members)
                row |= changes[i].columns("change") | blind_changes[i].columns("blind_change")
                if row["change_low"] > 0 or row["change_high"] < 0:
                    row |= shares[i].columns("share")
                if receiver in controlled:
                    different = readers.different([receiver])
                    of_receiver = of_controls[different, controlled.index(receiver)]
                    row |= among_controls(row["blind_change"], of_receiver)
                rows.append(row)
    return CORE_DEPENDENCE.frame(rows)


def largest_readers(dependence: pd.DataFrame, n: int = 10) -> list[str]:
    """What changes most blind to the core: out of domain and in information, if known."""
    rows = dependence[dependence["subset"] == ALL]
    outside = rows["split"] == "ood"
    rows = rows[outside] if outside.any() else rows
    metrics = set(rows["metric"])
    ranked_by = next((name for name in ("information", "margin") if name in metrics), None)
    rows = rows if ranked_by is None else rows[rows["metric"] == ranked_by]
    sizes = rows["blind_change"].abs().sort_values(ascending=False, kind="stable")
    return rows.loc[sizes[sizes > ROUNDING].index, "receiver"].tolist()[:n]
