"""What the report of such a study consists of."""

from __future__ import annotations

from mechcore.papers.evidence import VERDICTS
from mechcore.papers.extractive.freezing import Freezing
from mechcore.papers.extractive.grafting import Grafting
from mechcore.papers.extractive.localization import Localization
from mechcore.papers.extractive.ordering import Ordering
from mechcore.papers.extractive.recall import Ocr
from mechcore.papers.extractive.report import words
from mechcore.papers.extractive.report.section import extractive_sections
from mechcore.papers.extractive.report.summary import CLAIMS, extractive_tiles
from mechcore.papers.extractive.score_maps import Scores
from mechcore.report.kinds import StudyReport, Words

_STEPS = (Ocr, Scores, Freezing, Ordering, Grafting, Localization)

REPORT = StudyReport(
    title=lambda model, config: f"Extractive structures: {model}",
    subtitle="Trained on facts, asked for what follows from them",
    tables=[
        VERDICTS.named(CLAIMS.table),
        *(schema for step in _STEPS for schema in step.schemas),
    ],
    tiles=extractive_tiles,
    findings=CLAIMS.findings,
    sections=extractive_sections,
    words=Words(
        words.INTERVALS,
        words.TERMS,
        words.CREDIT,
        words.BEFORE_FORMULA,
        words.FORMULA,
        words.AFTER_FORMULA,
    ),
)
