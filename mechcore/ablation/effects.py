"""What ablating a set of components does to accuracy and margin, with intervals.

Drop D(S) = metric(full) - metric(full without S) (arXiv 2403.03942, section 5). Intervals are
paired bootstraps over examples: both models answer the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mechcore import progress
from mechcore.components import Component, Mask
from mechcore.evaluate import MAX_ROWS, Evaluation, Interval, Metric, bootstrap_means, evaluate
from mechcore.interventions import Mode
from mechcore.means import MeanActivations
from mechcore.tasks.encoding import EncodedExamples
from mechcore.tasks.examples import ALL

METRICS: tuple[Metric, ...] = ("accuracy", "margin")


@dataclass(frozen=True)
class ComponentSet:
    """Components ablated together.

    >>> str(ComponentSet.of([Component(2, 1), Component(0, 3)]))
    'L0.H3+L2.H1'
    """

    components: tuple[Component, ...]

    @classmethod
    def of(cls, components: Sequence[Component]) -> ComponentSet:
        """A set from components in any order."""
        return cls(tuple(sorted(set(components))))

    def __str__(self) -> str:
        return "+".join(map(str, self.components))

    def __len__(self) -> int:
        return len(self.components)


@dataclass(frozen=True, eq=False)
class Ablations:
    """Answers of the full model and of the model without each set, on one data set.

    Attributes:
        full: the full model's answers.
        without: answers without each set.
        data: name of the data set.
        role: ``"id"`` or ``"ood"``.
    """

    full: Evaluation
    without: dict[ComponentSet, Evaluation]
    data: str
    role: str

    def drops(self, components: ComponentSet, metric: Metric) -> np.ndarray:
        """Drop of ``metric`` for every example, [example]; its mean is D(S)."""
        return self.full.values(metric) - self.without[components].values(metric)

    def with_more(self, other: Ablations) -> Ablations:
        """These sets and those of ``other``, which ran on the same data."""
        return replace(self, without={**self.without, **other.without})

    def groups(self) -> list[tuple[str, np.ndarray]]:
        """Name and member flags [example] of every subset, and of all examples, each once."""
        groups = {name: self.full.subsets == name for name in self.full.subset_names}
        return [*(groups | {ALL: np.ones(len(self.full.subsets), dtype=bool)}).items()]


def ablate(
    model: Any,
    data: EncodedExamples,
    means: MeanActivations | None,
    sets: Sequence[ComponentSet],
    *,
    role: str,
    mode: Mode = "mean",
    class_labels: Sequence[str] | None = None,
    batch_size: int = 64,
) -> Ablations:
    """Ablate every set alone from the full model, one masked forward per set.

    Args:
        model: any TransformerLens model.
        data: labelled examples.
        means: the model's mean activations; not needed for ``mode="zero"``.
        sets: what to ablate.
        role: whether the data is ``"id"`` or ``"ood"``.
        mode: what replaces the outputs, see `mechcore.masked`.
        class_labels: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.

    Raises:
        InputError: a component is out of range, or labels cannot be matched.
    """
    options: dict[str, Any] = {"class_labels": class_labels, "batch_size": batch_size}
    whole = Mask.full(model)
    masks = [whole.without(each.components) for each in sets]
    full = evaluate(model, data, in_domain=role == "id", **options)
    size = max(1, MAX_ROWS // batch_size)
    without: dict[ComponentSet, Evaluation] = {}
    with progress.bar(f"ablate on {data.examples.name}", len(sets)) as advance:
        for start in range(0, len(sets), size):
            part = Mask.stack(masks[start : start + size])
            results = evaluate(model, data, mask=part, means=means, mode=mode, **options)
            for each, result in zip(sets[start : start + size], results, strict=True):
                without[each] = result
                advance()
    return Ablations(full, without, data.examples.name, role)


def ablation_table(
    ablations: Ablations,
    kinds: dict[ComponentSet, str],
    *,
    average: tuple[str, Sequence[ComponentSet]] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Drops of every set on every subset.

    Args:
        ablations: the answers.
        kinds: the sets to list, and what to call each in the column ``kind``.
        average: name and members of a group of sets whose mean drop is listed as one row.
        n_resamples: bootstrap resamples.
        seed: of the resamples.

    Returns:
        Columns set, kind, size, data, role, subset, n, accuracy, accuracy_drop and its 95 %
        interval (shares), margin, margin_drop and its interval (nats). Empty if there is
        nothing to list.
    """
    listed = [(str(s), kind, len(s), [s]) for s, kind in kinds.items()]
    if average is not None and average[1]:
        listed.append((average[0], "non-core", 1, list(average[1])))
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.groups() if listed else []:
        columns: dict[str, list[Interval]] = {}
        for metric in METRICS:
            drops = [
                np.mean([ablations.drops(s, metric)[members] for s in sets], axis=0)
                for *_, sets in listed
            ]
            columns[metric] = bootstrap_means(np.stack(drops), n_resamples=n_resamples, seed=seed)
        for i, (name, kind, size, _) in enumerate(listed):
            row = place(ablations, name, size, subset, members)
            row["kind"] = kind
            for metric in METRICS:
                drop = columns[metric][i]
                row[metric] = ablations.full.values(metric)[members].mean() - drop.mean
                row |= _interval(f"{metric}_drop", drop)
            rows.append(row)
    order = ["set", "kind", "size", "data", "role", "subset", "n"]
    measured = [f"{m}{end}" for m in METRICS for end in ("", "_drop", "_drop_low", "_drop_high")]
    return pd.DataFrame(rows, columns=order + measured)


def place(
    ablations: Ablations, name: str, size: int, subset: str, members: np.ndarray
) -> dict[str, Any]:
    """The columns that say what was ablated and where it was measured."""
    return {
        "set": name,
        "size": size,
        "data": ablations.data,
        "role": ablations.role,
        "subset": subset,
        "n": int(members.sum()),
    }


def _interval(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
