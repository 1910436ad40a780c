"""Pruning methods by name, functions of a `Request`: docs/extend.md; L0 trains masks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore import progress
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreError, warn
from mechcore.evaluation.metrics import MetricLike, as_metric, data_for, metric_key
from mechcore.masking.means import MeanActivations, check_means
from mechcore.models.encoded import as_encoded
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import frozen
from mechcore.partial import Partial
from mechcore.pruning.attribution import attribution_scores, ugs_scores
from mechcore.pruning.discretise import discretise, random_subnetworks
from mechcore.pruning.discretise import layer_matched as matched_by_layer
from mechcore.pruning.mask_training import MaskTraining, OffTrackError
from mechcore.pruning.settings import (
    READING,
    PruneSettings,
    as_runs,
    check_keeps_some,
    prune_settings,
)
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.pruning.teacher import ORDER, Teacher, example_order
from mechcore.registry import Registry
from mechcore.session import plain_session


class PruningError(MechcoreError):
    """Some masks could not be trained.

    Attributes:
        finished: the subnetworks of the others.
        missing: reasons for missing subnetworks, by name.
    """

    def __init__(  # from the message alone when sent by another process
        self,
        message: str,
        finished: Sequence[Subnetwork] = (),
        missing: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.finished = list(finished)
        self.missing = dict(missing or {})


@plain_session()
def prune(
    model: Any,
    data: Any,
    means: MeanActivations,
    *,
    target_sparsities: float | Sequence[float],
    seeds: int | Sequence[int] = (42, 43, 44),
    preset: str | PruneSettings = "fast",
    data_seed: int = 0,
    state: str | Path | None = None,
    metric: MetricLike | None = None,
) -> list[Subnetwork]:
    """Find one subnetwork for every target sparsity and seed, in this order.

    Args:
        model: any TransformerLens model; not changed.
        data: training examples of any form, see `mechcore.data.given`; their labels are not used,
            unless by ``metric``.
        means: the model's mean activations.
        target_sparsities: shares of components to prune, in [0, 1).
        seeds: seeds of the masks' initialisation and noise.
        preset: ``"fast"``, ``"thorough"``, ``"paper"``, or settings of your own.
        data_seed: seed of the order of the examples, the same for all masks.
        state: folder in which all trainings are saved every ``save_every`` steps, to resume from.
        metric: what the subnetworks are to do best in place of staying close to the full model (in
            KL), by name or as a differentiable function, see `mechcore.evaluation.metrics`; it is
            then the ``kl`` of their histories, negative if more of it is better.

    Raises:
        InputError: a sparsity is outside [0, 1) or keeps no component, a seed is out of range,
            seeds or sparsities repeat or are missing, or the preset is unknown.
        PruningError: some masks diverged or missed their target; ``finished`` holds the others.
    """
    settings = preset if isinstance(preset, PruneSettings) else prune_settings(preset)
    target_sparsities, seeds = as_runs(target_sparsities, seeds)
    check_means(means, model)
    measure = None if metric is None else as_metric(metric)
    if measure is not None:
        data = data_for(measure, model, data, "train")
    data = as_encoded(model, data, split="train", labelled=False)
    shape = ModelShape.of(model)
    if settings.discretisation == "ranking":
        check_keeps_some(target_sparsities, shape)
    trainings = [MaskTraining(settings, shape, t, s) for t in target_sparsities for s in seeds]
    partial = Partial(
        state,
        "pruning",
        model=model,
        data=data,
        means=means,
        data_seed=data_seed,
        order=ORDER,
        masks=[training.name for training in trainings],
        settings={n: v for n, v in asdict(settings).items() if n not in _WITHOUT_EFFECT},
        **metric_key(metric, state),
    )
    failed = _restore(partial, trainings)
    order = example_order([len(ids) for ids in data.input_ids], settings.batch_size, data_seed)
    n_steps = max(len(training.history) for training in trainings)
    begin = max(training.step for training in trainings)
    teacher = Teacher(model, data, settings, measure)
    with frozen(model), progress.bar("prune", n_steps) as advance:
        for step in range(n_steps):
            examples = next(order)
            if step >= begin:
                active = [t for t in trainings if not t.is_done and t.name not in failed]
                failed |= _take_step(active, teacher, means, examples)
                if (step + 1) % settings.save_every == 0 or step + 1 == n_steps:
                    states = {
                        f"{training.name}/{name}": tensor
                        for training in trainings
                        for name, tensor in training.state().items()
                    }
                    partial.save(states, {"failed": failed})
            advance()
    return _results(trainings, failed, ModelIdentity.of(model), means)


def _take_step(
    trainings: Sequence[MaskTraining],
    teacher: Teacher,
    means: MeanActivations,
    examples: Sequence[int],
) -> dict[str, str]:
    if not trainings:
        return {}
    values = torch.stack([training.draw() for training in trainings])
    seeds = [training.dropout_seed for training in trainings] if teacher.settings.dropout else []
    losses, gradients = teacher.kl_gradients(values, means, examples, dropout_seeds=seeds)
    failed = {}
    for training, kl, gradient in zip(trainings, losses.tolist(), gradients, strict=True):
        try:
            training.update(kl, gradient)
        except OffTrackError as error:
            failed[training.name] = str(error)
            warn(f"pruning: {error}")
    return failed


def _results(
    trainings: Sequence[MaskTraining],
    failed: dict[str, str],
    identity: ModelIdentity,
    means: MeanActivations,
) -> list[Subnetwork]:
    finished, missing = [], dict(failed)
    for training in trainings:
        if training.name not in failed:
            try:
                subnetwork = training.subnetwork().with_identity(identity)
                finished.append(replace(subnetwork, means=means.data))
            except OffTrackError as error:
                missing[training.name] = str(error)
    if missing:
        count = f"{len(missing)} of {len(trainings)} masks failed"
        reasons = ". ".join(missing.values())
        raise PruningError(f"pruning: {count}: {reasons}", finished, missing)
    return finished


_WITHOUT_EFFECT = ("save_every", *READING)
"""Settings that may change when a run resumes: they do not affect training."""


def _restore(partial: Partial, trainings: Sequence[MaskTraining]) -> dict[str, str]:
    stored = partial.restore()
    if stored is None:
        return {}
    tensors, notes = stored
    for training in trainings:
        prefix = f"{training.name}/"
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        training.restore(own)
    return dict(notes["failed"])


@dataclass(frozen=True, eq=False)
class Request:
    """A request for subnetworks.

    Attributes:
        model: any TransformerLens model.
        data: training examples, whose labels are not used.
        target_sparsities: shares of the components.
        seeds: seeds, with one subnetwork each; a deterministic method may give one for all.
        settings: settings of L0 pruning.
        data_seed: seed of the order of examples.
        state: folder from which an interruptible method resumes; None saves nothing.
        trained: subnetworks by ``l0`` for the same request, for methods that match them.
    """

    model: Any
    data: EncodedExamples
    means: MeanActivations
    target_sparsities: Sequence[float]
    seeds: Sequence[int]
    settings: PruneSettings
    data_seed: int = 0
    state: Path | None = None
    trained: Sequence[Subnetwork] = ()


PruningMethod: TypeAlias = Callable[[Request], list[Subnetwork]]

METHODS: Registry[PruningMethod] = Registry(
    "pruning method",
    "mechcore.pruning_methods",
    {
        "l0": "mechcore.pruning.methods:l0",
        "attribution": "mechcore.pruning.methods:attribution",
        "ugs": "mechcore.pruning.methods:ugs",
        "random": "mechcore.pruning.methods:random",
        "layer-matched": "mechcore.pruning.methods:layer_matched",
    },
)
"""Methods by name, in the order of comparisons."""


@dataclass(frozen=True)
class Ranking:
    """The method that keeps the components with the highest scores.

    ``scores`` is a function of model, data and means, and of ``seed`` if used: of the ``"data"``,
    such as their order, or of the ``"masks"``, in which case every seed has its own ranking.
    """

    name: str
    scores: Callable[..., Float[Tensor, "layer component"]]
    seed: Literal["data", "masks"] | None = None

    def __call__(self, request: Request) -> list[Subnetwork]:
        """Subnetworks by the ranking, one for each seed if the ranking is random."""
        model, means = request.model, request.means
        given = request.seeds if self.seed == "masks" else [request.data_seed]
        target_sparsities, seeds = as_runs(request.target_sparsities, given)
        shape, identity = ModelShape.of(model), ModelIdentity.of(model)
        check_keeps_some(target_sparsities, shape)
        subnetworks = []
        for seed in seeds:
            options = {"seed": seed} if self.seed else {}
            scores = self.scores(model, request.data, means, **options)
            for target_sparsity in target_sparsities:
                mask = discretise(scores, target_sparsity, shape).with_identity(identity)
                subnetwork = Subnetwork(
                    mask, target_sparsity, seed, scores, self.name, means=means.data
                )
                subnetworks.append(subnetwork)
        return subnetworks


attribution = Ranking("attribution", attribution_scores)
ugs = Ranking("ugs", ugs_scores, "masks")


def l0(request: Request) -> list[Subnetwork]:
    """Masks trained with L0 regularisation, see `mechcore.prune`."""
    return prune(
        request.model,
        request.data,
        request.means,
        target_sparsities=request.target_sparsities,
        seeds=request.seeds,
        preset=request.settings,
        data_seed=request.data_seed,
        state=request.state,
    )


def random(request: Request) -> list[Subnetwork]:
    """Components drawn at random: a control."""
    shape, identity = ModelShape.of(request.model), ModelIdentity.of(request.model)
    drawn = random_subnetworks(
        shape, target_sparsities=request.target_sparsities, seeds=request.seeds
    )
    return [subnetwork.with_identity(identity) for subnetwork in drawn]


def layer_matched(request: Request) -> list[Subnetwork]:
    """As many heads per layer as trained masks keep, drawn at random: a control."""
    if not request.trained:
        raise InputError("layer-matched: no trained masks; expected the masks to match")
    return matched_by_layer(request.trained)
