"""A whole study of any kind: settings in, tables, figures and a report out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechcore.errors import InputError, first_names
from mechcore.report import build_report
from mechcore.report.blocks import FIGURES_FOLDER
from mechcore.report.kinds import REPORTS
from mechcore.settings import changed
from mechcore.study.engine import Study, perform
from mechcore.study.executors import Executor, Local
from mechcore.study.kinds import DEFAULT, STUDIES
from mechcore.study.results import (
    STORE,
    add_written,
    begin,
    check_folders,
    check_out,
    opened,
    write_results,
)
from mechcore.study.step import Job, differences, in_order
from mechcore.study.store import Damaged, Store


@dataclass(frozen=True)
class Prepared:
    """A checked study, with the jobs known so far, each after its needs."""

    study: Study
    store: Store
    jobs: list[Job]
    pending: list[Job]


def prepare(
    settings: Any,
    out: str | Path,
    *,
    kind: str = DEFAULT,
    store: str | Path | None = None,
    device: str = "cpu",
) -> Prepared:
    """Check everything and determine the remaining jobs of `run_study`; nothing is written."""
    out = Path(out)
    if kind in STUDIES and kind not in REPORTS:
        raise InputError(
            f"kind of study {kind!r}: no report is registered; the package that "
            f"provides the kind must also provide its report, as an entry point of {REPORTS.group}"
        )
    check_out(out, kind)
    kept = Store(out / STORE if store is None else store)
    known = STUDIES[kind]
    study = known.plan(known.located(settings, Path.cwd()), kept)
    check_folders(out, study.folders)
    jobs = in_order(study.jobs())
    pending = [job for job in jobs if not kept.has(job.key)]
    study.check(pending, device)
    return Prepared(study, kept, jobs, pending)


def run_study(
    settings: Any,
    out: str | Path,
    *,
    kind: str = DEFAULT,
    store: str | Path | None = None,
    executor: Executor | None = None,
    origins: Mapping[str, str] | None = None,
) -> list[Path]:
    """Run the remaining jobs of a study, and write its results and reports, whose paths it returns.

    Everything is checked before anything is written. A rerun does only what is missing.

    Args:
        settings: settings of the study.
        out: folder for the results; each of several variants gets a subfolder.
        kind: kind of study, a name in `mechcore.study.kinds.STUDIES`.
        store: folder of the run store, which studies can share; None is ``store`` in ``out``.
        executor: where jobs run; None is this process, with the resources of the settings.
        origins: origins of settings that are not defaults, by dotted name; None: from Python.

    Raises:
        InputError: the settings, a file or a folder is invalid.
        StudyError: jobs failed; all jobs that do not need them are done.
        StoreError: the disk is full.
    """
    out = Path(out)
    executor = executor or STUDIES[kind].executor(settings)
    # The machines of a cluster have devices that this one may lack.
    device = executor.device if isinstance(executor, Local) else "cpu"
    prepared = prepare(settings, out, kind=kind, store=store, device=device)
    study, kept = prepared.study, prepared.store
    kept.create()
    kept.leftovers(remove=True)
    # Recorded before the work, so that its results cannot be cleaned away meanwhile.
    place = kept.remember(out, prepared.jobs)
    with kept.lock(place):
        begin(out, kind, STUDIES[kind].located(settings, Path.cwd()), kept)
    perform(study, kept, executor, out)
    with kept.lock(place):
        if origins is None:
            origins = dict.fromkeys(changed(STUDIES[kind].settings(), settings), "Python")
        folders = write_results(study, out, kind, settings, kept, origins)
        return [_report(out, folder) for folder in folders]


def run_here(
    kind: str, settings: Any, out: str | Path, *, store: str | Path | None = None, **local: Any
) -> Path:
    """`run_study` on this machine; returns its report. Further arguments are those of `Local`."""
    return run_study(settings, out, kind=kind, store=store, executor=Local(**local))[0]


def _report(out: Path, folder: Path) -> Path:
    """The report of results, noted with its figures, but for the user's own, as the study's."""
    figures = folder / FIGURES_FOLDER
    others = {*figures.glob("[!.]*")}  # those of the last report are gone by now
    report = build_report(folder)
    add_written(out, [report, *({*figures.glob("[!.]*")} - others)])
    return report


def status_table(jobs: Any) -> Any:
    """One row per kind of `job_table`: done, jobs, seconds of work, MiB."""
    table = jobs.assign(done=jobs["state"] == "done", mib=jobs["bytes"] / 2**20)
    return table.groupby("kind", sort=False, as_index=False).agg(
        done=("done", "sum"), jobs=("done", "size"), seconds=("seconds", "sum"), MiB=("mib", "sum")
    )


def job_table(folder: str | Path) -> tuple[Any, Store]:
    """The jobs of the study in a folder, as settings, inputs and code are now, and its store.

    Their state is ``done``, ``begun`` or ``to do``; why is what changed since they were done.
    """
    import pandas as pd

    folder, study = Path(folder), opened(Path(folder))
    store, rows = study.store, []
    for job in in_order(STUDIES[study.kind].plan(study.settings, store).jobs()):
        state, seconds, size, why = "to do", 0.0, 0, ""
        try:  # not verified: damage is detected on use, or by `Store.verify`
            manifest = store.manifest(job.key)
            state, seconds, size = "done", manifest.seconds, manifest.bytes
        except Damaged:
            if store.partial(job.key).exists():
                state = "begun"
            if (before := store.last_recipe(folder, job)) is not None:
                changes = differences(before, job.recipe)
                why = f"changed: {first_names(changes, 3, 1000)}"
        rows.append((job.key, job.step.kind, job.name, state, seconds, size, why))
    columns = ["key", "kind", "name", "state", "seconds", "bytes", "why"]
    return pd.DataFrame(rows, columns=columns), store
