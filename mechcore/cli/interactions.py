"""The commands that search for interactions, and fit a sparse model of drops."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.ablation import (
    COMMON,
    MOST_SHOWN,
    Precision,
    check_components,
    interaction_columns,
    small,
)
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import Means, Resume, check_out, load_ablated, show
from mechcore.steps.analyses_config import DividendsConfig, SearchConfig
from mechcore.steps.config import StudyConfig


@grouped
def interactions(
    given: Annotated[Given[StudyConfig], From(StudyConfig, COMMON)],
    how: Annotated[Given[SearchConfig], From(SearchConfig)],
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
    n_sets = options.pop("screening_sets")
    check_search(shape, inputs.data[role], **options)  # before means, which take time
    with progress.shown():
        result = find_superadditive(
            inputs.model,
            inputs.data[role],
            averages(),
            **options,
            screening_sets=n_sets,
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
    fit = "" if result.fit is None else f", R2 {result.fit:.2f} on sets held out"
    chosen = f"{result.n_pairs} pairs"
    if result.n_screened_out or not result.races:
        chosen += (
            f": {result.n_screened_out} screened out by {search.screening_by!r} "
            f"({result.cost}{fit}), the others {'raced' if result.races else 'ablated'} (rank "
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


@grouped
def dividends(
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*COMMON, "n_resamples"))],
    how: Annotated[Given[DividendsConfig], From(DividendsConfig)],
    means: Means = None,
    components: Annotated[
        str, typer.Option("--components", help="To fit: heads, mlps, all, or names by commas.")
    ] = "all",
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-dividends"
    ),
) -> None:
    """Fit a sparse model of what sets of components cost, with terms of three and more."""
    from mechcore.ablation.sparse_dividends import (
        DIVIDEND_TERMS,
        VERIFIED_DIVIDENDS,
        check_fit,
        fit_dividends,
        state_files,
    )
    from mechcore.ablation.sparse_fit import DIVIDEND_FIT
    from mechcore.components import KINDS, ModelShape
    from mechcore.tables import write_tables

    config, fit = given.settings, how.settings
    states = state_files(out)
    check_out(out, states[0], resume)
    check_components(components)
    inputs, averages = load_ablated(given, (fit.role,), means)
    shape, data = ModelShape.of(inputs.model), inputs.data[fit.role]
    options: dict[str, Any] = {
        "components": shape.kind(components) if components in KINDS else split(components),
        "subset": fit.subset,
        "metric": fit.metric,
        "order": fit.order,
        "n_sets": fit.n_sets,
        "set_size": fit.set_size,
        "n_verified": fit.n_verified,
    }
    check_fit(inputs.model, data, **options)  # before means, which take time
    with progress.shown():
        found = fit_dividends(
            inputs.model,
            data,
            averages(),
            **options,
            fill=config.analyses.fill,
            n_resamples=config.n_resamples,
            seed=config.data.seed,
            class_names=inputs.config.class_names,
            batch_size=config.batch_size,
            role=fit.role,
            state=out,
        )
    tables = {
        "dividend_fit": found.fit,
        "dividend_terms": found.terms,
        "verified_dividends": found.verified,
    }
    write_tables(out, tables, (DIVIDEND_FIT, DIVIDEND_TERMS, VERIFIED_DIVIDENDS))
    for path in states:
        path.unlink(missing_ok=True)
    show(found.fit[["order", "candidates", "terms", "r2", "r2_interactions"]])
    shown = found.verified.query("subset == 'all' and metric == @fit.metric")
    if len(shown) > MOST_SHOWN:
        print(f"the {MOST_SHOWN} largest of {len(shown)} measured terms of two and more:")
    columns = ["set", "fitted", "dividend_in_fit", "dividend", "low", "high"]
    show(shown[columns].assign(p=small(shown["p_adjusted"])).head(MOST_SHOWN))
    print(
        f"R2 is that of sets held out; fitted and dividend_in_fit are from the half of the data "
        f"of the fit ({found.cost}), the others from the other half"
    )
    print(f"tables: {out}")
