"""Groups of command-line options, each a dataclass that a command takes as one parameter.

A group knows which of its options are on the command line: these beat a study's file, which beats
the defaults.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

import typer

from mechcore.errors import InputError


@dataclass(frozen=True)
class Options:
    """A group of options.

    Attributes:
        given: names of those on the command line, defaults that are spelled out among them.
    """

    given: ClassVar[Collection[str]] = frozenset()

    def with_given(self, names: Collection[str]) -> Any:
        """The same group, made from a command line with these options."""
        object.__setattr__(self, "given", frozenset(names))
        return self


def _over(base: Any, given: Collection[str] | None, values: Mapping[str, tuple[str, Any]]) -> Any:
    """Settings with those of the options ``given`` in place of their own; None takes all.

    ``values`` are the name and value of a setting by the name of its option.
    """
    chosen = [value for option, value in values.items() if given is None or option in given]
    return replace(base, **dict(chosen))


@dataclass(frozen=True)
class CheckpointOptions(Options):
    """Which checkpoint, and how to read its answers."""

    model: Annotated[
        str | None, typer.Option("--model", help="Checkpoint directory or hub id to begin from.")
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            "--labels",
            "--classes",
            help="Names of the checkpoint's classes in index order, if its id2label has none.",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help='Language models: text with {a} and {b}: "{a} So {b}?".'),
    ] = None
    answers: Annotated[
        str | None,
        typer.Option("--answers", help='Language models: LABEL=WORD by commas: "yes= Yes".'),
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            help="Tokens after which texts are cut; else texts longer than the model takes are "
            "refused.",
            min=1,
        ),
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id.")
    ] = None
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Read weights from a pickle, which can run any code on loading."
        ),
    ] = False

    def config(self, base: Any = None) -> Any:
        """The study's `ModelConfig`: ``base`` with what is on the command line, or all of this."""
        from mechcore.steps.config import ModelConfig

        return _over(base or ModelConfig(), None if base is None else self.given, self._values())

    def _values(self) -> dict[str, tuple[str, Any]]:
        """Settings of `ModelConfig` by option."""
        return {
            "model": ("source", self.model),
            "revision": ("revision", self.revision),
            "classes": ("class_labels", tuple(split(self.classes)) or None),
            "prompt": ("prompt", self.prompt),
            "answers": ("answers", pairs("--answers", self.answers) or None),
            "max_length": ("max_length", self.max_length),
            "allow_pickle": ("allow_pickle", self.allow_pickle),
        }


@dataclass(frozen=True)
class ModelOptions(CheckpointOptions):
    """Which model, and how it is used."""

    model: Annotated[
        str | None,
        typer.Option("--model", help="Checkpoint directory or hub id; else an embedded model."),
    ] = None
    embedded: Annotated[
        Literal["encoder", "decoder"],
        typer.Option("--embedded", help="Embedded model to use when there is no --model."),
    ] = "encoder"
    backend: Annotated[
        Literal["bridge", "hooked"] | None,
        typer.Option(
            "--backend",
            help="TransformerBridge or HookedTransformer (TransformerLens 3, GPT-2 language "
            "models); by default a bridge, but a HookedTransformer for the embedded decoder where "
            "TransformerLens has one.",
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option("--dtype", help="Precision of the weights."),
    ] = "float32"
    device_map: Annotated[
        str | None,
        typer.Option("--device-map", help="Spread a large model over devices: auto or balanced."),
    ] = None

    def config(self, base: Any = None) -> Any:
        """As of `CheckpointOptions`.

        Raises:
            InputError: an embedded model is named beside one of the user's own.
        """
        found = super().config(base)
        if "embedded" in self.given and found.source is not None:
            raise InputError(
                f"--embedded {self.embedded} and the model {found.source} exclude each other: an "
                "embedded model is used where no other is named; leave one of them out"
            )
        return found

    def _values(self) -> dict[str, tuple[str, Any]]:
        same = ("embedded", "backend", "dtype", "device_map")
        return super()._values() | {name: (name, getattr(self, name)) for name in same}


@dataclass(frozen=True)
class FileOptions(Options):
    """How to read files."""

    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="Columns of the files: text_a=NAME,text_b=NAME,label=NAME,subset=NAME.",
        ),
    ] = None
    label_names: Annotated[
        str | None,
        typer.Option("--label-names", help='Meaning of labels: "0=entailment,1=neutral".'),
    ] = None
    data_seed: Annotated[
        int, typer.Option("--data-seed", help="Seed of the draws of examples.")
    ] = 0


@dataclass(frozen=True)
class TaskOptions(FileOptions):
    """Which task, or how to read files."""

    task: Annotated[
        str | None,
        typer.Option("--task", help="mnli-hans, qqp-paws or a YAML file, in place of files."),
    ] = None
    folder: Annotated[
        str | None,
        typer.Option("--data-folder", help="Folder with the task's files; else from the hub."),
    ] = None


@dataclass(frozen=True)
class TrainOptions(Options):
    """Training data."""

    train: Annotated[
        str | None, typer.Option("--train", help="Training file, for means and pruning.")
    ] = None
    max_train: Annotated[
        int, typer.Option("--max-train", help="Training examples at most; 0: all.", min=0)
    ] = 4000


@dataclass(frozen=True)
class TestOptions(Options):
    """Test data."""

    id: Annotated[str | None, typer.Option("--id", help="In-domain test file.")] = None
    ood: Annotated[str | None, typer.Option("--ood", help="Out-of-domain test file.")] = None
    ood_label: Annotated[
        str | None,
        typer.Option("--ood-label", help="Keep out-of-domain examples of this label only."),
    ] = None
    ood_subsets: Annotated[
        str | None,
        typer.Option("--ood-subsets", help="Keep these out-of-domain subsets, by commas."),
    ] = None
    max_id: Annotated[
        int, typer.Option("--max-id", help="In-domain examples at most; 0: all.", min=0)
    ] = 2000
    max_ood: Annotated[
        int, typer.Option("--max-ood", help="Out-of-domain examples at most; 0: all.", min=0)
    ] = 2000
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Examples per evaluation batch.", min=1)
    ] = 64


Sparsities: TypeAlias = Annotated[
    str, typer.Option("--sparsities", help="Target sparsities in [0, 1), by commas.")
]


@dataclass(frozen=True)
class PruneOptions(Options):
    """The pruning runs."""

    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, by commas.")] = "42,43,44"
    sparsities: Sparsities = "0.5,0.7"
    preset: Annotated[
        Literal["fast", "paper"], typer.Option("--preset", help="Schedule of pruning.")
    ] = "fast"
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Optimisation steps of pruning; else the preset's.", min=1),
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "auto"],
        typer.Option(
            "--precision", help="Of pruning; auto: bfloat16 on hardware with instructions for it."
        ),
    ] = "float32"
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            help="Further changes to the preset: lr_lambda=0.7,clip=1 (see PruneSettings).",
        ),
    ] = None

    def settings(self, base: Any = None) -> Any:
        """The `PruneSettings`: ``base`` with what is on the command line, or all of this.

        Raises:
            InputError: a setting is unknown, out of its range, or given twice.
        """
        from mechcore.pruning import prune_settings

        changes: dict[str, Any] = {
            name: number_or_text(value)
            for name, value in pairs("--schedule", self.schedule).items()
        }
        for name in ("steps", "precision"):
            if name in self.given:
                check_once("--schedule", name, changes)
                changes[name] = getattr(self, name)
        whole = base is None or "preset" in self.given
        return prune_settings(self.preset if whole else base, **changes)


@dataclass(frozen=True)
class CompareOptions(PruneOptions):
    """The pruning runs of a comparison."""

    sparsities: Sparsities = "0.3,0.5,0.7"


@dataclass(frozen=True)
class GridOptions(PruneOptions):
    """The pruning runs of every checkpoint."""

    sparsities: Sparsities = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"


@dataclass(frozen=True)
class ResourceOptions(Options):
    """What a job may use."""

    cpus: Annotated[
        int | None,
        typer.Option("--cpus", help="Cores for a job; else all, with Ray one.", min=1),
    ] = None
    gpus: Annotated[
        float | None, typer.Option("--gpus", help="GPUs for a job, also 0.5.", min=0)
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or mps; else cuda with --gpus.")
    ] = None

    def over(self, resources: Any) -> Any:
        """The study's `Resources` with what was given here in place of its own."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            resources, **{name: value for name, value in given.items() if value is not None}
        )


@dataclass(frozen=True)
class StoreOptions(Options):
    """Where finished work is kept, and who does it."""

    store: Annotated[
        Path | None,
        typer.Option("--store", help="Run store, which studies can share; else in --out."),
    ] = None
    executor: Annotated[
        Literal["in-process", "ray"],
        typer.Option("--executor", help="One job after another, or on the workers of Ray."),
    ] = "in-process"
    address: Annotated[
        str | None,
        typer.Option("--address", help="Ray cluster (auto, HOST:PORT); else one is started here."),
    ] = None

    def executed(self, resources: Any) -> Any:
        """The executor, with what the study's `Resources` give each job."""
        from mechcore.study.executors import Local

        if self.executor == "ray":
            from mechcore.study.ray_executor import OnRay

            return OnRay(self.address, resources.cpus or 1, resources.gpus, resources.place)
        if self.address is not None:
            raise InputError("--address is for --executor ray; name it, or leave the address out")
        return Local(cpus=resources.cpus, device=resources.place)


@dataclass(frozen=True)
class TrackingOptions(Options):
    """Logging finished runs elsewhere."""

    wandb: Annotated[
        str | None,
        typer.Option("--wandb", help="Log the results to this project of Weights & Biases."),
    ] = None
    wandb_mode: Annotated[
        Literal["offline", "online"],
        typer.Option("--wandb-mode", help="Into a folder to sync later, or at once."),
    ] = "offline"

    def check(self) -> None:
        """Make sure that logging is possible, before the work.

        Raises:
            InputError: the package is missing, or it is said how to log but not where to.
        """
        if self.wandb is None and "wandb_mode" in self.given:
            raise InputError(
                "--wandb-mode is for --wandb, which names the project to log to; add it, or leave "
                "out --wandb-mode"
            )
        if self.wandb is not None:
            from mechcore.study.tracking import check_installed

            check_installed()

    def log(self, run: Path) -> None:
        """Log a finished run, if asked to."""
        if self.wandb is not None:
            from mechcore.study.tracking import log_run

            place = log_run(run, project=self.wandb, mode=self.wandb_mode)
            print(f"Weights & Biases: {place}")


@dataclass(frozen=True)
class MeansOptions(Options):
    """Where means come from."""

    means: Annotated[
        Path | None,
        typer.Option("--means", help="Means from mechcore means; else computed on --train."),
    ] = None


def data_config(
    files: FileOptions,
    train: TrainOptions | None = None,
    test: TestOptions | None = None,
    base: Any = None,
) -> Any:
    """The study's `DataConfig` from the groups that a command has.

    With a ``base`` it is that one, with what is on the command line in place of its own.
    """
    from mechcore.steps.config import DataConfig

    train, test = train or TrainOptions(), test or TestOptions()
    values = {
        "task": ("task", getattr(files, "task", None)),
        "folder": ("folder", getattr(files, "folder", None)),
        "train": ("train", train.train),
        "id": ("id", test.id),
        "ood": ("ood", test.ood),
        "columns": ("columns", pairs("--columns", files.columns)),
        "label_names": ("label_names", pairs("--label-names", files.label_names)),
        "ood_label": ("ood_label", test.ood_label),
        "ood_subsets": ("ood_subsets", tuple(split(test.ood_subsets))),
        "max_train": ("max_train", train.max_train or None),
        "max_id": ("max_id", test.max_id or None),
        "max_ood": ("max_ood", test.max_ood or None),
        "data_seed": ("seed", files.data_seed),
    }
    given = None if base is None else {*files.given, *train.given, *test.given}
    return _over(base or DataConfig(), given, values)


def run_config(
    model: ModelOptions,
    files: FileOptions,
    train: TrainOptions,
    test: TestOptions,
    prune: PruneOptions,
    max_non_core: int | None = None,
    base: Any = None,
) -> Any:
    """The study's `StudyConfig`.

    With a ``base``, such as that of a file, it is that one with what is on the command line in
    place of its own.

    Raises:
        InputError: options contradict each other, or the base.
    """
    from mechcore.steps.config import StudyConfig

    given = None if base is None else {*prune.given, *test.given}
    of = {name: None if base is None else getattr(base, name) for name in _PARTS}
    base = base or StudyConfig()
    analyses = base.analyses
    if max_non_core is not None:
        if analyses.ablation is None:
            raise InputError(
                "--max-non-core is for the ablation of the core, which the file leaves out "
                "(ablation: null); leave it out, too"
            )
        ablation = replace(analyses.ablation, max_non_core=max_non_core)
        analyses = replace(analyses, ablation=ablation)
    base = replace(
        base,
        model=model.config(of["model"]),
        data=data_config(files, train, test, of["data"]),
        prune=prune.settings(of["prune"]),
        analyses=analyses,
    )
    values = {
        "seeds": ("seeds", numbers("--seeds", prune.seeds, int)),
        "sparsities": ("sparsities", numbers("--sparsities", prune.sparsities, float)),
        "batch_size": ("batch_size", test.batch_size),
    }
    return _over(base, given, values)


_PARTS = ("model", "data", "prune")
"""Parts of a `StudyConfig` that groups of options are about."""


_GIVEN = "COMMANDLINE"
"""What typer calls the source of a value that is on the command line."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a typer command take option groups: each field of a group becomes an option."""
    signature = inspect.signature(command, eval_str=True)
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter)
            continue
        types = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name]
            )
            for f in fields(groups[name])
        ]

    @functools.wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        # Its class moved between versions of typer; its names did not.
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {name for name, source in sources.items() if source and source.name == _GIVEN}
        made = {}
        for name, group in groups.items():
            own = {f.name: values.pop(f.name) for f in fields(group)}
            made[name] = group(**own).with_given(given & own.keys())  # type: ignore[operator, union-attr]
        command(**values, **made)

    own_context = inspect.Parameter(
        "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
    )
    as_options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    as_options.append(own_context)
    run.__signature__ = inspect.Signature(as_options)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in as_options}
    return run


def split(text: str | None) -> list[str]:
    """Parts of a comma-separated option."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Numbers of a comma-separated option.

    Raises:
        InputError: a part is not a number.
    """
    try:
        return tuple(kind(part) for part in split(text))
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected numbers separated by commas") from error


def pairs(option: str, text: str | None) -> dict[str, str]:
    """NAME=VALUE pairs of a comma-separated option; a space before a value is part of it.

    Raises:
        InputError: a part is not a pair, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{option} {text!r}: expected NAME=VALUE pairs separated by commas")
        if name.strip() in found:
            raise InputError(
                f"{option} {text!r}: {name.strip()} occurs twice; leave one of them out"
            )
        found[name.strip()] = value
    return found


def check_once(option: str, name: str, pairs: Collection[str]) -> None:
    """Make sure that ``pairs``, those of an option, do not name what has an option of its own.

    Raises:
        InputError: they do.
    """
    if name in pairs:
        raise InputError(f"{option}: {name} is given as an option of its own, too; leave one out")


def number_or_text(text: str) -> int | float | str:
    """A number where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip()
