"""Sweeps: the model without each of many sets of components, on the same examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd
import torch

from mechcore import progress
from mechcore.ablation.effects.changes import Ablations, ablation_table
from mechcore.ablation.engines.buffers import AnswerBuffer
from mechcore.ablation.engines.engine import (
    Job,
    Precision,
    ReferenceEngine,
    SharingEngine,
    TreeEngine,
)
from mechcore.ablation.engines.path_cuts import PathEngine
from mechcore.ablation.engines.restart import Layers, RestartEngine
from mechcore.ablation.sets import ComponentSet, Cut, CutLike, as_sets
from mechcore.components import Mask, ModelShape
from mechcore.components.names import PathSet
from mechcore.data.encoding import MOST_PADDING, EncodedExamples, as_batches
from mechcore.errors import InputError, MechcoreError, NotFiniteError, check_seed, first_names, warn
from mechcore.evaluation.evaluate import warn_under_chance
from mechcore.evaluation.metrics import MetricLike, as_metric, data_for, metric_key
from mechcore.masking.counterfactual import Positions, at_positions, with_pairs
from mechcore.masking.fills import FillMaker, fill_of
from mechcore.masking.means import MeanActivations
from mechcore.models.architectures.layers import stack_of
from mechcore.partial import Partial, Steps, known_fill
from mechcore.session import plain_session
from mechcore.wording import PLACES

Engine: TypeAlias = Literal["auto", "tree", "restart", "reference"]
Parts: TypeAlias = SharingEngine | ReferenceEngine | PathEngine


def sweep(
    model: Any,
    sets: Mapping[str, CutLike] | Iterable[CutLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    metric: MetricLike | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Ablate every set alone from the full model, and compare with it on the same examples.

    The arguments are those of `ablate`, and ``n_resamples`` and ``level`` of the intervals. Returns
    `mechcore.ablation.ablation_table`; accuracies are shares, margins and KL nats.

    Raises:
        InputError: a set is unreadable, out of range or given twice, labels cannot be matched,
            or the engine cannot run the model.

    >>> sweep(model, [["L0.H1"], ["L0.H1", "L2.MLP"]], data, means)  # doctest: +SKIP
    """
    ablations = ablate(model, sets, data, means, seed=seed, metric=metric, **options)
    if not ablations.without:
        raise InputError("sweep: no set; expected at least one set of components")
    return ablation_table(ablations, n_resamples=n_resamples, level=level, seed=seed)


@plain_session()
def ablate(
    model: Any,
    sets: Mapping[str, CutLike] | Iterable[CutLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    fill: FillMaker = "mean",
    engine: Engine = "auto",
    precision: Precision = "float32",
    split: Literal["id", "ood"] = "id",
    class_names: Sequence[str] | None = None,
    batch_size: int = 64,
    max_tokens: int | None = None,
    state: str | Path | None = None,
    seed: int = 0,
    metric: MetricLike | None = None,
    positions: Positions | Mapping[str, Positions] | None = None,
) -> Ablations:
    """The answers of the model without each set, example by example; see `sweep`.

    Args:
        model: any TransformerLens model.
        sets: what to ablate: lists of component names, masks of zeros and ones, or a dict of
            these by name, see `mechcore.ablation.sets`; or paths to cut: ``"L1.H1>L3.H9.q"``.
        data: labelled examples of any form, or batches with ``labels``, see `mechcore.evaluate`;
            or prompts (`mechcore.models.encoded`) with a metric that needs no labels.
        means: the model's mean activations; not needed for ``fill="zero"``.
        fill: what replaces the outputs, see `mechcore.masked`; ``"counterfactual"`` takes every
            example's counterfactual prompt, or draws one of another label, the nearest in length.
        engine: ``"tree"`` shares common prefixes of sets, ``"restart"`` does so by layers on any
            model whose layers can be called again, ``"reference"`` runs one masked forward per set,
            and ``"auto"`` takes the first of them that can run the model.
        precision: of the tree's matrix products; others than float32 are compared on a sample.
        split: whether the data is ``"id"`` or ``"ood"``; in-domain accuracy under chance warns.
        class_names: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch at most, of similar length, for encoded examples.
        max_tokens: most tokens in one call of a layer; by default what suits the device.
        state: folder that keeps what is finished, to resume from.
        seed: of the draws of ``fill="resample"`` and of the sample for ``precision``.
        metric: what to measure, by name or as a function, see `mechcore.evaluation.metrics`.
        positions: where outputs are replaced, see `mechcore.masking.counterfactual.Positions`; by
            default at all tokens, but for sets such as ``L9.H6@-1``. A dict gives the positions
            of names, as in ``L9.H6@subject``.

    Raises:
        InputError: see `sweep`.
        MismatchError: the means, or a mask among the sets, belong to another model.
    """
    _check_options(engine, precision, split, batch_size, seed)
    shape, listed = ModelShape.of(model), as_sets(sets, model)
    measure = None if metric is None else as_metric(metric)
    data = data_for(measure, model, data, split)
    if not isinstance(data, EncodedExamples):
        data = list(as_batches(data))
        if not data:
            raise InputError("sweep: no batch; expected at least one")
    alike = dict[tuple[bool, int | str | None], list[Cut]]()
    for cut in listed:
        alike.setdefault((isinstance(cut, PathSet), getattr(cut, "at", None)), []).append(cut)
    places = [at for _, at in alike] or [None]
    where = {at: _there(at, positions) for at in places}
    _check_used(positions, where)
    if len(alike) > 1:
        options: dict[str, Any] = {"fill": fill, "engine": engine, "precision": precision}
        options |= {"split": split, "class_names": class_names, "batch_size": batch_size}
        options |= {"max_tokens": max_tokens, "seed": seed, "state": state, "metric": metric}
        runs = []
        for (_, at), cuts in alike.items():
            own: Any = where[at] if at is None else {at: where[at]}
            runs.append(ablate(model, cuts, data, means, positions=own, **options))
        every = reduce(Ablations.with_more, runs)
        return replace(every, without={cut: every.without[cut] for cut in listed})
    positions = next(iter(where.values()))
    paths = [cut for cut in listed if isinstance(cut, PathSet)]
    components = [cut for cut in listed if isinstance(cut, ComponentSet)]
    whole = Mask.full(shape)
    values = [cut.mask(shape).values for cut in components]
    receivers = [p.receiver.component for cut in paths for p in cut.paths if p.receiver.component]
    # Of paths, what engines are checked on.
    values += [whole.without(receiver).values for receiver in receivers[:1]]
    job = Job(
        model,
        torch.stack([whole.values, *values]),
        data,
        means,
        _filling(fill, data, seed, positions),
        seed,
        class_names,
        batch_size,
        measure,
        precision,
        max_tokens,
    )
    parts: Parts = _path_engine(engine, job, paths) if paths else _engine(engine, job)
    known: dict[str, Any] = {} if positions is None else {"positions": positions}
    known |= metric_key(metric, state)
    partial = Partial(
        state,
        "sweep",
        model=model,
        data=data if isinstance(data, EncodedExamples) else job.batches,
        means=means,
        fill=None if state is None else known_fill(fill),
        sets=[
            [str(c) for c in (cut.paths if isinstance(cut, PathSet) else cut.components)]
            for cut in listed
        ],
        labels=job.labels,
        seed=seed,
        engine=parts.division,
        precision=precision,
        batch_size=[batch_size, *MOST_PADDING],
        **known,
    )
    buffer = job.buffer(len(listed))
    parts.check()
    agreement = None
    if isinstance(parts, TreeEngine) and precision != "float32":
        agreement = parts.agreement()
    name = data.examples.name if isinstance(data, EncodedExamples) else "data"
    unasked = f" (engine {parts.name!r})" * (engine == "auto" and parts.name != "tree")
    _work(parts, buffer, Steps(partial, buffer.tensors), f"ablate on {name}{unasked}")
    facts = {"data": name, "split": split, "agreement": agreement, "layers": parts.work}
    ablations = buffer.ablations(listed, job.data, **facts)
    if split == "id" and measure is None:
        warn_under_chance(ablations.full)
    return ablations


def _there(
    at: int | str | None, positions: Positions | Mapping[str, Positions] | None
) -> Positions | None:
    """Where outputs are replaced of sets that are ``at`` one position, or at all."""
    if positions is None or isinstance(positions, Mapping):
        named = positions or {}
        if not isinstance(at, str):
            return at
        if at in named:
            return named[at]
        found = f"found those of {first_names(named)}" if named else "found none"
        raise InputError(
            f"sweep: no positions of {at!r}, {found}; expected positions={{{at!r}: [...]}}, with "
            "one for each example"
        )
    if at is not None:
        raise InputError(f"sweep: found a set at {at}, and other positions; leave one out")
    return positions


def _check_used(positions: object, places: Collection[object]) -> None:
    """Refuse names of positions that no set has."""
    named = positions if isinstance(positions, Mapping) else {}
    if unused := [name for name in named if name not in places]:
        raise InputError(
            f"sweep: no set is at {first_names(unused)}, of which there are positions; expected "
            f"sets such as L0.H0@{unused[0]}, or no such name"
        )


def _filling(fill: FillMaker, data: Any, seed: int, positions: Positions | None) -> FillMaker:
    """The fill with the pairs of counterfactual data, at these positions only."""
    fill = with_pairs(fill, data, seed)
    if positions is None:
        return fill
    if not isinstance(positions, (int, Integral)) and len(positions) != len(data):
        raise InputError(
            f"sweep: found {len(positions)} positions for {len(data)} examples; expected one for "
            "each, or one for all"
        )
    return at_positions(positions, fill)


def _check_options(engine: str, precision: str, split: str, batch_size: int, seed: int) -> None:
    known = (get_args(Engine), get_args(Precision), tuple(PLACES))
    given = (("engine", engine), ("precision", precision), ("split", split))
    for (name, value), values in zip(given, known, strict=True):
        if value not in values:
            expected = " or ".join(map(repr, values))
            raise InputError(f"sweep: {name} is {value!r}; expected {expected}")
    check_seed(seed)
    if batch_size < 1:
        raise InputError(f"sweep: batch size {batch_size}; expected at least 1")


def _tree(engine: Engine, job: Job) -> TreeEngine | None:
    """The prefix tree, if it is asked for or the best there is, and the model has one."""
    if engine not in ("auto", "tree"):
        return None
    try:
        return TreeEngine(job, stack_of(job.model))
    except InputError:
        if engine == "tree":
            raise
    return None


def _engine(engine: Engine, job: Job) -> SharingEngine | ReferenceEngine:
    """The engine asked for, or the first that can run the model and the fill."""
    if job.readout.everywhere and job.precision != "float32":
        raise InputError(
            "sweep: a metric of all positions is measured in the model's own precision only; leave "
            "precision out"
        )
    fill = fill_of(job.model, job.means, job.fill, job.seed)  # what is wrong is no engine's fault
    fill.check(job.masks)
    if fill.follows_the_run and int((job.masks == 0).sum((1, 2)).max()) > 1:
        if engine not in ("auto", "reference"):
            raise InputError(
                f"sweep: engine {engine!r} cannot ablate several components with a fill that "
                "depends on what else is ablated; use engine='reference'"
            )
        engine = "reference"
    if (tree := _tree(engine, job)) is not None:
        return tree
    if job.precision != "float32":
        name = "restart" if engine == "auto" else engine
        raise InputError(f"sweep: engine {name!r} has the model's own precision only")
    if engine == "reference":
        return ReferenceEngine(job)
    try:
        parts = RestartEngine(job, Layers(job.model))
        parts.check()
        return parts
    except NotFiniteError:
        raise
    except MechcoreError as error:
        if engine == "restart":
            raise
        warn(f"{error}; one forward per set runs instead, which takes several times as long")
    return ReferenceEngine(job)


def _path_engine(engine: Engine, job: Job, paths: Sequence[PathSet]) -> PathEngine:
    """What cuts paths; layers as functions are checked."""
    if job.precision != "float32":
        raise InputError("sweep: paths are cut in the model's own precision only")
    if (tree := _tree(engine, job)) is not None:
        tree.check()
    return PathEngine(job, paths, tree)


def _work(parts: Parts, buffer: AnswerBuffer, steps: Steps, title: str) -> None:
    """Do what is not done."""
    tasks = parts.tasks()
    total = sum(cost for part, batch, cost in tasks if (part, batch) not in steps.done)
    with steps, progress.bar(title, total) as advance:
        for part, batch, cost in tasks:
            parts.begin(part, batch)
            if (part, batch) not in steps.done:
                parts.run(part, batch, buffer)
                steps.finish(part, batch)
                advance(cost)
