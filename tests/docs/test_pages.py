"""The code of every page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import undrawn

from mechcore.cli import main
from mechcore.steps.config_file import read_config

DOCS = Path(__file__).resolve().parents[2] / "docs"

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.M
)
_SHORTER = re.compile(r"^<!-- in tests: (?P<old>.*) => (?P<new>.*) -->$", re.M)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")

_DURATION = re.compile(r"#(?:\.#)? (?:h|min|s)\b(?: # (?:min|s)\b)?")
_HEADS = re.compile(r"L#\.(?:H#|MLP)(?:[ ,+]+L#\.(?:H#|MLP))*")

RELATIVE, ABSOLUTE = 0.02, 0.011
"""How far a figure may lie from the one shown: other processors round otherwise."""

AS_PRINTED = os.environ.get("MECHCORE_DOCS") == "as-printed"
"""Run the code as the pages have it, minutes for some, and compare all figures."""


DRAWN = ("heuristic-core",)
"""Pages whose report is drawn; the others have one of the same kind."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: python, bash, yaml or text; text is what the block before it prints.
        body: without the fences.
        note: of the comment just before it. For output ``approximate``, where figures, heads and
            order depend on training, which tests shorten and processors round, and ``last line``;
            for others ``file: NAME``, to be saved, and ``needs PACKAGE``, else passed over. Other
            yaml is the configuration of a study, and has to be one that is accepted.
        line: of the page, from 1.
    """

    language: str
    body: str
    note: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Of a page, in tests with the changes that its comments ``in tests: OLD => NEW`` ask for."""
    text = page.read_text(encoding="utf-8")
    changes = [] if AS_PRINTED else [(m["old"], m["new"]) for m in _SHORTER.finditer(text)]
    found = []
    for m in _FENCE.finditer(text):
        body, line = m["body"], text.count("\n", 0, m.start("body")) + 1
        for old, new in changes if m["language"] != "text" else []:
            body = body.replace(old, new)
        found.append(Block(m["language"], body, m["note"] or "", line))
    return found


def run_page(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Run a page's blocks in order, in one namespace and the current folder.

    Yields every block of output with what the page shows and what the code printed.
    """
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(page):
        kind, _, name = block.note.partition(" ")
        if block.language == "text":
            shown, lines = block.body.strip("\n"), printed.strip("\n").splitlines()
            yield block, shown, "\n".join(lines[-1:] if kind == "last" else lines)
        elif kind == "file:":
            Path(name).write_text(block.body, encoding="utf-8")
        elif block.language == "yaml":
            Path("shown.yaml").write_text(block.body, encoding="utf-8")
            read_config(Path("shown.yaml"))
        elif kind != "needs" or importlib.util.find_spec(name) is not None:
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
        with pytest.raises(SystemExit) as end:
            main(words[1:])
        assert end.value.code in (0, None), f"{line}: exit code {end.value.code}"


def differences(block: Block, shown: str, printed: str) -> str | None:
    """What is wrong with the output shown; None if nothing is."""
    if block.note.endswith("approximate") and not AS_PRINTED:
        if shape(shown) == shape(printed):
            return None
        return f"shown:\n{shown}\nprinted:\n{printed}"
    numbers = _NUMBER.findall(shown)
    if _NUMBER.sub("#", shown).split() != _NUMBER.sub("#", printed).split():
        return f"shown:\n{shown}\nprinted:\n{printed}"
    for a, b in zip(numbers, _NUMBER.findall(printed), strict=True):
        if abs(float(a) - float(b)) > max(ABSOLUTE, RELATIVE * abs(float(a))):
            return f"{a} is shown, {b} printed, in:\n{printed}"
    return None


def shape(text: str) -> list[str]:
    """Words of an output without its numbers, times, heads, NaN and the order of its lines."""
    lines = _HEADS.sub("heads", _DURATION.sub("time", _NUMBER.sub("#", text))).splitlines()
    return sorted(" ".join(line.replace("NaN", "#").split()) for line in lines)


FILES = DOCS / "how-to" / "index.md"
"""Makes the files that the other guides beside it use, and the tour of Python."""
TOUR = DOCS / "python.md"

RUN = sorted(
    path
    for path in [
        DOCS.parent / "README.md",
        TOUR,
        *(
            path
            for folder in ("concepts", "how-to", "tutorials")
            for path in (DOCS / folder).glob("*.md")
        ),
    ]
    if any(block.language in ("python", "bash") for block in blocks(path))
)


@pytest.mark.parametrize("page", RUN, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    drawn = AS_PRINTED or page.stem in DRAWN
    with contextlib.nullcontext() if drawn else undrawn():
        if page == TOUR or (page.parent == FILES.parent and page != FILES):
            assert not list(run_page(FILES))
        for block, shown, printed in run_page(page):
            problem = differences(block, shown, printed)
            assert problem is None, f"{page.name}, line {block.line}: {problem}"
