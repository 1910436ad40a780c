"""Commands of extractive structures."""

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
    name="extractive",
    help="Where a fine-tuned fact is stored, queried and read out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class TuningOptions(Options):
    """How facts are fine-tuned."""

    learning_rates: Annotated[
        str | None,
        typer.Option("--learning-rates", help="To choose from, by the facts that are trained."),
    ] = None
    epochs: Annotated[
        str | None, typer.Option("--epochs", help="Passes over the facts to choose from.")
    ] = None
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Facts in a step (8).")] = (
        None
    )
    ordering_rate: Annotated[
        float | None, typer.Option("--ordering-rate", help="Learning rate of ordering.")
    ] = None
    ordering_epochs: Annotated[
        int | None, typer.Option("--ordering-epochs", help="Epochs of each of its phases.")
    ] = None
    replay: Annotated[
        int | None,
        typer.Option("--replay", help="Rows of old data in its steps, in a second run; 0: none."),
    ] = None
    grafting_rate: Annotated[
        float | None,
        typer.Option("--grafting-rate", help="Learning rate of grafting and localization."),
    ] = None
    grafting_epochs: Annotated[
        int | None, typer.Option("--grafting-epochs", help="Epochs of each of their trainings.")
    ] = None

    def over(self, settings: Any) -> Any:
        """Settings with what was asked for."""
        changed: dict[str, Any] = {}
        if self.learning_rates is not None:
            changed["learning_rates"] = numbers("--learning-rates", self.learning_rates, float)
        if self.epochs is not None:
            changed["epochs"] = numbers("--epochs", self.epochs, int)
        if self.batch_size is not None:
            changed["batch_size"] = self.batch_size
        given = {
            "ordering": {
                "learning_rate": self.ordering_rate,
                "epochs": self.ordering_epochs,
                "batch_size": self.batch_size,
                "replay": self.replay,
            },
            "grafting": {
                "learning_rate": self.grafting_rate,
                "epochs": self.grafting_epochs,
                "batch_size": self.batch_size,
            },
        }
        for name, values in given.items():
            known = {key: value for key, value in values.items() if value is not None}
            changed[name] = replace(getattr(settings, name), **known)
        return replace(settings, **changed)


@app.command("run")
@grouped
def run(
    tuning: TuningOptions,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            help="Pretrained decoder, a directory or hub id (gpt2); else tiny ones made here.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds of names and training (0,1,2).")
    ] = None,
    experiments: Annotated[
        str | None,
        typer.Option(
            "--experiments",
            help="Some of ocr, scores, freezing, ordering, grafting, localization; else all.",
        ),
    ] = None,
    counterfactuals: Annotated[
        int | None,
        typer.Option("--counterfactuals", help="Prompts that upstream scores average over (10)."),
    ] = None,
    compat: Annotated[
        Literal["paper"] | None,
        typer.Option("--compat", help="paper: informative scores as the published code has them."),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option("--cuts", help="First late layers of freezing (8,16,24); else all."),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option("--precision", help="Of weights; bfloat16 loses small steps of training."),
    ] = "float32",
    backend: Annotated[
        Literal["bridge", "hooked"],
        typer.Option("--backend", help="TransformerBridge, or HookedTransformer (GPT-2 only)."),
    ] = "bridge",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Try all steps in a minute or two; figures mean nothing."),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Experiments side by side (a core each; 1 with --base)."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Cores for each; else they are shared.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where models are run and trained: cpu, cuda or mps.")
    ] = "cpu",
    store: Annotated[
        Path | None, typer.Option("--store", help="Run store; else store/ in --out.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "mechcore-extractive"
    ),
) -> None:
    """A whole study: fine-tune on facts, score, freeze, reorder, graft, judge the paper's claims.

    Run it again to go on after an interruption.
    """
    from mechcore.papers.extractive.settings import default_settings

    settings = default_settings(base)
    given: dict[str, Any] = {"compat": compat, "precision": precision, "backend": backend}
    for name, text in (("seeds", seeds), ("cuts", cuts)):
        if text is not None:
            given[name] = numbers(f"--{name}", text, int)
    if experiments is not None:
        given["experiments"] = tuple(split(experiments))
    if counterfactuals is not None:
        given["counterfactuals"] = counterfactuals
    settings = replace(tuning.over(settings.quick() if quick else settings), **given)
    side_by_side = (1 if base else os.cpu_count() or 1) if workers is None else workers
    from mechcore.papers.extractive.study import run as run_study

    with progress.shown():
        report = run_study(
            settings, out, workers=side_by_side, threads=threads, store=store, device=device
        )
    _show_results(out)
    print(f"report: {report}")


def _show_results(out: Path) -> None:
    if (out / "tables" / "extractive_ranks.csv").exists():
        columns = ["task", "seed", "data", "state", "mean_rank", "low", "high", "chance"]
        show(run_table(out, "extractive_ranks")[columns])
    show(run_table(out, "extractive_verdicts")[["claim", "title", "verdict"]])


@app.command("facts")
@grouped
def facts(
    seed: Annotated[int, typer.Option("--seed", help="Seed of the people's names.")] = 0,
    world: Annotated[
        Literal["cities", "tiny"],
        typer.Option("--world", help="The paper's cities, or the tiny made-up world."),
    ] = "cities",
    out: Annotated[Path, typer.Option("--out", help="File to write, .jsonl.")] = Path(
        "facts.jsonl"
    ),
) -> None:
    """Write the facts that are trained, and the implications that are asked for."""
    from mechcore.files import write_atomically
    from mechcore.papers.extractive.fact_world import ordering_of, tasks_of
    from mechcore.papers.extractive.facts import facts_table

    if out.suffix != ".jsonl":
        raise InputError(f"--out {out}: expected a name that ends with .jsonl")
    must_not_exist(out, file=True)
    tiny = world == "tiny"
    table = facts_table(tasks_of(seed, tiny=tiny), ordering_of(seed, tiny=tiny))
    write_atomically(out, lambda path: table.to_json(path, orient="records", lines=True))
    print(f"facts: {out} ({len(table)} prompts)")
