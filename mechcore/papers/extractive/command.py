"""Commands of extractive structures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mechcore.cli.execution import ResourceOptions, RunOptions, run_table, show
from mechcore.cli.options import From, Given, grouped
from mechcore.papers.command import Quick, do_from_base, write_lines
from mechcore.papers.extractive.settings import ExtractiveSettings, default_settings


@grouped
def extractive(
    given: Annotated[
        Given[ExtractiveSettings], From(ExtractiveSettings, without=("grafting.replay",))
    ],
    resources: ResourceOptions,
    how: RunOptions,
    quick: Quick = False,
) -> None:
    """A whole study: fine-tune on facts, score, freeze, reorder, graft, judge the paper's claims.

    Run it again to go on after an interruption.
    """
    from mechcore.papers.extractive.study import KIND

    do_from_base(KIND, given, default_settings, resources, how, quick=quick, show=_show_results)


def _show_results(out: Path) -> None:
    if (out / "tables" / "extractive_ranks.csv").exists():
        columns = ["task", "seed", "data", "state", "mean_rank", "low", "high", "chance"]
        show(run_table(out, "extractive_ranks")[columns])
    show(run_table(out, "extractive_verdicts")[["claim", "title", "verdict"]])


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
    from mechcore.papers.extractive.fact_world import tiny_fact_tasks, tiny_ordering
    from mechcore.papers.extractive.facts import city_ordering, city_tasks, facts_table

    if world == "tiny":
        table = facts_table(tiny_fact_tasks(seed), tiny_ordering(seed))
    else:
        table = facts_table(city_tasks(seed), city_ordering(seed))
    write_lines(table, out, f"facts: {out} ({len(table)} prompts)")
