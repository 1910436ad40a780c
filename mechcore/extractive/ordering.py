"""E4: does it matter in which order facts and their implications are learned?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import pandas as pd

from mechcore.errors import InputError
from mechcore.extractive.deltas import restored, trainable_names
from mechcore.extractive.encoded import EncodedOrdering, chance
from mechcore.extractive.ranks import mean_rank
from mechcore.extractive.tuning import TuneSettings, tune
from mechcore.tasks.facts import EncodedFacts

Order: TypeAlias = Literal["joint", "facts first", "implications first"]
_FIRST: Mapping[Order, tuple[str, ...]] = {
    "joint": (),
    "facts first": ("facts", "implications"),
    "implications first": ("implications", "facts"),
}


def ordering(
    model: Any, task: EncodedOrdering, settings: TuneSettings, *, replay: bool = False
) -> pd.DataFrame:
    """Train facts and implications of some names in each order, then only the facts of others.

    If the model learned from the first names how an implication follows from a fact, it knows the
    implications of the others.

    Args:
        model: any TransformerLens language model; its weights are as before afterwards.
        task: training names and test names.
        settings: of every phase of training. Every phase has as many epochs over its own data.
        replay: whether batches of the second phase have rows of the first one's data, too,
            ``settings.replay`` of them, so that it is not forgotten. Joint training has one phase.

    Returns:
        Rows of seed, replay, order (joint, facts first, implications first), data, mean_rank (0
        best), n (points), chance (mean rank of guessing). ``facts`` and ``implications`` are
        measured after the training names, ``test facts`` and ``test implications`` at the end.

    Raises:
        InputError: replay is asked for and ``settings.replay`` is 0.
        MechcoreError: a loss is no longer finite.

    Source: arXiv 2412.04614, section 5.
    """
    if replay and not settings.replay:
        raise InputError(
            "ordering: replay is asked for, and the settings have replay 0; expected the number of "
            "replayed rows in each batch"
        )
    rows: list[dict[str, Any]] = []
    for order in _FIRST:
        with restored(model, trainable_names(model)):
            _learn(model, task, order, settings, replay)
            found = {"facts": task.facts, "implications": task.implications}
            rows += [{"order": order, **_measured(model, *each)} for each in found.items()]
            tune(model, task.test_facts, settings)
            found = {"test facts": task.test_facts, "test implications": task.test_implications}
            rows += [{"order": order, **_measured(model, *each)} for each in found.items()]
    table = pd.DataFrame(rows)
    table.insert(0, "seed", settings.seed)
    table.insert(1, "replay", replay)
    return table


def _learn(
    model: Any, task: EncodedOrdering, order: Order, settings: TuneSettings, replay: bool
) -> None:
    splits = {"facts": task.facts, "implications": task.implications}
    if order == "joint":
        tune(model, list(splits.values()), settings)
        return
    first, second = (splits[name] for name in _FIRST[order])
    tune(model, first, settings)
    tune(model, second, settings, replay=first if replay else None)


def _measured(model: Any, name: str, data: EncodedFacts) -> dict[str, Any]:
    return {
        "data": name,
        "mean_rank": mean_rank(model, data),
        "n": len(data),
        "chance": chance(data),
    }
