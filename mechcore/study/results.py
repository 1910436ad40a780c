"""The folder of a study: its identity, and its results, copied from the store."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.files import check_can_write, write_atomically, write_json
from mechcore.report import REPORT_FILE
from mechcore.report.kinds import schemas_of
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.study.engine import Study
from mechcore.study.kinds import STUDIES
from mechcore.study.step import TABLES_FOLDER, in_order, plain, versions
from mechcore.study.store import Store
from mechcore.tables import write_tables

STUDY = "study.json"
STORE = "store"


@dataclass(frozen=True)
class Opened:
    """The study in a folder."""

    kind: str
    settings: Any
    store: Store


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
        mechcore=version("mechcore"),
        store=STORE if inside else str(store.path.resolve()),
        settings=plain(settings),
        written=list(_written(out)),
    )


def opened(out: Path) -> Opened:
    """The study in a folder; raises `InputError` if there is none."""
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
    return Opened(kind, settings, Store(out / str(content["store"])))


def write_results(
    study: Study, out: Path, kind: str, settings: Any, store: Store, origins: Mapping[str, str]
) -> list[Path]:
    """Copy the results of a finished study to ``out``, remove its outdated ones; its folders."""
    by_folder, wanted = study.results(), set[str]()
    for folder, results in by_folder.items():
        tables = [f"{TABLES_FOLDER}/{name}.csv" for name in results.tables]
        wanted |= {str(Path(folder) / name) for name in (*results.files, *tables, CONFIG_FILE)}
    has_tables = any(results.tables for results in by_folder.values())
    schemas = schemas_of({"kind": kind}).values() if has_tables else ()
    reports = {str(Path(folder) / REPORT_FILE) for folder in by_folder}
    for name in set(_written(out)) - wanted - reports:  # those are written over
        _remove(out, name)
    _note(out, written=sorted({*_written(out), *wanted}))  # if it is killed before the end
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
            "mechcore": version("mechcore"),
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


def add_written(out: Path, files: Iterable[Path]) -> None:
    """Record further files of a study's results, such as its report."""
    names = {path.relative_to(out).as_posix() for path in files}
    _note(out, written=sorted({*_written(out), *names}))


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
    """The recorded facts, or none if the file is missing or damaged, and rewritten."""
    try:
        return _noted(out)
    except InputError:
        return {}


def _note(out: Path, **facts: Any) -> None:
    write_json(out / STUDY, _known(out) | facts)


def _written(out: Path) -> tuple[str, ...]:
    names = _known(out).get("written")
    names = names if isinstance(names, list) else []
    return tuple(n for n in names if isinstance(n, str) and ".." not in Path(n).parts)


def _remove(out: Path, name: str) -> None:
    path = out / name
    if not path.resolve().is_relative_to(out.resolve()):
        return
    path.unlink(missing_ok=True)
    for folder in path.relative_to(out).parents:
        if folder != Path():
            with suppress(OSError):  # not empty: it contains other files
                (out / folder).rmdir()
