"""What the report of a kind of study consists of; every kind brings its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechcore.registry import Registry
from mechcore.tables import Schema

if TYPE_CHECKING:
    from mechcore.report.blocks import Finding, Section, Tile
    from mechcore.report.run_folder import RunFolder


_BEFORE_FORMULA = (
    "A component is one attention head or one MLP layer. A mask gives every component a number *m* "
    "from 0 to 1, and whatever the component adds to the model is changed to"
)
_FORMULA = "*mean* + *m* · (*x* \u2212 *mean*)"
_AFTER_FORMULA = (
    "where *x* is its output and *mean* its average output over training data. With *m* = 1 "
    "nothing changes; with *m* = 0 the component still adds a constant but no longer says anything "
    "about the input: it is ablated. Where ablation takes something else in place of the mean, its "
    "section says so. The weights of the model are never touched."
)


@dataclass(frozen=True)
class Words:
    """The fixed texts of a report; stars stand around ``*variables*``.

    What intervals mean, terms with their meanings, the papers behind the study, and the formula of
    what it changes or measures; the intervention by default.
    """

    intervals: str
    terms: Sequence[tuple[str, str]]
    credit: str
    before_formula: str = _BEFORE_FORMULA
    formula: str = _FORMULA
    after_formula: str = _AFTER_FORMULA


@dataclass(frozen=True)
class StudyReport:
    """The report of one kind of study.

    Attributes:
        title: given the model's name and ``config.json``.
        subtitle: a sentence; may be empty.
        tables: those that the study leaves.
        tiles: headline numbers.
        findings: in words, each with the section that has its figures.
        sections: between the summary and the method, in order.
        words: fixed texts.
        opening: what comes before the summary, where a run has it.
    """

    title: Callable[[str, Mapping[str, Any]], str]
    subtitle: str
    tables: Callable[[], Iterable[Schema]]
    tiles: Callable[[RunFolder], Iterable[Tile]]
    findings: Callable[[RunFolder], Iterable[Finding]]
    sections: Callable[[RunFolder], Iterable[Section]]
    words: Words
    opening: Callable[[RunFolder], Section | None] = lambda _run: None


NOTHING = "There is nothing to sum up: no step of this run has left a table."
"""What a report without findings says."""

DEFAULT = "heuristic-core"
"""The kind of a run whose ``config.json`` names none."""

REPORTS: Registry[StudyReport] = Registry(
    "kind of study", "mechcore.reports", {DEFAULT: "mechcore.main_study.report:REPORT"}
)
"""Reports by kind of study."""


def schemas_of(config: Mapping[str, Any]) -> dict[str, Schema]:
    """The tables that a run with this ``config.json`` leaves, by name, see `report_of`."""
    return {schema.name: schema for schema in report_of(config).tables()}


def report_of(config: Mapping[str, Any]) -> StudyReport:
    """The report for a run with this ``config.json``.

    Raises:
        InputError: nothing that is installed knows such studies.
    """
    return REPORTS[str(config.get("kind") or DEFAULT)]
