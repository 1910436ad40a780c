"""The benchmark of methods on models of known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechcore import progress
from mechcore.cli.options import From, Given, grouped, numbers, split
from mechcore.cli.shared import show
from mechcore.errors import InputError
from mechcore.main_study.config import Resources


@grouped
def bench(
    resources: Annotated[Given[Resources], From(Resources, ("device",))],
    cases: Annotated[
        str,
        typer.Option(
            "--cases", help="Cases by commas; planted and trained stand for all of these."
        ),
    ] = "planted,trained",
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Methods that rank components, by commas; all by default."),
    ] = None,
    interactions: Annotated[
        str | None,
        typer.Option(
            "--interactions", help="Ways to predict interactions, by commas; all by default."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Repetitions, by commas.")] = "0",
    names: Annotated[bool, typer.Option("--list", help="Name all cases, and end.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for tables and figures.")] = Path(
        "mechcore-bench"
    ),
) -> None:
    """How well methods find what is true of models of known truth.

    Rerun to resume.
    """
    from mechcore.bench.cases import case_names
    from mechcore.bench.methods import PREDICTORS, RANKERS
    from mechcore.bench.recovery import WITH_PAIRS, WITHOUT_TRUTH, over_cases
    from mechcore.report.blocks import Drawing, Gallery
    from mechcore.report.subnetwork_figures import recovery
    from mechcore.steps.benchmark import run_benchmark
    from mechcore.tables import write_tables

    chosen, device = case_names(split(cases)), resources.settings.place
    if names:
        print("\n".join(chosen))
        return
    every = [name for name in RANKERS if name not in WITHOUT_TRUTH]
    ranked = [*every, WITH_PAIRS] if methods is None else split(methods)
    paired = [*PREDICTORS] if interactions is None else split(interactions)
    for name in ranked:
        if name != WITH_PAIRS:
            RANKERS[name]
        if name in WITHOUT_TRUTH:
            raise InputError(f"--methods: {name} matches the masks of another method; leave it out")
    for name in paired:
        PREDICTORS[name]
    if not ranked or not paired:
        raise InputError("--methods, --interactions: found none; expected at least one of each")
    with progress.shown():
        nodes, pairs = run_benchmark(
            out, chosen, ranked, paired, numbers("--seeds", seeds, int), device
        )
    tables, gallery = {"nodes": nodes, "pairs": pairs}, Gallery(out)
    for name, columns in (("nodes", ["auroc", "cmd"]), ("pairs", ["auroc", "signs"])):
        table = tables[name]
        if table.empty:
            continue
        means = tables[f"{name}_by_method"] = over_cases(table, columns)
        gallery.add(Drawing(recovery(table, means, columns), name, "", ""))
        show(means)
    write_tables(out / "tables", tables)
    print(f"tables and figures: {out}")
