"""A whole study of any kind: settings in, a folder with tables, figures and a report out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mechcore import __version__
from mechcore.errors import InputError, first_names
from mechcore.files import check_can_write, write_atomically, write_json
from mechcore.report import REPORT_FILE, build_report
from mechcore.report.blocks import FIGURES_FOLDER
from mechcore.report.kinds import DEFAULT, REPORTS, schemas_of
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.settings import changed
from mechcore.study.engine import Study, perform
from mechcore.study.executors import Executor, Local
from mechcore.study.kinds import STUDIES
from mechcore.study.step import TABLES_FOLDER, Job, differences, in_order, plain, versions
from mechcore.study.store import Damaged, Store
from mechcore.tables import write_tables

STUDY = "study.json"
STORE = "store"


def prepare(
    settings: Any,
    out: str | Path,
    *,
    kind: str = DEFAULT,
    store: str | Path | None = None,
    device: str = "cpu",
) -> tuple[Study, Store, list[Job]]:
    """Check everything; return the study, its store and its pending jobs; nothing is written."""
    out = Path(out)
    known, _ = STUDIES[kind], REPORTS[kind]  # a kind lacks its report if its package has none
    check_out(out, kind)
    kept = Store(out / STORE if store is None else store)
    study = known.plan(known.located(settings, Path.cwd()), kept)
    check_folders(out, study.folders)
    pending = [job for job in in_order(study.jobs()) if not kept.has(job.key)]
    study.check(pending, device)
    return study, kept, pending


def run_study(
    settings: Any,
    out: str | Path,
    *,
    kind: str = DEFAULT,
    store: str | Path | None = None,
    executor: Executor | None = None,
    origins: Mapping[str, str] | None = None,
) -> list[Path]:
    """Run the remaining jobs of a study; write its results and reports, whose paths it returns.

    Each of several variants gets a subfolder. ``store``, by default in ``out``, can be shared; jobs
    run in this process unless ``executor`` says otherwise. Raises `InputError` before any work,
    `StudyError` if jobs failed, `StoreError` on a full disk.
    """
    out = Path(out)
    executor = executor or STUDIES[kind].executor(settings)
    # The machines of a cluster have devices that this one may lack.
    device = executor.device if isinstance(executor, Local) else "cpu"
    study, kept, _ = prepare(settings, out, kind=kind, store=store, device=device)
    kept.create()
    kept.leftovers(remove=True)
    # Recorded before the work, so that its results cannot be cleaned away meanwhile.
    place = kept.remember(out, in_order(study.jobs()))
    with kept.lock(place):
        begin(out, kind, STUDIES[kind].located(settings, Path.cwd()), kept)
    perform(study, kept, executor, out)
    with kept.lock(place):
        if origins is None:
            origins = dict.fromkeys(changed(STUDIES[kind].settings(), settings), "Python")
        folders = _write_results(study, out, kind, settings, kept, origins)
        return [_report(out, folder) for folder in folders]


def run_here(
    kind: str, settings: Any, out: str | Path, *, store: str | Path | None = None, **local: Any
) -> Path:
    """`run_study` on this machine; returns its report. Further arguments are those of `Local`."""
    return run_study(settings, out, kind=kind, store=store, executor=Local(**local))[0]


def _report(out: Path, folder: Path) -> Path:
    """Write the report of results; record it and its figures, except the user's own."""
    figures = folder / FIGURES_FOLDER
    others = {*figures.glob("[!.]*")}  # those of the last report are gone by now
    report = build_report(folder)
    written = [report, *({*figures.glob("[!.]*")} - others)]
    names = {path.relative_to(out).as_posix() for path in written}
    _note(out, written=sorted({*_written(out), *names}))
    return report


def status_table(jobs: Any) -> Any:
    """One row per kind of `job_table`: done, jobs, seconds of work, MiB."""
    table = jobs.assign(done=jobs["state"] == "done", mib=jobs["bytes"] / 2**20)
    return table.groupby("kind", sort=False, as_index=False).agg(
        done=("done", "sum"), jobs=("done", "size"), seconds=("seconds", "sum"), MiB=("mib", "sum")
    )


def job_table(folder: str | Path) -> tuple[Any, Store]:
    """The jobs of the study in a folder, ``done``, ``begun`` or ``to do``, and its store."""
    import pandas as pd

    folder, rows = Path(folder), []
    kind, settings, store = opened(folder)
    for job in in_order(STUDIES[kind].plan(settings, store).jobs()):
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


def check_out(out: Path, kind: str) -> None:
    """Raise `InputError` unless ``out`` is writable, and empty or a study of this kind."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: found a file; expected a folder (--out)")
    check_can_write(out)
    # Only a store: killed before anything else was written.
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    alone = {STORE, *(path.name for path in out.glob(f".*.{STUDY}"))}
    if STUDY in there:
        known = _known(out).get("kind")
        if known not in (None, kind):
            raise InputError(
                f"{out}: found a study of kind {known!r}; expected kind {kind!r}; choose "
                "another --out"
            )
    elif there - alone:
        raise InputError(
            f"{out}: the folder is not empty and has no study (no {STUDY}); choose another --out"
        )


def check_folders(out: Path, names: Iterable[str]) -> None:
    """Raise `InputError` if subfolders of a study hold another study's results."""
    own = _written(out)
    for name in filter(None, names):
        taken = [file for file in (STUDY, CONFIG_FILE) if (out / name / file).exists()]
        if taken and (taken[0] == STUDY or f"{name}/{CONFIG_FILE}" not in own):
            raise InputError(
                f"variants: {out / name} holds results of another study, which the variant "
                f"{name!r} would replace; choose another name for it, or another --out"
            )


def begin(out: Path, kind: str, settings: Any, store: Store) -> None:
    """Record in ``out`` which study it is, so that it can be inspected and resumed."""
    inside = store.path.resolve() == (out / STORE).resolve()
    _note(
        out,
        kind=kind,
        mechcore=__version__,
        store=STORE if inside else str(store.path.resolve()),
        settings=plain(settings),
        written=list(_written(out)),
    )


def opened(out: Path) -> tuple[str, Any, Store]:
    """Kind, settings and store of the study in a folder; raises `InputError` if there is none."""
    path = out / STUDY
    if not path.exists():
        raise InputError(
            f"{out}: no study in this folder (no {STUDY}); expected the --out of mechcore run"
        )
    content = _noted(out)
    for name in ("kind", "store", "settings"):
        if name not in content:
            raise InputError(f"{path}: no {name!r}; rerun the study")
    kind = str(content["kind"])
    settings = STUDIES[kind].read(content["settings"], str(path))
    return kind, settings, Store(out / str(content["store"]))


def _write_results(
    study: Study, out: Path, kind: str, settings: Any, store: Store, origins: Mapping[str, str]
) -> list[Path]:
    """Copy a finished study's results to ``out``, remove outdated ones, return its folders."""
    by_folder, wanted = study.results(), set[str]()
    for folder, results in by_folder.items():
        tables = [f"{TABLES_FOLDER}/{name}.csv" for name in results.tables]
        wanted |= {str(Path(folder) / name) for name in (*results.files, *tables, CONFIG_FILE)}
    has_tables = any(results.tables for results in by_folder.values())
    schemas = schemas_of({"kind": kind}).values() if has_tables else ()
    reports = {str(Path(folder) / REPORT_FILE) for folder in by_folder}
    for name in set(_written(out)) - wanted - reports:  # reports are overwritten
        _remove(out, name)
    _note(out, written=sorted({*_written(out), *wanted}))  # in case it is killed before the end
    jobs = in_order(study.jobs())
    seconds: dict[str, float] = {}
    for job in jobs:
        spent = store.manifest(job.key).seconds
        seconds[job.step.kind] = round(seconds.get(job.step.kind, 0.0) + spent, 1)
    for folder, results in by_folder.items():
        for name, source in results.files.items():
            write_atomically(out / folder / name, partial(shutil.copyfile, source))
        write_tables(out / folder / TABLES_FOLDER, results.tables, schemas)
        facts = {
            "kind": kind,
            "mechcore": __version__,
            "versions": versions(),
            "command": " ".join(["mechcore", *sys.argv[1:]]),
            "settings": plain(settings),
            "origins": dict(origins),
            "seconds": seconds,
            "jobs": {job.name: job.key for job in jobs},
        }
        write_json(out / folder / CONFIG_FILE, facts | dict(results.facts))
    _note(out, written=sorted(wanted))
    return [out / folder for folder in by_folder]


def _noted(out: Path) -> dict[str, Any]:
    path = out / STUDY
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"found a {type(content).__name__}, expected an object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error}); rerun the study") from error
    return content


def _known(out: Path) -> dict[str, Any]:
    """The recorded facts; none if the file is missing or damaged, as it is then rewritten."""
    try:
        return _noted(out)
    except InputError:
        return {}


def _note(out: Path, **facts: Any) -> None:
    write_json(out / STUDY, _known(out) | facts)


def _written(out: Path) -> tuple[str, ...]:
    return tuple(_known(out).get("written", ()))


def _remove(out: Path, name: str) -> None:
    path = out / name
    if not path.resolve().is_relative_to(out.resolve()):
        return
    path.unlink(missing_ok=True)
    for folder in path.relative_to(out).parents:
        if folder != Path():
            with suppress(OSError):  # not empty: it contains other files
                (out / folder).rmdir()
