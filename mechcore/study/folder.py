"""The folder of a run: what lies where, and which steps are done."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mechcore.errors import InputError
from mechcore.files import check_can_write, write_csv, write_json
from mechcore.study.config import RunConfig

CONFIG = "config.json"
OWN = ("means.safetensors", "pruning.safetensors", "attention_examples.json", "report.html")
OWN_FOLDERS = ("masks", "tables", "figures")

IfExists = Literal["fail", "resume", "overwrite"]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = ("torch", "transformers", "transformer-lens", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table to ``folder/NAME.csv``, atomically."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)


@dataclass(frozen=True)
class RunFolder:
    """A run's folder; made by `open_folder`."""

    path: Path
    facts: dict[str, Any]

    @property
    def means(self) -> Path:
        """File of the mean activations."""
        return self.path / "means.safetensors"

    @property
    def pruning(self) -> Path:
        """File of the masks in training, while they are."""
        return self.path / "pruning.safetensors"

    @property
    def masks(self) -> Path:
        """Folder of the subnetworks."""
        return self.path / "masks"

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write tables by name, see `write_tables`."""
        write_tables(self.path / "tables", tables)

    def is_done(self, step: str) -> bool:
        """Whether a step has finished, now or before the run was resumed."""
        return step in self.facts["seconds"]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Mark a step as done if the block ends without an error, with the time it took."""
        start = time.monotonic()
        yield
        self.facts["seconds"][name] = round(time.monotonic() - start, 1)
        self.save()

    def save(self) -> None:
        """Write ``config.json``."""
        write_json(self.path / CONFIG, self.facts)


def check_folder(out: Path, if_exists: IfExists, config: RunConfig) -> dict[str, Any] | None:
    """See whether a run may go to ``out``; nothing is written.

    Returns:
        The facts of the interrupted run to resume, or None for a new run.

    Raises:
        InputError: the folder is in use, holds something else, or was run with other settings.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; expected a folder (--out)")
    check_can_write(out)
    if not out.exists() or not any(out.iterdir()):
        return None
    if if_exists == "fail":
        raise InputError(
            f"{out}: the folder is not empty; pass --resume to finish an interrupted run, "
            "--overwrite to replace it, or another --out"
        )
    try:
        facts: dict[str, Any] = json.loads((out / CONFIG).read_text())
        stored = facts["settings"]
        facts["seconds"].keys()
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"{out}: the folder is not empty and is not a mechcore run (no usable {CONFIG}); "
            "choose another --out"
        ) from error
    if if_exists == "overwrite":
        return None
    now = {"mechcore": version("mechcore"), **versions()}
    then = {"mechcore": facts.get("mechcore"), **facts.get("versions", {})}
    differences = config.differences(stored) + [n for n in now if now[n] != then.get(n)]
    if differences:
        raise InputError(
            f"{out}: cannot resume, these settings or versions differ from those of the run: "
            f"{', '.join(differences)}; use the same ones, or --overwrite"
        )
    return facts


def open_folder(
    out: Path, config: RunConfig, resumed: dict[str, Any] | None, facts: dict[str, Any]
) -> RunFolder:
    """Make the folder ready for a new run, or take up an interrupted one.

    Args:
        out: the folder.
        config: the run.
        resumed: what `check_folder` returned.
        facts: what the run works on: model, data, label mapping.

    Raises:
        InputError: the run to resume was on another model or other data.
    """
    if resumed is not None:
        for name in ("model", "data"):
            if resumed.get(name) != facts[name]:
                raise InputError(
                    f"{out}: cannot resume, the {name} changed since the run began; "
                    "restore it, or use --overwrite"
                )
        return RunFolder(out, resumed)
    folder = RunFolder(
        out,
        {
            "mechcore": version("mechcore"),
            "versions": versions(),
            "command": " ".join(["mechcore", *sys.argv[1:]]),
            **facts,
            "seeds": list(config.seeds),
            "sparsities": list(config.sparsities),
            "settings": config.as_json(),
            "seconds": {},
        },
    )
    folder.save()  # first: interrupted from here on, the folder is still a run
    for name in OWN:
        (out / name).unlink(missing_ok=True)
    for name in OWN_FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    return folder
