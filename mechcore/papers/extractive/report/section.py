"""The sections of a study of extractive structures, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator

from mechcore.papers.extractive.report.localization_section import localization_section
from mechcore.papers.extractive.report.rank_sections import (
    freezing_section,
    grafting_section,
    ordering_section,
)
from mechcore.papers.extractive.report.recall_section import recall_section
from mechcore.papers.extractive.report.score_sections import scores_section, sums_section
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import Gallery, Section
from mechcore.report.run_folder import RunFolder


def extractive_sections(run: RunFolder, gallery: Gallery) -> Iterator[Section]:
    """All sections between the summary and the method."""
    yield CLAIMS.section(run)
    for make in (
        recall_section,
        scores_section,
        sums_section,
        freezing_section,
        ordering_section,
        grafting_section,
        localization_section,
    ):
        yield make(run, gallery)
