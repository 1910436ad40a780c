"""What a study of the cognitive task is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic import ConfigDict

from mechcore.errors import InputError
from mechcore.papers.cognitive.text import Rendering
from mechcore.training import TrainSettings

if TYPE_CHECKING:
    from mechcore.papers.cognitive.trials import Task

Arm: TypeAlias = Literal["base", "fine_tuned", "scratch"]
ARMS: tuple[Arm, ...] = get_args(Arm)
TRAINED: tuple[Arm, ...] = ("fine_tuned", "scratch")
_FEWEST = 40


@dataclass(frozen=True)
class ArmTraining:
    """How an arm is trained at every number of samples.

    Attributes:
        learning_rates: the grid. All of it is tried with the first seed, and the rate with the
            best accuracy on the development trials is that of the other seeds.
        steps: most optimiser steps; the rate falls linearly to zero there.
        epochs: most passes over the trials, where these are fewer steps.
        batch_size: trials in a step; all of them where there are fewer.
        warmup_steps: over which the rate rises, half of all steps at most.
        evaluate_every: steps between evaluations on the development trials.
        patience: evaluations without improvement after which training ends.
        weight_decay: of AdamW.
        precision: of forward and backward passes.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    learning_rates: tuple[float, ...]
    steps: int = 1500
    epochs: int = 100
    batch_size: int = 32
    warmup_steps: int = 100
    evaluate_every: int = 100
    patience: int = 6
    weight_decay: float = 0.01
    precision: Literal["float32", "bfloat16"] = "float32"

    def settings(self, n: int, seed: int, learning_rate: float) -> TrainSettings:
        """The settings of one training run on ``n`` trials.

        Raises:
            InputError: a value is out of its range.
        """
        size = max(1, min(self.batch_size, n))
        steps = min(self.steps, max(1, self.epochs) * n // size)
        # A state to go on from only where there is much to lose: it is three times the weights.
        every = self.evaluate_every * max(1, steps // max(1, self.evaluate_every) // 4)
        return TrainSettings(
            steps=steps,
            learning_rate=learning_rate,
            batch_size=size,
            warmup_steps=min(self.warmup_steps, steps // 2),
            weight_decay=self.weight_decay,
            evaluate_every=self.evaluate_every,
            checkpoint_every=every,
            patience=self.patience,
            precision=self.precision,
            seed=seed,
        )


@dataclass(frozen=True)
class CognitiveSettings:
    """A study: the task, the arms, and the analyses.

    Attributes:
        base: checkpoint directory or hub id of a pretrained decoder in Hugging Face format; None
            for the tiny one that comes with mechcore.
        arms: which to make. ``"base"``, as it is; ``"fine_tuned"`` from it; ``"scratch"``, its
            architecture with new weights.
        sizes: numbers of training trials, increasing. A smaller set is the beginning of a larger
            one of the same seed.
        seeds: of the trials, their order and new weights; one run of each trained arm and size.
        fine_tuned, scratch: how the two arms are trained.
        threshold: accuracy whose number of samples is asked for.
        n_dev: trials of the development split, that the end of a training is chosen on.
        n_test: trials of the test split, that accuracy is measured on; as many of the development
            split, if these are more than ``n_dev``, are what rates are chosen on. No trials of two
            splits share a pair of numbers.
        n_analysis: how many of them the analyses read.
        rendering, random_order, differences: of the task, see
            `mechcore.papers.cognitive.trials.generate`.
        n_resamples: of bootstrap intervals.
        sweep_precision: of the ablation of heads, see `mechcore.ablation.ablate`.
        decoded_layers: whose states are decoded; None for all. The verdicts read the last.
        shuffles: of labels, for decoding.
        permutations: for selectivity of units.
        alpha: level of a single test of selectivity.
        projection: ``"umap"``, ``"pca"``, or ``"auto"``, UMAP where it is installed.

    Raises:
        InputError: a value is out of its range.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str | None = None
    arms: tuple[Arm, ...] = ARMS
    sizes: tuple[int, ...] = (100, 400, 1600, 6400)
    seeds: tuple[int, ...] = (0, 1, 2)
    fine_tuned: ArmTraining = ArmTraining((5e-4, 1e-3))
    scratch: ArmTraining = ArmTraining((2e-3, 4e-3))
    threshold: float = 0.9
    n_dev: int = 400
    n_test: int = 1600
    n_analysis: int = 800
    rendering: Rendering = "two_sided"
    random_order: bool = False
    differences: tuple[int, ...] | None = None
    n_resamples: int = 1000
    sweep_precision: Literal["float32", "bfloat16"] = "float32"
    decoded_layers: tuple[int, ...] | None = None
    shuffles: int = 20
    permutations: int = 1000
    alpha: float = 0.01
    projection: Literal["auto", "umap", "pca"] = "auto"

    def __post_init__(self) -> None:
        if not set(self.arms) <= set(ARMS) or len({*self.arms}) < len(self.arms) or not self.arms:
            _refuse("arms", list(self.arms), f"some of {', '.join(ARMS)}, each once")
        increasing = list(self.sizes) == sorted({*self.sizes})
        if not increasing or not self.sizes or self.sizes[0] < 8:
            _refuse("sizes", list(self.sizes), "increasing whole numbers from 8")
        if not self.seeds or len({*self.seeds}) < len(self.seeds) or min(self.seeds) < 0:
            _refuse("seeds", list(self.seeds), "different whole numbers from 0, at least one")
        if not 0.5 < self.threshold < 1:
            _refuse("threshold", self.threshold, "an accuracy above 0.5, which is chance, below 1")
        for name in ("n_dev", "n_test", "n_analysis"):
            if getattr(self, name) < 8 or getattr(self, name) % 8:
                _refuse(name, getattr(self, name), "a multiple of 8, the number of conditions")
        if not _FEWEST <= self.n_analysis <= self.n_test:
            expected = f"from {_FEWEST} to n_test ({self.n_test}), 5 of every condition"
            _refuse("n_analysis", self.n_analysis, expected)
        for name in ("n_resamples", "shuffles", "permutations"):
            if getattr(self, name) < 1:
                _refuse(name, getattr(self, name), "a whole number from 1")
        if not 1 / (1 + self.permutations) <= self.alpha < 1:
            _refuse("alpha", self.alpha, "from 1 / (1 + permutations) to below 1")
        for arm in TRAINED:
            training = self.training(arm)
            if not training.learning_rates or len({*training.learning_rates}) < len(
                training.learning_rates
            ):
                _refuse(f"{arm}.learning_rates", list(training.learning_rates), "different rates")
            for rate in training.learning_rates:
                training.settings(self.sizes[0], self.seeds[0], rate)

    def training(self, arm: Arm) -> ArmTraining:
        """How a trained arm is trained."""
        return self.fine_tuned if arm == "fine_tuned" else self.scratch

    @property
    def trained(self) -> tuple[Arm, ...]:
        """The arms that are trained."""
        return tuple(arm for arm in self.arms if arm in TRAINED)

    @property
    def task(self) -> Task:
        """What trials are drawn with, beside their number, seed and split."""
        from mechcore.papers.cognitive.trials import Task

        return Task(self.rendering, self.random_order, self.differences)

    @property
    def n_chosen(self) -> int:
        """Number of models on the learning curves: the base, and the trained arms' at all sizes."""
        return self._has_base + len(self.trained) * len(self.sizes) * len(self.seeds)

    @property
    def n_compared(self) -> int:
        """Number of models that are analysed."""
        return self._has_base + len(self.trained) * len(self.seeds)

    @property
    def _has_base(self) -> bool:
        return "base" in self.arms

    def quick(self) -> CognitiveSettings:
        """The same study in a minute or two: one rate, short training, few trials; for trying out.

        Its figures mean nothing.
        """
        short: dict[str, Any] = {
            "steps": 40,
            "evaluate_every": 20,
            "warmup_steps": 5,
            "patience": 2,
        }
        return replace(
            self,
            sizes=self.sizes[:2],
            seeds=self.seeds[:2],
            fine_tuned=replace(self.fine_tuned, learning_rates=(1e-3,), **short),
            scratch=replace(self.scratch, learning_rates=(1e-3,), **short),
            n_dev=80,
            n_test=160,
            n_analysis=160,
            n_resamples=100,
            shuffles=20,
            permutations=200,
            projection="pca",
        )


def default_settings(base: str | None = None) -> CognitiveSettings:
    """The settings for a base: the tiny one's, or those for a decoder of some 100 M parameters.

    The second are lower learning rates, as usual for fine-tuning and training at such a size, and
    the same for everything else.
    """
    if base is None:
        return CognitiveSettings()
    return CognitiveSettings(
        base,
        fine_tuned=ArmTraining((3e-5, 1e-4)),
        scratch=ArmTraining((1e-4, 3e-4, 1e-3)),
    )


def _refuse(name: str, found: Any, expected: str) -> None:
    raise InputError(f"cognitive study: {name} is {found!r}; expected {expected}")
