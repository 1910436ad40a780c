"""The folder of a study of a paper's claims: whose it is, and what it holds in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.files import check_can_write, write_json
from mechcore.models.running import n_parameters
from mechcore.report import build_report
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER
from mechcore.steps.config import plain
from mechcore.study.folder import versions, write_tables
from mechcore.study.pool import Plan, Unit
from mechcore.study.results import STORE
from mechcore.study.store import Store


def check_out(out: Path, kind: str, what: str) -> None:
    """See whether a study may put its results into ``out``; nothing is written.

    Args:
        out: the folder.
        kind: of the study, as in its ``config.json``.
        what: the study, with its article, for the message.

    Raises:
        InputError: it cannot be written, or holds something else.
    """
    check_can_write(out)
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if there - {STORE} and not _is_own(out / CONFIG_FILE, kind):
        raise InputError(
            f"{out}: the folder is not empty and is not that of {what}; choose another --out"
        )


def opened_store(out: Path, store: str | Path | None) -> Store:
    """The store of a study, made if need be: ``store``, or that in ``out``."""
    kept = Store(out / STORE if store is None else store)
    kept.create()
    kept.tidy()
    return kept


def beginning(kind: str, settings: Any) -> dict[str, Any]:
    """What ``config.json`` says before a study is done.

    Args:
        kind: of the study.
        settings: a dataclass with ``seeds``.
    """
    return {
        "kind": kind,
        "mechcore": version("mechcore"),
        "versions": versions(),
        "seeds": list(settings.seeds),
        "settings": plain(asdict(settings)),
    }


def ending(plan: Plan[Unit]) -> dict[str, Any]:
    """What ``config.json`` says of the work on a finished study."""
    seconds: dict[str, float] = {}
    for unit in plan.wanted():
        manifest = plan.store.manifest(unit.key)
        seconds[manifest.kind] = round(seconds.get(manifest.kind, 0.0) + manifest.seconds, 1)
    return {
        "command": " ".join(["mechcore", *sys.argv[1:]]),
        "seconds": seconds,
        "units": {unit.name: unit.key for unit in plan.wanted()},
    }


def model_facts(model: Any, source: str) -> dict[str, Any]:
    """What ``config.json`` says of a study's base."""
    return {
        "source": source,
        "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
        **asdict(ModelShape.of(model)),
        "d_model": model.cfg.d_model,
        "n_parameters": n_parameters(model),
    }


def write_results(out: Path, tables: Mapping[str, pd.DataFrame], config: dict[str, Any]) -> Path:
    """Write tables, ``config.json``, figures and the report; tables of before are removed.

    Returns:
        The report.
    """
    stale = {path.stem for path in (out / TABLES_FOLDER).glob("*.csv")} - set(tables)
    for name in stale:
        (out / TABLES_FOLDER / f"{name}.csv").unlink()
    write_tables(out / TABLES_FOLDER, tables)
    write_json(out / CONFIG_FILE, config)
    return build_report(out)


def _is_own(path: Path, kind: str) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["kind"] == kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
