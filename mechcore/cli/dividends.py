"""The command that fits a sparse model of drops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.ablation import COMMON, MOST_SHOWN, Engine, check_out, small
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import Means, Resume, load, means_of, show
from mechcore.steps.analyses_config import DividendsConfig
from mechcore.steps.config import StudyConfig


@grouped
def dividends(
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*COMMON, "n_resamples"))],
    how: Annotated[Given[DividendsConfig], From(DividendsConfig)],
    means: Means = None,
    components: Annotated[
        str, typer.Option("--components", help="To fit: heads, mlps, all, or names by commas.")
    ] = "all",
    engine: Engine = "auto",
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
    from mechcore.masking.fills import FILLS
    from mechcore.tables import write_tables

    config, fit = given.settings, how.settings
    states = state_files(out)
    check_out(out, states[0], resume)
    needs_means = FILLS[config.analyses.fill].needs_means
    inputs = load(given, ("train", fit.role) if needs_means and means is None else (fit.role,))
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
            means_of(inputs, means) if needs_means else None,
            **options,
            fill=config.analyses.fill,
            engine=engine,
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
