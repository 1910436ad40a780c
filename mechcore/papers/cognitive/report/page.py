"""What the report of such a study consists of."""

from __future__ import annotations

from mechcore.papers.cognitive.report import words
from mechcore.papers.cognitive.report.section import cognitive_sections
from mechcore.papers.cognitive.report.summary import CLAIMS, cognitive_tiles
from mechcore.papers.cognitive.report.tables import COGNITIVE_TABLES
from mechcore.report.kinds import StudyReport, Words

REPORT = StudyReport(
    title=lambda model, config: f"Cognitive task: {model}",
    subtitle="Fine-tuned against trained from scratch",
    tables=COGNITIVE_TABLES,
    tiles=cognitive_tiles,
    findings=CLAIMS.findings,
    sections=cognitive_sections,
    words=Words(words.INTERVALS, words.TERMS, words.CREDIT),
)
