"""Tables of the main study that several pages of results have, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd
from as_markdown import markdown, percent

from mechcore.subnetworks.core import accuracy_spread

N_SETS = 10
"""Components and sets in tables of the largest."""


def swept(sweep: pd.DataFrame) -> pd.DataFrame:
    """The rows with the fill of the study."""
    return sweep[sweep["fill"] != "ood_mean"] if "fill" in sweep else sweep


@dataclass(frozen=True)
class Study:
    """How a page names what was studied.

    Attributes:
        id: the in-domain data.
        ood: the out-of-domain data.
        sets: titles of all data and of single subsets, by split and subset, as ``"ood:all"``.
        n_seeds: of pruning.
        size: heads and MLPs of the model.
        target_sparsities: of the subnetworks.
        changes: titles of the data that changes are shown on; else both as a whole.
    """

    id: str
    ood: str
    sets: Mapping[str, str]
    n_seeds: int
    size: tuple[int, int]
    target_sparsities: tuple[float, ...] = (0.5, 0.7)
    changes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.changes:
            object.__setattr__(self, "changes", {"id:all": self.id, "ood:all": self.ood})

    def subnetworks(self, accuracy: pd.DataFrame, subnetworks: pd.DataFrame) -> str:
        """Accuracies of the subnetworks over seeds."""
        spread = accuracy_spread(accuracy)
        by_set = spread.assign(set=where_of(spread)).set_index(["set", "target_sparsity"])
        rows = []
        for name, title in self.sets.items():
            cells = [title, percent(by_set.loc[(name, self.target_sparsities[0]), "full"])]
            for sparsity in self.target_sparsities:
                row = by_set.loc[(name, sparsity)]
                cells.append(", ".join(percent(row[key]) for key in ("low", "mean", "high")))
            rows.append(cells)
        kept = ["heads and MLPs kept, mean", f"{self.size[0]}, {self.size[1]}"]
        for sparsity in self.target_sparsities:
            part = subnetworks[subnetworks["target_sparsity"] == sparsity]
            kept.append(f"{part['heads_kept'].mean():.1f}, {part['mlps_kept'].mean():.1f}")
        ranges = [f"{100 * share:.0f} %: lowest, mean, highest" for share in self.target_sparsities]
        return markdown(["", "full", *ranges], [*rows, kept])

    def seeds(self, subnetworks: pd.DataFrame) -> str:
        """Every seed."""
        rows = []
        for seed, part in subnetworks.groupby("seed"):
            by_sparsity = part.set_index("target_sparsity")
            cells = [str(int(str(seed)))]
            for sparsity in self.target_sparsities:
                row = by_sparsity.loc[sparsity]
                cells += [f"{row['heads_kept']}, {row['mlps_kept']}", f"{row['kl']:.3f}"]
                cells += [percent(row["id_accuracy"]), percent(row["ood_accuracy_macro"])]
            rows.append(cells)
        heads = [
            f"{100 * share:.0f} %: {what}"
            for share in self.target_sparsities
            for what in ("kept", "KL", self.id, self.ood)
        ]
        return markdown(["seed", *heads], rows)

    def core(self, categories: pd.DataFrame, ablation: pd.DataFrame) -> str:
        """Core heads, what they attend to, and what the model loses without each."""
        core = categories.loc[categories["in_core"], "component"]
        rows = [[head, *category(categories, head), *self._of(ablation, head)] for head in core]
        others = ablation.loc[ablation["kind"] == "non-core", "set"].unique()
        rows += [[name, "", "", *self._of(ablation, name)] for name in others]
        return markdown(["head", "category", "most attention", *self._changes], rows)

    def heads(
        self,
        sweep: pd.DataFrame,
        categories: pd.DataFrame,
        frequency: pd.DataFrame,
        by: str = "ood:all",
    ) -> str:
        """The heads and MLPs whose loss costs most on these data."""
        single = sweep[(sweep["kind"] == "single") & (where_of(sweep) == by)]
        worst = single.nsmallest(N_SETS, "accuracy_change", keep="all")["set"]
        kept = frequency.pivot(index="component", columns="target_sparsity", values="count")
        rows = []
        for name in worst:
            is_head = name in set(categories["component"])
            label = category(categories, name)[0] if is_head else "MLP"
            kept_at = [str(kept.loc[name, share]) for share in self.target_sparsities]
            rows.append([name, label, *kept_at])
            rows[-1] += self._of(sweep, name)
        counts = [f"kept of {self.n_seeds}, {100 * s:.0f} %" for s in self.target_sparsities]
        return markdown(["component", "category", *counts, *self._changes], rows)

    def _interaction_rows(self, frame: pd.DataFrame, sets: Iterable[str]) -> list[list[str]]:
        rows = []
        where = where_of(frame)
        for name in sets:
            cells = [name.replace("+", " + ")]
            for data in self.changes:
                here = frame[(frame["set"] == name) & (where == data)]
                accuracy, margin = (here[here["metric"] == kind] for kind in ("accuracy", "margin"))
                limited = bool(accuracy[["floor", "ceiling"]].any(axis=None))
                cells.append(points(accuracy, "interaction", "low", "high") + "*" * limited)
                cells.append(points(margin, "interaction", "low", "high", unit=1))
            rows.append(cells)
        return rows

    def joint(self, interactions: pd.DataFrame, by: str = "ood:all") -> str:
        """The largest interactions of core heads, by the margin on these data."""
        there = interactions[(where_of(interactions) == by) & (interactions["metric"] == "margin")]
        largest = there.nsmallest(N_SETS, "interaction")["set"]
        return markdown(["set", *self._measures], self._interaction_rows(interactions, largest))

    def search(self, table: pd.DataFrame) -> str:
        """The best sets of a search, on data that it did not see."""
        margins = table[(table["metric"] == "margin") & (where_of(table) == "ood:all")]
        best = margins.nsmallest(N_SETS, "interaction")
        rows = []
        for row in best.to_dict("records"):
            cells = [str(row["set"]).replace("+", " + "), f"{row['joint_change']:.2f}"]
            cells += [f"{row['sum_of_single_changes']:.2f}"]
            cells += [f"{row['interaction']:.2f} ({row['low']:.2f} to {row['high']:.2f})"]
            cells += [f"{row['p_adjusted']:.2g}"]
            accuracy = table[(table["set"] == row["set"]) & (table["metric"] == "accuracy")]
            rows.append(
                [
                    *cells,
                    points(accuracy[where_of(accuracy) == "ood:all"], "interaction", "low", "high"),
                ]
            )
        head = ["set", "joint change", "sum of single changes", "interaction", "p, adjusted"]
        return markdown([*head, "on accuracy, points"], rows)

    def sizes(self, sizes: pd.DataFrame, groups: Mapping[str, str]) -> str:
        """Accuracy and effective size over checkpoints, also of these groups, with their titles."""
        titles = {"ID": self.id, "OOD": self.ood} | dict(groups)
        rows = []
        for step, part in sizes.groupby("checkpoint"):
            by_group = part.set_index("group")
            cells = [f"{int(str(step)):,}"]
            for group in titles:
                row = by_group.loc[group]
                missing = int(row["n_seeds"] - row["n_faithful"])
                cells += [percent(row["full_accuracy"])]
                cells += [f"{percent(row['effective_size'])}" + f" [{missing}]" * bool(missing)]
            rows.append(cells)
        head = [f"{title}{what}" for title in titles.values() for what in ("", " size")]
        return markdown(["step", *head], rows)

    def readers(self, dependence: pd.DataFrame, senders: str) -> str:
        """Components that change most out of domain when they do not see ``senders``."""
        rows = dependence.query("subset == 'all' and metric == 'information'")
        inside, outside = (
            rows[rows["split"] == split].set_index("receiver") for split in ("id", "ood")
        )
        order = outside["blind_change"].abs().sort_values(ascending=False, kind="stable").index
        cells_of = []
        for name in order[:N_SETS]:
            row, of_name = outside.loc[name], outside.loc[[name]]
            share = ""
            if row["share"] == row["share"]:
                share = points(of_name, "share", "share_low", "share_high", unit=1)
            ends = [f"blind_change{end}" for end in ("", "_low", "_high")]
            cells = [name, points(of_name, "change", "change_low", "change_high")]
            cells += [points(of_name, *ends), share]
            cells += [random_heads(row)]
            cells_of.append([*cells, points(inside.loc[[name]], *ends)])
        head = ["receiver", f"without it, {self.ood}", f"blind to {senders}, {self.ood}", "share"]
        return markdown([*head, "random heads", f"blind, {self.id}"], cells_of)

    def _of(self, ablation: pd.DataFrame, which: str) -> list[str]:
        return changes(ablation, which, tuple(self.changes))

    @property
    def _changes(self) -> list[str]:
        return [f"change, {data}" for data in self.changes.values()]

    @property
    def _measures(self) -> list[str]:
        return [
            f"{data}, {what}" for data in self.changes.values() for what in ("accuracy", "margin")
        ]


def points(frame: pd.DataFrame, value: str, low: str, high: str, unit: float = 100) -> str:
    """The only row's value with its interval, in points."""
    (row,) = frame.to_dict("records")
    digits = 1 if unit == 100 else 2
    mean, bottom, top = (f"{unit * row[name]:.{digits}f}" for name in (value, low, high))
    return f"{mean} ({bottom} to {top})"


def random_heads(row: pd.Series) -> str:
    """Points lost with random heads as senders, and the share of such sets that lose as much."""
    return f"{100 * row['control_change']:.1f}, p {row['p_control']:.2g}"


def where_of(frame: pd.DataFrame) -> pd.Series:
    """Which data a row is about, as ``"ood:all"``."""
    return frame["split"] + ":" + frame["subset"]


def changes(
    ablation: pd.DataFrame, which: str, wheres: Iterable[str] = ("id:all", "ood:all")
) -> list[str]:
    """Changes of accuracy without a set, in points, on each of these data."""
    part = ablation[ablation["set"] == which]
    where = where_of(part)
    ends = ("accuracy_change", "accuracy_change_low", "accuracy_change_high")
    return [points(part[where == name], *ends) for name in wheres]


def category(categories: pd.DataFrame, component: str) -> list[str]:
    """The category of a head, and what it attends to most."""
    row = categories.set_index("component").loc[component]
    named = {
        name.removeprefix("mass_"): row[name]
        for name in categories
        if name.startswith("mass_") and name != "mass_other" and row[name] == row[name]
    }
    largest = sorted(named, key=lambda name: -named[name])[:2]
    return [str(row["category"]), ", ".join(f"{name} {named[name]:.2f}" for name in largest)]
