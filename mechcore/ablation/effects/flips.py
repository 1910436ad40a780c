"""Examples whose answer flips between right and wrong when a single component is ablated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mechcore.ablation.effects.changes import Ablations
from mechcore.ablation.sets import ComponentSet
from mechcore.data.examples import Examples
from mechcore.tables import COMPONENT, PLACE, Column, Schema
from mechcore.wording import OUT_FIRST, PLACES

SHOWN = 3
"""Maximum number of examples per component."""

CHANGES = {"right to wrong": True, "wrong to right": False}
"""Kinds of flips, and whether the full model's answer is right."""

COUNTS = {
    (change, split): f"{change.replace(' ', '_')}_{split}"
    for split in OUT_FIRST
    for change in CHANGES
}
"""Columns with the number of all flips, by kind and split."""

FLIPS = Schema(
    "flips",
    f"Examples whose answer flips when a single component is ablated, at most {SHOWN} per "
    "component: out of domain first, by size of the change in margin. Components without flips "
    "have no row.",
    (
        COMPONENT,
        Column("rank", "whole", "rank of the example among those of its component, from 1"),
        *PLACE,
        Column("example", "whole", "number of the example among those drawn, from 0"),
        Column("change", "text", " or ".join(f"``{kind}``" for kind in CHANGES)),
        Column("text_a", "text", "its first text"),
        Column("text_b", "text", "its second text; may be empty"),
        Column("label", "text", "its label"),
        Column("answer", "text", "the full model's answer"),
        Column("answer_without", "text", "the answer without the component"),
        Column("margin", "number", "the full model's log-odds of the correct classes", "nats"),
        Column("margin_without", "number", "log-odds without the component", "nats"),
        *(
            Column(name, "whole", f"all answers {PLACES[split]} that go from {change} without it")
            for (change, split), name in COUNTS.items()
        ),
    ),
)


def flip_table(
    swept: Sequence[Ablations], examples: Mapping[str, Examples], classes: Sequence[str]
) -> pd.DataFrame:
    """Examples whose answer flips without each component, at most `SHOWN` of each, as in `FLIPS`.

    Answers need their logits; ``examples`` are by split, ``classes`` in the order of the logits.
    """
    ordered = sorted(swept, key=lambda ablations: OUT_FIRST.index(ablations.split))
    alone = [cut for cut in ordered[0].sets if len(cut) == 1] if ordered else []
    rows: list[dict[str, Any]] = []
    for name in alone:
        counts: dict[str, int] = {}
        chosen: list[dict[str, Any]] = []
        for ablations in ordered:
            right, now = ablations.full.correct, ablations.without[name].correct
            for change, before in CHANGES.items():
                flipped = (right == before) & (now != before)
                counts[COUNTS[change, ablations.split]] = int(flipped.sum())
            where = np.flatnonzero(right != now)
            size = np.abs(ablations.changes(name, "margin")[where])
            ranked = where[np.argsort(-size, kind="stable")][: SHOWN - len(chosen)]
            chosen += [
                _row(ablations, name, int(i), examples[ablations.split], classes) for i in ranked
            ]
        about = {"component": str(name.components[0])}
        rows += [about | {"rank": i} | row | counts for i, row in enumerate(chosen, start=1)]
    return pd.DataFrame(rows, columns=FLIPS.names)


def _row(
    ablations: Ablations, name: ComponentSet, i: int, examples: Examples, classes: Sequence[str]
) -> dict[str, Any]:
    full, without = ablations.full, ablations.without[name]
    assert without.logits is not None, "classes that have names are few, and their logits kept"
    text = examples.frame.iloc[i]
    return {
        "data": ablations.data,
        "split": ablations.split,
        "subset": full.subsets[i],
        "example": i,
        "change": next(kind for kind, before in CHANGES.items() if before == full.correct[i]),
        **{column: text[column] for column in ("text_a", "text_b", "label")},
        "answer": classes[int(full.logits[i].argmax())],
        "answer_without": classes[int(without.logits[i].argmax())],
        "margin": full.margin[i],
        "margin_without": without.margin[i],
    }
