"""Pruning schedules and their presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from mechcore.errors import InputError, shown

if TYPE_CHECKING:
    from mechcore.components import ModelShape

MAX_SEED = 2**63
"""What torch's generators take."""

READING = ("tolerance", "discretisation")
"""Settings of how a finished training is read; they do not enter into it."""


@dataclass(frozen=True)
class PruneSettings:
    """A pruning schedule; the defaults are the preset ``fast``.

    Attributes:
        steps: optimisation steps at sparsity 0.
        steps_per_percent: further steps for every percent of the target sparsity.
        ramp: share of ``steps`` over which the target rises linearly from 0.
        ramp_per_percent: further steps of that rise for every percent of the target sparsity.
        warmup: steps over which the learning rates rise; they then fall linearly to 0.
        batch_size: examples per step.
        lr: AdamW learning rate of log_alpha.
        lr_lambda: AdamW learning rate of the multipliers.
        log_alpha_mean: mean of the normal initialisation of log_alpha.
        log_alpha_std: its standard deviation.
        sparsity: the s of the Lagrangian: ``"expected"`` is the mean P(z = 0), with less variance;
            ``"sampled"`` is 1 - mean z of the drawn mask, as in the authors' code.
        clip: largest norm of a step's gradient on one mask's log_alpha; 0 leaves it as it is.
        discretisation: how the trained scores become zeros and ones: ``"ranking"`` keeps the
            highest over the whole model, exact to one component; ``"threshold"`` searches a
            threshold on the deterministic mask in strides of 0.05, as in the paper.
        tolerance: largest distance of the final s from its target that is accepted.
        masks_per_pass: masks in one forward; more are run in turn, with the same result.
        precision: of the masked forwards of training: ``"float32"``, ``"bfloat16"`` (autocast), or
            ``"auto"``: bfloat16 on hardware with instructions for it. The scores, the losses and
            the full model's answers stay in float32.
        save_every: steps between the savings of an interruptible run.
    """

    steps: int = 600
    steps_per_percent: float = 0.0
    ramp: float = 0.6
    ramp_per_percent: float = 0.0
    warmup: int = 20
    batch_size: int = 32
    lr: float = 0.05
    lr_lambda: float = 0.1
    log_alpha_mean: float = 4.0
    log_alpha_std: float = 0.01
    sparsity: Literal["expected", "sampled"] = "expected"
    clip: float = 0.0
    discretisation: Literal["ranking", "threshold"] = "ranking"
    tolerance: float = 0.1
    masks_per_pass: int = 8
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    save_every: int = 50

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            holds = isinstance(value, kind) or (kind is float and isinstance(value, int))
            self._check(field.name, holds and not isinstance(value, bool), str(kind.__name__))
        for name in ("steps", "batch_size", "masks_per_pass", "save_every"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            "steps_per_percent", "ramp_per_percent", "warmup", "lr", "lr_lambda",
            "log_alpha_std", "clip", "tolerance",
        ):  # fmt: skip
            self._check(name, 0 <= getattr(self, name) <= 1e6, "a number from 0 to 1e6")
        self._check("log_alpha_mean", abs(self.log_alpha_mean) <= 1e6, "a number from -1e6 to 1e6")
        self._check("ramp", 0 < self.ramp <= 1, "above 0, at most 1")
        allowed = f"at most steps_per_percent ({self.steps_per_percent})"
        self._check("ramp_per_percent", self.ramp_per_percent <= self.steps_per_percent, allowed)
        for name, choices in _CHOICES.items():
            self._check(name, getattr(self, name) in choices, " or ".join(map(repr, choices)))

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:  # comparisons are False for NaN
            found = getattr(self, name)
            raise InputError(f"pruning: {name} is {found!r}; expected {expected}")

    def total_steps(self, target: float) -> int:
        """Optimisation steps of a mask with this target sparsity."""
        return round(self.steps + self.steps_per_percent * 100 * target)

    def wanted_sparsity(self, target: float, step: int) -> float:
        """The sparsity that the Lagrangian asks for at ``step``, counted from 0."""
        rise = self.ramp * self.steps + self.ramp_per_percent * 100 * target
        return target * min(1.0, step / rise)

    def rate(self, target: float, step: int) -> float:
        """Share of the learning rates that holds at ``step``, counted from 0."""
        total = self.total_steps(target)
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (total - step) / max(1, total - self.warmup)
        return max(0.0, min(1.0, rising, falling))


_CHOICES = {
    "sparsity": ("expected", "sampled"),
    "discretisation": ("ranking", "threshold"),
    "precision": ("float32", "bfloat16", "auto"),
}

PRESETS: Mapping[str, PruneSettings] = {
    "fast": PruneSettings(),
    "paper": PruneSettings(
        steps=6500,
        steps_per_percent=56,
        ramp=1.0,
        ramp_per_percent=50,
        warmup=200,
        batch_size=128,
        lr=0.1,
        lr_lambda=1.0,
        log_alpha_mean=10.0,
        sparsity="sampled",
        discretisation="threshold",
    ),
}
"""Schedules by name. ``"paper"`` is that of arXiv 2403.03942, section 3 and appendix; ``"fast"``
is a short one for the same end, see docs/pruning.md."""


def prune_settings(preset: str | PruneSettings = "fast", **changes: Any) -> PruneSettings:
    """A preset, or other settings, with changes, for a model that needs another schedule.

    Raises:
        InputError: the preset or a setting is unknown, or a value is out of its range.

    >>> prune_settings("fast", steps=900, lr_lambda=0.7).total_steps(0.5)
    900
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise InputError(f"pruning: unknown preset {preset!r}; expected {' or '.join(PRESETS)}")
        preset = PRESETS[preset]
    known = [field.name for field in fields(PruneSettings)]
    if unknown := [name for name in changes if name not in known]:
        raise InputError(f"pruning: unknown setting {unknown[0]!r}; expected {', '.join(known)}")
    return replace(preset, **changes)


def check_runs(seeds: Sequence[int], sparsities: Sequence[float]) -> None:
    """Make sure that masks can be trained for these.

    Raises:
        InputError: a sparsity is outside [0, 1), a seed is negative or too large, or seeds or
            sparsities repeat or are missing.
    """
    as_runs(sparsities, seeds)


def as_runs(
    sparsity: float | Sequence[float], seeds: int | Sequence[int]
) -> tuple[list[float], list[int]]:
    """Target sparsities and seeds as plain lists, one value alone included.

    Raises:
        InputError: as for `check_runs`.
    """
    targets = _listed("sparsities", sparsity, Real, float)
    numbers = _listed("seeds", seeds, Integral, int)
    for target in targets:
        if not 0 <= target < 1:  # also catches NaN
            raise InputError(f"sparsity {target}: expected a share of components in [0, 1)")
    for seed in numbers:
        if not 0 <= seed < MAX_SEED:
            raise InputError(f"seed {seed}: expected a whole number from 0 to {MAX_SEED - 1}")
    return targets, numbers


def check_keeps_some(targets: Sequence[float], shape: ModelShape) -> None:
    """Make sure that every target sparsity leaves a component to keep.

    Raises:
        InputError: one does not.
    """
    n = len(shape.components)
    for target in targets:
        if round(target * n) == n:
            raise InputError(
                f"sparsity {target}: keeps none of the model's {n} components; expected at most "
                f"{(n - 1) / n:.6g}, which keeps one"
            )


def _listed(name: str, values: Any, kind: type, convert: Any) -> list[Any]:
    values = [values] if isinstance(values, (Real, str)) else list(values)
    if bad := [value for value in values if not isinstance(value, kind)]:
        expected = "whole numbers" if kind is Integral else "numbers"
        raise InputError(f"{name}: found {bad[0]!r}; expected {expected}")
    values = [convert(value) for value in values]
    if not values or len(set(values)) < len(values):
        raise InputError(f"{name} {shown(values, 200)}: expected at least one, each once")
    return values
