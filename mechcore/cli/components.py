"""Commands on single components: what heads attend to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mechcore import progress
from mechcore.cli.shared import load, must_not_exist, show
from mechcore.errors import InputError
from mechcore.options import (
    FileOptions,
    ModelOptions,
    data_config,
    grouped,
)


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

    must_not_exist(out, file=True)
    if out.suffix not in (".csv", ".json"):
        raise InputError(f"{out}: expected the ending .csv or .json (--out)")
    if model.model is not None and data is None:
        raise InputError("--data is missing; name a file of texts for the checkpoint")
    chosen = replace(data_config(files), train=data, max_train=max_examples or None)
    inputs = load(model, chosen, ("train",))
    with progress.shown():
        table = study_steps.category_table(inputs, inputs.data["train"].examples)
    if out.suffix == ".csv":
        write_csv(out, table)
    else:
        write_text(out, table.to_json(orient="records", indent=2) + "\n")
    masses = {f"mass_{name}": name for name in ("repeated", "previous", "separator", "first")}
    show(table[["component", "category", *masses]].rename(columns=masses))
    print(f"categories: {out}")
