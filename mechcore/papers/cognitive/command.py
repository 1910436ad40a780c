"""Commands of the cognitive task."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore import progress
from mechcore.cli.options import Options, grouped, numbers, split
from mechcore.cli.shared import must_not_exist, run_table, show
from mechcore.errors import InputError

app = typer.Typer(
    name="cognitive",
    help="Context-dependent decisions: fine-tuned against trained from scratch.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FORMATS = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class CognitiveTaskOptions(Options):
    """How trials are worded and drawn."""

    rendering: Annotated[
        Literal["two_sided", "signed"], typer.Option("--rendering", help="How trials are worded.")
    ] = "two_sided"
    random_order: Annotated[
        bool, typer.Option("--random-order", help="Show colour first in half of the trials.")
    ] = False
    differences: Annotated[
        str | None,
        typer.Option("--differences", help="Strengths of evidence to draw from; else all."),
    ] = None

    def task(self) -> dict[str, Any]:
        """What `generate` takes."""
        chosen = self.differences
        return {
            "rendering": self.rendering,
            "random_order": self.random_order,
            "differences": None if chosen is None else numbers("--differences", chosen, int),
        }


@dataclass(frozen=True)
class ArmOptions(Options):
    """Which models are compared, and how they are trained."""

    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            help="Pretrained decoder, a directory or hub id (gpt2); else the tiny one inside.",
        ),
    ] = None
    arms: Annotated[str, typer.Option("--arms", help="Some of base, fine_tuned and scratch.")] = (
        "base,fine_tuned,scratch"
    )
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", help="Numbers of training trials (100,400,1600,6400)."),
    ] = None
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds of training (0,1,2).")] = None
    fine_tuned_rates: Annotated[
        str | None, typer.Option("--fine-tuned-rates", help="Learning rates to choose from.")
    ] = None
    scratch_rates: Annotated[
        str | None, typer.Option("--scratch-rates", help="The same, from scratch.")
    ] = None
    steps: Annotated[
        int | None, typer.Option("--steps", help="Most optimiser steps of a training (2000).")
    ] = None
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Most passes over the trials (100).")
    ] = None
    warmup_steps: Annotated[
        int | None, typer.Option("--warmup-steps", help="Steps in which the rate rises (100).")
    ] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Trials in an optimiser step (32).")
    ] = None
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="Steps between evaluations (50).")
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience", help="Evaluations without improvement that end a training (12)."
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16"] | None, typer.Option("--precision", help="Of training.")
    ] = None

    def over(self, settings: Any) -> Any:
        """Settings with what was asked for."""
        shared = {name: value for name in _TRAINING if (value := getattr(self, name)) is not None}
        trained = {}
        for arm in ("fine_tuned", "scratch"):
            rates = getattr(self, f"{arm}_rates")
            given = {} if rates is None else {"learning_rates": numbers(_option(arm), rates, float)}
            trained[arm] = replace(settings.training(arm), **shared, **given)
        for name in ("sizes", "seeds"):
            if (given_text := getattr(self, name)) is not None:
                trained[name] = numbers(f"--{name}", given_text, int)
        return replace(settings, arms=tuple(split(self.arms)), **trained)


_TRAINING = (
    *("steps", "epochs", "warmup_steps", "batch_size", "evaluate_every", "patience"),
    "precision",
)
"""Options that hold for both trained arms."""


def _option(arm: str) -> str:
    return f"--{arm.replace('_', '-')}-rates"


@app.command("run")
@grouped
def run(
    arms: ArmOptions,
    task: CognitiveTaskOptions,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Accuracy whose number of trials is asked for.")
    ] = 0.9,
    n_test: Annotated[
        int | None, typer.Option("--test", help="Test trials (1600), a multiple of 8.")
    ] = None,
    n_analysis: Annotated[
        int | None, typer.Option("--analysis", help="Test trials that analyses read (800).")
    ] = None,
    n_dev: Annotated[
        int | None, typer.Option("--dev", help="Development trials (400), a multiple of 8.")
    ] = None,
    sweep_precision: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option("--sweep-precision", help="Of the ablation of heads."),
    ] = "float32",
    decoded_layers: Annotated[
        str | None,
        typer.Option("--decoded-layers", help="Whose states are decoded, from 0; else all."),
    ] = None,
    projection: Annotated[
        Literal["auto", "umap", "pca"] | None,
        typer.Option("--projection", help="Of states; auto is UMAP where it is installed (auto)."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Try all steps in a minute or two; figures mean nothing."),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Trainings side by side (a core each; 1 with --base)."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Cores for each; else they are shared.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where models are trained and run: cpu, cuda or mps.")
    ] = "cpu",
    store: Annotated[
        Path | None, typer.Option("--store", help="Run store; else store/ in --out.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "mechcore-cognitive"
    ),
) -> None:
    """A whole study: train the arms, compare them at equal accuracy, judge the paper's claims.

    Run it again to go on after an interruption.
    """
    from mechcore.papers.cognitive import default_settings

    settings = default_settings(arms.base)
    settings = arms.over(settings.quick() if quick else settings)
    sizes = {"n_test": n_test, "n_analysis": n_analysis, "n_dev": n_dev}
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    if projection is not None:  # else that of --quick
        given["projection"] = projection
    if decoded_layers is not None:
        given["decoded_layers"] = numbers("--decoded-layers", decoded_layers, int)
    settings = replace(
        settings,
        threshold=threshold,
        sweep_precision=sweep_precision,
        **task.task(),
        **given,
    )
    side_by_side = (1 if arms.base else os.cpu_count() or 1) if workers is None else workers
    from mechcore.papers.cognitive import run as run_study

    with progress.shown():
        report = run_study(
            settings, out, workers=side_by_side, threads=threads, store=store, device=device
        )
    _show_results(out)
    print(f"report: {report}")


def _show_results(out: Path) -> None:
    columns = ["arm", "seed", "n", "accuracy", "incongruent", "unrestricted", "matched"]
    show(run_table(out, "cognitive_models")[columns])
    show(run_table(out, "cognitive_verdicts")[["claim", "title", "verdict"]])


@app.command("trials")
@grouped
def trials(
    task: CognitiveTaskOptions,
    n: Annotated[int, typer.Option("--n", help="Number of trials.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    which: Annotated[
        Literal["train", "dev", "test"], typer.Option("--split", help="Which pairs of numbers.")
    ] = "train",
    out: Annotated[
        Path, typer.Option("--out", help="File to write, .csv, .jsonl or .parquet.")
    ] = Path("trials.jsonl"),
) -> None:
    """Write trials of the task, with the characters of every number."""
    from mechcore.files import write_atomically
    from mechcore.papers.cognitive.trials import generate

    if out.suffix not in _FORMATS:
        raise InputError(f"--out {out}: expected a name that ends with {', '.join(_FORMATS)}")
    must_not_exist(out, file=True)
    data = generate(n, seed, split=which, **task.task()).dataset()
    write = {".csv": data.to_csv, ".jsonl": data.to_json, ".parquet": data.to_parquet}[out.suffix]

    def save(path: Path) -> None:
        write(path)

    write_atomically(out, save)
    print(f"trials: {out} ({n} of the {which} split)")


@app.command("train-base")
def train_base(
    out: Annotated[Path, typer.Option("--out", help="Folder for the checkpoints.")] = Path(
        "mechcore-base"
    ),
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps.", min=1)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and data.")] = None,
) -> None:
    """Pretrain the tiny base of this study again, with checkpoints."""
    from mechcore.papers.cognitive.pretraining import train_tiny_base

    must_not_exist(out)
    given: dict[str, Any] = {"steps": steps, "seed": seed}
    train_tiny_base(out, **{name: value for name, value in given.items() if value is not None})
    print(f"checkpoints: {out}")
