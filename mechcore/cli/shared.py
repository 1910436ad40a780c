"""Checks and output shared by the commands."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechcore.errors import InputError

MODEL = ("model",)
BASE = (
    *("model.source", "model.class_names", "model.prompt", "model.chat_template", "model.answers"),
    *("model.revision", "model.allow_pickle"),
)
TASK = ("data.columns", "data.label_map", "data.seed", "data.task", "data.folder")
TRAIN = ("data.train", "data.max_train")
TEST_DATA = (
    *("data.id", "data.ood", "data.ood_label", "data.ood_subsets", "data.max_id", "data.max_ood"),
    "data.population",
)
TEST = (*TEST_DATA, "batch_size")
PRUNING = ("prune", "seeds", "target_sparsities")
"""Settings of the main study with options in several commands."""

MOST_SHOWN, MOST_TEXT = 15, 40
"""Maximum rows of a table on the terminal, and characters of a text in it."""


def must_not_exist(out: Path, *, file: bool = False) -> None:
    """Raise if an output exists or cannot be written."""
    from mechcore.files import check_can_write

    if out.exists() and (file or out.is_file() or any(out.iterdir())):
        raise InputError(f"{out}: already exists; choose another --out or remove it")
    check_can_write(out)


def show(frame: Any) -> None:
    """Print a table; long texts wrap if the terminal is narrow."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in frame.columns:
        is_number = is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name])
        words = str(name).replace("_", " ").split()
        table.add_column(
            ("\n" if is_number else " ").join(words),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=max(map(len, ["", *words])),
        )
    for row in frame.itertuples(index=False):
        table.add_row(*map(_cell, frame.columns, row))
    Console(markup=False, emoji=False).print(table)  # names may have brackets and colons


def show_part(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the first columns and rows of a table of texts, as many as fit the terminal."""
    import pandas as pd
    from rich.console import Console

    part = [[textwrap.shorten(cell, MOST_TEXT, placeholder="…") for cell in row] for row in rows]
    part, room, n = part[:MOST_SHOWN], Console().width, 0
    for i, title in enumerate(header):
        room -= max(map(len, (*title.split(), *(row[i] for row in part)))) + 2
        n += room >= -2
    show(pd.DataFrame([row[:n] for row in part], columns=list(header[:n])))
    if len(rows) > len(part):
        print(f"and {len(rows) - len(part)} more rows in the report")


def _cell(name: Any, value: Any) -> str:
    if value is None or str(value) in ("nan", "<NA>"):
        return "\u2013" if str(name).endswith(("low", "high")) else ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def run_table(out: Path, name: str) -> Any:
    """A table of a run as written: whole numbers stay whole even with missing values."""
    import pandas as pd

    return pd.read_csv(out / "tables" / f"{name}.csv", dtype_backend="numpy_nullable")
