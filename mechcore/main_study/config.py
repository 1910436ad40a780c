"""The settings of a study."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from mechcore.analyses import ANALYSES
from mechcore.errors import InputError, shown
from mechcore.pruning.settings import PruneSettings, as_runs
from mechcore.settings import check, setting
from mechcore.steps.config import FORBID, TEST_SPLITS, DataConfig, ModelConfig, check_name
from mechcore.training.settings import TrainSettings

EMBEDDED = "embedded"
TRAINED = "training"

RESERVED = (
    *("store", "masks", "tables", "figures", "study.json", "config.json", "report.html"),
    *("means.safetensors", "attention_examples.json", "flips_attention.json"),
)
"""Files and folders of the study itself; variants must not have these names."""


def _fields() -> list[tuple[str, Any, Any]]:
    fields: list[tuple[str, Any, Any]] = []
    for name, kind in ((name, ANALYSES[name]) for name in ANALYSES):
        if not kind.always:
            summary = (kind.__doc__ or "").strip().partition("\n")[0]
            value = setting(None if kind.asked else kind(), summary)
            fields.append((name, kind | None, value))
    fill = setting(
        "mean",
        "What replaces an ablated output: mean, zero, resample, counterfactual (the output on an "
        "example of another label) or a registered fill.",
        "--fill",
    )
    return [*fields, ("fill", str, fill)]


_CHECKED = {"__post_init__": lambda settings: check(settings, "analyses")}
_Fields: Any = make_dataclass("_Fields", _fields(), frozen=True, namespace=_CHECKED)


class Analyses(_Fields):
    """The settings of each analysis by its name; None leaves it out."""

    __pydantic_config__ = FORBID
    panel = "Analyses"


@dataclass(frozen=True)
class Resources:
    """What one job may use; results do not depend on it."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Compute"

    cpus: int | None = setting(
        None,
        "Cores per job; by default all, or one with Ray. Results are bit-identical only "
        "with the same number of cores on the same hardware.",
        "--cpus",
        least=1,
    )
    gpus: float = setting(0.0, "GPUs per job; fractions share one.", "--gpus", least=0, most=2**31)
    device: str | None = setting(
        None, "Device of models: cpu, cuda or mps; by default cuda if jobs have GPUs.", "--device"
    )

    def __post_init__(self) -> None:
        check(self, "resources")
        if self.device is not None and not re.fullmatch(r"cpu|mps|cuda(:\d+)?", self.device):
            raise InputError(
                f"resources: device is {self.device!r}; expected cpu, mps, cuda or cuda:N"
            )

    @property
    def place(self) -> str:
        """The device by name."""
        return self.device or ("cuda" if self.gpus else "cpu")


@dataclass(frozen=True)
class StudyConfig:
    """A whole study."""

    __pydantic_config__ = FORBID

    model: ModelConfig = setting(ModelConfig(), "The model, and how to read its answers.")
    variants: Mapping[str, StudyConfig] = setting(
        {},
        "Several studies instead of one, by name, each with the settings that differ: models, "
        "training seeds, data or others. All other settings are shared.",
        example="{base: {model: {source: my-bert}}, large: {model: {source: my-large-bert}}}",
    )
    training: Annotated[TrainSettings | None, BeforeValidator(TrainSettings.presets.read)] = (
        setting(
            None,
            "Train the named model first, then study the result. A preset with changes.",
            example="{preset: quick, steps: 3000, checkpoint_every: 300}",
        )
    )
    checkpoints: tuple[str, ...] = setting(
        (),
        "Checkpoints of the model's training, for effective sizes: directories, or folders of "
        "checkpoints; embedded: the embedded encoder's; training: those of the study's own "
        "training.",
        "--checkpoints",
        panel="Model",
        place=True,
        example="[embedded]",
    )
    data: DataConfig = setting(DataConfig(), "The data, and how much of it to use.")
    method: str = setting(
        "l0",
        "Pruning method: l0 (trained masks), a ranking such as attribution, random "
        "or a registered method.",
        "--prune-method",
        panel="Pruning",
    )
    prune: Annotated[PruneSettings, BeforeValidator(PruneSettings.presets.read)] = setting(
        PruneSettings(), "Schedule of l0 pruning: a preset with changes."
    )
    seeds: tuple[int, ...] = setting(
        (42, 43, 44),
        "Seeds of the pruning runs.",
        "--seeds",
        panel="Pruning",
    )
    target_sparsities: tuple[float, ...] = setting(
        (0.5, 0.7),
        "Target sparsities, in [0, 1). With an empty list, only effective sizes are measured.",
        "--target-sparsities",
        panel="Pruning",
    )
    seeds_per_job: int = setting(3, "Masks of one sparsity to train together, as one job.", least=1)
    analyses: Analyses = setting(
        Analyses(), "The analyses and their settings; null leaves an analysis out."
    )
    only: tuple[str, ...] = setting(
        (),
        "Run only these analyses and what they need. By default, all that are not left out.",
        "--only",
        panel="Analyses",
    )
    batch_size: int = setting(
        64, "Examples per evaluation batch.", "--batch-size", least=1, panel="Compute"
    )
    n_resamples: int = setting(
        1000, "Bootstrap resamples.", "--resamples", least=1, panel="Analyses"
    )
    beside: str = setting(
        "",
        "Folder of a finished run, such as that of the model before a repair, to name the "
        "components that have another role there.",
        "--beside",
        panel="Analyses",
        rare=True,
    )
    resources: Resources = setting(Resources(), "What one job may use; no part of the results.")

    def __post_init__(self) -> None:
        # Effective sizes alone need no subnetworks but those of the checkpoints.
        only_sizes = (
            self.checkpoints and self.analyses.effective_size and not self.target_sparsities
        )
        as_runs((0,) if only_sizes else self.target_sparsities, self.seeds)
        check(self, "study")
        for problem in self._of_variants() if self.variants else self._contradictions():
            raise InputError(problem)
        if self.variants:
            same = {n: replace(v, resources=self.resources) for n, v in self.variants.items()}
            object.__setattr__(self, "variants", same)

    def _contradictions(self) -> Iterator[str]:
        source, training = self.model.source, self.training
        if self.method == "layer-matched":
            yield (
                "method: layer-matched draws as many heads per layer as l0 masks keep, and this "
                "study trains none; use mechcore methods"
            )
        if self.checkpoints == (EMBEDDED,) and source is not None:
            yield (
                "checkpoints: embedded stands for those of the embedded encoder, but model: source "
                f"is {shown(repr(source))}; name the checkpoints of this model"
            )
        if self.checkpoints == (TRAINED,) and training is None:
            yield (
                "checkpoints: training stands for the checkpoints of the study's own training, but "
                "training is not set; add training, or name checkpoints"
            )
        if training is None:
            return
        if source is None:
            yield (
                "training: needs your own model; name it as model: source (a pretrained "
                "checkpoint, or with from_scratch one that gives the configuration and tokenizer)"
            )
        if self.checkpoints not in ((), (TRAINED,)):
            yield "checkpoints: a study with its own training expects [training]"
        if training.patience is not None and self.checkpoints:
            yield (
                f"checkpoints: [training] needs the last step, but with patience "
                f"({training.patience}) the last step is unknown; leave out one of them"
            )
        if training.patience is not None and training.watch not in (None, *TEST_SPLITS):
            yield (
                f"training: watch is {shown(repr(training.watch))}; expected "
                f"{' or '.join(TEST_SPLITS)}, the splits of a study's test data"
            )

    def _of_variants(self) -> Iterator[str]:
        for name, variant in self.variants.items():
            check_name("variants", name)
            if name.lower() in RESERVED:
                yield f"variants: {name!r} is reserved for the study's own files; choose another"
            if variant.variants:
                yield f"variants: {name!r} has variants itself; list all variants on one level"
        if len({name.lower() for name in self.variants}) < len(self.variants):
            yield (
                f"variants: the names {', '.join(self.variants)} differ only in case, "
                "which some file systems ignore; choose others"
            )

    def each_variant(self) -> dict[str, StudyConfig]:
        """The studies by name, or one under an empty name. All have the same resources."""
        return dict(self.variants) or {"": self}
