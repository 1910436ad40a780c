"""Changes from the full model when sets are ablated, example by example, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from typing_extensions import Unpack

from mechcore.ablation.sets import ComponentSet, Cut
from mechcore.components.names import PathSet
from mechcore.data.examples import ALL
from mechcore.evaluation.evaluate import CLASS_METRICS, ByExampleAnswers, Evaluation, Sampled, kl
from mechcore.evaluation.intervals import Sample, Statistics, mean_intervals
from mechcore.evaluation.metrics import Measured, Metric
from mechcore.evaluation.p_values import FEW_CONTROLS, among_controls
from mechcore.showing import Shown
from mechcore.tables import CLUSTERS, PLACE, Column, Kind, N, Schema, estimate

SET = Column("set", "text", "the ablated components, or a name for them", header="ablated")
SIZE = Column("size", "whole", "components in the set")
_UNITS = {"accuracy": "accuracy (points)", "margin": "margin (nats)"}
METRIC = Column("metric", "text", "``accuracy`` or ``margin``", names=_UNITS)


def own_ends(name: str, kind: Kind, meaning: str, **options: Any) -> tuple[Column, ...]:
    """`estimate` with the ends of the interval in columns that begin with its name."""
    return estimate(name, kind, meaning, low=f"{name}_low", high=f"{name}_high", **options)


def p_column(name: str, meaning: str, **options: Any) -> Column:
    """A column of p-values."""
    return Column(name, "number", meaning, shown="small", **options)


_NAMED = "``single``, ``joint``, ``path``, or ``non-core`` for a mean of others"
ABLATION = Schema(
    "ablation",
    "What changes without every ablated set of components, on every subset of the data; negative: "
    "worse without it.",
    (
        *(SET, Column("kind", "text", _NAMED), SIZE, *PLACE, N, *CLUSTERS),
        Column("accuracy", "share", "accuracy without the set"),
        *own_ends(
            "accuracy_change",
            "points",
            "accuracy without the set less that of the full model",
            header="change of accuracy",
            populations=True,
        ),
        Column("margin", "number", "mean log-odds of the correct classes", unit="nats"),
        *own_ends(
            "margin_change",
            "number",
            "margin without the set less that of the full model",
            header="change of margin",
            populations=True,
            unit="nats",
            signed=True,
        ),
        Column("kl", "number", "KL from the full model's answers", "nats", header="KL"),
    ),
)


_FEW = f"of these; of fewer than {FEW_CONTROLS} all"
CONTROL_COLUMNS = (
    Column("control_change", "number", "mean of the change over random sets of heads"),
    Column("control_low", "number", f"exceeded by 97.5 % {_FEW}"),
    Column("control_high", "number", f"not exceeded by 97.5 % {_FEW}"),
    Column("n_controls", "whole", "these sets, of as many other heads of each layer, and MLPs"),
    p_column("p_control", "of so large a change, up or down, among them"),
)
CONTROLLED = ABLATION.named(
    ABLATION.name,
    "",
    Column("n_beside", "whole", "examples of the comparison with controls", optional=True),
    replace(CONTROL_COLUMNS[3], optional=True),
    *(
        Column(f"{metric}_{name}", "number", meaning, optional=True)
        for metric in CLASS_METRICS
        for name, meaning in (
            ("change_beside", f"change of {metric} on these, a share or nats"),
            *((c.name, f"{c.meaning}: {metric}") for c in CONTROL_COLUMNS if c.kind == "number"),
        )
    ),
)
"""What a study says of the core, or components, ablated together and alone, beside as many others
of each layer."""


@dataclass(frozen=True, eq=False, repr=False)
class Answers(ByExampleAnswers):
    """How one ablated model did on every example: correct, margin and KL(full || ablated), nats.

    Logits are those of the classes; None where they are a whole vocabulary.
    """

    correct: Bool[np.ndarray, " example"]
    margin: Float[np.ndarray, " example"]
    kl: Float[np.ndarray, " example"]
    logits: Float[np.ndarray, "example cls"] | None = None

    @classmethod
    def of(cls, evaluation: Evaluation, full: Evaluation) -> Answers:
        """From the logits of the ablated and the full model."""
        given = (evaluation.correct, evaluation.margin, kl(full.logits, evaluation.logits).numpy())
        return cls(*given, evaluation.logits.numpy())

    def _summary(self) -> str:
        figures = f"accuracy={self.correct.mean():.3f}, margin={self.margin.mean():.3f} nats"
        return f"n={len(self.correct)}, {figures}, KL={self.kl.mean():.3g} nats"


@dataclass(frozen=True, eq=False, repr=False)
class Ablations(Shown):
    """Answers of the full model and of the model without each set, on one data set.

    Attributes:
        full: the full model's answers; `Measured`, as ``without``, if a metric was measured.
        agreement: share of a sample's answers that are those of float32, in another precision.
        layers: evaluations of a layer for each example; None if unknown.
    """

    full: Evaluation
    without: Mapping[Cut, Answers]
    data: str
    split: str
    agreement: float | None = None
    layers: float | None = None

    @classmethod
    def of(
        cls, full: Evaluation, without: Mapping[ComponentSet, Evaluation], data: str, split: str
    ) -> Ablations:
        """From the models' logits."""
        return cls(full, {s: Answers.of(e, full) for s, e in without.items()}, data, split)

    @property
    def measured(self) -> Metric | None:
        """The metric that was measured in place of answers."""
        return self.full.metric if isinstance(self.full, Measured) else None

    @property
    def worse(self) -> int:
        """The sign of changes for the worse."""
        return -1 if self.measured is None else self.measured.worse

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `changes` knows."""
        return CLASS_METRICS if self.measured is None else (self.measured.name,)

    def changes(self, cut: Cut, metric: str) -> np.ndarray:
        """Change of ``metric`` on every example, [example]; negative is worse if more is better."""
        return self.without[cut].values(metric) - self.full.values(metric)

    @property
    def sets(self) -> list[ComponentSet]:
        """The sets of components among what was cut."""
        return [cut for cut in self.without if isinstance(cut, ComponentSet)]

    def with_more(self, other: Ablations) -> Ablations:
        """These sets and those of ``other``, which ran on the same data."""
        without, both = {**self.without, **other.without}, (self.layers, other.layers)
        layers = None if None in both else sum(filter(None, both))
        return replace(self, without=without, layers=layers)

    def part(self, rows: Int[np.ndarray, " part"]) -> Ablations:
        """The answers to these examples, see `ByExampleAnswers.part`."""
        without = {cut: answers.part(rows) for cut, answers in self.without.items()}
        return replace(self, full=self.full.part(rows), without=without)

    def _summary(self) -> str:
        full = f"full accuracy={self.full.accuracy:.3f}" if self.measured is None else self.full
        return f"{len(self.without)} sets, {self.data!r} ({self.split}), {full}"

    def _rows(self) -> pd.DataFrame:
        table = ablation_table(self)
        return table[table["subset"] == ALL]


def ablation_table(
    ablations: Ablations,
    kinds: Mapping[Any, str] | None = None,
    *,
    average: tuple[str, Sequence[ComponentSet]] | None = None,
    **statistics: Unpack[Statistics],
) -> pd.DataFrame:
    """Changes of every set on every subset; the columns of `ABLATION`.

    A measured metric stands in place of accuracy, margin and KL. ``kinds`` are the sets to list
    with their kind, by default all; ``average`` names a group listed as one row of mean changes.
    """
    if kinds is None:
        sizes = {cut: "joint" if len(cut) > 1 else "single" for cut in ablations.without}
        kinds = {cut: "path" if isinstance(cut, PathSet) else kind for cut, kind in sizes.items()}
    listed = [(str(s), kind, len(s), [s]) for s, kind in kinds.items()]
    if average is not None and average[1]:
        listed.append((average[0], "non-core", 1, list(average[1])))
    rows: list[dict[str, Any]] = []
    for subset, members in ablations.full.groups() if listed else []:
        columns: dict[str, list[dict[str, float]]] = {}
        means: dict[str, float] = {}
        samples = ablations.full.samples(members)
        for metric in ablations.metrics:
            before = ablations.full.values(metric)[members]
            changes = [
                np.mean([ablations.without[s].values(metric)[members] - before for s in sets], 0)
                for *_, sets in listed
            ]
            columns[metric] = ends(
                f"{metric}_change_", np.stack(changes), samples, metric == "accuracy", **statistics
            )
            means[metric] = before.mean()
        for i, (name, kind, size, sets) in enumerate(listed):
            row = place(ablations, name, size, subset, members)
            row["kind"] = kind
            for metric in ablations.metrics:
                change = columns[metric][i]
                row[metric] = means[metric] + change["mean"]
                row |= change
                row[f"{metric}_change"] = row.pop("mean")
            if ablations.measured is None:
                row["kl"] = np.mean([ablations.without[s].kl[members] for s in sets])
            rows.append(row)
    if ablations.measured is None:
        return ABLATION.frame(rows)
    table, own = pd.DataFrame(rows), ablations.metrics[0]
    where = ABLATION.names[: ABLATION.names.index("accuracy")]
    first = [*(name for name in where if name in table), own, f"{own}_change"]
    return table[[*first, *(name for name in table if name not in first)]] if rows else table


def place(
    ablations: Ablations, name: str, size: int, subset: str, members: np.ndarray
) -> dict[str, Any]:
    """The columns that say what was ablated and where it was measured."""
    return {
        "set": name,
        "size": size,
        "data": ablations.data,
        "split": ablations.split,
        "subset": subset,
        "n": int(members.sum()),
    } | drawn_from(ablations.full, members)


def drawn_from(full: Sampled, members: np.ndarray) -> dict[str, Any]:
    """The columns that say how many clusters there are, where that is known, and the population."""
    if full.clusters is None:
        return {}
    return {"n_clusters": len(np.unique(full.clusters[members])), "population": full.population}


def ends(
    name: str,
    values: Float[np.ndarray, "row example"],
    samples: Mapping[str, Sample],
    answers: bool,
    **statistics: Unpack[Statistics],
) -> list[dict[str, float]]:
    """The means of rows, and the ends of their intervals in columns that begin with ``name``."""
    rows: list[dict[str, float]] = [{"mean": float(row.mean())} for row in values]
    for whose, sample in samples.items():
        intervals = mean_intervals(values, answers=answers, clusters=sample, **statistics)
        for row, interval in zip(rows, intervals, strict=True):
            row |= {f"{name}{whose}low": interval.low, f"{name}{whose}high": interval.high}
    return rows


def control_table(
    ablations: Ablations, controls: Mapping[ComponentSet, Sequence[ComponentSet]]
) -> pd.DataFrame:
    """Changes of sets beside those of their controls; the columns that `CONTROLLED` adds."""
    where, rows = ("set", "data", "split", "subset"), list[dict[str, Any]]()
    for subset, members in ablations.full.groups() if controls else []:
        for cut, others in controls.items():
            at = place(ablations, str(cut), len(cut), subset, members)
            row = {name: at[name] for name in where} | {"n_beside": at["n"]}
            for metric in ablations.metrics:
                change, *beside = (
                    float(ablations.changes(s, metric)[members].mean()) for s in (cut, *others)
                )
                figures = among_controls(change, beside)
                row["n_controls"] = figures.pop("n_controls")
                row[f"{metric}_change_beside"] = change
                row |= {f"{metric}_{name}": value for name, value in figures.items()}
            rows.append(row)
    return pd.DataFrame(rows, columns=[*where, *CONTROLLED.names[len(ABLATION.names) :]])
