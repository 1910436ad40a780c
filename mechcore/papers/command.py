"""What the commands of the paper studies share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mechcore.cli.execution import COMMAND_LINE, RunOptions, must_not_exist
from mechcore.cli.options import Given
from mechcore.errors import InputError
from mechcore.files import write_atomically
from mechcore.main_study.config import Resources
from mechcore.settings import origins
from mechcore.study.executors import n_cores
from mechcore.wording import QUICK

if TYPE_CHECKING:
    import pandas as pd

Quick: TypeAlias = Annotated[
    bool,
    typer.Option(QUICK, help="Try all steps in a minute or two; results are not meaningful."),
]


def write_lines(table: pd.DataFrame, out: Path, message: str) -> None:
    """Write a table as JSON lines into a new file."""
    if out.suffix != ".jsonl":
        raise InputError(f"--out {out}: expected a name that ends with .jsonl")
    must_not_exist(out, file=True)
    write_atomically(out, lambda path: table.to_json(path, orient="records", lines=True))
    print(message)


def do_from_base(
    kind: str,
    given: Given[Any],
    default_settings: Callable[[str | None], Any],
    resources: Given[Resources],
    how: RunOptions,
    *,
    quick: bool,
    show: Callable[[Path], None],
) -> None:
    """Do a study whose defaults are those of its base, and which can be made quick."""
    base = given.values.get("base")
    first = default_settings(base)
    start = first.quick() if quick else first
    settings = given.over(start)
    stages = (("defaults", given.made.kind()), ("--base", first), (QUICK, start))
    how.do(
        kind,
        settings,
        resources.over(Resources()),
        out=f"mechcore-{kind}",
        origins=origins(*stages, (COMMAND_LINE, settings)),
        workers=1 if base else n_cores(),
        show=show,
    )
