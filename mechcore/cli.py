"""The command line: thin commands over the study's steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table

from mechcore import __version__, progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning

app = typer.Typer(
    name="mechcore",
    help=__import__("mechcore").__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# -- options shared by the commands ---------------------------------------------------------------

Model = Annotated[
    str | None,
    typer.Option("--model", help="Checkpoint directory or hub id; without it, an embedded model."),
]
Embedded = Annotated[
    Literal["encoder", "decoder"],
    typer.Option("--embedded", help="Embedded model to use when there is no --model."),
]
Backend = Annotated[
    Literal["bridge", "hooked"] | None,
    typer.Option(
        "--backend",
        help="TransformerBridge or HookedTransformer (TransformerLens 3, GPT-2 language models); "
        "by default a bridge, and a HookedTransformer for the embedded decoder where there is one.",
    ),
]
Train = Annotated[str | None, typer.Option("--train", help="Training file: means and pruning.")]
Id = Annotated[str | None, typer.Option("--id", help="In-domain test file.")]
Ood = Annotated[str | None, typer.Option("--ood", help="Out-of-domain test file.")]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", help="Columns of the files: text_a=NAME,text_b=NAME,label=NAME,subset=NAME."
    ),
]
LabelNames = Annotated[
    str | None,
    typer.Option("--label-names", help='Meaning of labels, as in "0=entailment,1=neutral".'),
]
Classes = Annotated[
    str | None,
    typer.Option("--classes", help="Names of the checkpoint's classes in index order."),
]
OodLabel = Annotated[
    str | None, typer.Option("--ood-label", help="Keep out-of-domain examples of this label only.")
]
OodSubsets = Annotated[
    str | None, typer.Option("--ood-subsets", help="Keep these out-of-domain subsets, by commas.")
]
Prompt = Annotated[
    str | None,
    typer.Option("--prompt", help='Language models: text with {a} and {b}, as in "{a} So {b}?".'),
]
Answers = Annotated[
    str | None,
    typer.Option("--answers", help='Language models: LABEL=WORD by commas, as in "yes= Yes".'),
]
MaxLength = Annotated[int, typer.Option("--max-length", help="Longest input in tokens.", min=1)]
MaxTrain = Annotated[int, typer.Option("--max-train", help="Training examples at most; 0: all.")]
MaxId = Annotated[int, typer.Option("--max-id", help="In-domain examples at most; 0: all.")]
MaxOod = Annotated[int, typer.Option("--max-ood", help="Out-of-domain examples at most; 0: all.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds of the pruning runs, by commas.")]
Sparsities = Annotated[
    str, typer.Option("--sparsities", help="Target sparsities in [0, 1), by commas.")
]
Steps = Annotated[int, typer.Option("--steps", help="Optimisation steps of pruning.", min=1)]
Bfloat16 = Annotated[
    bool, typer.Option("--bfloat16", help="Prune with matrix products in bfloat16.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Examples per batch.", min=1)]
DataSeed = Annotated[int, typer.Option("--data-seed", help="Seed of the draws of examples.")]
MeansFile = Annotated[
    Path | None,
    typer.Option("--means", help="Means from mechcore means; computed on --train otherwise."),
]


def _version(asked: bool) -> None:
    if asked:
        print(f"mechcore {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "mechcore-out"
    ),
    model: Model = None,
    train: Train = None,
    id: Id = None,
    ood: Ood = None,
    embedded: Embedded = "encoder",
    backend: Backend = None,
    columns: Columns = None,
    label_names: LabelNames = None,
    classes: Classes = None,
    ood_label: OodLabel = None,
    ood_subsets: OodSubsets = None,
    prompt: Prompt = None,
    answers: Answers = None,
    max_length: MaxLength = 128,
    max_train: MaxTrain = 4000,
    max_id: MaxId = 2000,
    max_ood: MaxOod = 2000,
    seeds: Seeds = "42,43,44",
    sparsities: Sparsities = "0.4,0.6",
    steps: Steps = 600,
    bfloat16: Bfloat16 = False,
    batch_size: BatchSize = 64,
    data_seed: DataSeed = 0,
    max_non_core: Annotated[
        int, typer.Option("--max-non-core", help="Heads outside the core to ablate.", min=0)
    ] = 16,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run.")] = False,
) -> None:
    """The main job: evaluate, prune, core, head categories, ablations, one report."""
    from mechcore.study import RunConfig
    from mechcore.study import run as run_study

    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other; choose one")
    model_config = _model_config(model, embedded, backend, classes, prompt, answers, max_length)
    config = RunConfig(
        model=model_config,
        data=_data_config(
            train, id, ood, columns, label_names, ood_label, ood_subsets,
            max_train, max_id, max_ood, data_seed,
        ),
        prune=_prune_settings(steps, bfloat16),
        seeds=_numbers("--seeds", seeds, int),
        sparsities=_numbers("--sparsities", sparsities, float),
        batch_size=batch_size,
        max_non_core=max_non_core,
    )  # fmt: skip
    if_exists: Any = "resume" if resume else "overwrite" if overwrite else "fail"
    with progress.shown():
        report = run_study(config, out, if_exists=if_exists)
    _show_run(out)
    print(f"report: {report}")


@app.command()
def means(
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("means.safetensors"),
    model: Model = None,
    train: Train = None,
    embedded: Embedded = "encoder",
    backend: Backend = None,
    columns: Columns = None,
    label_names: LabelNames = None,
    prompt: Prompt = None,
    answers: Answers = None,
    max_length: MaxLength = 128,
    max_train: MaxTrain = 4000,
    data_seed: DataSeed = 0,
    include_padding: Annotated[
        bool, typer.Option("--include-padding", help="Pool padding in, as the authors did.")
    ] = False,
    per_position: Annotated[
        bool, typer.Option("--per-position", help="One mean per position.")
    ] = False,
) -> None:
    """Mean activations of every head and MLP over training data."""
    from mechcore.means import MeanActivations

    _must_not_exist(out)
    inputs = _inputs(
        _model_config(model, embedded, backend, None, prompt, answers, max_length),
        _data_config(train, columns=columns, label_names=label_names, max_train=max_train,
                     data_seed=data_seed),
        ("train",),
    )  # fmt: skip
    with progress.shown():
        found = MeanActivations.compute(
            inputs.model,
            inputs.data["train"],
            include_padding=include_padding,
            per_position=per_position,
        )
    found.save(out)
    print(f"means of {int(found.counts.sum())} tokens: {out}")


@app.command()
def prune(
    out: Annotated[Path, typer.Option("--out", help="Folder for masks and tables.")] = Path(
        "mechcore-masks"
    ),
    means: MeansFile = None,
    model: Model = None,
    train: Train = None,
    id: Id = None,
    ood: Ood = None,
    embedded: Embedded = "encoder",
    backend: Backend = None,
    columns: Columns = None,
    label_names: LabelNames = None,
    classes: Classes = None,
    ood_label: OodLabel = None,
    ood_subsets: OodSubsets = None,
    prompt: Prompt = None,
    answers: Answers = None,
    max_length: MaxLength = 128,
    max_train: MaxTrain = 4000,
    max_id: MaxId = 2000,
    max_ood: MaxOod = 2000,
    seeds: Seeds = "42,43,44",
    sparsities: Sparsities = "0.4,0.6",
    steps: Steps = 600,
    bfloat16: Bfloat16 = False,
    batch_size: BatchSize = 64,
    data_seed: DataSeed = 0,
) -> None:
    """Subnetworks for every seed and sparsity, with their accuracies."""
    from mechcore.pruning import prune as prune_masks
    from mechcore.study import RunConfig
    from mechcore.study import steps as study_steps
    from mechcore.study.folder import write_tables

    _must_not_exist(out)
    config = RunConfig(
        model=_model_config(model, embedded, backend, classes, prompt, answers, max_length),
        data=_data_config(
            train, id, ood, columns, label_names, ood_label, ood_subsets,
            max_train, max_id, max_ood, data_seed,
        ),
        prune=_prune_settings(steps, bfloat16),
        seeds=_numbers("--seeds", seeds, int),
        sparsities=_numbers("--sparsities", sparsities, float),
    )  # fmt: skip
    inputs = _inputs(config.model, config.data, ("train", "id", "ood"))
    with progress.shown():
        averages = _means(inputs, means)
        found = prune_masks(
            inputs.model, inputs.data["train"], averages,
            seeds=config.seeds, sparsities=config.sparsities, settings=config.prune,
        )  # fmt: skip
        tables = study_steps.accuracy_tables(
            inputs, found, averages, batch_size=batch_size, n_resamples=config.n_resamples
        )
    for each in found:
        each.save(out / "masks" / f"{each.name}.safetensors")
    write_tables(out / "tables", tables)
    _show(tables["subnetworks"].drop(columns="kept"))
    print(f"masks and tables: {out}")


@app.command()
def core(
    masks: Annotated[
        list[Path], typer.Argument(help="Files of mechcore prune, or folders of them.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-core"
    ),
) -> None:
    """Head frequencies and the heuristic core of several subnetworks."""
    from mechcore.pruning import Subnetwork
    from mechcore.study import steps as study_steps
    from mechcore.study.folder import write_tables

    _must_not_exist(out)
    files = [file for path in masks for file in _mask_files(path)]
    _, tables = study_steps.core_tables([Subnetwork.load(file) for file in files])
    write_tables(out, tables)
    _show(tables["core"])
    _show(tables["core_summary"])
    print(f"tables: {out}")


@app.command()
def heads(
    out: Annotated[Path, typer.Option("--out", help="CSV or JSON file to write.")] = Path(
        "heads.csv"
    ),
    data: Annotated[str | None, typer.Option("--data", help="File of texts.")] = None,
    model: Model = None,
    embedded: Embedded = "encoder",
    backend: Backend = None,
    columns: Columns = None,
    label_names: LabelNames = None,
    prompt: Prompt = None,
    answers: Answers = None,
    max_length: MaxLength = 128,
    max_examples: Annotated[int, typer.Option("--max-examples", help="At most; 0: all.")] = 512,
    data_seed: DataSeed = 0,
) -> None:
    """Attention pattern scores and the category of every head."""
    from mechcore.files import write_csv, write_text
    from mechcore.study import steps as study_steps

    _must_not_exist(out)
    if out.suffix not in (".csv", ".json"):
        raise InputError(f"{out}: expected the ending .csv or .json (--out)")
    inputs = _inputs(
        _model_config(model, embedded, backend, None, prompt, answers, max_length),
        replace(
            _data_config(columns=columns, label_names=label_names, data_seed=data_seed),
            id=data,
            max_id=max_examples or None,
        ),
        ("id",),
        labelled=False,
    )
    with progress.shown():
        table = study_steps.category_table(inputs, inputs.data["id"].examples)
    if out.suffix == ".csv":
        write_csv(out, table)
    else:
        write_text(out, table.to_json(orient="records", indent=2) + "\n")
    masses = [column for column in table if str(column).startswith("mass_")]
    _show(table[["component", "category", *masses]])
    print(f"categories: {out}")


@app.command()
def ablate(
    components: Annotated[
        str, typer.Option("--components", help="Heads and MLPs by commas, as in L1.H0,L2.MLP.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-ablation"
    ),
    joint: Annotated[
        bool, typer.Option("--joint/--no-joint", help="Ablate them together as well.")
    ] = True,
    mode: Annotated[
        Literal["mean", "zero", "resample"],
        typer.Option("--mode", help="What replaces an ablated output."),
    ] = "mean",
    means: MeansFile = None,
    model: Model = None,
    train: Train = None,
    id: Id = None,
    ood: Ood = None,
    embedded: Embedded = "encoder",
    backend: Backend = None,
    columns: Columns = None,
    label_names: LabelNames = None,
    classes: Classes = None,
    ood_label: OodLabel = None,
    ood_subsets: OodSubsets = None,
    prompt: Prompt = None,
    answers: Answers = None,
    max_length: MaxLength = 128,
    max_train: MaxTrain = 4000,
    max_id: MaxId = 2000,
    max_ood: MaxOod = 2000,
    batch_size: BatchSize = 64,
    data_seed: DataSeed = 0,
) -> None:
    """Accuracy and margin without chosen components, alone and together."""
    from mechcore.components import ModelShape, parse_components
    from mechcore.study import steps as study_steps
    from mechcore.study.folder import write_tables

    _must_not_exist(out)
    chosen = parse_components(components)
    if not chosen:
        raise InputError("--components: no component given; name some, as in L1.H0,L2.MLP")
    inputs = _inputs(
        _model_config(model, embedded, backend, classes, prompt, answers, max_length),
        _data_config(
            train, id, ood, columns, label_names, ood_label, ood_subsets,
            max_train, max_id, max_ood, data_seed,
        ),
        ("id", "ood") if means or mode == "zero" else ("train", "id", "ood"),
    )  # fmt: skip
    for component in chosen:
        ModelShape.of(inputs.model).index(component)
    with progress.shown():
        tables = study_steps.chosen_ablation_tables(
            inputs,
            None if mode == "zero" else _means(inputs, means),
            chosen,
            joint=joint,
            mode=mode,
            batch_size=batch_size,
        )
    write_tables(out, tables)
    shown = tables["ablation"]
    columns_shown = ["set", "role", "subset", "n", "accuracy", "accuracy_drop", "margin_drop"]
    _show(shown[shown["subset"] == "all"][columns_shown])
    print(f"tables: {out}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
) -> None:
    """The HTML report of a finished run, made again from its tables."""
    from mechcore.report import build_report

    print(f"report: {build_report(folder)}")


@app.command("train-world")
def train_world(
    model: Annotated[
        Literal["encoder", "decoder"], typer.Option("--model", help="Which model to train.")
    ] = "encoder",
    out: Annotated[Path, typer.Option("--out", help="Folder for the checkpoints.")] = Path(
        "mechcore-world"
    ),
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps.", min=1)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and data.")] = None,
) -> None:
    """Train a model of the embedded tiny world from scratch, with checkpoints."""
    from mechcore.tasks import tiny_world_training

    _must_not_exist(out)
    train = getattr(tiny_world_training, f"train_tiny_{model}")
    given = {"steps": steps, "seed": seed}
    train(out, **{name: value for name, value in given.items() if value is not None})
    print(f"checkpoints: {out}")


# -- from options to configurations ---------------------------------------------------------------


def _model_config(
    model: str | None,
    embedded: Literal["encoder", "decoder"],
    backend: Literal["bridge", "hooked"] | None,
    classes: str | None,
    prompt: str | None,
    answers: str | None,
    max_length: int,
) -> Any:
    from mechcore.models.loading import has_hooked_transformer
    from mechcore.study import ModelConfig

    if backend is None:
        own_decoder = model is None and embedded == "decoder"
        backend = "hooked" if own_decoder and has_hooked_transformer() else "bridge"
    return ModelConfig(
        source=model,
        embedded=embedded,
        backend=backend,
        class_labels=tuple(_list(classes)) or None,
        prompt=prompt,
        answers=_pairs("--answers", answers) or None,
        max_length=max_length,
    )


def _data_config(
    train: str | None = None,
    id: str | None = None,
    ood: str | None = None,
    columns: str | None = None,
    label_names: str | None = None,
    ood_label: str | None = None,
    ood_subsets: str | None = None,
    max_train: int = 4000,
    max_id: int = 2000,
    max_ood: int = 2000,
    data_seed: int = 0,
) -> Any:
    from mechcore.study import DataConfig

    for name, value in (("train", max_train), ("id", max_id), ("ood", max_ood)):
        if value < 0:
            raise InputError(f"--max-{name} {value}: expected 0 (all) or more")
    return DataConfig(
        train=train,
        id=id,
        ood=ood,
        columns=_pairs("--columns", columns),
        label_names=_pairs("--label-names", label_names),
        ood_label=ood_label,
        ood_subsets=tuple(_list(ood_subsets)),
        max_train=max_train or None,
        max_id=max_id or None,
        max_ood=max_ood or None,
        seed=data_seed,
    )


def _prune_settings(steps: int, bfloat16: bool) -> Any:
    from mechcore.pruning import PruneSettings

    return PruneSettings(steps=steps, bfloat16=bfloat16)


def _inputs(model: Any, data: Any, roles: tuple[str, ...], *, labelled: bool = True) -> Any:
    from mechcore.study.inputs import load_inputs

    return load_inputs(model, data, roles, labelled=labelled)


def _means(inputs: Any, file: Path | None) -> Any:
    from mechcore.means import MeanActivations

    if file is not None:
        return MeanActivations.load(file, inputs.model)
    return MeanActivations.compute(inputs.model, inputs.data["train"])


def _mask_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors")) or sorted((path / "masks").glob("*.safetensors"))
        if not files:
            raise InputError(f"{path}: no mask files (*.safetensors) in this folder")
        return files
    return [path]


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _numbers(option: str, text: str, kind: Any) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in _list(text))
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected numbers separated by commas") from error


def _pairs(option: str, text: str | None) -> dict[str, str]:
    """Pairs NAME=VALUE; the space before an answer word is part of it."""
    pairs = {}
    for part in (text or "").split(","):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{option} {text!r}: expected NAME=VALUE pairs separated by commas")
        pairs[name.strip()] = value
    return pairs


def _must_not_exist(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"{out}: exists already; choose another --out or remove it")


# -- output ---------------------------------------------------------------------------------------


def _show(frame: Any) -> None:
    table = Table(*(Column(str(name), overflow="fold") for name in frame.columns))
    for row in frame.itertuples(index=False):
        table.add_row(*map(_cell, row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None or str(value) in ("nan", "<NA>"):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _show_run(out: Path) -> None:
    import pandas as pd

    table = pd.read_csv(out / "tables" / "subnetworks.csv")
    full = pd.read_csv(out / "tables" / "accuracy.csv").query("subnetwork == 'full'")
    _show(full[["role", "subset", "n", "accuracy", "accuracy_low", "accuracy_high"]])
    columns = {
        "heads_kept": "heads",
        "mlps_kept": "MLPs",
        "id_accuracy": "id",
        "ood_accuracy": "ood",
    }
    _show(table[["subnetwork", "sparsity", "kl", *columns]].rename(columns=columns))
    summary = pd.read_csv(out / "tables" / "core_summary.csv").iloc[0]
    members = pd.read_csv(out / "tables" / "core.csv")["component"]
    print(
        f"heuristic core of {summary.n_subnetworks:.0f} subnetworks: {len(members)} of "
        f"{summary.n_heads:.0f} heads ({' '.join(members) or 'empty'}); "
        f"{summary.expected_by_chance:.2f} expected by chance, p = {summary.p_value:.2g}"
    )


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show mechcore's warnings as one line each, and no one else's."""

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        if issubclass(category, MechcoreWarning):
            print(f"mechcore: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", MechcoreWarning)
        warnings.showwarning = show
        yield


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line.

    Exit codes: 0 done, 1 a step failed, 2 bad input (one line on standard error), 130 interrupted.
    """
    try:
        with _one_line_warnings():
            code = app(arguments, standalone_mode=False)
    except typer.Abort:
        code = 130
    except InputError as error:
        code = _fail(str(error), 2)
    except MechcoreError as error:
        code = _fail(str(error), 1)
    except KeyboardInterrupt:
        code = _fail("interrupted; mechcore run --resume goes on from the last finished step", 130)
    except Exception as error:
        # Usage errors; their class moved between versions of typer.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        code = _fail(f"{describe()} (mechcore COMMAND --help lists the options)", 2)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> int:
    print(f"mechcore: error: {' '.join(message.split())}", file=sys.stderr)
    return code
