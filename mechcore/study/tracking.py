"""Logging finished runs to Weights & Biases."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mechcore.data.examples import ALL
from mechcore.errors import InputError, MechcoreError, reason, warn
from mechcore.pruning.subnetwork import target_name
from mechcore.report.blocks import FIGURES_FOLDER
from mechcore.report.page import REPORT_FILE
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER, RunFolder, read_run

_SETTINGS = {
    # Only the run itself: no terminal, machine, packages, code or git.
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def log_run(
    folder: str | Path, *, project: str, mode: Literal["offline", "online"] = "offline"
) -> str:
    """Log a finished run to Weights & Biases: configuration, summary, tables, PNG figures, report.

    Returns the folder for ``wandb sync`` (``"offline"``) or the address of the run (``"online"``).
    Raises `InputError` for what is missing or invalid, `MechcoreError` if logging failed.
    """
    run = read_run(folder)
    check_can_log(project, mode)
    wandb: Any = import_module("wandb")
    path = run.path.resolve()
    try:
        tracked = wandb.init(
            project=project,
            name=path.name,
            mode=mode,
            dir=str(path),
            config=run.config,
            reinit="create_new",  # runs that are being logged stay open
            settings=wandb.Settings(**_SETTINGS),
        )
        with tracked:
            _log(wandb, tracked, run)
    except wandb.errors.UsageError as error:
        raise InputError(f"wandb: {reason(error)}") from error
    except Exception as error:  # any error: the run itself is done
        raise MechcoreError(f"wandb: {reason(error)}") from error
    return str(tracked.url) if mode == "online" else str(Path(tracked.dir).parent)


def summary_of(run: RunFolder) -> dict[str, float]:
    """Accuracies (shares, by split and sparsity) and the core's size (heads), if available."""
    summary: dict[str, float] = {}
    accuracy = run.table("accuracy")
    if accuracy is not None:
        whole = accuracy[accuracy["subset"] == ALL]
        by = ["split", "target_sparsity"]  # of which the full model has none
        means = whole.groupby(by, sort=False, dropna=False)["accuracy"].mean().reset_index()
        for split, target, mean in means.to_numpy().tolist():
            name = "full" if pd.isna(target) else target_name(target)
            summary[f"accuracy/{split}/{name}"] = mean
    core = run.table("core")
    if core is not None and len(core):
        for name in ("core_size", "expected_by_chance", "p_value"):
            summary[f"core/{name.removeprefix('core_')}"] = float(core.iloc[0][name])
    return summary


def _log(wandb: Any, tracked: Any, run: RunFolder) -> None:
    tracked.summary.update(summary_of(run))
    logged: dict[str, Any] = {}
    for name, table in run.tables.items():
        if len(table):
            logged[f"tables/{name}"] = wandb.Table(dataframe=_plain(table))
        if len(table) > (most := wandb.Table.MAX_ROWS):
            warn(
                f"wandb: table {name}: {len(table)} rows, but Weights & Biases shows only the "
                f"first {most}; the report artifact has all"
            )
    for path in sorted((run.path / FIGURES_FOLDER).glob("[!.]*.png")):
        logged[f"{FIGURES_FOLDER}/{path.stem}"] = wandb.Image(str(path))
    tracked.log(logged)
    artifact = wandb.Artifact(f"report-{tracked.id}", type="report")
    tables = [f"{TABLES_FOLDER}/{file}" for file in run.table_files]
    for name in (CONFIG_FILE, REPORT_FILE, *tables):
        if (run.path / name).is_file():
            artifact.add_file(str(run.path / name), name=name)
    tracked.log_artifact(artifact)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Rows from 0, with plain Python values and None where pandas has its own types and NA."""
    plain = table.reset_index(drop=True)
    for name in plain.columns[[*map(pd.api.types.is_extension_array_dtype, plain.dtypes)]]:
        plain[name] = plain[name].astype(object).where(plain[name].notna(), None)
    return plain


def check_can_log(project: str, mode: str) -> None:
    """Raise `InputError`, before any work, if a run could not be logged."""
    if mode not in ("offline", "online"):
        raise InputError(f"mode: found {mode!r}; expected 'offline' or 'online'")
    os.environ.setdefault(
        "WANDB_ERROR_REPORTING", "false"
    )  # do not send wandb's errors to its developers
    if find_spec("wandb") is None:
        raise InputError("wandb is not installed; install it with: pip install 'mechcore[wandb]'")
    wandb: Any = import_module("wandb")
    try:
        wandb.Settings(project=project)
    except (wandb.errors.UsageError, ValueError) as error:
        raise InputError(f"wandb: {reason(error)}") from error
    if mode == "online" and not wandb.login(prompt=False):
        raise InputError(
            "wandb: not logged in; run `wandb login` first, set WANDB_API_KEY, or use offline mode"
        )
