"""The claims of a study and their verdicts, shown the same way on every page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mechcore.report.blocks import (
    Block,
    Finding,
    Paragraph,
    Section,
    Shown,
    Tile,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.tables import Column
from mechcore.wording import INCONCLUSIVE, NOT_SUPPORTED, QUICK, SUPPORTED, number

VERDICTS = "verdicts"
Make: TypeAlias = Callable[[RunFolder], Section]


@dataclass(frozen=True)
class Claims:
    """The claims of a kind of run: the table of verdicts, and the section of each, by number."""

    table: str
    where: Mapping[int, str]

    def section(
        self, name: str, title: str, missing: str, *tables: str
    ) -> Callable[[Callable[..., Iterable[Block]]], Make]:
        """Decorator: a section made of the relevant verdicts and a function's blocks.

        The function takes the run and its ``tables``, None for one without rows. If the first has
        none, the section says only that ``missing`` was not run, unless ``missing`` is empty.
        """

        def decorate(blocks: Callable[..., Iterable[Block]]) -> Make:
            def make(run: RunFolder) -> Section:
                filled = [run.filled(table) for table in tables]
                if missing and filled[0] is None:
                    return not_run(name, title, missing)
                made = [*self.lines(run, name), *blocks(run, *filled)]
                return Section(name, title, made, [f"{table}.csv" for table in tables])

            return make

        return decorate

    def sections(self, *others: Make) -> Callable[[RunFolder], Iterator[Section]]:
        """The verdicts on all claims, then the other sections."""
        return lambda run: (make(run) for make in (self.verdicts, *others))

    def verdicts(self, run: RunFolder) -> Section:
        """All verdicts, and the numbers that decide them."""
        title, table = "Verdicts", run.filled(self.table)
        if table is None:
            return not_run(VERDICTS, title, "the verdicts on the claims")
        caption = "The claims, their verdicts, and the numbers that decide them"
        shown: list[Shown] = [Column("claim", "text"), "title", "verdict", "figure"]
        rows = table.assign(claim=[number(claim, 0) for claim in table["claim"]])
        words = table_of(rows, run.schemas[self.table], caption, shown)
        return Section(VERDICTS, title, [words], [f"{self.table}.csv"])

    def findings(self, run: RunFolder) -> Iterator[Finding]:
        """The verdict on every claim; the table of verdicts has the numbers."""
        if QUICK in (run.config.get("origins") or {}).values():
            yield Finding(
                f"Made with {QUICK}, a test of all steps: these results are not meaningful.",
                VERDICTS,
            )
        for row in self._rows(run):
            verdict = row["verdict"][:1].upper() + row["verdict"][1:]
            yield Finding(f"{verdict}: {_title(row)}.", self.where.get(row["claim"], VERDICTS))

    def lines(self, run: RunFolder, section: str) -> Iterator[Paragraph]:
        """The claims that a section covers, with their verdicts, if any."""
        for row in self._rows(run):
            if self.where.get(row["claim"]) == section:
                text = f"Claim {number(row['claim'], 0)}: {_title(row)}. Verdict: {row['verdict']}."
                yield Paragraph(text)

    def tile(self, run: RunFolder) -> Iterator[Tile]:
        """How many claims are supported."""
        if (table := run.filled(self.table)) is None:
            return
        n = table["verdict"].value_counts()
        notes = [f"{int(n.get(name, 0))} {name}" for name in (NOT_SUPPORTED, INCONCLUSIVE)]
        yield Tile("Claims supported", f"{n.get(SUPPORTED, 0)} of {len(table)}", ", ".join(notes))

    def _rows(self, run: RunFolder) -> list[dict[Any, Any]]:
        table = run.filled(self.table)
        return [] if table is None else table.to_dict("records")


def _title(row: Mapping[Any, Any]) -> str:
    return str(row["title"]).rstrip(".")
