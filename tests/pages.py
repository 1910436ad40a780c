"""A page as tests read it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Text, tags, links and images of a page; unbalanced tags are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
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
        if not {"style", "script"} & set(self.open):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        joined = "".join(self.pieces).replace("\u00a0", " ").replace("\u2212", "-")
        return re.sub(r"\s+", " ", joined)

    def attributes(self, tag: str, name: str) -> list[str]:
        return [value for t, attrs in self.tags if t == tag and (value := attrs.get(name))]
