"""Labels for heads: a rule on mass and ratio, the figures behind a label, and its stability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from mechcore.attention.categories import MIXED, OTHER
from mechcore.components import Component
from mechcore.errors import InputError
from mechcore.tables import PART, Column, Schema
from mechcore.wording import count

FEWEST_EXAMPLES = 10
"""Examples that must define a category for its mass to have an interval.

For a head that attends to it in one text of ten, that holds the mean in 65 % of draws of 10."""

HEAD_CATEGORIES = Schema(
    "head_categories",
    "What every head attends to: shares of a query's attention on each category of tokens.",
    (
        *PART,
        Column("category", "text", "the label; ``mixed`` where no category reaches the thresholds"),
        Column("also", "text", "other categories that reach them", optional=True),
        Column("stability", "share", "resamples that give the same label", optional=True),
        Column("n_examples", "whole", "examples"),
        Column("n_queries", "whole", "real tokens", optional=True),
        Column("entropy", "number", "of the attention of a query, mean over queries", "nats"),
        Column("distance", "number", "between query and key, mean", "tokens", optional=True),
        Column("left_out", "share", "attention on keys of ignored categories", optional=True),
        Column("mass_*", "share", "attention on the category, where it is defined", shown="bare"),
        Column(
            "low_*",
            "share",
            "lower end of the 95 % interval of the mass; missing where fewer than "
            f"{FEWEST_EXAMPLES} examples define the category",
        ),
        Column("high_*", "share", "its upper end"),
        Column("uniform_*", "share", "the mass under uniform attention"),
        Column("ratio_*", "number", "mass / uniform", digits=1),
        Column("sd_*", "share", "standard deviation of the mass over examples"),
        Column("share_*", "share", "of all attention, every key in its first category alone"),
        Column("examples_*", "whole", "examples for which the category is defined"),
        Column("in_core", "flag", "whether the head is in the heuristic core", optional=True),
    ),
)


@dataclass(frozen=True)
class Thresholds:
    """When attention to a category names a head.

    ``mass`` is the minimum on the category, where it is defined; ``ratio`` the minimum ratio of
    that mass to the one under uniform attention, which matters for short inputs. The defaults fall
    into gaps between the masses of the 72 heads of a MiniLM NLI classifier, on 2000 MNLI pairs.

    Raises:
        InputError: a value is out of its range.
    """

    mass: float = 0.25
    ratio: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise InputError(
                f"thresholds: mass is {self.mass}; expected a share of attention above 0, at most 1"
            )
        if not 1 <= self.ratio < float("inf"):
            raise InputError(
                f"thresholds: ratio is {self.ratio}; expected a multiple of uniform attention, "
                "1 or more"
            )

    def passed(
        self, mass: Float[np.ndarray, "*any"], ratio: Float[np.ndarray, "*any"]
    ) -> Bool[np.ndarray, "*any"]:
        """Where both are reached; never where they are undefined (NaN)."""
        return (mass >= self.mass) & (ratio >= self.ratio)

    def labels(
        self,
        names: Sequence[str],
        mass: Float[np.ndarray, "*any category"],
        ratio: Float[np.ndarray, "*any category"],
    ) -> np.ndarray:
        """The category of largest mass passed, the first of equals, or ``"mixed"``, [*any]."""
        passed = self.passed(mass, ratio)
        best = np.where(passed, mass, -1.0).argmax(-1)
        return np.where(passed.any(-1), np.array(names, dtype=object)[best], MIXED)


DEFAULT_THRESHOLDS = Thresholds()


def categorise(scores: pd.DataFrame, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> pd.DataFrame:
    """Label every head by what it attends to.

    The label is the category with the largest mass among those with mass and ratio of at least
    the thresholds; the one further left in the table wins a tie; ``"mixed"`` if there is none.
    ``other`` is no label. It returns a copy of ``scores`` (`HeadScores.table`) with two more
    columns after ``head``: ``category``, and ``also``, the other categories that reach the
    thresholds, largest mass first, joined by spaces.

    Raises:
        InputError: a column is missing.
    """
    names = category_names(scores)
    mass, ratio = (
        scores[[f"{measure}_{name}" for name in names]].to_numpy(dtype=float)
        for measure in ("mass", "ratio")
    )
    labels = thresholds.labels(names, mass, ratio)
    passed = thresholds.passed(mass, ratio)
    order = np.argsort(-np.where(passed, mass, -1.0), axis=1, kind="stable")
    also = [
        " ".join(names[i] for i in row[1:] if fires[i])
        for row, fires in zip(order, passed, strict=True)
    ]
    labelled = scores.drop(columns=["category", "also", "stability"], errors="ignore")
    place = 1 + list(labelled.columns).index("head") if "head" in labelled else 0
    labelled.insert(place, "category", labels)
    labelled.insert(place + 1, "also", also)
    return labelled


def category_names(scores: pd.DataFrame) -> list[str]:
    """Categories of a table of scores that can be labels; raises `InputError` for others."""
    names = [
        column.removeprefix("mass_")
        for column in scores.columns
        if column.startswith("mass_") and column != f"mass_{OTHER}"
    ]
    missing = [f"ratio_{name}" for name in names if f"ratio_{name}" not in scores.columns]
    if not names or missing:
        raise InputError(
            f"scores: no column {missing[0] if missing else 'mass_...'}; expected a table from "
            "score_heads or categorize_heads"
        )
    return names


# -- why a head has its label ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The figures behind one head's label, and the ``reason`` in a sentence or two.

    ``table`` has one row per category, largest mass first, with the columns ``mass``, ``low`` and
    ``high`` (95 % interval), ``uniform``, ``ratio``, ``sd`` (over examples), ``examples`` (for
    how many it is defined), and ``mass_passes`` and ``ratio_passes`` (the thresholds).
    """

    component: str
    category: str
    table: pd.DataFrame
    reason: str

    def __repr__(self) -> str:
        return f"{self.reason}\n{self.table.to_string(index=False, float_format='{:.3f}'.format)}"

    def _repr_html_(self) -> str:
        return (
            f"<p>{self.reason}</p>{self.table.to_html(index=False, float_format='{:.3f}'.format)}"
        )


def explain(
    scores: pd.DataFrame, head: Component | str, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> Explanation:
    """Say why a head (``"L1.H4"``) has its label in a table of `mechcore.categorize_heads`."""
    name = str(Component.parse(head) if isinstance(head, str) else head)
    rows = scores[scores["component"] == name] if "component" in scores else scores.iloc[:0]
    if len(rows) != 1:
        raise InputError(
            f"head {name}: not in the table of scores; expected one of its {len(scores)} heads"
        )
    row, names = rows.iloc[0], category_names(scores)
    label = categorise(rows, thresholds)["category"].iloc[0]
    measures = ("mass", "low", "high", "uniform", "ratio", "sd", "examples")
    table = pd.DataFrame(
        [
            {"category": category}
            | {m: row[f"{m}_{category}"] for m in measures if f"{m}_{category}" in scores}
            | {
                "mass_passes": bool(row[f"mass_{category}"] >= thresholds.mass),
                "ratio_passes": bool(row[f"ratio_{category}"] >= thresholds.ratio),
            }
            for category in names
        ]
    ).sort_values("mass", ascending=False, kind="stable", ignore_index=True)
    return Explanation(name, label, table, _reason(name, label, table, thresholds))


def _reason(name: str, label: str, table: pd.DataFrame, thresholds: Thresholds) -> str:
    rule = f"mass of at least {thresholds.mass:g} and {thresholds.ratio:g} times that of uniform"
    if label == MIXED:
        defined = table.dropna(subset="mass")
        if defined.empty:
            return f"{name} is mixed: no category is defined for these inputs."
        top = defined.iloc[0]
        return (
            f"{name} is mixed: no category reaches {rule} attention; the most attention goes to "
            f"{top['category']}, {top['mass']:.2f}, {top['ratio']:.1f} times uniform."
        )
    row = table[table["category"] == label].iloc[0]
    known = "low" in table and pd.notna(row["low"])
    interval = f" [{row['low']:.2f}, {row['high']:.2f}]" if known else ""
    n = int(row["examples"]) if "examples" in table else None
    few = ", too few for an interval" * (n is not None and n < FEWEST_EXAMPLES and not known)
    over = "" if n is None else f"{count(n, 'example')}{few}; "
    others = table[table["mass_passes"] & table["ratio_passes"] & (table["category"] != label)]
    beside = f" Less, but enough, goes to {', '.join(others['category'])}." * bool(len(others))
    return (
        f"{name} is {label}: queries with such a key put {row['mass']:.2f}{interval} of their "
        f"attention on it, {row['ratio']:.1f} times uniform ({over}the rule: {rule}).{beside}"
    )


# -- stability ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelAgreement:
    """How far two labellings of ``n`` heads agree: ``share`` of equal labels, Cohen's ``kappa``.

    ``kappa`` is 1 for perfect agreement, 0 for chance, NaN where all labels are one and the same.
    """

    n: int
    share: float
    kappa: float


def label_agreement(first: Sequence[str], second: Sequence[str]) -> LabelAgreement:
    """Compare two labellings of the same heads (Cohen 1960, equation 1).

    >>> label_agreement(["mixed", "mixed", "next", "self"], ["mixed", "next", "next", "self"])
    LabelAgreement(n=4, share=0.75, kappa=0.6363636363636364)
    """
    a, b = np.asarray(first, dtype=object), np.asarray(second, dtype=object)
    if len(a) != len(b) or len(a) == 0:
        raise InputError(
            f"labels: {len(a)} and {len(b)} of them; expected as many in both, at least one"
        )
    share = float(np.mean(a == b))
    chance = sum(float(np.mean(a == name) * np.mean(b == name)) for name in {*a, *b})
    kappa = (share - chance) / (1 - chance) if chance < 1 else float("nan")
    return LabelAgreement(len(a), share, kappa)
