"""Commands on single components: what heads attend to, and what ablating them does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from mechcore import progress
from mechcore.cli.shared import load, means_of, must_not_exist, show
from mechcore.errors import InputError
from mechcore.options import (
    FileOptions,
    MeansOptions,
    ModelOptions,
    TestOptions,
    TrainOptions,
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

    must_not_exist(out)
    chosen = parse_components(components)
    if not chosen:
        raise InputError("--components: no component given; name some, as in L1.H0,L2.MLP")
    needs_train = mode != "zero" and means.means is None
    roles = ("train", "id", "ood") if needs_train else ("id", "ood")
    inputs = load(model, data_config(files, train, test), roles)
    for component in chosen:
        ModelShape.of(inputs.model).index(component)
    with progress.shown():
        tables = study_steps.chosen_ablation_tables(
            inputs,
            None if mode == "zero" else means_of(inputs, means),
            chosen,
            joint=joint,
            mode=mode,
            batch_size=test.batch_size,
        )
    write_tables(out, tables)
    shown = tables["ablation"].query("subset == 'all'")
    show(shown[["set", "role", "n", "accuracy", "accuracy_drop", "margin_drop"]])
    print(f"tables: {out}")
