"""The contents of a report; every kind of study provides its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechcore.registry import Registry
from mechcore.tables import Schema

if TYPE_CHECKING:
    from mechcore.report.blocks import Finding, Section, Tile
    from mechcore.report.run_folder import RunFolder


@dataclass(frozen=True)
class Words:
    """The fixed texts of a report; ``method``, formula in the middle, replaces that on masks."""

    intervals: str
    terms: Sequence[tuple[str, str]]
    credit: str
    method: Sequence[str] = ()


@dataclass(frozen=True)
class StudyReport:
    """The report of one kind of study; its title is made of the model and ``config.json``."""

    title: Callable[[str, Mapping[str, Any]], str]
    subtitle: str
    tables: Callable[[], Iterable[Schema]]
    tiles: Callable[[RunFolder], Iterable[Tile]]
    findings: Callable[[RunFolder], Iterable[Finding]]
    sections: Callable[[RunFolder], Iterable[Section]]
    words: Words
    opening: Callable[[RunFolder], Section | None] = lambda _run: None


DEFAULT = "heuristic-core"
"""The kind of a run whose ``config.json`` does not name one."""

REPORTS: Registry[StudyReport] = Registry(
    "kind of study", "mechcore.reports", {DEFAULT: "mechcore.main_study.report:REPORT"}
)


def schemas_of(config: Mapping[str, Any]) -> dict[str, Schema]:
    """The tables that a run with this ``config.json`` writes, by name, see `report_of`."""
    return {schema.name: schema for schema in report_of(config).tables()}


def report_of(config: Mapping[str, Any]) -> StudyReport:
    """The report for a run with this ``config.json``; raises `InputError` for an unknown kind."""
    return REPORTS[str(config.get("kind") or DEFAULT)]
