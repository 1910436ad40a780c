"""Commands that find subnetworks and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import (
    DEVICE,
    MODEL,
    PRUNING,
    TASK,
    TEST,
    TRAIN,
    Means,
    Resume,
    check_out,
    load,
    means_of,
    must_not_exist,
    show,
    show_subnetworks,
)
from mechcore.main_study.config import StudyConfig

_SERIES = (*MODEL, *DEVICE, *TRAIN, *TEST, *TASK, *PRUNING)


@grouped
def means(
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*MODEL, *DEVICE, *TRAIN, *TASK))],
    include_padding: Annotated[
        bool, typer.Option("--include-padding", help="Pool padding in, as the authors did.")
    ] = False,
    per_position: Annotated[
        bool, typer.Option("--per-position", help="One mean per position.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("means.safetensors"),
) -> None:
    """Mean activations of every head and MLP over training data."""
    from mechcore.masking.means import MeanActivations

    must_not_exist(out, file=True)
    inputs = load(given, ("train",))
    with progress.shown():
        found = MeanActivations.compute(
            inputs.model,
            inputs.data["train"],
            include_padding=include_padding,
            per_position=per_position,
        )
    found.save(out)
    print(f"means of {int(found.counts.sum())} tokens: {out}")


@grouped
def prune(
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*_SERIES, "method"))],
    means: Means = None,
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for masks and tables.")] = Path(
        "mechcore-masks"
    ),
) -> None:
    """Subnetworks for every seed and sparsity, with their accuracies."""
    from mechcore.main_study.comparison import check_methods, check_sparsities, find_subnetworks
    from mechcore.steps import tables as study_steps
    from mechcore.tables import write_tables

    config = given.settings
    check_methods([config.method])
    state = out / "pruning.safetensors"
    check_out(out, state, resume)
    data = config.data
    untested = config.model.source is not None and data.id is None and data.ood is None
    inputs = load(given, ("train",) if untested else ("train", "id", "ood"))
    check_sparsities([config.method], config, inputs.model)
    with progress.shown():
        averages = means_of(inputs, means)
        found = find_subnetworks(
            config.method, config, inputs, averages, out / "masks", state=state
        )
        if len({each.seed for each in found}) < len(config.seeds):
            progress.say(f"{config.method}: is without chance; one mask serves for all seeds")
        if untested:
            print(f"masks: {out / 'masks'} (with --id and --ood, their accuracies as well)")
            return
        tables = study_steps.accuracy_tables(
            inputs,
            found,
            averages,
            batch_size=config.batch_size,
        )
    write_tables(out / "tables", tables)
    show_subnetworks(tables["subnetworks"])
    print(f"masks and tables: {out}")


@grouped
def compare(
    given: Annotated[
        Given[StudyConfig], From(StudyConfig, _SERIES, defaults={"sparsities": (0.3, 0.5, 0.7)})
    ],
    means: Means = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods to compare, by commas.")
    ] = "l0,attribution,random,layer-matched",
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for masks and tables.")] = Path(
        "mechcore-methods"
    ),
) -> None:
    """Trained masks beside attribution rankings and random controls: KL against sparsity."""
    from mechcore.main_study.comparison import (
        check_methods,
        check_sparsities,
        find_subnetworks,
        method_table,
    )
    from mechcore.report.blocks import Gallery
    from mechcore.report.subnetwork_figures import kl_by_sparsity
    from mechcore.steps import tables as study_steps
    from mechcore.tables import write_tables

    chosen = check_methods(split(methods))
    state = out / "pruning.safetensors"
    check_out(out, state, resume)
    config = given.settings
    inputs = load(given, ("train", "id", "ood"))
    check_sparsities(chosen, config, inputs.model)
    found: list[Any] = []
    with progress.shown():
        averages = means_of(inputs, means)
        for method in chosen:
            found += find_subnetworks(
                method,
                config,
                inputs,
                averages,
                out / "masks",
                state=state if method == "l0" else None,
                trained=[each for each in found if each.method == "l0"],
            )
        tables = study_steps.accuracy_tables(inputs, found, averages, batch_size=config.batch_size)
    tables["methods"] = method_table(tables["subnetworks"])
    write_tables(out / "tables", tables)
    picture = kl_by_sparsity(tables["subnetworks"])
    Gallery(out).add(picture, "kl-by-sparsity", "", "")
    show(tables["methods"].drop(columns=["kl_low", "kl_high"]))
    print(f"masks, tables and figures: {out}")
