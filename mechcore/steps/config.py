"""What a study is asked to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict

from mechcore.data.examples import ALL
from mechcore.data.sources import Source
from mechcore.data.task import ROLES
from mechcore.errors import InputError, shown
from mechcore.pruning.settings import PruneSettings, check_runs, prune_settings
from mechcore.training.settings import TrainSettings, train_settings

Embedded = Literal["encoder", "decoder"]

EMBEDDED = "embedded"
"""Among checkpoints: those of the embedded encoder's own training."""

TRAINED = "training"
"""Among checkpoints: those of the study's own training."""

TEST_ROLES = ("id", "ood")
"""Roles of test data: in-domain and out-of-domain."""

MAX_DATA_SEED = 2**32
"""What numpy's generators take."""

MOST_COUNTED = 2**31
"""No count of examples, tokens, resamples, cores or seeds per job is larger."""

RESERVED = (
    *("store", "masks", "tables", "figures", "study.json", "config.json", "report.html"),
    *("report.md", "means.safetensors", "attention_examples.json"),
)
"""What a study's folder holds beside those of its models; no model has such a name."""

_FORBID = ConfigDict(extra="forbid")
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
"""What file systems take."""

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


def _check_text(what: str, text: str | None) -> None:
    if text is None:
        return
    if not text.strip() or any(ord(c) < 32 for c in text):
        raise InputError(f"{what} is {shown(repr(text))}; expected text without control characters")
    parts = [part.encode("utf-8", "surrogatepass") for part in text.split("/")]
    if max(map(len, parts)) > _LONGEST_NAME or len(text) > _LONGEST_PATH:
        raise InputError(
            f"{what} is {shown(repr(text))}; expected at most {_LONGEST_PATH} characters, and "
            f"{_LONGEST_NAME} bytes for the name of a file or folder"
        )


def _check_count(what: str, value: int, least: int) -> None:
    if not least <= value < MOST_COUNTED:
        raise InputError(
            f"{what} is {value if abs(value) < 10**20 else 'a number of many digits'}; expected a "
            f"whole number from {least} to {MOST_COUNTED - 1}"
        )


def _settings_by(make: Callable[..., Any], default: str) -> Callable[[Any], Any]:
    """Read settings from a preset's name, or from changes to a preset; None stays."""

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            return make(value)
        if not isinstance(value, Mapping):
            raise InputError(f"found {value!r}; expected a preset's name, or settings by name")
        preset = value.get("preset", default)
        if not isinstance(preset, str):
            raise InputError(f"preset is {preset!r}; expected a name")
        return make(preset, **{k: v for k, v in value.items() if k != "preset"})

    return read


_prune_settings = _settings_by(prune_settings, "fast")
_train_settings = _settings_by(train_settings, "quick")


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how to read its answers.

    Attributes:
        source: checkpoint directory or hub id; None for the embedded model.
        embedded: which embedded model to use when there is no source.
        checkpoint: which checkpoint of the embedded encoder.
        revision: branch, tag or commit of a hub id.
        backend: see `mechcore.load_model`; None is a bridge, but a HookedTransformer for the
            embedded decoder where TransformerLens has one.
        class_labels: names of the classifier's classes in index order; None reads ``id2label``.
        prompt: for language models, see `mechcore.data.encoding.encode`.
        answers: for language models, the answer word of each label.
        max_length: tokens after which texts are cut, with a count of them; None for as many as the
            model takes, and longer texts are refused.
        dtype: precision of the weights.
        device_map: how a large model is spread over devices, see `mechcore.load_model`; in place of
            the device of the study's resources.
        allow_pickle: whether weights may come from a pickle, which can run any code.
    """

    __pydantic_config__ = _FORBID

    source: str | None = None
    embedded: Embedded = "encoder"
    checkpoint: str = "final"
    revision: str | None = None
    backend: Literal["bridge", "hooked"] | None = None
    class_labels: tuple[str, ...] | None = None
    prompt: str | None = None
    answers: Mapping[str, str] | None = None
    max_length: int | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device_map: str | Mapping[str, str] | None = None
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None:
            _check_count("model: max_length", self.max_length, 1)
        check_name("model: checkpoint", self.checkpoint)
        for name in ("source", "revision"):
            _check_text(f"model: {name}", getattr(self, name))


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how much of it: a task, or what is given for each role.

    Attributes:
        task: name of a task (``mnli-hans``, ``qqp-paws``), or a file that describes one, see
            `mechcore.data.task.Task`.
        folder: where the task's files are; None takes them from the hub.
        train: training examples, for means and pruning: a file, or several sources.
        id: in-domain test examples, likewise.
        ood: out-of-domain test examples, likewise.
        columns: which column serves as what, see `mechcore.data.readers.read_examples`; sources
            can say otherwise.
        label_names: meanings of labels, likewise.
        groups: named groups of out-of-domain subsets, whose means are tabulated; besides those of
            the task.
        ood_label: keep only out-of-domain examples of this label.
        ood_subsets: keep only these out-of-domain subsets.
        max_train: draw at most this many training examples; None takes all.
        max_id: likewise for in-domain test examples.
        max_ood: likewise for out-of-domain test examples.
        seed: of these draws, not negative.
    """

    __pydantic_config__ = _FORBID

    task: str | None = None
    folder: str | None = None
    train: str | tuple[Source, ...] | None = None
    id: str | tuple[Source, ...] | None = None
    ood: str | tuple[Source, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_names: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ood_label: str | None = None
    ood_subsets: tuple[str, ...] = ()
    max_train: int | None = 4000
    max_id: int | None = 2000
    max_ood: int | None = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < MAX_DATA_SEED:
            raise InputError(
                f"data seed {self.seed}: expected a whole number from 0 to {MAX_DATA_SEED - 1}"
            )
        for name in ("task", "folder", *ROLES):
            if isinstance(value := getattr(self, name), str):
                _check_text(f"data: {name}", value)
        for role in ROLES:
            limit = getattr(self, f"max_{role}")
            if limit is not None:
                _check_count(f"data: max_{role}", limit, 1)
            if self.task is not None and getattr(self, role) is not None:
                raise InputError(f"data: task and {role} exclude each other; leave one of them out")
        if self.folder is not None and self.task is None:
            raise InputError("data: folder is where a task's files are; name the task, too")


@dataclass(frozen=True)
class HeadsConfig:
    """Head categories and pictures of attention.

    Attributes:
        max_examples: examples on which attention is scored.
    """

    __pydantic_config__ = _FORBID

    max_examples: int = 512

    def __post_init__(self) -> None:
        _check_count("heads: max_examples", self.max_examples, 1)


@dataclass(frozen=True)
class AblationConfig:
    """Ablation of the core beside other heads.

    Attributes:
        max_joint: how many core heads to ablate in pairs, those that matter most out of domain.
        max_non_core: how many heads outside the core to ablate for comparison, drawn at random.
    """

    __pydantic_config__ = _FORBID

    max_joint: int = 4
    max_non_core: int = 16

    def __post_init__(self) -> None:
        _check_count("ablation: max_joint", self.max_joint, 0)
        _check_count("ablation: max_non_core", self.max_non_core, 0)


@dataclass(frozen=True)
class SearchConfig:
    """Search for superadditive sets, see `mechcore.find_superadditive`.

    Attributes:
        role: on which of the test data.
        subset: on which subset of it; ``"all"`` takes every one.
        components: to choose from; the core alone is of `AblationConfig`.
        max_size: components of the largest sets.
        n_pairs: pairs ablated exactly, the best by screening.
    """

    __pydantic_config__ = _FORBID

    role: Literal["id", "ood"] = "ood"
    subset: str = ALL
    components: Literal["heads", "mlps", "all"] = "all"
    max_size: int = 3
    n_pairs: int = 100

    def __post_init__(self) -> None:
        _check_count("search: max_size", self.max_size, 2)
        _check_count("search: n_pairs", self.n_pairs, 1)


@dataclass(frozen=True)
class SizesConfig:
    """Effective size over the checkpoints of a training run.

    Attributes:
        sparsities: the grid that every checkpoint is pruned to.
        tolerance: accuracy (share) that a subnetwork may lose and still be faithful.
        seeds: of the pruning runs; None takes those of the study.
        prune: the pruning schedule; None takes that of the study.
    """

    __pydantic_config__ = _FORBID

    sparsities: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    tolerance: float = 0.03
    seeds: tuple[int, ...] | None = None
    prune: Annotated[PruneSettings | None, BeforeValidator(_prune_settings)] = None

    def __post_init__(self) -> None:
        check_runs((0,) if self.seeds is None else self.seeds, self.sparsities)
        if not 0 <= self.tolerance < 1:
            raise InputError(
                f"effective_size: tolerance is {self.tolerance}; expected a share in [0, 1)"
            )


@dataclass(frozen=True)
class Analyses:
    """What is done with the subnetworks; None leaves an analysis out.

    Attributes:
        heads: head categories.
        ablation: single and joint ablation of the core.
        sweep: ablate each of these components alone.
        search: for superadditive sets.
        effective_size: over the study's ``checkpoints``, if it has any.
        fill: what replaces an output that is ablated, see `mechcore.masking.fills`.
        more: steps that packages add, by name, each with its settings.
    """

    __pydantic_config__ = _FORBID

    heads: HeadsConfig | None = HeadsConfig()
    ablation: AblationConfig | None = AblationConfig()
    sweep: Literal["heads", "mlps", "all"] | None = None
    search: SearchConfig | None = None
    effective_size: SizesConfig | None = SizesConfig()
    fill: str = "mean"
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """What one job may use.

    Attributes:
        cpus: cores; None takes all in-process and one under Ray. Results are equal to the last bit
            only between runs with equal cores on equal hardware.
        gpus: GPUs, also a share of one.
        device: where models are put; None is a GPU if ``gpus`` is above 0, else the CPU.
    """

    __pydantic_config__ = _FORBID

    cpus: int | None = None
    gpus: float = 0.0
    device: str | None = None

    def __post_init__(self) -> None:
        if self.cpus is not None:
            _check_count("resources: cpus", self.cpus, 1)
        if not 0 <= self.gpus <= MOST_COUNTED:
            raise InputError(f"resources: gpus is {self.gpus}; expected 0 or more")
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
    """A whole study.

    Attributes:
        model: see `ModelConfig`.
        models: several models instead, by name; everything else holds for each of them.
        training: train the model first, beginning at ``model``; the study is then of what comes of
            it. None takes the model as it is.
        checkpoints: of the model's training, for effective size: directories, or folders of
            them; ``"embedded"`` alone stands for the embedded encoder's, ``"training"`` alone for
            those of ``training``.
        data: see `DataConfig`.
        method: how subnetworks are found, see `mechcore.pruning.methods`.
        prune: the schedule of L0 pruning.
        seeds: of the pruning runs.
        sparsities: target sparsities, in [0, 1); none leaves only effective sizes to do.
        seeds_per_job: masks of one sparsity that are trained together, as one job.
        analyses: what is done with the subnetworks.
        batch_size: examples per evaluation batch.
        n_resamples: bootstrap resamples.
        resources: of one job; they are no part of the results.
    """

    __pydantic_config__ = _FORBID

    model: ModelConfig = ModelConfig()
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    training: Annotated[TrainSettings | None, BeforeValidator(_train_settings)] = None
    checkpoints: tuple[str, ...] = ()
    data: DataConfig = DataConfig()
    method: str = "l0"
    prune: Annotated[PruneSettings, BeforeValidator(_prune_settings)] = field(
        default_factory=PruneSettings
    )
    seeds: tuple[int, ...] = (42, 43, 44)
    sparsities: tuple[float, ...] = (0.5, 0.7)
    seeds_per_job: int = 3
    analyses: Analyses = Analyses()
    batch_size: int = 64
    n_resamples: int = 1000
    resources: Resources = Resources()

    def __post_init__(self) -> None:
        # Effective sizes alone need no subnetworks but those of the checkpoints.
        only_sizes = self.checkpoints and self.analyses.effective_size and not self.sparsities
        check_runs(self.seeds, (0,) if only_sizes else self.sparsities)
        if self.method == "layer-matched":
            raise InputError(
                "method: layer-matched draws as many heads per layer as trained masks keep, and a "
                "study trains none beside it; mechcore compare does"
            )
        for name in ("seeds_per_job", "batch_size", "n_resamples"):
            _check_count(name, getattr(self, name), 1)
        for path in self.checkpoints:
            _check_text("checkpoints", path)
        for name in self.models:
            check_name("models", name)
            if name.lower() in RESERVED:
                raise InputError(
                    f"models: {name!r} is a name of the study's own files; choose another"
                )
        if len({name.lower() for name in self.models}) < len(self.models):
            raise InputError(
                f"models: the names {', '.join(self.models)} differ by capital letters only, which "
                "folders cannot everywhere; choose others"
            )
        if self.models and self.model != ModelConfig():
            raise InputError("model and models exclude each other; put all of them under models")
        if self.models and self.checkpoints not in ((), (TRAINED,)):
            raise InputError(
                "models and checkpoints exclude each other: a series belongs to one model; write "
                "one study for each series"
            )
        if self.checkpoints == (EMBEDDED,) and self.model.source is not None:
            raise InputError(
                "checkpoints: embedded stands for those of the embedded encoder, but model: source "
                f"is {shown(repr(self.model.source))}; name the checkpoints of its training"
            )
        if self.training is not None and self.model.source is None and not self.models:
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

    def each_model(self) -> dict[str, StudyConfig]:
        """The study of each model by name; of one model alone, by an empty name."""
        if not self.models:
            return {"": self}
        return {name: replace(self, model=model, models={}) for name, model in self.models.items()}
