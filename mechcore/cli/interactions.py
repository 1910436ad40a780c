"""The command that searches for interactions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.analyses.search import Search
from mechcore.cli.ablation import (
    COMMON,
    Precision,
    check_components,
    interaction_columns,
)
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import Means, Resume, check_out, load_ablated, show
from mechcore.main_study.config import StudyConfig


@grouped
def interactions(
    given: Annotated[Given[StudyConfig], From(StudyConfig, COMMON)],
    how: Annotated[Given[Search], From(Search)],
    means: Means = None,
    components: Annotated[
        str, typer.Option("--components", help="To choose from: heads, mlps, all, or names.")
    ] = "all",
    precision: Precision = "float32",
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-interactions"
    ),
) -> None:
    """Search for the pairs and larger sets with the largest interactions."""
    from mechcore.ablation.deciding import DECISIONS
    from mechcore.ablation.search import (
        SCREENING,
        SUPERADDITIVE,
        check_search,
        find_superadditive,
        race_folder,
        state_files,
    )
    from mechcore.ablation.stability import SEARCH_STABILITY
    from mechcore.components import KINDS, ModelShape
    from mechcore.tables import write_tables

    config, search = given.settings, how.settings
    states = state_files(out, search.max_size)
    check_out(out, states[0], resume)
    check_components(components)
    role = search.role
    inputs, averages = load_ablated(given, (role,), means)
    shape = ModelShape.of(inputs.model)
    options: dict[str, Any] = search.options
    options["components"] = shape.kind(components) if components in KINDS else split(components)
    check_search(shape, inputs.data[role], **options)  # before means, which take time
    with progress.shown():
        result = find_superadditive(
            inputs.model,
            inputs.data[role],
            averages(),
            **options,
            fill=config.analyses.fill,
            seed=config.data.seed,
            class_names=inputs.config.class_names,
            batch_size=config.batch_size,
            role=role,
            precision=precision,
            state=out,
        )
    write_tables(out, result.tables, (SUPERADDITIVE, SCREENING, DECISIONS, SEARCH_STABILITY))
    for path in states:
        path.unlink(missing_ok=True)
    for size in result.races:
        shutil.rmtree(race_folder(out, size))
    shown = result.found.query("subset == 'all' and metric == 'margin'")
    if len(shown):
        show(interaction_columns(shown).assign(in_search=shown["interaction_in_search"]))
    else:
        print("no set found")
    chosen = f"{result.n_pairs} pairs"
    if result.n_screened_out or not result.races:
        chosen += (
            f": {result.n_screened_out} screened out by {search.screening_by!r} "
            f"({result.cost}), the others {'raced' if result.races else 'ablated'} (rank "
            f"correlation with the prediction {result.rank_correlation:.2f})"
        )
    print(
        f"{chosen}; {result.n_tested} sets ablated in all; intervals are from the half of the data "
        "that the search did not see"
    )
    _show_races(result)
    print(f"tables: {out}")


def _show_races(result: Any) -> None:
    """What was decided by races, and what that is worth."""
    reported = [name.count("+") + 1 for name in result.found["set"].unique()]
    for size, raced in result.races.items():
        print(f"sets of {size}: {raced.describe()}")
        wanted = len(raced.decided("above" if raced.largest is None else "top"))
        if reported.count(size) < wanted:
            print(f"the {reported.count(size)} largest of these {wanted} are reported")
    n_found, n = result.missed
    if n:
        from mechcore.evaluation.intervals import share_at_most

        print(
            f"{n_found} of {n} pairs drawn from those screened out are what the search looks for: "
            f"at most {share_at_most(n_found, n):.0%} of them may be (95 %)"
        )
