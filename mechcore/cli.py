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

import mechcore
from mechcore import progress
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.files import check_can_write
from mechcore.options import (
    FileOptions,
    MeansOptions,
    ModelOptions,
    PruneOptions,
    TestOptions,
    TrainOptions,
    data_config,
    grouped,
    run_config,
)

app = typer.Typer(
    name="mechcore",
    help=mechcore.__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"mechcore {mechcore.__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
@grouped
def run(
    model: ModelOptions,
    train: TrainOptions,
    test: TestOptions,
    files: FileOptions,
    prune: PruneOptions,
    max_non_core: Annotated[
        int, typer.Option("--max-non-core", help="Heads outside the core to ablate.", min=0)
    ] = 16,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "mechcore-out"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run.")] = False,
) -> None:
    """The main job: evaluate, prune, core, head categories, ablations, one report."""
    from mechcore.study import run as run_study

    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other; choose one")
    config = run_config(model, files, train, test, prune, max_non_core=max_non_core)
    if_exists: Any = "resume" if resume else "overwrite" if overwrite else "fail"
    with progress.shown():
        report = run_study(config, out, if_exists=if_exists)
    _show_run(out)
    print(f"report: {report}")


@app.command()
@grouped
def means(
    model: ModelOptions,
    train: TrainOptions,
    files: FileOptions,
    include_padding: Annotated[
        bool, typer.Option("--include-padding", help="Pool padding in, as the authors did.")
    ] = False,
    per_position: Annotated[
        bool, typer.Option("--per-position", help="One mean per position.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("means.safetensors"),
) -> None:
    """Mean activations of every head and MLP over training data."""
    from mechcore.means import MeanActivations

    _must_not_exist(out, file=True)
    inputs = _inputs(model, data_config(files, train), ("train",))
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
@grouped
def prune(
    model: ModelOptions,
    train: TrainOptions,
    test: TestOptions,
    files: FileOptions,
    prune: PruneOptions,
    means: MeansOptions,
    out: Annotated[Path, typer.Option("--out", help="Folder for masks and tables.")] = Path(
        "mechcore-masks"
    ),
) -> None:
    """Subnetworks for every seed and sparsity, with their accuracies."""
    from mechcore.pruning import prune as prune_masks
    from mechcore.study import steps as study_steps
    from mechcore.study.folder import write_tables

    _must_not_exist(out)
    config = run_config(model, files, train, test, prune)
    untested = model.model is not None and test.id is None and test.ood is None
    inputs = _inputs(model, config.data, ("train",) if untested else ("train", "id", "ood"))
    with progress.shown():
        averages = _means(inputs, means)
        found = prune_masks(
            inputs.model,
            inputs.data["train"],
            averages,
            seeds=config.seeds,
            sparsity=config.sparsities,
            preset=config.prune,
            data_seed=config.data.seed,
        )
        for each in found:
            each.save(out / "masks" / f"{each.name}.safetensors")
        if untested:
            print(f"masks: {out / 'masks'} (with --id and --ood, their accuracies as well)")
            return
        tables = study_steps.accuracy_tables(
            inputs,
            found,
            averages,
            batch_size=config.batch_size,
            n_resamples=config.n_resamples,
        )
    write_tables(out / "tables", tables)
    _show_subnetworks(tables["subnetworks"])
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
    _show_core(tables["core"], tables["core_summary"])
    print(f"tables: {out}")


@app.command()
@grouped
def heads(
    model: ModelOptions,
    files: FileOptions,
    data: Annotated[str | None, typer.Option("--data", help="File of texts.")] = None,
    max_examples: Annotated[
        int, typer.Option("--max-examples", help="Examples at most; 0: all.", min=0)
    ] = 512,
    out: Annotated[Path, typer.Option("--out", help="CSV or JSON file to write.")] = Path(
        "heads.csv"
    ),
) -> None:
    """Attention pattern scores and the category of every head."""
    from mechcore.files import write_csv, write_text
    from mechcore.study import steps as study_steps

    _must_not_exist(out, file=True)
    if out.suffix not in (".csv", ".json"):
        raise InputError(f"{out}: expected the ending .csv or .json (--out)")
    if model.model is not None and data is None:
        raise InputError("--data is missing; name a file of texts for the checkpoint")
    chosen = replace(data_config(files), train=data, max_train=max_examples or None)
    inputs = _inputs(model, chosen, ("train",))
    with progress.shown():
        table = study_steps.category_table(inputs, inputs.data["train"].examples)
    if out.suffix == ".csv":
        write_csv(out, table)
    else:
        write_text(out, table.to_json(orient="records", indent=2) + "\n")
    masses = {f"mass_{name}": name for name in ("repeated", "previous", "separator", "first")}
    _show(table[["component", "category", *masses]].rename(columns=masses))
    print(f"categories: {out}")


@app.command()
@grouped
def ablate(
    components: Annotated[
        str, typer.Option("--components", help="Heads and MLPs by commas, as in L1.H0,L2.MLP.")
    ],
    model: ModelOptions,
    train: TrainOptions,
    test: TestOptions,
    files: FileOptions,
    means: MeansOptions,
    joint: Annotated[
        bool, typer.Option("--joint/--no-joint", help="Ablate them together as well.")
    ] = True,
    mode: Annotated[
        Literal["mean", "zero", "resample"],
        typer.Option("--mode", help="What replaces an ablated output."),
    ] = "mean",
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-ablation"
    ),
) -> None:
    """Accuracy and margin without chosen components, alone and together."""
    from mechcore.components import ModelShape, parse_components
    from mechcore.study import steps as study_steps
    from mechcore.study.folder import write_tables

    _must_not_exist(out)
    chosen = parse_components(components)
    if not chosen:
        raise InputError("--components: no component given; name some, as in L1.H0,L2.MLP")
    needs_train = mode != "zero" and means.means is None
    roles = ("train", "id", "ood") if needs_train else ("id", "ood")
    inputs = _inputs(model, data_config(files, train, test), roles)
    for component in chosen:
        ModelShape.of(inputs.model).index(component)
    with progress.shown():
        tables = study_steps.chosen_ablation_tables(
            inputs,
            None if mode == "zero" else _means(inputs, means),
            chosen,
            joint=joint,
            mode=mode,
            batch_size=test.batch_size,
        )
    write_tables(out, tables)
    shown = tables["ablation"].query("subset == 'all'")
    _show(shown[["set", "role", "n", "accuracy", "accuracy_drop", "margin_drop"]])
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


# -- shared by the commands -----------------------------------------------------------------------


def _inputs(model: ModelOptions, data: Any, roles: tuple[str, ...]) -> Any:
    from mechcore.study.inputs import load_inputs

    return load_inputs(model.config(), data, roles)


def _means(inputs: Any, options: MeansOptions) -> Any:
    from mechcore.means import MeanActivations

    if options.means is not None:
        return MeanActivations.load(options.means, inputs.model)
    return MeanActivations.compute(inputs.model, inputs.data["train"])


def _mask_files(path: Path) -> list[Path]:
    if path.is_dir():
        inside = path / "masks"  # of a run's folder
        # Names with a leading dot are files that were never finished.
        files = sorted((inside if inside.is_dir() else path).glob("[!.]*.safetensors"))
        if not files:
            raise InputError(f"{path}: no mask files (*.safetensors) in this folder")
        return files
    return [path]


def _must_not_exist(out: Path, *, file: bool = False) -> None:
    if out.exists() and (file or out.is_file() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; choose another --out or remove it")
    check_can_write(out)


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


def _show_subnetworks(table: Any) -> None:
    columns = {
        "heads_kept": "heads",
        "mlps_kept": "MLPs",
        "id_accuracy": "id",
        "ood_accuracy": "ood",
    }
    _show(table[["subnetwork", "sparsity", "kl", *columns]].rename(columns=columns))


def _show_core(members: Any, summary: Any) -> None:
    facts = summary.iloc[0]
    print(
        f"heuristic core of {facts.n_subnetworks:.0f} subnetworks: {len(members)} of "
        f"{facts.n_heads:.0f} heads ({' '.join(members['component']) or 'empty'}); "
        f"{facts.expected_by_chance:.2g} expected by chance, p = {facts.p_value:.2g}"
    )


def _show_run(out: Path) -> None:
    import pandas as pd

    names = ("accuracy", "subnetworks", "core", "core_summary")
    tables = {name: pd.read_csv(out / "tables" / f"{name}.csv") for name in names}
    full = tables["accuracy"].query("subnetwork == 'full'")
    _show(full[["role", "subset", "n", "accuracy", "accuracy_low", "accuracy_high"]])
    _show_subnetworks(tables["subnetworks"])
    _show_core(tables["core"], tables["core_summary"])


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
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; mechcore run --resume goes on from the last finished step", 130)
    except InputError as error:
        code = _fail(str(error), 2)
    except MechcoreError as error:
        code = _fail(str(error), 1)
    except OSError as error:
        code = _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 1)
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
