"""The code of a page, and what it prints.

Run ``python docs/page_code.py PAGE ...`` to run the code of pages in full, minutes for some, and to
write what it printed where each shows its output. What a page says of its outputs is for its author
to read again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechcore.cli import main
from mechcore.files import write_text
from mechcore.study.kinds import read_study

DOCS = Path(__file__).resolve().parent
FILES = DOCS / "how-to" / "index.md"
"""Makes the files that the other guides beside it use, and the tour of Python."""
TOUR = DOCS / "python.md"

_FENCE = re.compile(
    r"(?:<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.M
)
_SHORTER = re.compile(r"^<!-- in tests: (?P<old>.*) => (?P<new>.*) -->$", re.M)


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
        start: where the body begins in the page.
    """

    language: str
    body: str
    note: str
    line: int
    start: int


def blocks(page: Path, *, full: bool) -> list[Block]:
    """Of a page; unless in full, with what its comments ``in tests: OLD => NEW`` change."""
    text = page.read_text(encoding="utf-8")
    changes = [] if full else [(m["old"], m["new"]) for m in _SHORTER.finditer(text)]
    listed = []
    for m in _FENCE.finditer(text):
        body, start = m["body"], m.start("body")
        for old, new in changes if m["language"] != "text" else []:
            body = body.replace(old, new)
        line = text.count("\n", 0, start) + 1
        listed.append(Block(m["language"], body, m["note"] or "", line, start))
    return listed


def run_page(page: Path, *, full: bool) -> Iterator[tuple[Block, str, str]]:
    """Run a page's blocks in order, in one namespace and the current folder.

    Yields every block of output with what the page shows and what the code printed.
    """
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(page, full=full):
        kind, _, name = block.note.partition(" ")
        if block.language == "text":
            shown, lines = block.body.strip("\n"), printed.strip("\n").splitlines()
            yield block, shown, "\n".join(lines[-1:] if kind == "last" else lines)
        elif kind == "file:":
            Path(name).write_text(block.body, encoding="utf-8")
        elif block.language == "yaml":
            Path("shown.yaml").write_text(block.body, encoding="utf-8")
            read_study(Path("shown.yaml"))
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
        if (code := _exit_code(words[1:])) not in (0, None):
            raise RuntimeError(f"{line}: exit code {code}")


def _exit_code(arguments: list[str]) -> object:
    try:
        main(arguments)
    except SystemExit as end:
        return end.code
    return "missing"


def uses_files(page: Path) -> bool:
    """Whether the code of `FILES` has to run before that of the page."""
    return page == TOUR or (page.parent == FILES.parent and page != FILES)


def rewrite(page: Path) -> int:
    """Run a page in full, in a folder of its own, and write what it prints.

    Returns:
        How many outputs are others now.
    """
    text, place, changed = page.read_text(encoding="utf-8"), 0, 0
    parts = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            if uses_files(page):
                list(run_page(FILES, full=True))
            for block, shown, printed in run_page(page, full=True):
                parts += [text[place : block.start], f"{printed.rstrip()}\n"]
                place = block.start + len(block.body)
                changed += shown != printed
        finally:
            os.chdir(before)
    write_text(page, "".join(parts) + text[place:])
    return changed


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for page in map(Path, sys.argv[1:]):
        print(f"{page}: {rewrite(page.resolve())} outputs changed")
