"""Commands of the cognitive task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mechcore.cli.execution import ResourceOptions, RunOptions, run_table, show
from mechcore.cli.options import From, Given, grouped
from mechcore.papers.cognitive.settings import CognitiveSettings, default_settings
from mechcore.papers.command import Quick, do_from_base, write_lines

_TASK = ("rendering", "random_order", "differences")


@grouped
def cognitive(
    given: Annotated[Given[CognitiveSettings], From(CognitiveSettings)],
    resources: ResourceOptions,
    how: RunOptions,
    quick: Quick = False,
) -> None:
    """A whole study: train the arms, compare them at equal accuracy, judge the paper's claims.

    Run it again to go on after an interruption.
    """
    from mechcore.papers.cognitive.study import KIND

    do_from_base(KIND, given, default_settings, resources, how, quick=quick, show=_show_results)


def _show_results(out: Path) -> None:
    columns = ["arm", "seed", "n", "accuracy", "incongruent", "unrestricted", "matched"]
    show(run_table(out, "cognitive_models")[columns])
    show(run_table(out, "cognitive_verdicts")[["claim", "title", "verdict"]])


@grouped
def trials(
    task: Annotated[Given[CognitiveSettings], From(CognitiveSettings, _TASK)],
    n: Annotated[int, typer.Option("--n", help="Number of trials.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    which: Annotated[
        Literal["train", "dev", "test"], typer.Option("--split", help="Which pairs of numbers.")
    ] = "train",
    out: Annotated[Path, typer.Option("--out", help="File to write, .jsonl.")] = Path(
        "trials.jsonl"
    ),
) -> None:
    """Write trials of the task, with the characters of every number."""
    import pandas as pd

    data = task.settings.task.trials(n, seed, which)
    spans = [
        [
            {"name": name, "start": start, "end": end}
            for name, (start, end) in zip(data.landmarks, row, strict=True)
        ]
        for row in data.places.tolist()
    ]
    table = data.frame.assign(spans=pd.Series(spans))
    write_lines(table, out, f"trials: {out} ({n} of the {which} split)")
