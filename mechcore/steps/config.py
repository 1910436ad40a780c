"""What a study is asked to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict

from mechcore.data.examples import Population
from mechcore.data.sources import Source
from mechcore.data.task import ROLES, check_groups
from mechcore.errors import InputError, shown
from mechcore.pruning.settings import PruneSettings, check_runs
from mechcore.settings import check, setting
from mechcore.steps.analyses_config import Analyses
from mechcore.training.settings import TrainSettings

Embedded = Literal["encoder", "decoder"]

EMBEDDED = "embedded"
"""Among checkpoints: those of the embedded encoder's own training."""

TRAINED = "training"
"""Among checkpoints: those of the study's own training."""

TEST_ROLES = ("id", "ood")
"""Roles of test data: in-domain and out-of-domain."""

RESERVED = (
    *("store", "masks", "tables", "figures", "study.json", "config.json", "report.html"),
    *("means.safetensors", "attention_examples.json", "flips_attention.json"),
)
"""What a study's folder holds beside those of its variants; no variant has such a name."""

_FORBID = ConfigDict(extra="forbid")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(what: str, name: str) -> None:
    """Make sure that a name can be that of a folder, and of none but the one meant.

    Raises:
        InputError: it cannot.
    """
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise InputError(
            f"{what}: the name {name[:100]!r} cannot be used; expected at most 100 letters, "
            "digits, dots, dashes and underscores, the first a letter or digit"
        )


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how to read its answers."""

    __pydantic_config__ = _FORBID
    panel: ClassVar[str] = "Model"

    source: str | None = setting(
        None,
        "Checkpoint directory or hub id; else an embedded model is used.",
        "--model",
        place=True,
    )
    embedded: Embedded = setting(
        "encoder", "Embedded model to use where no other is named.", "--embedded"
    )
    checkpoint: str = setting("final", "Which checkpoint of the embedded encoder.")
    revision: str | None = setting(
        None, "Branch, tag or commit of a hub id.", "--revision", place=True, rare=True
    )
    backend: Literal["bridge", "hooked"] | None = setting(
        None,
        "TransformerBridge or HookedTransformer (TransformerLens 3, GPT-2 language models); "
        "by default a bridge, but a HookedTransformer for the embedded decoder where "
        "TransformerLens has one.",
        "--backend",
        rare=True,
    )
    class_names: tuple[str, ...] | None = setting(
        None,
        "Names of the checkpoint's classes in index order, if its id2label has none.",
        "--class-names",
        example="[entailment, neutral, contradiction]",
    )
    prompt: str | None = setting(
        None, "Language models: text with {a} and {b}.", "--prompt", example='"{a} So {b}?"'
    )
    chat_template: bool = setting(
        False,
        "Language models: put the prompt into the chat template of the tokenizer, as a turn of the "
        "user that the answer follows.",
        "--chat-template",
        rare=True,
    )
    answers: Mapping[str, str] | None = setting(
        None,
        "Language models: the answer of each label, of one token or several.",
        "--answers",
        example='{entailment: " Yes", non-entailment: " No"}',
    )
    max_length: int | None = setting(
        None,
        "Tokens after which texts are cut, with a count of them; else texts longer than the "
        "model takes are refused.",
        "--max-length",
        least=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the weights.", "--dtype"
    )
    device_map: str | Mapping[str, str] | None = setting(
        None,
        "Spread a large model over devices: auto, balanced, or devices by module; in place of "
        "the device of the resources.",
        "--device-map",
        rare=True,
        example="auto",
    )
    allow_pickle: bool = setting(
        False,
        "Read weights from a pickle, which can run any code on loading.",
        "--allow-pickle",
        rare=True,
    )

    def __post_init__(self) -> None:
        check(self, "model")
        check_name("model: checkpoint", self.checkpoint)


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how much of it: a task, or what is given for each role."""

    __pydantic_config__ = _FORBID
    panel: ClassVar[str] = "Data"

    task: str | None = setting(
        None,
        "Task, in place of files: mnli-hans, qqp-paws or a YAML file that describes one.",
        "--task",
        place=True,
    )
    folder: str | None = setting(
        None, "Folder with the task's files; else from the hub.", "--data-folder", place=True
    )
    train: str | tuple[Source, ...] | None = setting(
        None,
        "Training examples, for means and pruning: a file; in a study's file also several sources.",
        "--train",
        place=True,
        example="[{path: mnli.tsv, labels: [neutral], max: 1000}]",
    )
    id: str | tuple[Source, ...] | None = setting(
        None, "In-domain test examples, likewise.", "--id", place=True
    )
    ood: str | tuple[Source, ...] | None = setting(
        None,
        "Out-of-domain test examples, likewise.",
        "--ood",
        place=True,
    )
    columns: Mapping[str, str] = setting(
        {},
        "Columns of the files by what they hold: text_a, text_b, label, subset, cluster.",
        "--columns",
        example="{text_a: premise, text_b: hypothesis}",
    )
    label_map: Mapping[str, str] = setting(
        {}, "What the data's labels mean.", "--label-map", example='{"0": entailment, "1": neutral}'
    )
    population: Population = setting(
        "clusters",
        "What intervals are for where examples go together in clusters: other clusters, or other "
        "texts of the same subsets.",
        "--population",
        rare=True,
    )
    groups: Mapping[str, tuple[str, ...]] = setting(
        {},
        "Named groups of out-of-domain subsets, whose means are tabulated; besides those of "
        "the task.",
        example="{swaps: [so_swap, ln_swap]}",
    )
    ood_label: str | None = setting(
        None, "Keep out-of-domain examples of this label only.", "--ood-label"
    )
    ood_subsets: tuple[str, ...] = setting(
        (), "Keep these out-of-domain subsets only.", "--ood-subsets"
    )
    max_train: int | None = setting(
        4000, "Training examples to draw at most, by subset.", "--max-train", least=1, all=True
    )
    max_id: int | None = setting(
        2000, "In-domain examples to draw at most, by subset.", "--max-id", least=1, all=True
    )
    max_ood: int | None = setting(
        2000, "Out-of-domain examples to draw at most, by subset.", "--max-ood", least=1, all=True
    )
    seed: int = setting(
        0, "Seed of the draws of examples.", "--data-seed", least=0, most=2**32 - 1, rare=True
    )

    def __post_init__(self) -> None:
        check(self, "data")
        for role in ROLES:
            if self.task is not None and getattr(self, role) is not None:
                raise InputError(f"data: task and {role} exclude each other; leave one of them out")
        if self.folder is not None and self.task is None:
            raise InputError("data: folder is where a task's files are; name the task, too")
        check_groups("data", self.groups)


@dataclass(frozen=True)
class Resources:
    """What one job may use; it is no part of the results."""

    __pydantic_config__ = _FORBID
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

    __pydantic_config__ = _FORBID

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
    sparsities: tuple[float, ...] = setting(
        (0.5, 0.7),
        "Target sparsities, in [0, 1). With none, in a file, only effective sizes are measured.",
        "--sparsities",
        panel="Pruning",
    )
    seeds_per_job: int = setting(
        3, "Masks of one sparsity that are trained together, as one job.", least=1
    )
    analyses: Analyses = setting(
        Analyses(), "What is done with the subnetworks; null leaves an analysis out."
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
        only_sizes = self.checkpoints and self.analyses.effective_size and not self.sparsities
        check_runs(self.seeds, (0,) if only_sizes else self.sparsities)
        if self.method == "layer-matched":
            raise InputError(
                "method: layer-matched draws as many heads per layer as trained masks keep, and a "
                "study trains none beside it; mechcore compare does"
            )
        check(self, "study")
        if self.variants:
            self._check_variants()
            same = {n: replace(each, resources=self.resources) for n, each in self.variants.items()}
            object.__setattr__(self, "variants", same)
            return
        if self.checkpoints == (EMBEDDED,) and self.model.source is not None:
            raise InputError(
                "checkpoints: embedded stands for those of the embedded encoder, but model: source "
                f"is {shown(repr(self.model.source))}; name the checkpoints of its training"
            )
        if self.training is not None and self.model.source is None:
            raise InputError(
                "training: begins at a model of yours; name it as model: source (a pretrained "
                "checkpoint, or with from_scratch one whose configuration and tokenizer to take)"
            )
        if self.checkpoints == (TRAINED,) and self.training is None:
            raise InputError(
                "checkpoints: training stands for those of the study's own training, of which "
                "nothing is said; add training, or name checkpoints"
            )
        if self.training is not None and self.checkpoints not in ((), (TRAINED,)):
            raise InputError(
                "checkpoints: of a study with a training of its own they can only be [training]"
            )
        if self.training is not None and self.training.patience is not None:
            self._check_patience(self.training)

    def _check_variants(self) -> None:
        for name, variant in self.variants.items():
            check_name("variants", name)
            if name.lower() in RESERVED:
                raise InputError(
                    f"variants: {name!r} is a name of the study's own files; choose another"
                )
            if variant.variants:
                raise InputError(f"variants: {name!r} has variants itself; list all of them once")
        if len({name.lower() for name in self.variants}) < len(self.variants):
            raise InputError(
                f"variants: the names {', '.join(self.variants)} differ by capital letters only, "
                "which folders cannot everywhere; choose others"
            )

    def _check_patience(self, training: TrainSettings) -> None:
        if self.checkpoints == (TRAINED,):
            raise InputError(
                "checkpoints: [training] needs to know beforehand at which steps there are some, "
                f"and with patience ({training.patience}) training ends when it will; leave out "
                "checkpoints, or train without patience"
            )
        if training.watch not in (None, *TEST_ROLES):
            raise InputError(
                f"training: watch is {shown(repr(training.watch))}; expected "
                f"{' or '.join(TEST_ROLES)}, the roles of a study's test data"
            )

    def each_variant(self) -> dict[str, StudyConfig]:
        """The studies by name; one alone, by an empty name. All have the same resources."""
        return dict(self.variants) or {"": self}
