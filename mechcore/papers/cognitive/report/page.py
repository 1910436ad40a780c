"""What the report of such a study consists of."""

from __future__ import annotations

from mechcore.papers.cognitive.ablation import AblateHeads
from mechcore.papers.cognitive.compare import CURVE, MODELS, SAMPLES, TRAINING
from mechcore.papers.cognitive.decoding import Decode
from mechcore.papers.cognitive.report import words
from mechcore.papers.cognitive.report.arms import of_models
from mechcore.papers.cognitive.report.section import cognitive_sections
from mechcore.papers.cognitive.report.summary import CLAIMS, cognitive_tiles
from mechcore.papers.cognitive.units import FollowUnits
from mechcore.papers.evidence import VERDICTS
from mechcore.report.kinds import StudyReport, Words

_OF_MODELS = [
    of_models(schema)
    for analysis in (AblateHeads, Decode, FollowUnits)
    for schema in analysis.schemas
]

REPORT = StudyReport(
    title=lambda model, config: f"Cognitive task: {model}",
    subtitle="Fine-tuned against trained from scratch",
    tables=[VERDICTS.named(CLAIMS.table), TRAINING, CURVE, SAMPLES, MODELS, *_OF_MODELS],
    tiles=cognitive_tiles,
    findings=CLAIMS.findings,
    sections=cognitive_sections,
    words=Words(words.INTERVALS, words.TERMS, words.CREDIT),
)
