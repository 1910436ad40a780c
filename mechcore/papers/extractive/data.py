"""The facts of a study, as texts."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.fact_world import tiny_fact_tasks, tiny_ordering
from mechcore.papers.extractive.facts import FactTask, OrderingTask, city_ordering, city_tasks


def tasks_of(seed: int, *, tiny: bool) -> tuple[FactTask, FactTask]:
    """The first-hop and the second-hop task of a seed, in the tiny world or the paper's cities."""
    return tiny_fact_tasks(seed) if tiny else city_tasks(seed)


def ordering_of(seed: int, *, tiny: bool) -> OrderingTask:
    """The ordering task of a seed, in the tiny world or the paper's cities."""
    return tiny_ordering(seed) if tiny else city_ordering(seed)


def facts_table(tasks: tuple[FactTask, FactTask], ordering: OrderingTask) -> pd.DataFrame:
    """All facts and implications of a seed, one row each.

    Returns:
        Columns task (first-hop, second-hop, ordering), data (facts, implications, and for ordering
        also test and other ones), prompt, completion, subject.
    """
    splits = {
        (task.name, data): each
        for task in tasks
        for data, each in (("facts", task.facts), ("implications", task.implications))
    }
    for which in ("", "test ", "other "):
        for data in ("facts", "implications"):
            splits["ordering", which + data] = getattr(ordering, f"{which}{data}".replace(" ", "_"))
    parts = [
        pd.DataFrame(
            {
                "task": task,
                "data": data,
                "prompt": each.prompts,
                "completion": each.completions,
                "subject": each.subjects,
            }
        )
        for (task, data), each in splits.items()
    ]
    return pd.concat(parts, ignore_index=True)
