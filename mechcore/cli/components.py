"""Commands on single components: what heads attend to."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import DEVICE, FILES, MODEL, load, must_not_exist
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig

if TYPE_CHECKING:
    from mechcore.attention import LabelAgreement


@grouped
def heads(
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*MODEL, *DEVICE, *FILES))],
    data: Annotated[str | None, typer.Option("--data", help="File of texts.")] = None,
    max_examples: Annotated[
        int, typer.Option("--max-examples", help="Examples at most; 0: all.", min=0)
    ] = 512,
    min_mass: Annotated[
        float, typer.Option("--min-mass", help="Least mass on a category that makes a label.")
    ] = 0.25,
    min_ratio: Annotated[
        float,
        typer.Option("--min-ratio", help="Least ratio of that mass to uniform attention."),
    ] = 3.0,
    ignore: Annotated[
        str | None,
        typer.Option(
            "--ignore",
            help="Categories whose keys are left out, by commas; first: the attention sink.",
        ),
    ] = None,
    why: Annotated[
        str | None, typer.Option("--explain", help="Heads to explain, by commas: L1.H4,L3.H0.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="CSV or JSON file to write.")] = Path(
        "heads.csv"
    ),
) -> None:
    """What every head attends to: scores, and a category for each. Needs no trained head."""
    must_not_exist(out, file=True)
    if out.suffix not in (".csv", ".json"):
        raise InputError(f"{out}: expected the ending .csv or .json (--out)")
    if given.settings.model.source is not None and data is None:
        raise InputError("--data is missing; name a file of texts for the checkpoint")
    from mechcore.attention import Thresholds, explain
    from mechcore.components import Component, ModelShape
    from mechcore.files import write_csv, write_text
    from mechcore.steps import tables as steps

    thresholds = Thresholds(min_mass, min_ratio)
    texts_of = {"data.train": data, "data.max_train": max_examples or None}
    chosen = replace(given, values={**given.values, **texts_of})
    wanted = [Component.parse(name) for name in split(why)]
    inputs = load(chosen, ("train",), answers=False, limited_by="--max-examples")
    texts = inputs.data["train"]
    shape = ModelShape.of(inputs.model)
    unknown = [str(head) for head in wanted if head not in shape.heads]
    if unknown:
        raise InputError(
            f"--explain: {unknown[0]} is no head of the model, which has layers 0-"
            f"{shape.n_layers - 1} with heads 0-{shape.n_heads - 1}, L0.H0 to "
            f"L{shape.n_layers - 1}.H{shape.n_heads - 1}"
        )
    with progress.shown():
        scores = steps.head_scores(inputs.model, texts, split(ignore))
    table = scores.categorised(thresholds)
    explanations = [explain(table, head, thresholds) for head in wanted]
    agreement = scores.agreement(thresholds) if scores.n_examples > 1 else None
    if out.suffix == ".csv":
        write_csv(out, table)
    else:
        write_text(out, table.to_json(orient="records", indent=2) + "\n")
    _show_grid(table)
    if agreement is not None:
        print(agreement_sentence(agreement))
    for explanation in explanations:
        print(f"\n{explanation}")
    print(f"categories: {out}")


def agreement_sentence(agreement: LabelAgreement) -> str:
    """How stable labels are, in words."""
    kappa = (
        "Cohen's kappa is not defined: all labels are alike"
        if isnan(agreement.kappa)
        else f"Cohen's kappa {agreement.kappa:.2f}"
    )
    return (
        f"Labels from the two halves of the examples are the same for {100 * agreement.share:.1f} "
        f"% of the heads ({kappa})."
    )


def _show_grid(table: Any) -> None:
    """Layers by heads, coloured by category, and how many heads each category has."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mechcore.report.figures import category_look

    def cell(label: str, also: str = "") -> Text:
        colour, short = category_look(label)
        return Text(short + "+" * bool(also), style=f"black on {colour}")

    grid = Table(box=None, padding=(0, 0, 0, 1), show_edge=False)
    grid.add_column("layer", justify="right")
    for head in range(int(table["head"].max()) + 1):
        grid.add_column(f"H{head}", justify="center")
    for layer, row in table.groupby("layer"):
        grid.add_row(str(layer), *map(cell, row["category"], row["also"]))
    console = Console()
    console.print(grid)
    counts = table["category"].value_counts()
    legend = Text(" ").join(
        Text.assemble(cell(label), f" {label} {counts[label]} ") for label in counts.index
    )
    console.print(legend)
    if (table["also"] != "").any():
        console.print("+ also attends enough to another category: see the column also")
