"""Settings of a study of the cognitive task."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import ConfigDict

from mechcore.errors import InputError
from mechcore.papers.cognitive.text import Rendering
from mechcore.settings import check, entries, setting
from mechcore.training import TrainSettings

if TYPE_CHECKING:
    from mechcore.papers.cognitive.trials import Task

Arm: TypeAlias = Literal["base", "fine_tuned", "scratch"]
ARMS: tuple[Arm, ...] = get_args(Arm)
TRAINED: tuple[Arm, ...] = ("fine_tuned", "scratch")
_FEWEST = 40


@dataclass(frozen=True)
class ArmTraining:
    """How an arm is trained at every number of samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    panel: ClassVar[str] = "Training"

    learning_rates: tuple[float, ...] = setting(
        MISSING,
        "Learning rates to choose from. All are tried with the first seed; the other seeds use the "
        "rate with the best accuracy on development trials.",
        "--{group}-rates",
    )
    steps: int = setting(
        1500, "Maximum optimiser steps; the rate falls linearly to 0.", "--steps", least=1
    )
    epochs: int = setting(
        100, "Maximum passes over the trials, if that is fewer steps.", "--epochs", least=1
    )
    batch_size: int = setting(
        32, "Trials per step; all trials if there are fewer.", "--batch-size", least=1
    )
    warmup_steps: int = setting(
        100,
        "Warm-up steps of the rate, at most half of all steps.",
        "--warmup-steps",
        least=0,
    )
    evaluate_every: int = setting(
        100,
        "Steps between evaluations on the development trials.",
        "--evaluate-every",
        least=1,
    )
    patience: int = setting(
        6, "Evaluations without improvement after which training ends.", "--patience", least=1
    )
    weight_decay: float = setting(0.01, "Of AdamW.", least=0)
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "Precision of training passes.", "--precision"
    )

    def settings(self, n: int, seed: int, learning_rate: float) -> TrainSettings:
        """The settings of one training run on ``n`` trials."""
        size = min(self.batch_size, n)
        steps = min(self.steps, self.epochs * n // size)
        # States to resume from only for long trainings: they are three times the weights.
        every = self.evaluate_every * max(1, steps // self.evaluate_every // 4)
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
    """A study: the task, the arms, and the analyses."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str | None = setting(
        None,
        "Pretrained decoder in Hugging Face format, a directory or hub id (gpt2); by default the "
        "tiny one that comes with mechcore.",
        "--base",
    )
    arms: tuple[Arm, ...] = setting(
        ARMS,
        "Models to compare: base, unchanged; fine_tuned from it; scratch, its architecture with "
        "new weights.",
        "--arms",
        distinct=True,
    )
    sizes: tuple[int, ...] = setting(
        (100, 400, 1600, 6400),
        "Numbers of training trials, increasing. With one seed, smaller sets are prefixes of "
        "larger ones.",
        "--sizes",
    )
    seeds: tuple[int, ...] = setting(
        (0, 1, 2),
        "Seeds of the trials, their order and new weights; one run of each trained arm and size.",
        "--seeds",
        least=0,
        distinct=True,
    )
    fine_tuned: ArmTraining = setting(ArmTraining((5e-4, 1e-3)), "Training of the base.")
    scratch: ArmTraining = setting(ArmTraining((2e-3, 4e-3)), "Training from new weights.")
    threshold: float = setting(
        0.9,
        "Accuracy threshold for the number of training trials needed; chance is 0.5.",
        "--threshold",
        above=0.5,
        below=1,
    )
    n_dev: int = setting(400, "Development trials for early stopping, a multiple of 8.", "--dev")
    n_test: int = setting(
        1600,
        "Test trials, a multiple of 8; rates are chosen on as many development trials. No trials "
        "of two splits share a pair of numbers.",
        "--test",
    )
    n_analysis: int = setting(800, "Test trials for the analyses.", "--analysis")
    rendering: Rendering = setting("two_sided", "Wording of the trials.", "--rendering")
    random_order: bool = setting(
        False, "Show colour first in half of the trials.", "--random-order"
    )
    differences: tuple[int, ...] | None = setting(
        None, "Strengths of evidence to draw from; by default all.", "--differences"
    )
    n_resamples: int = setting(1000, "Resamples of bootstrap intervals.", least=1)
    sweep_precision: Literal["float32", "bfloat16"] = setting(
        "float32", "Precision of the ablation of heads.", "--sweep-precision"
    )
    decoded_layers: tuple[int, ...] | None = setting(
        None,
        "Layers whose states are decoded, from 0; by default all. The verdicts use the last.",
        "--decoded-layers",
        least=0,
        distinct=True,
    )
    shuffles: int = setting(
        20, "Shuffles of labels, for decoding; with fewer than 19 no p is at most 0.05.", least=19
    )
    permutations: int = setting(1000, "Permutations for selectivity of units.", least=1)
    alpha: float = setting(
        0.01,
        "Level of a single test of selectivity, at least 1 / (1 + permutations).",
        above=0,
        below=1,
    )
    projection: Literal["auto", "umap", "pca"] = setting(
        "auto", "Projection of states; auto: UMAP if installed.", "--projection"
    )

    def __post_init__(self) -> None:
        check(self, "cognitive study")
        if list(self.sizes) != sorted({*self.sizes}) or not self.sizes or self.sizes[0] < 8:
            _refuse("sizes", list(self.sizes), "increasing whole numbers from 8")
        options = {name: entry.setting.option for name, entry in entries(type(self)).items()}
        for name in ("n_dev", "n_test", "n_analysis"):
            if getattr(self, name) < 8 or getattr(self, name) % 8:
                expected = f"a multiple of 8 from 8, as there are 8 conditions ({options[name]})"
                _refuse(name, getattr(self, name), expected)
        if not _FEWEST <= self.n_analysis <= self.n_test:
            expected = f"from {_FEWEST} to n_test ({self.n_test}), 5 of every condition"
            _refuse("n_analysis", self.n_analysis, f"{expected} ({options['n_analysis']})")
        if self.alpha < 1 / (1 + self.permutations):
            _refuse("alpha", self.alpha, "from 1 / (1 + permutations) to below 1")
        for arm in TRAINED:
            training = self.training(arm)
            rates = training.learning_rates
            if not rates or len({*rates}) < len(rates):
                _refuse(f"{arm}.learning_rates", list(rates), "different rates")
            check(training, f"cognitive study: {arm}")
            for rate in rates:
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
        trained = len(self.trained) * len(self.sizes) * len(self.seeds)
        return ("base" in self.arms) + trained

    @property
    def n_compared(self) -> int:
        """Number of models that are analysed."""
        return ("base" in self.arms) + len(self.trained) * len(self.seeds)

    def quick(self) -> CognitiveSettings:
        """The same study in a minute or two, whose results are not meaningful."""
        short: dict[str, Any] = {"learning_rates": (1e-3,), "steps": 40, "evaluate_every": 20}
        short |= {"warmup_steps": 5, "patience": 2}
        return replace(
            self,
            sizes=self.sizes[:2],
            seeds=self.seeds[:2],
            fine_tuned=replace(self.fine_tuned, **short),
            scratch=replace(self.scratch, **short),
            n_dev=80,
            n_test=160,
            n_analysis=160,
            n_resamples=100,
            shuffles=20,
            permutations=200,
            projection="pca",
        )


def default_settings(base: str | None = None) -> CognitiveSettings:
    """The settings for a base: the tiny one's, or lower learning rates for larger decoders."""
    if base is None:
        return CognitiveSettings()
    return CognitiveSettings(
        base,
        fine_tuned=ArmTraining((3e-5, 1e-4)),
        scratch=ArmTraining((1e-4, 3e-4, 1e-3)),
    )


def _refuse(name: str, value: Any, expected: str) -> None:
    raise InputError(f"cognitive study: {name} is {value!r}; expected {expected}")
