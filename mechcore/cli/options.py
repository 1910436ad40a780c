"""Groups of command-line options, each a dataclass that a command takes as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

from mechcore.errors import InputError


@dataclass(frozen=True)
class CheckpointOptions:
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

    def config(self) -> Any:
        """The study's `ModelConfig`."""
        from mechcore.study import ModelConfig

        return ModelConfig(
            source=self.model,
            revision=self.revision,
            class_labels=tuple(split(self.classes)) or None,
            prompt=self.prompt,
            answers=pairs("--answers", self.answers) or None,
            max_length=self.max_length,
            allow_pickle=self.allow_pickle,
        )


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

    def config(self) -> Any:
        """The study's `ModelConfig`."""
        return replace(
            super().config(),
            embedded=self.embedded,
            backend=self.backend,
            dtype=self.dtype,
            device_map=self.device_map,
        )


@dataclass(frozen=True)
class FileOptions:
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
class TrainOptions:
    """Training data."""

    train: Annotated[
        str | None, typer.Option("--train", help="Training file, for means and pruning.")
    ] = None
    max_train: Annotated[
        int, typer.Option("--max-train", help="Training examples at most; 0: all.", min=0)
    ] = 4000


@dataclass(frozen=True)
class TestOptions:
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
class PruneOptions:
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

    def settings(self) -> Any:
        """The `PruneSettings`."""
        from mechcore.pruning import prune_settings

        changes: dict[str, Any] = {
            name: number_or_text(value)
            for name, value in pairs("--schedule", self.schedule).items()
        }
        if self.steps is not None:
            changes["steps"] = self.steps
        return prune_settings(self.preset, **{"precision": self.precision, **changes})


@dataclass(frozen=True)
class CompareOptions(PruneOptions):
    """The pruning runs of a comparison."""

    sparsities: Sparsities = "0.3,0.5,0.7"


@dataclass(frozen=True)
class GridOptions(PruneOptions):
    """The pruning runs of every checkpoint."""

    sparsities: Sparsities = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"


@dataclass(frozen=True)
class ResourceOptions:
    """What a unit of work may use."""

    cpus: Annotated[
        int | None,
        typer.Option("--cpus", help="Cores for a unit of work; else all, with Ray one.", min=1),
    ] = None
    gpus: Annotated[
        float | None, typer.Option("--gpus", help="GPUs for a unit of work, also 0.5.", min=0)
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or mps; else cuda with --gpus.")
    ] = None

    def over(self, resources: Any) -> Any:
        """The study's `Resources` with what was given here in place of its own."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(resources, **given)


@dataclass(frozen=True)
class StoreOptions:
    """Where finished work is kept, and who does it."""

    store: Annotated[
        Path | None,
        typer.Option("--store", help="Run store, which studies can share; else in --out."),
    ] = None
    executor: Annotated[
        Literal["in-process", "ray"],
        typer.Option("--executor", help="One unit after another, or on the workers of Ray."),
    ] = "in-process"
    address: Annotated[
        str | None,
        typer.Option("--address", help="Ray cluster (auto, HOST:PORT); else one is started here."),
    ] = None

    def executed(self) -> Any:
        """The executor."""
        from mechcore.study.executors import in_process

        if self.executor == "ray":
            from mechcore.study.ray_executor import on_ray

            return on_ray(self.address)
        if self.address is not None:
            raise InputError("--address is for --executor ray; name it, or leave the address out")
        return in_process


@dataclass(frozen=True)
class TrackingOptions:
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
            InputError: the package is missing.
        """
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
class MeansOptions:
    """Where means come from."""

    means: Annotated[
        Path | None,
        typer.Option("--means", help="Means from mechcore means; else computed on --train."),
    ] = None


def data_config(
    files: FileOptions, train: TrainOptions | None = None, test: TestOptions | None = None
) -> Any:
    """The study's `DataConfig` from the groups that a command has."""
    from mechcore.study import DataConfig

    train, test = train or TrainOptions(), test or TestOptions()
    return DataConfig(
        task=getattr(files, "task", None),
        folder=getattr(files, "folder", None),
        train=train.train,
        id=test.id,
        ood=test.ood,
        columns=pairs("--columns", files.columns),
        label_names=pairs("--label-names", files.label_names),
        ood_label=test.ood_label,
        ood_subsets=tuple(split(test.ood_subsets)),
        max_train=train.max_train or None,
        max_id=test.max_id or None,
        max_ood=test.max_ood or None,
        seed=files.data_seed,
    )


def run_config(
    model: ModelOptions,
    files: FileOptions,
    train: TrainOptions,
    test: TestOptions,
    prune: PruneOptions,
    max_non_core: int | None = None,
) -> Any:
    """The study's `StudyConfig`."""
    from mechcore.study import AblationConfig, Analyses, StudyConfig

    ablation = AblationConfig()
    if max_non_core is not None:
        ablation = replace(ablation, max_non_core=max_non_core)
    return StudyConfig(
        model=model.config(),
        data=data_config(files, train, test),
        prune=prune.settings(),
        seeds=numbers("--seeds", prune.seeds, int),
        sparsities=numbers("--sparsities", prune.sparsities, float),
        analyses=Analyses(ablation=ablation),
        batch_size=test.batch_size,
    )


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
    def run(**given: Any) -> None:
        made = {
            name: group(**{f.name: given.pop(f.name) for f in fields(group)})  # type: ignore[operator]
            for name, group in groups.items()
        }
        command(**given, **made)

    as_options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
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
        InputError: a part is not a pair.
    """
    found = {}
    for part in (text or "").split(","):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{option} {text!r}: expected NAME=VALUE pairs separated by commas")
        found[name.strip()] = value
    return found


def number_or_text(text: str) -> int | float | str:
    """A number where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip()
