"""What a variable that goes along with the labels gives away, and examples of which it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from mechcore.errors import InputError, shown
from mechcore.papers.cognitive.probing.inputs import label_values


def correlation_floor(labels: Sequence[Hashable], given: Sequence[Hashable]) -> float:
    """Accuracy of answering the most frequent label for each value of another variable.

    What decodes that variable decodes the labels this well without any trace of them. For what
    several variables allow together, pass their values zipped.

    Raises:
        InputError: there is no example, or the two differ in length.
    """
    wanted = label_values("labels", labels)
    known = label_values("given", given, len(wanted))
    best: dict[Hashable, int] = {}
    for (value, _), count in Counter(zip(known, wanted, strict=True)).items():
        best[value] = max(count, best.get(value, 0))
    return sum(best.values()) / len(wanted)


def balanced(labels: Sequence[Hashable], *against: Sequence[Hashable], seed: int) -> list[int]:
    """Rows, in order, in which every label occurs equally often with every value of ``against``.

    As few rows as possible are dropped, at random. In what is left, ``against`` says nothing of
    the labels: their `correlation_floor`, also given all of ``against`` together, is chance.

    Balancing against one variable leaves open what it says together with others. In the cognitive
    task, the sign of motion balanced against the choice is still settled by the choice wherever
    the context is motion; it is free of both where the context is color.

    Raises:
        InputError: a label never occurs with some of the values that occur in ``against``.
    """
    wanted = label_values("labels", labels)
    columns = [
        label_values(f"variable {i} of against", v, len(wanted)) for i, v in enumerate(against)
    ]
    known = list(zip(*columns, strict=True)) if columns else [()] * len(wanted)
    cells: dict[tuple[Hashable, Hashable], list[int]] = {
        (label, value): [] for value in dict.fromkeys(known) for label in dict.fromkeys(wanted)
    }
    for row, cell in enumerate(zip(wanted, known, strict=True)):
        cells[cell].append(row)
    _check_cells(cells)
    size = min(map(len, cells.values()))
    generator = np.random.default_rng(seed)
    return sorted(
        int(row) for rows in cells.values() for row in generator.choice(rows, size, replace=False)
    )


def _check_cells(cells: Mapping[tuple[Hashable, Hashable], Sequence[int]]) -> None:
    empty = [cell for cell, rows in cells.items() if not rows]
    if not empty:
        return
    settled = {value for _, value in empty}
    free = {value: 0 for _, value in cells if value not in settled}
    for (_, value), rows in cells.items():
        if value in free:
            free[value] += len(rows)
    named = ", ".join(f"{label!r} with {value!r}" for label, value in empty[:4])
    advice = "balance against fewer variables"
    if free:
        where = shown(", ".join(map(repr, free)))
        advice += f", or balance only the {sum(free.values())} rows where all labels occur: {where}"
    raise InputError(
        f"balanced: {len(empty)} of {len(cells)} combinations of label and `against` never occur: "
        f"{named}{', ...' * (len(empty) > 4)}; expected every label with every value, as no choice "
        f"of rows hides what `against` settles: {advice}"
    )
