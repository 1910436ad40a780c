"""Command for the report of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
) -> None:
    """The HTML report of a finished run, made again from its tables."""
    from mechcore.report import build_report

    print(f"report: {build_report(folder)}")
