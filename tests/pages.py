"""A page, or blocks of one, as tests read it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from mechcore.report.blocks import Block, Paragraph, Table
from mechcore.report.run_folder import RunFolder
from mechcore.wording import SPACE

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Text, tags, links and images of a page; unbalanced tags are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.scripts: list[str] = []
        self.headings: list[int] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif not {"style", "script", "template"} & set(self.open):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        joined = "".join(self.pieces).replace("\u00a0", " ").replace("\u2212", "-")
        return re.sub(r"\s+", " ", joined)

    def attributes(self, tag: str, name: str) -> list[str]:
        return [value for t, attrs in self.tags if t == tag and (value := attrs.get(name))]


def words_of(blocks: Iterable[Block]) -> str:
    """All paragraphs."""
    texts = (block.text for block in blocks if isinstance(block, Paragraph))
    return " ".join(texts).replace(SPACE, " ")


def tables_of(blocks: Iterable[Block]) -> list[Table]:
    """All tables."""
    return [block for block in blocks if isinstance(block, Table)]


def rows_of(table: Table) -> list[list[str]]:
    """Their cells."""
    return [[cell.replace(SPACE, " ") for cell in row] for row in table.rows]


def with_tables(run: RunFolder, **tables: Any) -> RunFolder:
    """A run with other tables; one that is None was not made."""
    return replace(run, tables={**run.tables, **tables})
