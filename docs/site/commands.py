"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from mechcore.cli import app

PLACE = "<!-- commands -->"
WIDTH = 84
"""Characters in a line of a page's block of code."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help of every command in its place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One section per command: its help, as the command line shows it."""
    runner = CliRunner(env={"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"})
    sections = []
    for name in _names(typer.main.get_command(app)):
        words = [*name.split(), "--help"]
        result = runner.invoke(app, words, prog_name="mechcore", terminal_width=WIDTH)
        if result.exit_code:
            raise RuntimeError(f"mechcore {name} --help failed: {result.output}")
        lines = (line.rstrip() for line in result.output.strip().splitlines())
        help_text = "\n".join(lines)
        sections.append(f"## mechcore {name}\n\n```text\n{help_text}\n```\n")
    return "\n".join(sections)


def _names(command: Any) -> Iterator[str]:
    """Of all commands, those in groups with their group's before it."""
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from (f"{name} {inner}" for inner in _names(each))
        else:
            yield name
