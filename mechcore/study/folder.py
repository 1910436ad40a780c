"""What every table of results, and every note of how it came about, is written with."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from mechcore.files import write_csv


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = ("torch", "transformers", "accelerate", "transformer-lens", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table to ``folder/NAME.csv``, atomically."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)
