"""What a study is asked to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator

from mechcore.analyses import ANALYSES
from mechcore.errors import InputError, shown
from mechcore.pruning.settings import PruneSettings, as_runs
from mechcore.settings import check, setting
from mechcore.steps.config import FORBID, TEST_SPLITS, DataConfig, ModelConfig, check_name
from mechcore.training.settings import TrainSettings

EMBEDDED = "embedded"
"""Among checkpoints: those of the embedded encoder's own training."""

TRAINED = "training"
"""Among checkpoints: those of the study's own training."""

RESERVED = (
    *("store", "masks", "tables", "figures", "study.json", "config.json", "report.html"),
    *("means.safetensors", "attention_examples.json", "flips_attention.json"),
)
"""What a study's folder holds beside those of its variants; no variant has such a name."""


def _fields() -> list[tuple[str, Any, Any]]:
    """The analyses that can be left out, with their defaults."""
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


if TYPE_CHECKING:

    @dataclass(frozen=True, init=False)
    class Analyses:
        """The settings of each analysis by its name; None leaves it out."""

        fill: str

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    Analyses = make_dataclass(
        "Analyses",
        _fields(),
        frozen=True,
        namespace={
            "__doc__": "The settings of each analysis by its name; None leaves it out.",
            "__module__": __name__,
            "__post_init__": lambda settings: check(settings, "analyses"),
            "__pydantic_config__": FORBID,
            "panel": "Analyses",
        },
    )


@dataclass(frozen=True)
class Resources:
    """What one job may use; it is no part of the results."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Compute"

    cpus: int | None = setting(
        None,
        "Cores for a job; else all, one with Ray. Results are equal to the last bit only "
        "between runs with equal cores on equal hardware.",
        "--cpus",
        least=1,
    )
    gpus: float = setting(
        0.0, "GPUs for a job, also a share of one.", "--gpus", least=0, most=2**31
    )
    device: str | None = setting(
        None, "Where models are put: cpu, cuda or mps; else cuda where a job has GPUs.", "--device"
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

    model: ModelConfig = setting(ModelConfig(), "Which model, and how to read its answers.")
    variants: Mapping[str, StudyConfig] = setting(
        {},
        "Several studies instead, by name, each with what differs in it: other models, seeds of "
        "training, data or anything else. What is not named holds for all of them.",
        example="{base: {model: {source: my-bert}}, large: {model: {source: my-large-bert}}}",
    )
    training: Annotated[TrainSettings | None, BeforeValidator(TrainSettings.presets.read)] = (
        setting(
            None,
            "Train the model first, beginning at the one named; the study is then of what comes "
            "of it. A preset with changes.",
            example="{preset: quick, steps: 3000, checkpoint_every: 300}",
        )
    )
    checkpoints: tuple[str, ...] = setting(
        (),
        "Checkpoints of the model's training, for effective sizes: directories, or folders of "
        "them; embedded alone stands for the embedded encoder's, training alone for those of "
        "the study's own training.",
        "--checkpoints",
        panel="Model",
        place=True,
        example="[embedded]",
    )
    data: DataConfig = setting(DataConfig(), "Which data, and how much of it.")
    method: str = setting(
        "l0",
        "How to choose what is pruned: l0 (trained masks), a ranking such as attribution, random "
        "or a registered method.",
        "--prune-method",
        panel="Pruning",
    )
    prune: Annotated[PruneSettings, BeforeValidator(PruneSettings.presets.read)] = setting(
        PruneSettings(), "The schedule of l0 pruning: a preset with changes."
    )
    seeds: tuple[int, ...] = setting(
        (42, 43, 44),
        "Seeds of the pruning runs.",
        "--seeds",
        panel="Pruning",
    )
    target_sparsities: tuple[float, ...] = setting(
        (0.5, 0.7),
        "Target sparsities, in [0, 1). With none, in a file, only effective sizes are measured.",
        "--target-sparsities",
        panel="Pruning",
    )
    seeds_per_job: int = setting(
        3, "Masks of one sparsity that are trained together, as one job.", least=1
    )
    analyses: Analyses = setting(
        Analyses(), "What is done with the subnetworks; null leaves an analysis out."
    )
    only: tuple[str, ...] = setting(
        (),
        "Answer only these questions, with what they need: names of analyses. With none, all that "
        "are not left out.",
        "--only",
        panel="Analyses",
    )
    batch_size: int = setting(
        64, "Examples per evaluation batch.", "--batch-size", least=1, panel="Compute"
    )
    n_resamples: int = setting(
        1000, "Bootstrap resamples.", "--resamples", least=1, panel="Analyses"
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
                "method: layer-matched draws as many heads per layer as trained masks keep, and a "
                "study trains none beside it; mechcore methods does"
            )
        if self.checkpoints == (EMBEDDED,) and source is not None:
            yield (
                "checkpoints: embedded stands for those of the embedded encoder, but model: source "
                f"is {shown(repr(source))}; name the checkpoints of its training"
            )
        if self.checkpoints == (TRAINED,) and training is None:
            yield (
                "checkpoints: training stands for those of the study's own training, of which "
                "nothing is said; add training, or name checkpoints"
            )
        if training is None:
            return
        if source is None:
            yield (
                "training: begins at a model of yours; name it as model: source (a pretrained "
                "checkpoint, or with from_scratch one whose configuration and tokenizer to take)"
            )
        if self.checkpoints not in ((), (TRAINED,)):
            yield "checkpoints: of a study with a training of its own they can only be [training]"
        if training.patience is not None and self.checkpoints:
            yield (
                "checkpoints: [training] needs to know beforehand at which steps there are some, "
                f"and with patience ({training.patience}) training ends when it will; leave out "
                "checkpoints, or train without patience"
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
                yield f"variants: {name!r} is a name of the study's own files; choose another"
            if variant.variants:
                yield f"variants: {name!r} has variants itself; list all of them once"
        if len({name.lower() for name in self.variants}) < len(self.variants):
            yield (
                f"variants: the names {', '.join(self.variants)} differ by capital letters only, "
                "which folders cannot everywhere; choose others"
            )

    def each_variant(self) -> dict[str, StudyConfig]:
        """The studies by name; one alone, by an empty name. All have the same resources."""
        return dict(self.variants) or {"": self}
