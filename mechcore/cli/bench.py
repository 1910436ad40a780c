"""The benchmark of methods on models of known truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mechcore import progress
from mechcore.cli.options import From, Given, grouped
from mechcore.cli.shared import show
from mechcore.errors import InputError
from mechcore.main_study.config import Resources
from mechcore.settings import setting


@dataclass(frozen=True)
class BenchOptions:
    """What to compare."""

    cases: tuple[str, ...] = setting(
        ("planted", "trained"), "Cases; planted or trained: all of that type.", "--cases"
    )
    methods: tuple[str, ...] = setting(
        (), "Methods that rank components; all by default.", "--methods"
    )
    interactions: tuple[str, ...] = setting(
        (), "Predictors of interactions; all by default.", "--interactions"
    )
    seeds: tuple[int, ...] = setting((0,), "Repetitions.", "--seeds")
    names: bool = setting(False, "List all cases and exit.", "--list")
    out: Path = setting(Path("mechcore-bench"), "Folder for tables and figures.", "--out")


@grouped
def bench(
    resources: Annotated[Given[Resources], From(Resources, ("device",))], how: BenchOptions
) -> None:
    """How well methods recover the known truth of planted and trained models.

    Rerun to resume.
    """
    from mechcore.bench.cases import case_names
    from mechcore.bench.methods import PREDICTORS, RANKERS
    from mechcore.bench.recovery import WITH_PAIRS, WITHOUT_TRUTH, over_cases
    from mechcore.report.blocks import Drawing, Gallery
    from mechcore.report.subnetwork_figures import recovery
    from mechcore.steps.benchmark import run_benchmark
    from mechcore.tables import write_tables

    cases, device = case_names(how.cases), resources.settings.place
    if how.names:
        print("\n".join(cases))
        return
    every = [name for name in RANKERS if name not in WITHOUT_TRUTH]
    ranked, paired = how.methods or (*every, WITH_PAIRS), how.interactions or tuple(PREDICTORS)
    if matching := [name for name in ranked if name in WITHOUT_TRUTH]:
        raise InputError(
            f"--methods: {matching[0]} copies the sizes of another method's masks; leave it out"
        )
    with progress.shown():
        nodes, pairs = run_benchmark(how.out, cases, ranked, paired, how.seeds, device)
    tables, gallery = {"nodes": nodes, "pairs": pairs}, Gallery(how.out)
    for name, columns in (("nodes", ["auroc", "cmd"]), ("pairs", ["auroc", "signs"])):
        if (table := tables[name]).empty:
            continue
        means = tables[f"{name}_by_method"] = over_cases(table, columns)
        gallery.add(Drawing(recovery(table, means, columns), name, "", ""))
        show(means)
    write_tables(how.out / "tables", tables)
    print(f"tables and figures: {how.out}")
