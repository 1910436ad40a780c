"""L0 pruning to a target sparsity: hard concrete masks, a Lagrangian, and a KL loss.

The model is frozen and only the mask is trained: KL(full model || subnetwork) plus
lambda1 (t - s) + lambda2 (t - s)^2, with gradient ascent on both multipliers (arXiv 2403.03942,
section 3 and appendix). The masks of all seeds and target sparsities are trained together on
shared batches; every mask has its own noise and optimiser state, so its values do not depend on
which others are trained beside it, up to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore import progress
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MechcoreError
from mechcore.files import write_safetensors
from mechcore.interventions import masked
from mechcore.means import MeanActivations
from mechcore.models.running import forward, model_inputs, weights_of
from mechcore.pruning import hard_concrete
from mechcore.readout import Readout
from mechcore.tasks.encoding import EncodedExamples

POOL = 16
"""Batches that are sorted by length together."""

MAX_SEED = 2**63
"""What torch's generators take."""


@dataclass(frozen=True)
class PruneSettings:
    """A pruning schedule.

    Attributes:
        steps: optimisation steps.
        ramp: share of the steps over which the target sparsity rises linearly from 0.
        warmup: steps over which the learning rates rise; they then fall linearly to 0.
        batch_size: examples per step.
        lr: AdamW learning rate of log_alpha.
        lr_lambda: AdamW learning rate of the multipliers.
        log_alpha_mean: mean of the normal initialisation of log_alpha.
        log_alpha_std: its standard deviation.
        sparsity: the s of the Lagrangian: ``"expected"`` is the mean P(z = 0), with less variance;
            ``"sampled"`` is 1 - mean z of the drawn mask, as in the authors' code.
        tolerance: largest distance of the final s from its target that is accepted.
        masks_per_pass: masks in one forward; more are run in turn, with the same result.
        bfloat16: run the masked forwards of training in bfloat16 (autocast); the scores, the
            losses and the full model's answers stay in float32.
    """

    steps: int = 600
    ramp: float = 0.6
    warmup: int = 20
    batch_size: int = 32
    lr: float = 0.1
    lr_lambda: float = 0.5
    log_alpha_mean: float = 2.0
    log_alpha_std: float = 0.01
    sparsity: Literal["expected", "sampled"] = "expected"
    tolerance: float = 0.1
    masks_per_pass: int = 8
    bfloat16: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "masks_per_pass"):
            if getattr(self, name) < 1:
                raise InputError(f"pruning: {name} is {getattr(self, name)}; expected at least 1")
        for name in ("warmup", "lr", "lr_lambda", "log_alpha_std", "tolerance"):
            if not 0 <= getattr(self, name) <= 1e6:  # also catches NaN
                raise InputError(
                    f"pruning: {name} is {getattr(self, name)}; expected a number from 0 to 1e6"
                )
        if not abs(self.log_alpha_mean) <= 1e6:
            raise InputError(
                f"pruning: log_alpha_mean is {self.log_alpha_mean}; expected a number from -1e6 "
                "to 1e6"
            )
        if not 0 < self.ramp <= 1:
            raise InputError(f"pruning: ramp is {self.ramp}; expected above 0, at most 1")
        if self.sparsity not in ("expected", "sampled"):
            raise InputError(
                f"pruning: sparsity is {self.sparsity!r}; expected 'expected' or 'sampled'"
            )


@dataclass(frozen=True, eq=False)
class Subnetwork:
    """A pruned model: what is kept, and how it was found.

    Attributes:
        mask: zeros and ones, exactly at the target sparsity up to one component.
        target: the sparsity asked for.
        seed: of the initialisation and the noise.
        log_alpha: the trained scores that rank the components, [layer, component].
    """

    mask: Mask
    target: float
    seed: int
    log_alpha: Float[Tensor, "layer component"]

    @property
    def name(self) -> str:
        """See `subnetwork_name`."""
        return subnetwork_name(self.target, self.seed)

    def save(self, path: str | Path) -> None:
        """Write mask and scores as safetensors, atomically; `Mask.load` reads the mask."""
        facts = {"target": repr(self.target), "seed": repr(self.seed)}
        facts["has_mlps"] = json.dumps(self.mask.shape.has_mlps)
        tensors = {"mask": self.mask.values.cpu(), "log_alpha": self.log_alpha.cpu()}
        write_safetensors(path, tensors, facts)

    @classmethod
    def load(cls, path: str | Path) -> Subnetwork:
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or is not a subnetwork.
        """
        mask = Mask.load(path)
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                scores = file.get_tensor("log_alpha")
                return cls(mask, float(facts["target"]), int(facts["seed"]), scores)
        except (KeyError, ValueError, SafetensorError) as error:
            raise InputError(
                f"subnetwork file {path}: holds a mask, but not its target sparsity, seed and "
                f"scores ({error}); expected a file written by mechcore prune"
            ) from error


def subnetwork_name(target: float, seed: int) -> str:
    """Short name, such as ``s0.50-seed42``, unique within one `prune`."""
    short = f"{target:.2f}"
    return f"s{short if float(short) == target else repr(target)}-seed{seed}"


def prune(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations,
    *,
    seeds: Sequence[int],
    sparsities: Sequence[float],
    settings: PruneSettings | None = None,
    data_seed: int = 0,
) -> list[Subnetwork]:
    """Find one subnetwork for every seed and target sparsity.

    Args:
        model: any TransformerLens model; it stays as it is.
        data: training examples; their labels are not used.
        means: the model's mean activations.
        seeds: of the masks' initialisation and noise.
        sparsities: shares of components to prune, in [0, 1).
        settings: the schedule.
        data_seed: of the order of the examples, the same for all masks.

    Returns:
        Subnetworks ordered by sparsity, then seed.

    Raises:
        InputError: a sparsity is outside [0, 1), a seed is negative or too large, or seeds or
            sparsities repeat or are missing.
        MechcoreError: training diverged or did not reach a target; the message says which.
    """
    settings = settings or PruneSettings()
    check_runs(seeds, sparsities)
    means.check(model)
    shape = ModelShape.of(model)
    runs = [(target, seed) for target in sparsities for seed in seeds]
    targets = torch.tensor([target for target, _ in runs])
    generators = [torch.Generator().manual_seed(seed) for _, seed in runs]

    def draw(kind: Any) -> Tensor:
        size = (shape.n_layers, shape.columns)
        return torch.stack([kind(size, generator=generator) for generator in generators])

    log_alpha = settings.log_alpha_mean + settings.log_alpha_std * draw(torch.randn)
    log_alpha.requires_grad_()
    multipliers = torch.zeros(2, len(runs), requires_grad=True)
    optimisers = [
        torch.optim.AdamW([log_alpha], lr=settings.lr, weight_decay=0.0),
        torch.optim.AdamW([multipliers], lr=settings.lr_lambda, weight_decay=0.0, maximize=True),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimiser, _learning_rate(settings))
        for optimiser in optimisers
    ]
    teacher = _Teacher(model, data, settings)
    order = _example_order([len(ids) for ids in data.input_ids], settings, data_seed)
    spread = torch.zeros(len(runs))
    with frozen(model), progress.bar("prune", settings.steps) as advance:
        for step in range(settings.steps):
            values = hard_concrete.sample(log_alpha, draw(torch.rand))
            kl = teacher.backward_kl(values, means, next(order))
            if settings.sparsity == "expected":
                sparsity = hard_concrete.probability_of_zero(log_alpha).mean((1, 2))
            else:
                sparsity = 1 - values.mean((1, 2))
            distance = targets * min(1.0, step / (settings.ramp * settings.steps)) - sparsity
            lagrangian = multipliers[0] * distance + multipliers[1] * distance**2
            lagrangian.sum().backward()
            for optimiser, schedule in zip(optimisers, schedules, strict=True):
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
            _check_finite(kl, log_alpha.detach(), runs, step)
            spread = (targets - sparsity.detach()).abs()
            advance()
    _check_reached(spread, runs, settings)
    final = log_alpha.detach()
    return [
        Subnetwork(discretise(final[i], target, shape), target, seed, final[i].clone())
        for i, (target, seed) in enumerate(runs)
    ]


def discretise(
    scores: Float[Tensor, "layer component"], sparsity: float, shape: ModelShape
) -> Mask:
    """Keep the components with the highest scores, ranked over the whole model.

    The number pruned is ``round(sparsity * components)``, so the target is met up to half a
    component; ties are broken by position, later components are pruned first.

    Raises:
        InputError: the sparsity is outside [0, 1).
    """
    check_runs([0], [sparsity])
    flat = scores.flatten()
    n_kept = len(flat) - round(sparsity * len(flat))
    kept = flat.argsort(descending=True, stable=True)[:n_kept]
    values = torch.zeros_like(flat)
    values[kept] = 1.0
    return Mask(values.reshape(scores.shape), has_mlps=shape.has_mlps)


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """Keep gradients away from the model's weights inside the block."""
    trainable = [p for p in weights_of(model).parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


class _Teacher:
    """The full model's answers, computed once, and the loss against them."""

    def __init__(self, model: Any, data: EncodedExamples, settings: PruneSettings) -> None:
        self.model, self.data, self.settings = model, data, settings
        self.readout = Readout.of(model, data, labelled=False)
        self.has_mlps = ModelShape.of(model).has_mlps
        rows: list[Tensor] = []
        index: list[Tensor] = []
        total = -(-len(data) // settings.batch_size)
        with torch.no_grad(), progress.bar("full model", total) as advance:
            for batch in data.batches(settings.batch_size):
                logits = forward(model, batch)
                rows.append(self.readout.read(logits, model_inputs(model, batch)).float())
                index.append(batch["index"])
                advance()
        self.logits = torch.cat(rows)[torch.cat(index).argsort().to(rows[0].device)]

    def backward_kl(
        self,
        values: Float[Tensor, "masks layer component"],
        means: MeanActivations,
        examples: list[int],
    ) -> Float[Tensor, " masks"]:
        """Add the gradient of every mask's KL (nats, batch mean) and return the KLs."""
        batch = self.data.rows(examples)
        inputs = model_inputs(self.model, batch)
        wanted = self.logits[examples].log_softmax(-1)
        device = str(wanted.device.type)
        losses = []
        for part in values.split(self.settings.masks_per_pass):
            leaf = part.detach().requires_grad_()
            mask = Mask(leaf, has_mlps=self.has_mlps)
            precision = torch.autocast(device, torch.bfloat16, enabled=self.settings.bfloat16)
            with precision, masked(self.model, mask, means) as run:
                logits = self.readout.read(run(batch), inputs)
            got = logits.float().log_softmax(-1)
            kl = (wanted.exp() * (wanted - got)).sum(-1).mean(-1)
            losses.append(kl.detach().cpu())
            part.backward(*torch.autograd.grad(kl.sum(), leaf), retain_graph=True)
        return torch.cat(losses)


def _example_order(
    lengths: Sequence[int], settings: PruneSettings, seed: int
) -> Iterator[list[int]]:
    """Endless batches of example numbers, of similar length within a batch.

    Every pass over the data is shuffled, cut into pools of `POOL` batches, sorted by length
    within each pool, and the pool's batches are shuffled again: little padding, random order.
    """
    generator = torch.Generator().manual_seed(seed)
    size = settings.batch_size
    waiting: list[int] = []
    while True:
        while len(waiting) < POOL * size:
            waiting += torch.randperm(len(lengths), generator=generator).tolist()
        pool, waiting = waiting[: POOL * size], waiting[POOL * size :]
        pool.sort(key=lambda i: lengths[i])
        for k in torch.randperm(POOL, generator=generator).tolist():
            yield pool[k * size : (k + 1) * size]


def _learning_rate(settings: PruneSettings) -> Any:
    def factor(step: int) -> float:
        rising = (step + 1) / settings.warmup if settings.warmup else 1.0
        falling = (settings.steps - step) / max(1, settings.steps - settings.warmup)
        return max(0.0, min(1.0, rising, falling))

    return factor


def check_runs(seeds: Sequence[int], sparsities: Sequence[float]) -> None:
    """Make sure that `prune` can work with these.

    Raises:
        InputError: a sparsity is outside [0, 1), a seed is negative or too large, or seeds or
            sparsities repeat or are missing.
    """
    for sparsity in sparsities:
        if not 0 <= sparsity < 1:  # also catches NaN
            raise InputError(f"sparsity {sparsity}: expected a share of components in [0, 1)")
    for name, values in (("seeds", seeds), ("sparsities", sparsities)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"{name} {list(values)}: expected at least one, each once")
    for seed in seeds:
        if not 0 <= seed < MAX_SEED:
            raise InputError(f"seed {seed}: expected a whole number from 0 to {MAX_SEED - 1}")


def _check_finite(
    kl: Tensor, log_alpha: Tensor, runs: Sequence[tuple[float, int]], step: int
) -> None:
    healthy = kl.isfinite() & log_alpha.flatten(1).isfinite().all(1)
    if not bool(healthy.all()):
        target, seed = runs[int((~healthy).nonzero()[0])]
        raise MechcoreError(
            f"pruning: the training of target {target}, seed {seed} diverged: its loss or scores "
            f"are not finite after step {step}; lower lr or lr_lambda"
        )


def _check_reached(
    distance: Tensor, runs: Sequence[tuple[float, int]], settings: PruneSettings
) -> None:
    worst = int(distance.argmax())
    if float(distance[worst]) > settings.tolerance:
        target, seed = runs[worst]
        raise MechcoreError(
            f"pruning: the sparsity of target {target}, seed {seed} ended {distance[worst]:.3f} "
            f"away from it (accepted: {settings.tolerance}), so its ranking means little; use more "
            "steps, or another lr_lambda: too low a one reacts late and overshoots, too high a one "
            "leaves no time to settle"
        )
