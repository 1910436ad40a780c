"""What the commands share: checking and showing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore.cli.options import Given
from mechcore.errors import InputError

if TYPE_CHECKING:
    from mechcore.main_study.config import StudyConfig
    from mechcore.steps.config import ModelConfig

MODEL = ("model",)
TASK = ("data.columns", "data.label_map", "data.seed", "data.task", "data.folder")
TRAIN = ("data.train", "data.max_train")
TEST_DATA = (
    *("data.id", "data.ood", "data.ood_label", "data.ood_subsets", "data.max_id", "data.max_ood"),
    "data.population",
)
TEST = (*TEST_DATA, "batch_size")
PRUNING = ("prune", "seeds", "sparsities")
"""Settings of the main study that several commands have options for."""

MOST_SHOWN, MOST_TEXT = 15, 40
"""Rows of a table on the terminal, and characters of a text in it."""


def check_embedded(given: Given[StudyConfig], model: ModelConfig) -> None:
    """Refuse an embedded model beside one of the user's own.

    Raises:
        InputError: both are named.
    """
    if "model.embedded" in given.values and model.source is not None:
        raise InputError(
            f"--embedded {model.embedded} and the model {model.source} exclude each other: an "
            "embedded model is used where no other is named; leave one of them out"
        )


def check_one_place(config: StudyConfig) -> None:
    """Refuse a device beside a map of devices.

    Raises:
        InputError: both are named.
    """
    if config.resources.device is not None and config.model.device_map is not None:
        raise InputError(
            f"--device {config.resources.device} and device_map {config.model.device_map} exclude "
            "each other: a map says itself which devices are used; leave one of them out"
        )


def must_not_exist(out: Path, *, file: bool = False) -> None:
    """Refuse an output that exists or cannot be written."""
    from mechcore.files import check_can_write

    if out.exists() and (file or out.is_file() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; choose another --out or remove it")
    check_can_write(out)


# -- output ---------------------------------------------------------------------------------------


def show(frame: Any) -> None:
    """A table on the terminal: whole numbers as such, others with three decimals.

    A dash stands for the ends of an interval that is not known.

    Where there is little room, texts go on in the next line, sets of components after a plus;
    numbers and words of headings never do.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False)  # names may have brackets and colons
    rows = [[*map(_cell, frame.columns, row)] for row in frame.itertuples(index=False)]
    table = _table(frame, rows)
    anywhere = console.options.update(max_width=10_000)
    excess = console.measure(table, options=anywhere).maximum - console.width
    if excess > 0:
        sets = [len(cell) for row in rows for cell in row if _members(cell)[1:]]
        width = max(sets, default=0) - excess
        table = _table(frame, [[_in_lines(cell, width) for cell in row] for row in rows])
    console.print(table)


def show_part(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first columns and rows of a table of texts, as many as a terminal has room for."""
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


def _table(frame: Any, rows: list[list[str]]) -> Any:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(frame.columns):
        texts = [row[i] for row in rows]
        number = is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name])
        words = str(name).replace("_", " ").split()
        lines = [line for cell in texts if _members(cell)[1:] for line in cell.split("\n")]
        table.add_column(
            ("\n" if number else " ").join(words),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            min_width=max(map(len, ["", *words, *lines])),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _cell(name: Any, value: Any) -> str:
    if value is None or str(value) in ("nan", "<NA>"):
        return "\u2013" if str(name).endswith(("low", "high")) else ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _members(text: str) -> list[str]:
    """A set of components in parts, each but the last with its plus; other texts in one."""
    return [text] if " " in text else re.split(r"(?<=\+)\n?(?=L\d)", text)


def _in_lines(text: str, width: int) -> str:
    """A set of components with a new line between members where it is wider."""
    lines = [""]
    for part in _members(text):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def run_table(out: Path, name: str) -> Any:
    """A table of a run as it was written: whole numbers stay whole where a row has none."""
    from mechcore.files import read_csv

    return read_csv(out / "tables" / f"{name}.csv", dtype_backend="numpy_nullable")


def show_missing(out: Path, name: str) -> None:
    """The masks that a run lacks, if any, and why."""
    if (out / "tables" / f"{name}.csv").exists():
        for row in run_table(out, name).to_dict("records"):
            where = f", checkpoint {row['checkpoint']}" if "checkpoint" in row else ""
            print(f"missing: {row['subnetwork']}{where}: {row['reason']}")
