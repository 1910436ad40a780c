"""E3: which layers must change for the implications of a task to be known?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.papers.extractive.deltas import applied, restored, trainable_names
from mechcore.papers.extractive.encoded import EncodedTask
from mechcore.papers.extractive.ranks import MEAN_RANK, POINTS, SPLIT, TASK, mean_rank
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.tuning import tune, tuned
from mechcore.tables import SEED, Column, Schema

FREEZING = Schema(
    "extractive_freezing",
    "Ranks where the changes of early or of late layers are left out.",
    (
        TASK,
        SEED,
        Column("cut", "whole", "first late layer"),
        Column("frozen", "text", "none, early, late or all layers", header="which"),
        Column(
            "way",
            "text",
            "``reverted`` after the training, or not ``trained``",
            header="frozen layers",
            names={"reverted": "undone after training", "trained": "not trained"},
        ),
        SPLIT,
        MEAN_RANK,
        POINTS,
    ),
)


def freezing(
    model: Any, task: EncodedTask, settings: TuneSettings, *, cuts: Sequence[int] | None = None
) -> pd.DataFrame:
    """Keep early or late layers as they were, for every cut between them, in two ways.

    ``"reverted"``: all layers are trained once; then those of the frozen group get their old
    weights back. ``"trained"``: only the layers of the other group are trained. Each cut costs two
    trainings, for the second way.

    Args:
        model: any TransformerLens language model; its weights are as before afterwards.
        task: facts, which are trained, and implications.
        settings: of the training.
        cuts: layers below a cut are early, the others late; all from 1 to the last layer if not
            given.

    Returns:
        Rows of task, seed, cut, frozen (none, early, late, all), way (reverted, trained), data
        (facts, implications), mean_rank (0 best), n (points). "none" and "all" do not depend on cut
        and way, and are repeated in each.

    Raises:
        InputError: a cut leaves one of the groups empty.
        MechcoreError: a loss is no longer finite.

    Source: arXiv 2412.04614, section 4 (the paper has one cut, 24 of 32).
    """
    n_layers = model.cfg.n_layers
    chosen = list(range(1, n_layers)) if cuts is None else list(cuts)
    _check(chosen, n_layers)
    rows: list[dict[str, Any]] = []

    def note(cut: int, frozen: str, way: str, found: dict[str, float]) -> None:
        shared = {"task": task.name, "seed": settings.seed, "cut": cut, "frozen": frozen}
        sizes = {"facts": len(task.facts), "implications": len(task.implications)}
        rows.extend(
            shared | {"way": way, "data": data, "mean_rank": rank, "n": sizes[data]}
            for data, rank in found.items()
        )

    untouched = _ranks(model, task)
    delta = tuned(model, task.facts, settings)
    with applied(model, delta):
        whole = _ranks(model, task)
    for cut in chosen:
        early, late = range(cut), range(cut, n_layers)
        for way in ("reverted", "trained"):
            note(cut, "none", way, whole)
            note(cut, "all", way, untouched)
        for frozen, free in (("early", late), ("late", early)):
            with applied(model, delta.only(trainable_names(model, free))):
                note(cut, frozen, "reverted", _ranks(model, task))
            with restored(model, trainable_names(model, free)):
                tune(model, task.facts, settings, layers=free)
                note(cut, frozen, "trained", _ranks(model, task))
    return pd.DataFrame(rows)


def _check(cuts: Sequence[int], n_layers: int) -> None:
    if not cuts or any(not 0 < cut < n_layers for cut in cuts) or len({*cuts}) < len(cuts):
        raise InputError(
            f"freezing: the cuts are {list(cuts)} in a model of {n_layers} layers; expected "
            f"different numbers from 1 to {n_layers - 1}, the first of the late layers"
        )


def _ranks(model: Any, task: EncodedTask) -> dict[str, float]:
    return {
        "facts": mean_rank(model, task.facts),
        "implications": mean_rank(model, task.implications),
    }
