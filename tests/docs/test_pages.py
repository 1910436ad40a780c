"""The code of every page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mechcore.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.M
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")

RELATIVE, ABSOLUTE = 0.02, 0.011
"""How far a figure may lie from the one shown: other processors round otherwise."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: python, bash or text; text is what the block before it prints.
        body: without the fences.
        note: of the comment just before it. ``approximate``: only the words of the output are the
            same everywhere. ``not run``: what it needs is not in the repository.
        line: of the page, from 1.
    """

    language: str
    body: str
    note: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["body"], m["note"] or "", text.count("\n", 0, m.start("body")) + 1)
        for m in _FENCE.finditer(text)
    ]


def run_page(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Run a page's blocks in order, in one namespace and the current folder.

    Yields every block of output with what the page shows and what the code printed.
    """
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(page):
        if block.language == "text":
            yield block, block.body.strip("\n"), printed.strip("\n")
        elif block.note != "not run":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                if block.language == "python":
                    # Blank lines before the code make the line numbers of errors those of the page.
                    source = "\n" * (block.line - 1) + block.body
                    exec(compile(source, str(page), "exec"), namespace)
                elif block.language == "bash":
                    run_commands(block.body)
            printed = out.getvalue()


def run_commands(body: str) -> None:
    """Run the commands of a shell block; all of them are mechcore's."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "mechcore", f"not a command of mechcore: {line}"
        try:
            main(words[1:])
        except SystemExit as end:
            assert end.code in (0, None), f"{line}: exit code {end.code}"


def differences(block: Block, shown: str, printed: str) -> str | None:
    """What is wrong with the output shown; None if nothing is."""
    words, numbers = _NUMBER.sub("#", shown).split(), _NUMBER.findall(shown)
    if words != _NUMBER.sub("#", printed).split():
        return f"shown:\n{shown}\nprinted:\n{printed}"
    if block.note == "approximate":
        return None
    for a, b in zip(numbers, _NUMBER.findall(printed), strict=True):
        if abs(float(a) - float(b)) > max(ABSOLUTE, RELATIVE * abs(float(a))):
            return f"{a} is shown, {b} printed, in:\n{printed}"
    return None


RUN = sorted(
    path
    for folder in ("concepts", "tutorials")
    for path in (DOCS / folder).glob("*.md")
    if any(block.language in ("python", "bash") for block in blocks(path))
)


@pytest.mark.parametrize("page", RUN, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block, shown, printed in run_page(page):
        problem = differences(block, shown, printed)
        assert problem is None, f"{page.name}, line {block.line}: {problem}"
