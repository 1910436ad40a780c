"""Command for the report of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore.cli.options import split


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    format: Annotated[
        Literal["html", "md", "all"],
        typer.Option("--format", help="One page that holds all; Markdown with figures beside it."),
    ] = "html",
    figures: Annotated[
        str, typer.Option("--figures", help="Files of every figure: some of png, svg, pdf.")
    ] = "svg,png",
) -> None:
    """The report of a finished run, made again from its tables."""
    from mechcore.report import REPORT_FILES, build_report

    formats: Any = list(REPORT_FILES) if format == "all" else [format]
    build_report(folder, formats=formats, figures=split(figures))
    for name in formats:
        print(f"report: {folder / REPORT_FILES[name]}")
