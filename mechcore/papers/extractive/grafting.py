"""E5: is what the model learns from implications good for other facts, too?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from mechcore.papers.extractive.deltas import WeightDelta, applied, graft
from mechcore.papers.extractive.encoded import EncodedOrdering, chance
from mechcore.papers.extractive.ranks import CHANCE, MEAN_RANK, POINTS, SPLIT, mean_rank
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.tuning import tuned
from mechcore.tables import SEED, Column, Schema

GRAFTING = Schema(
    "extractive_grafting",
    "Ranks in a model of other facts, with and without the graft.",
    (
        SEED,
        Column("model", "text", "what was put on it", names={"other facts": "without graft"}),
        SPLIT,
        MEAN_RANK,
        POINTS,
        CHANCE,
    ),
)


def facts_then_implications(
    model: Any, task: EncodedOrdering, settings: TuneSettings
) -> tuple[WeightDelta, WeightDelta]:
    """Train the facts, then the implications; what each of the two changes.

    Args:
        model: any TransformerLens language model; its weights are as before afterwards.
        task: training names.
        settings: of both phases.

    Raises:
        MechcoreError: a loss is no longer finite.
    """
    facts = tuned(model, task.facts, settings)
    with applied(model, facts):
        return facts, tuned(model, task.implications, settings)


def grafting(model: Any, task: EncodedOrdering, settings: TuneSettings) -> pd.DataFrame:
    """Put what the implications of some facts change onto a model that learned other facts.

    With W_0 before training, W_F trained on the facts, W_FI on their implications after that, W_I
    on the implications alone, and W_F' on other facts of the same names, the models are

    - ``other facts``: W_F', which knows nothing of implications;
    - ``graft``: W_F' + (W_FI - W_F), whose added part was learned where facts were known;
    - ``control graft``: W_F' + (W_I - W_0), whose added part was learned where they were not.

    Only names and answers that belong together in both are shared, so a model that ranks the
    implications of the *other* facts well has not been told them.

    Args:
        model: any TransformerLens language model; its weights are as before afterwards.
        task: training names with both assignments.
        settings: of every training.

    Returns:
        Rows of seed, model, data (other implications, implications, other facts, facts),
        mean_rank (0 best), n (points), chance (mean rank of guessing).

    Raises:
        MechcoreError: a loss is no longer finite.

    Source: arXiv 2412.04614, section 5.
    """
    _, extension = facts_then_implications(model, task, settings)
    other = tuned(model, task.other_facts, settings)
    alone = tuned(model, task.implications, settings)
    models = {
        "other facts": other,
        "graft": graft(other, extension),
        "control graft": graft(other, alone),
    }
    splits = {
        "other implications": task.other_implications,
        "implications": task.implications,
        "other facts": task.other_facts,
        "facts": task.facts,
    }
    rows = []
    for name, delta in models.items():
        with applied(model, delta):
            rows += [
                {
                    "model": name,
                    "data": split,
                    "mean_rank": mean_rank(model, data),
                    "n": len(data),
                    "chance": chance(data),
                }
                for split, data in splits.items()
            ]
    table = pd.DataFrame(rows)
    table.insert(0, "seed", settings.seed)
    return table
