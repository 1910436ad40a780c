"""Reports of studies of a paper's claims: changing their tables, and checks that all must pass."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browsing import Seen, browser
from pages import Page, rows_of, tables_of, with_tables, words_of

from mechcore.report import build_report
from mechcore.report.kinds import report_of
from mechcore.report.run_folder import RunFolder, read_run

HOSTILE = "<script>alert('x')</script> & $x^2$ |\"q\" *b*"


def page_of(run: Path) -> Page:
    """The report, made now."""
    return Page(build_report(run).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Worlds:
    """Made-up runs of one kind of study, each written when first asked for."""

    folder: Path
    write: Callable[[Path, Any], Path]
    worlds: Mapping[str, Any]
    known: dict[str, RunFolder] = field(default_factory=dict)

    def __getitem__(self, name: str) -> RunFolder:
        if name not in self.known:
            self.known[name] = read_run(self.write(self.folder / name, self.worlds[name]))
        return self.known[name]


def put_in(run: RunFolder, values: Mapping[str, Sequence[str]], value: object) -> RunFolder:
    """The run with a value in whole columns, given by table without the name of the study."""
    kind = run.config["kind"]
    return with_tables(
        run,
        **{
            f"{kind}_{name}": run.tables[f"{kind}_{name}"].assign(**dict.fromkeys(columns, value))
            for name, columns in values.items()
        },
    )


def saved(run: RunFolder, path: Path) -> Path:
    """The folder of a run whose tables may have been changed."""
    (path / "tables").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(run.config))
    for name, table in run.tables.items():
        table.to_csv(path / "tables" / f"{name}.csv", index=False)
    return path


def text_of(run: RunFolder) -> str:
    """Headline numbers, paragraphs and tables, as the page would have them."""
    report = report_of(run.config)
    words = [f"{tile.label} {tile.value} {tile.note}" for tile in report.tiles(run)]
    words += [finding.text for finding in report.findings(run)]
    for section in report.sections(run):
        words.append(words_of(section.blocks))
        words += [" ".join(row) for table in tables_of(section.blocks) for row in rows_of(table)]
    return " ".join(words).replace("\u00a0", " ").replace("\u2212", "-")


def not_run(text: str) -> list[str]:
    """What is said not to have run."""
    return re.findall(r"Not run: ([^.]*)\.", text)


def check_missing(run: RunFolder, needed: Mapping[str, str]) -> None:
    """A table that is missing leaves out its part alone, and one without rows is one.

    Args:
        run: with every table.
        needed: tables without which something is said not to have run, by their full names.
    """
    assert {*needed} < {*run.schemas} == {*run.tables}
    for name in run.tables:
        wanted = [needed[name]] if name in needed else []
        assert not_run(text_of(with_tables(run, **{name: None}))) == wanted, name
    empty = {name: table[:0] for name, table in run.tables.items()}
    assert text_of(with_tables(run, **empty)) == text_of(with_tables(run, **dict.fromkeys(empty)))


def check_titles(page: str, titles: Sequence[str]) -> None:
    """The page has these sections, between those that all have."""
    expected = ["Summary", *titles, "Method", "Files"]
    assert re.findall(r"<h2 id=\"[\w-]+-title\">(.*?)</h2>", page) == expected


def check_claims(page: Page, sections: Sequence[str]) -> None:
    """Every claim has a sentence, and leads to the section with its figures."""
    more = [a["href"] for tag, a in page.tags if tag == "a" and a.get("class") == "more"]
    assert more == [f"#{section}" for section in sections]
    for claim in range(1, len(sections) + 1):
        assert f"This is the sentence of claim {claim}." in page.text
        assert f"Claim {claim}: " in page.text


def check_hostile(run: Path) -> None:
    """Strings full of markup are shown as they are."""
    page = page_of(run)
    assert [tag for tag, _ in page.tags].count("script") == 1  # our own
    assert page.text.count(HOSTILE) > 30


def check_in_browser(path: Path, click: str = "") -> None:
    """A browser has nothing to complain of, and on a narrow screen nothing sticks out.

    Args:
        path: of the page, whose sections are opened.
        click: text to click on before.
    """
    with browser() as chromium:
        shown, seen = chromium.new_page(viewport={"width": 500, "height": 900}), Seen()
        seen.watch(shown)
        shown.goto(path.as_uri())
        unfold = (
            "document.querySelectorAll('main > section > details').forEach((d) => d.open = true)"
        )
        shown.evaluate(unfold)
        if click:
            shown.click(f"text={click}")
        shown.keyboard.press("Escape")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 500
        seen.check(path)
