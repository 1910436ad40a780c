"""The code of every page runs as it stands, and prints what the page shows."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
from helpers import undrawn
from page_code import DOCS, FILES, TOUR, Block, blocks, rewrite, run_page, uses_files

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")

_DURATION = re.compile(r"#(?:\.#)? (?:h|min|s)\b(?: # (?:min|s)\b)?")
_HEADS = re.compile(r"L#\.(?:H#|MLP)(?:[ ,+]+L#\.(?:H#|MLP))*")

RELATIVE, ABSOLUTE = 0.02, 0.011
"""How far a figure may lie from the one shown: other processors round otherwise."""

AS_PRINTED = os.environ.get("MECHCORE_DOCS") == "as-printed"
"""Run the code as the pages have it, minutes for some, and compare all figures."""


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


RUN = sorted(
    path
    for path in [
        DOCS.parent / "README.md",
        DOCS / "index.md",
        TOUR,
        *(
            path
            for folder in ("concepts", "how-to", "tutorials")
            for path in (DOCS / folder).glob("*.md")
        ),
    ]
    if any(block.language in ("python", "bash") for block in blocks(path, full=AS_PRINTED))
)


HOOKED = [
    pytest.param(page, marks=[pytest.mark.hooked] * ('backend="hooked")\n' in page.read_text()))
    for page in RUN
]


@pytest.mark.parametrize("page", HOOKED, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with contextlib.nullcontext() if AS_PRINTED else undrawn():  # elsewhere, figures are drawn
        if uses_files(page):
            assert not list(run_page(FILES, full=AS_PRINTED))
        for block, shown, printed in run_page(page, full=AS_PRINTED):
            problem = differences(block, shown, printed)
            assert problem is None, f"{page.name}, line {block.line}: {problem}"


def test_outputs_are_written_where_they_are_shown(tmp_path: Path) -> None:
    def block(language: str, body: str) -> str:
        return f"```{language}\n{body}\n```\n\n"

    page = tmp_path / "page.md"
    text = "# Page\n\n<!-- in tests: 3 => 2 -->\n\n"
    text += block("python", 'print("first")\nprint(1 + 3)')
    text += f"<!-- last line -->\n{block('text', 'OLD')}Between.\n\n"
    text += block("python", 'print("as before\\n")') + block("text", "as before")
    page.write_text(text.replace("OLD", "5 old\nlines"))
    assert rewrite(page) == 1
    assert page.read_text() == text.replace("OLD", "4")
    assert rewrite(page) == 0
