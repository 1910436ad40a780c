"""Names of what lies in a study's folder, and the writing of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from mechcore.files import write_csv

CONFIG_FILE = "config.json"
TABLES_FOLDER = "tables"


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table to ``folder/NAME.csv``, atomically."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)
