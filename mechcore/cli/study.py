"""Commands for studies, and for the embedded world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore import progress
from mechcore.cli.options import (
    ModelOptions,
    Options,
    PruneOptions,
    ResourceOptions,
    StoreOptions,
    TaskOptions,
    TestOptions,
    TrackingOptions,
    TrainOptions,
    grouped,
    run_config,
)
from mechcore.cli.shared import must_not_exist, show, show_missing, show_run
from mechcore.errors import InputError


@grouped
def run(
    model: ModelOptions,
    train: TrainOptions,
    test: TestOptions,
    files: TaskOptions,
    prune: PruneOptions,
    resources: ResourceOptions,
    keep: StoreOptions,
    tracking: TrackingOptions,
    config: Annotated[
        Path | None,
        typer.Argument(help="Study as YAML, see mechcore init; the options below beat it."),
    ] = None,
    max_non_core: Annotated[
        int | None,
        typer.Option("--max-non-core", help="Heads outside the core to ablate (16).", min=0),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results; by default the study's name."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only list the jobs with their time and memory."),
    ] = False,
) -> None:
    """A whole study: evaluate, prune, core, head categories, ablations, one report.

    Run it again to go on after an interruption: what is done is kept, and only what depends on a
    change is done again.
    """
    from mechcore.steps.config import Resources, StudyConfig
    from mechcore.study.kinds import DEFAULT, read_study

    kind, base = (DEFAULT, None) if config is None else read_study(config)
    place = out or Path("mechcore-out" if config is None else config.stem)
    tracking.check()
    if not isinstance(base, StudyConfig | None):
        _refuse((model, train, test, files, prune), kind)
        if dry_run:
            _show_jobs(base, place, kind, keep.store)
            return
        for report in _run(base, place, kind, keep, resources.over(Resources())):
            print(f"report: {report}")
            tracking.log(report.parent)
        return
    study = run_config(model, files, train, test, prune, max_non_core, base)
    study = replace(study, resources=resources.over(study.resources))
    if resources.device is not None and study.model.device_map is not None:
        raise InputError(
            f"--device {resources.device} and device_map {study.model.device_map} exclude each "
            "other: a map says itself which devices are used; leave one of them out"
        )
    if dry_run:
        _show_estimate(study, place, keep.store)
        return
    for report in _run(study, place, DEFAULT, keep, study.resources):
        show_run(report.parent)
        print(f"report: {report}")
        tracking.log(report.parent)


def _run(settings: Any, out: Path, kind: str, keep: StoreOptions, resources: Any) -> Iterator[Path]:
    """Do a study; each of its reports, after the name of its folder where there are several."""
    from mechcore.study.run import run_study

    with progress.shown():
        executor = keep.executed(resources)
        reports = run_study(settings, out, kind=kind, store=keep.store, executor=executor)
    for report in reports:
        if len(reports) > 1:
            print(f"{report.parent.name}:")
        yield report


def _show_jobs(settings: Any, out: Path, kind: str, store: Path | None) -> None:
    """The jobs known by now."""
    from mechcore.study.run import prepare

    prepared = prepare(settings, out, kind=kind, store=store)
    waiting = {job.key for job in prepared.pending}
    for job in prepared.jobs:
        print(f"{'to do' if job.key in waiting else 'done'}: {job.name}")
    print(f"{len(waiting)} of {len(prepared.jobs)} jobs known by now are to do")


def _refuse(options: Iterable[Options], kind: str) -> None:
    """Refuse options of the main study where a file describes one of another kind."""
    given = sorted(name for group in options for name in group.given)
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} is for the main study, and the file describes one of "
            f"kind {kind!r}; write its settings into the file"
        )


def _show_estimate(study: Any, out: Path, store: Path | None) -> None:
    """The jobs that are left, and what they will cost."""
    from mechcore.steps.bench import bench_of
    from mechcore.steps.estimate import estimate
    from mechcore.study.executors import threads
    from mechcore.study.run import prepare

    place = study.resources.place
    prepared = prepare(study, out, store=store, device=place)
    n, done = len(prepared.jobs), len(prepared.jobs) - len(prepared.pending)
    if not prepared.pending:
        print(f"all {n} jobs are done; a run would only write the results")
        return
    with threads(study.resources.cpus):
        table = estimate(prepared.pending, prepared.jobs, bench_of(prepared.store, place))
    shown = table.assign(
        time=table["seconds"].map(progress.duration),
        memory=table["memory"].map(lambda gib: f"{gib:.1f} GiB" if gib else ""),
    )
    show(shown[["kind", "name", "time", "memory"]])
    print(
        f"{n} jobs, {done} of them done before; about "
        f"{progress.duration(table['seconds'].sum())} for the others one after another, "
        f"measured on this machine; at most {table['memory'].max():.1f} GiB at once"
    )


def init(
    file: Annotated[Path, typer.Argument(help="File to write, .yaml.")] = Path("study.yaml"),
) -> None:
    """Write a study's configuration with every setting explained."""
    from mechcore.files import write_text
    from mechcore.steps.config_template import template

    text = template(file)
    must_not_exist(file, file=True)
    write_text(file, text)
    print(f"study: {file} (edit it, then: mechcore run {file})")


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, its --out.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all results with their checksums.")
    ] = False,
) -> None:
    """What of a study is done, and what is left."""
    from mechcore.study.run import job_table
    from mechcore.study.status import damaged, status_table

    jobs, store = job_table(folder)
    show(status_table(jobs))
    left = jobs[jobs["state"] != "done"]
    if len(left):
        columns = ["kind", "name", "state", *(["why"] if left["why"].any() else [])]
        show(left[columns])
    size = jobs["bytes"].sum() / 2**20
    print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are done; {size:.1f} MiB")
    show_missing(folder, "missing_masks")
    if verify:
        found = damaged(store)
        for line in found:
            print(f"damaged: {line}")
        print(f"{len(store.all_keys()) - len(found)} results are what was written")
        if found:
            raise typer.Exit(1)


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, its --out.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also what studies still use: the whole store.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove results from the store that no study uses any more, and what killed runs left."""
    from mechcore.study.results import opened
    from mechcore.study.status import removable

    store = opened(folder).store
    keys, leftovers, size = removable(store, everything)
    if not dry_run:
        keys = [key for key in keys if store.remove(key)]  # none that another process is making
        store.tidy()
    word = "would remove" if dry_run else "removed"
    print(
        f"{word} {len(keys)} results and {len(leftovers)} leftover files, {size / 2**20:.1f} MiB, "
        f"from {store.path}"
    )


def train_world(
    model: Annotated[
        Literal["encoder", "decoder"], typer.Option("--model", help="Which model to train.")
    ] = "encoder",
    out: Annotated[Path, typer.Option("--out", help="Folder for the checkpoints.")] = Path(
        "mechcore-world"
    ),
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps.", min=1)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and data.")] = None,
) -> None:
    """Train an embedded model from scratch, with checkpoints."""
    from mechcore.worlds.tiny_world_training import train_tiny_decoder, train_tiny_encoder

    must_not_exist(out)
    train = train_tiny_encoder if model == "encoder" else train_tiny_decoder
    given: dict[str, Any] = {"steps": steps, "seed": seed}
    train(out, **{name: value for name, value in given.items() if value is not None})
    print(f"checkpoints: {out}")
