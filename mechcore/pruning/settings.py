"""Pruning schedules and their presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mechcore.errors import InputError, shown
from mechcore.settings import Presets, check, setting

if TYPE_CHECKING:
    from mechcore.components import ModelShape

MAX_SEED = 2**63
"""Upper limit of seeds of torch's generators."""

READING = ("tolerance", "discretisation")
"""Settings for discretising a finished training; they do not affect training."""


@dataclass(frozen=True)
class PruneSettings:
    """A pruning schedule; the defaults are the preset ``fast``."""

    steps: int = setting(
        400, "Optimisation steps of pruning at sparsity 0.", "--prune-steps", least=1
    )
    steps_per_percent: float = setting(
        0.0, "Additional steps per percent of the target sparsity.", least=0
    )
    ramp: float = setting(
        0.6, "Share of the steps over which the target rises linearly from 0.", above=0, most=1
    )
    ramp_per_percent: float = setting(
        0.0, "Additional steps of that rise per percent of the target sparsity.", least=0
    )
    warmup: int = setting(
        20, "Steps over which the learning rates rise; they then fall linearly to 0.", least=0
    )
    batch_size: int = setting(8, "Examples per step.", least=1)
    draws: int = setting(
        4,
        "Draws of every mask's gates per step, each for part of the examples: less noise at "
        "the same cost.",
        least=1,
    )
    lr: float = setting(0.07, "AdamW learning rate of log_alpha.", least=0)
    lr_lambda: float = setting(0.12, "AdamW learning rate of the multipliers.", least=0)
    weight_decay: float = setting(
        0.0, "AdamW weight decay of log_alpha and of the multipliers.", least=0
    )
    dropout: bool = setting(
        False, "Run the masked model in training mode, with its dropout, one mask at a time."
    )
    log_alpha_mean: float = setting(
        4.0, "Mean of the normal initialisation of log_alpha.", least=-1e6
    )
    log_alpha_std: float = setting(
        0.01, "Standard deviation of the initialisation of log_alpha.", least=0
    )
    sparsity: Literal["expected", "sampled"] = setting(
        "expected",
        "The s of the Lagrangian: expected is the mean P(z = 0), with less variance; sampled "
        "is 1 - mean z of the drawn mask, as in the authors' code.",
    )
    clip: float = setting(
        0.0,
        "Maximum gradient norm of one mask's log_alpha per step; 0: no clipping.",
        least=0,
    )
    discretisation: Literal["ranking", "threshold", "layers"] = setting(
        "ranking",
        "How to binarise the trained scores: ranking keeps the highest over the "
        "whole model, exact to one component; threshold searches a threshold on the "
        "deterministic mask in steps of 0.05, as in the paper; layers prunes as many of each "
        "layer as its scores expect to be zero, as in the authors' code.",
    )
    tolerance: float = setting(
        0.1, "Maximum accepted distance of the final s from its target.", least=0
    )
    masks_per_pass: int = setting(
        8, "Masks per forward; more are run in turn, with the same result.", least=1
    )
    precision: Literal["float32", "bfloat16", "auto"] = setting(
        "auto",
        "Precision of masked forwards: float32, bfloat16 (autocast), or auto: bfloat16 "
        "on hardware with instructions for it, in models at least 256 wide; narrower ones gain "
        "little. Scores, losses and the full model's answers stay in float32.",
    )
    save_every: int = setting(50, "Steps between saves of an interruptible run.", least=1)

    panel: ClassVar[str] = "Pruning"
    presets: ClassVar[Presets[PruneSettings]]

    def __post_init__(self) -> None:
        check(self, "pruning")
        if self.ramp_per_percent > self.steps_per_percent:
            raise InputError(
                f"pruning: ramp_per_percent is {self.ramp_per_percent}; expected at most "
                f"steps_per_percent ({self.steps_per_percent})"
            )

    def total_steps(self, target_sparsity: float) -> int:
        """Optimisation steps of a mask with this target sparsity."""
        return round(self.steps + self.steps_per_percent * 100 * target_sparsity)

    @property
    def draws_per_step(self) -> int:
        """The number of draws, at most one per example."""
        return min(self.draws, self.batch_size)

    def wanted_sparsity(self, target_sparsity: float, step: int) -> float:
        """The target of the Lagrangian at ``step``, counted from 0."""
        rise = self.ramp * self.steps + self.ramp_per_percent * 100 * target_sparsity
        return target_sparsity * min(1.0, step / rise)

    def rate(self, target_sparsity: float, step: int) -> float:
        """Factor of the learning rates at ``step``, counted from 0."""
        total = self.total_steps(target_sparsity)
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (total - step) / max(1, total - self.warmup)
        return max(0.0, min(1.0, rising, falling))


PRESETS: Mapping[str, PruneSettings] = {
    "fast": PruneSettings(),
    "thorough": PruneSettings(
        steps=600, batch_size=32, draws=1, lr=0.05, lr_lambda=0.1, precision="float32"
    ),
    "paper": PruneSettings(
        steps=6500,
        steps_per_percent=56,
        ramp=1.0,
        ramp_per_percent=50,
        warmup=200,
        batch_size=128,
        draws=4,
        lr=0.1,
        lr_lambda=1.0,
        weight_decay=0.01,
        dropout=True,
        log_alpha_mean=10.0,
        sparsity="sampled",
        discretisation="layers",
        precision="float32",
    ),
}
"""Schedules by name. ``"paper"`` is that of arXiv 2403.03942, section 3, appendix and code; the
others are shorter, see docs/pruning.md: ``"thorough"`` takes five times as long as ``"fast"``."""


PruneSettings.presets = Presets(
    "pruning", PRESETS, "fast", option="--prune-settings", preset_option="--prune-preset"
)


def prune_settings(preset: str | PruneSettings = "fast", **changes: Any) -> PruneSettings:
    """A preset, or other settings, with changes.

    >>> prune_settings("fast", steps=900, lr_lambda=0.7).total_steps(0.5)
    900
    """
    return PruneSettings.presets.make(preset, **changes)


def as_runs(
    target_sparsities: float | Sequence[float], seeds: int | Sequence[int]
) -> tuple[list[float], list[int]]:
    """Target sparsities and seeds as lists; `InputError` if out of range, repeated or missing."""
    listed = _listed("target_sparsities", target_sparsities, float)
    numbers = _listed("seeds", seeds, index)
    for target_sparsity in listed:
        if not 0 <= target_sparsity < 1:  # also catches NaN
            expected = "expected a share of components in [0, 1)"
            raise InputError(f"sparsity {target_sparsity}: {expected}")
    for seed in numbers:
        if not 0 <= seed < MAX_SEED:
            raise InputError(f"seed {seed}: expected a whole number from 0 to {MAX_SEED - 1}")
    return listed, numbers


def keeps_some(target_sparsity: float, shape: ModelShape) -> bool:
    """Whether a ranking cut at this sparsity keeps a component."""
    n = len(shape.components)
    return round(target_sparsity * n) < n


def check_keeps_some(target_sparsities: Sequence[float], shape: ModelShape) -> None:
    """Raise `InputError` for a target sparsity that keeps no component."""
    n = len(shape.components)
    for target_sparsity in target_sparsities:
        if not keeps_some(target_sparsity, shape):
            raise InputError(
                f"sparsity {target_sparsity}: keeps none of the model's {n} components; expected "
                f"at most {(n - 1) / n:.6g}, which keeps one"
            )


def _listed(name: str, values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    values = list(map(convert, [values] if isinstance(values, Real) else values))
    if not values or len(set(values)) < len(values):
        raise InputError(f"{name} {shown(values, 200)}: expected at least one, each once")
    return values
