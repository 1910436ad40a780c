"""What the report of a study of the cognitive task consists of, and its headline numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.ablation import AblateHeads
from mechcore.papers.cognitive.compare import CURVE, MODELS, SAMPLES, TRAINING
from mechcore.papers.cognitive.decoding import Decode
from mechcore.papers.cognitive.report.arms import (
    BASE,
    CLAIMS,
    WORDS,
    arm_name,
    arms_of,
    fills_of,
    of_models,
)
from mechcore.papers.cognitive.report.attention import number_attention
from mechcore.papers.cognitive.report.decoding import state_decoding
from mechcore.papers.cognitive.report.heads import decoding_from_heads, head_ablation
from mechcore.papers.cognitive.report.learning import learning, models, samples
from mechcore.papers.cognitive.report.states import mixed_selectivity, projection
from mechcore.papers.cognitive.units import FollowUnits
from mechcore.papers.evidence import VERDICTS
from mechcore.papers.seeds import mean_of, rows_of, seeds_in, whole_range
from mechcore.report.blocks import Tile
from mechcore.report.kinds import StudyReport
from mechcore.report.run_folder import RunFolder
from mechcore.wording import ALL, count, number, percent, span, sparsity


def tiles(run: RunFolder) -> Iterator[Tile]:
    """How many claims are supported, and samples, accuracies and centres of the trained arms."""
    yield from CLAIMS.tile(run)
    for arm, part in _by_trained_arm(run.filled("cognitive_samples")):
        yield _samples(arm, part)
    for arm, part in _by_trained_arm(run.filled("cognitive_models")):
        note = f"{percent(part['incongruent'].mean())} of incongruent trials; {mean_of(part)}"
        yield Tile(f"Compared model, {arm}", percent(part["accuracy"].mean()), note)
    mass = run.filled("cognitive_mass")
    if mass is not None:
        mass = rows_of(mass, fill=fills_of(mass)[0], subset=ALL).dropna(subset=["centre"])
    for arm, part in _by_trained_arm(mass):
        spread = f", {span(part['centre'])}" if len(part) > 1 else ""
        note = f"in layers from 0; {mean_of(part)}{spread}"
        yield Tile(f"Centre of ablation, {arm}", f"layer {number(part['centre'].mean())}", note)


def _by_trained_arm(table: pd.DataFrame | None) -> Iterator[tuple[str, pd.DataFrame]]:
    if table is not None:
        for arm in arms_of(table):
            if arm != BASE:
                yield arm_name(arm), rows_of(table, arm=arm)


def _samples(arm: str, part: pd.DataFrame) -> Tile:
    reached, note = part["samples"].dropna(), count(len(seeds_in(part)), "seed")
    missed = f"not by {whole_range(part['largest'])}"
    if len(reached) == 0:
        note = f"{missed}, {note}"
    elif len(reached) < len(part):
        note = f"in {len(reached)} of {note}, {missed} in the others"
    label = f"Samples to {sparsity(part['threshold'].iloc[0])}, {arm}"
    return Tile(label, whole_range(reached) if len(reached) else "not reached", note)


_ANALYSES = (AblateHeads, Decode, FollowUnits)

REPORT = StudyReport(
    title=lambda model, config: f"Cognitive task: {model}",
    subtitle="Fine-tuned against trained from scratch",
    tables=lambda: [
        VERDICTS.named(CLAIMS.table),
        *(TRAINING, CURVE, SAMPLES, MODELS),
        *(of_models(schema) for analysis in _ANALYSES for schema in analysis.schemas),
    ],
    tiles=tiles,
    findings=CLAIMS.findings,
    sections=CLAIMS.sections(
        *(learning, samples, models, head_ablation, number_attention),
        *(state_decoding, mixed_selectivity, decoding_from_heads, projection),
    ),
    words=WORDS,
)
