"""Reports of studies of a paper's claims: changing their tables, and checks that all must pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from browsing import Seen, browser
from pages import Page

from mechcore.report import build_report

HOSTILE = "<script>alert('x')</script> & $x^2$ |\"q\" *b*"


def page_of(run: Path) -> Page:
    """The report, made now."""
    return Page(build_report(run).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class StudyTables:
    """The tables of a kind of study, by their names without its own."""

    kind: str

    def path(self, run: Path, name: str) -> Path:
        """The file of a table."""
        return run / "tables" / f"{self.kind}_{name}.csv"

    def read(self, run: Path, name: str) -> pd.DataFrame:
        """A table."""
        return pd.read_csv(self.path(run, name))

    def edit(self, run: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
        """Write a table anew."""
        change(self.read(run, name)).to_csv(self.path(run, name), index=False)

    def fill(self, run: Path, values: Mapping[str, Sequence[str]], value: object) -> None:
        """Put a value into whole columns, which are given by table."""
        for name, columns in values.items():
            filled = dict.fromkeys(columns, value)
            self.edit(run, name, lambda table, filled=filled: table.assign(**filled))


def remove(path: Path, *, empty: bool) -> None:
    """Take a table away, or its rows alone."""
    if empty:
        pd.read_csv(path)[:0].to_csv(path, index=False)
    else:
        path.unlink()


def not_run(page: Page) -> list[str]:
    """What the page says was not run."""
    return re.findall(r"Not run: ([^.]*)\.", page.text)


def check_titles(run: Path, titles: Sequence[str]) -> None:
    """The page has these sections, between those that all have."""
    html = (run / "report.html").read_text(encoding="utf-8")
    expected = ["Summary", *titles, "Method", "Files"]
    assert re.findall(r"<h2 id=\"[\w-]+-title\">(.*?)</h2>", html) == expected


def check_hostile(run: Path) -> None:
    """Strings full of markup are shown as they are."""
    page = page_of(run)
    assert [tag for tag, _ in page.tags].count("script") == 1  # our own
    assert page.text.count(HOSTILE) > 30


def check_in_browser(path: Path, click: str = "") -> None:
    """A browser has nothing to complain of, and on a narrow screen nothing sticks out.

    Args:
        path: of the page.
        click: text to click on before.
    """
    with browser() as chromium:
        shown, seen = chromium.new_page(viewport={"width": 500, "height": 900}), Seen()
        seen.watch(shown)
        shown.goto(path.as_uri())
        if click:
            shown.click(f"text={click}")
        shown.keyboard.press("Escape")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 500
        seen.check(path)
