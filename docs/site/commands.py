"""The reference of the command line, from the commands themselves, with all their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from mechcore.cli import app

PLACE = "*Pages built by `mkdocs serve` list the commands here.*"
WIDTH = 84
"""Characters in a line of a page's block of code."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help of every command in its place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One section per command: its help, as the command line shows it, rare options included."""
    runner = CliRunner(env={"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"})
    sections = []
    for name, command in commands(typer.main.get_command(app)):
        rare = any("--help-all" in option.opts for option in command.params)
        words = [*name.split(), "--help-all" if rare else "--help"]
        result = runner.invoke(app, words, prog_name="mechcore", terminal_width=WIDTH)
        if result.exit_code:
            raise RuntimeError(f"mechcore {name} --help failed: {result.output}")
        lines = (line.rstrip() for line in result.output.strip().splitlines())
        help_text = "\n".join(lines)
        sections.append(f"## mechcore {name}\n\n```text\n{help_text}\n```\n")
    return "\n".join(sections)


def commands(group: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """All commands by name, those in groups with their group's before it."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{place}{name} ")
        else:
            yield f"{place}{name}", command
