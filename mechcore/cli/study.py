"""Commands for a whole run and the embedded world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore import progress
from mechcore.cli.shared import must_not_exist, show_run
from mechcore.errors import InputError
from mechcore.options import (
    FileOptions,
    ModelOptions,
    PruneOptions,
    TestOptions,
    TrainOptions,
    grouped,
    run_config,
)


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
    show_run(out)
    print(f"report: {report}")


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

    must_not_exist(out)
    train = getattr(tiny_world_training, f"train_tiny_{model}")
    given = {"steps": steps, "seed": seed}
    train(out, **{name: value for name, value in given.items() if value is not None})
    print(f"checkpoints: {out}")
