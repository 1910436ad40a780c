"""The failure out of domain, and the components that are needed there or that hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, of_study, tables_in
from mechcore.settings import setting
from mechcore.steps.base import core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work
from mechcore.wording import (
    ALL,
    DASH,
    PLACES,
    count,
    effect,
    interval,
    listed,
    number,
    percent,
    whole,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import ComponentSet
    from mechcore.ablation.effects.failure import Explanation, Gap

_NAMED = 3  # subsets and components that a sentence names
_EDGES = (0, 0.02, 0.05, 2)  # shares that part small, medium and large moves of the threshold
_LEAST_ABOVE = 0.01  # balanced accuracy above guessing that counts as better than it


@dataclass(frozen=True)
class Failure(Ablating, Analysis):
    """What is wrong out of domain: the threshold or the information, and which components."""

    kind = "failure"
    title = "What is wrong out of domain?"
    story = True
    first = True
    label = "what is wrong out of domain"
    needs = ("means", "sweep", "swept")
    reads = ("core", "ablation")
    splits = TEST_SPLITS
    per_text = 2.0
    schemas = tables_in(
        "mechcore.ablation.effects.failure:FAILURE",
        "mechcore.ablation.effects.failure:FAILURE_SETS",
    )

    n_pairs: int = setting(
        6,
        "Failure: pairs of core heads to ablate together, those that interact most, beside the "
        "whole core; with 0 neither, and no core is needed.",
        least=0,
    )
    names: Mapping[str, str] = of_study()
    n_resamples: int = of_study()
    least: float = of_study()

    def may_read(self) -> Sequence[str]:
        """See `MainStep.may_read`."""
        return self.reads if self.n_pairs else ()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.effects.failure import failure_table, label_names, net_table
        from mechcore.steps.answers import ablations_in

        inputs, swept = inputs_of(work), ablations_in(work.needed("swept"), self.names)
        full = {split: swept[split].full for split in TEST_SPLITS}
        labels = {
            split: label_names(
                answers.correct_classes.numpy(), inputs.data[split].examples.frame["label"].tolist()
            )
            for split, answers in full.items()
        }
        outside, kinds = swept["ood"], dict.fromkeys(swept["ood"].sets, "single")
        if together := self._together(work):
            means = means_of(work, inputs)
            more = self.ablations(inputs, means, list(together), "ood", work.partial)
            outside, kinds = outside.with_more(more), kinds | together
        statistics: dict[str, Any] = {"n_resamples": self.n_resamples, "seed": self.seed}
        nets = net_table(outside, labels["ood"], kinds, least=self.least, **statistics)
        failure = failure_table(full, labels, self.names, **statistics)
        return {"failure": failure, "failure_sets": nets}

    def _together(self, work: Work) -> dict[ComponentSet, str]:
        """The whole core, and the pairs whose interaction is largest, as far as these are known."""
        from mechcore.ablation import ComponentSet

        sets: dict[ComponentSet, str] = {}
        if "core" in work.job.needs:
            heads = core_of(work)
            sets |= {ComponentSet.of(heads): "core"} if len(heads) > 1 else {}
        if "ablation" in work.job.needs:
            table = work.table("ablation", "interactions")
            table = table[(table["split"] == "ood") & (table["subset"] == ALL)]
            pairs = table[(table["metric"] == "margin") & (table["size"] == 2)]
            order = pairs["interaction"].abs().sort_values(ascending=False, kind="stable").index
            for name in pairs.loc[order[: self.n_pairs], "set"]:
                sets.setdefault(ComponentSet.of(name.split("+")), "pair")
        return sets

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The verdict, where the model fails, what hurts and what is needed, what moves answers."""
        from mechcore.ablation.effects.failure import FAILURE

        failure, sets = run.filled("failure"), run.filled("failure_sets")
        if failure is None or sets is None:
            return
        for i, text in enumerate(cls.headlines(run)):
            yield report.Paragraph(text, lead=i == 0)
        if sets["one_label"].any():
            yield report.Paragraph(_ONE_LABEL, note=True)
        failure = failure[(failure["split"] == "ood") | (failure["subset"] == ALL)]
        inside, part = failure["split"] == "id", failure["subset"] != ALL
        ordered = failure.assign(inside=inside, part=part).sort_values(
            ["inside", "part", "wrong"], ascending=[True, True, False], kind="stable"
        )
        caption = "Where the full model fails; balanced accuracy weighs labels alike"
        columns = ["split", "subset", "label", "n", "accuracy", "wrong", "balanced_accuracy"]
        yield report.table_of(ordered, FAILURE, caption, [*columns, "threshold", "ceiling", "auc"])
        yield _two_sided(sets)
        yield from _movers(run, sets)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """What is wrong, what explains it, where, and what hurts and what is needed."""
        from mechcore.ablation.effects.failure import explanation, gap_of

        failure, sets = run.filled("failure"), run.filled("failure_sets")
        if failure is None or sets is None:
            return
        least = float((run.analyses.get("roles") or {}).get("least", 0.01))
        gap, why = gap_of(failure), explanation(failure, sets, least)
        yield _gap_sentence(failure, gap, why)
        if why.kind != "none":
            yield _explained(sets, why, gap.size)
            yield from _subsets(failure)
        yield _ranking(sets)


_ONE_LABEL = (
    "Where examples have one label, what an ablation fixes may be the work of a shifted threshold: "
    "compare it with what it breaks on the other label."
)


def _points(share: float) -> str:
    return f"{number(100 * share, 1)} points"


def _gap_sentence(failure: pd.DataFrame, gap: Gap, why: Explanation) -> str:
    """How large the failure is, how much of it is the threshold, and who carries it."""
    what = "Balanced accuracy" if gap.balanced else "Accuracy"
    ends = interval(gap.low, gap.high, "accuracy", signed=gap.low < 0)
    outside = failure[failure["split"] == "ood"]
    guessing = failure[failure["subset"] == ALL].groupby("split")["guessing"].first()
    by_split = [
        f"{percent(share)} {PLACES[split]}"
        + f" (by guessing {percent(guessing[split])})" * (guessing.nunique() > 1)
        for split, share in (("ood", gap.outside), ("id", gap.inside))
    ]
    text = f"{what} is {' and '.join(by_split)}"
    if why.kind == "none":
        return f"{text}: no failure out of domain is shown (a gap of {_points(gap.size)} {ends})."
    text += f", a gap of {_points(gap.size)} {ends}"
    known = outside[outside["subset"] == ALL].iloc[0]
    if isfinite(known["recalibrated"]):
        if known["recalibrated"] < known["guessing"] + _LEAST_ABOVE:
            text += "; with no threshold is the model better than guessing"
        else:
            own = interval(known["threshold_low"], known["threshold_high"], "accuracy")
            most = _points(known["ceiling"] - known["balanced_accuracy"])
            text += f": a new threshold gives back {effect(known['threshold'], 'accuracy')} "
            text += f"{own} (at most {most}), and the other "
            text += f"{_points(gap.inside - known['recalibrated'])} are missing information"
    elif gap.balanced:
        text += "; there are too few examples of a label to tell how much a threshold gives back"
    else:
        text += "; with one label, a shifted threshold cannot be separated from missing information"
    labels = outside[(outside["subset"] == ALL) & (outside["label"] != ALL)]
    if len(labels) > 1:
        worst = labels.iloc[int(labels["wrong"].argmax())]
        text += f". {percent(worst['wrong'])} of the wrong answers are on {worst['label']}"
    return f"{text}."


def _subsets(failure: pd.DataFrame) -> Iterator[str]:
    """The subsets with the most errors."""
    subsets = failure[(failure["split"] == "ood") & (failure["subset"] != ALL)]
    subsets = subsets.drop_duplicates("subset")
    if len(subsets) > 1:
        ranked = subsets.sort_values("wrong", ascending=False, kind="stable")[:_NAMED]
        parts = zip(ranked["subset"], ranked["accuracy"], strict=True)
        named = listed([f"{name} ({percent(share)} right)" for name, share in parts])
        yield f"Most wrong answers are in the subsets {named}."


def _explained(sets: pd.DataFrame, why: Explanation, gap: float) -> str:
    """What explains the failure, by the rule."""
    from mechcore.ablation.effects.failure import MOSTLY, PARTLY, hurting, over_all

    degree = "mostly" if why.share >= MOSTLY else "in part"
    share, harmful = f"{percent(why.share)} of the gap", hurting(sets)
    if why.kind == "components":
        row = harmful.iloc[0]
        return (
            f"The failure is {degree} the work of {why.name}: ablating it {_flips(row)}, {share}."
        )
    more = f"no set of {sets['set'].nunique()} is confirmed to hurt beyond the threshold"
    if len(harmful):
        more = f"{harmful.iloc[0]['set']} hurts most: ablating it {_flips(harmful.iloc[0])}"
    if why.kind == "threshold":
        rest = "ablation does not explain the rest: " * (why.other < PARTLY)
        return f"The failure is {degree} a shifted threshold ({share}); {rest}{more}."
    every = over_all(sets)
    known_least = every.sort_values("net_high").iloc[-1]
    if known_least["net_high"] >= PARTLY * gap:
        most = f"{_points(known_least['net_high'])} ({known_least['set']})"
        doubt = f"The examples are too few to exclude that one hurts by up to {most}"
        return f"Ablation does not explain this failure: {more}. {doubt}."
    return (
        f"Ablation does not explain this failure: {more}. What these texts take seems to be "
        "missing from the model, and removing parts cannot add it."
    )


def _flips(row: pd.Series) -> str:
    """The answers that ablating a set fixes and breaks."""
    net = with_interval(row["net"], row["net_low"], row["net_high"], "accuracy", unit=True)
    return f"fixes {count(row['fixed'], 'answer')} and breaks {row['broken']}, net {net}"


def _ranking(sets: pd.DataFrame) -> str:
    """What hurts, and what the model needs, of single components that are confirmed."""
    from mechcore.ablation.effects.failure import hurting, over_all

    single = sets[sets["kind"] == "single"]
    needed = over_all(single)
    needed = needed[needed["confirmed"] & (needed["net"] < 0)].sort_values("net", kind="stable")
    moving = hurting(single, beyond_threshold=False)
    parts = [_group(hurting(single), "hurts beyond the threshold", "hurt beyond the threshold")]
    parts += [_group(moving, "hurts only by moving it", "hurt only by moving it")]
    parts += [_group(needed, "is needed", "are needed")]
    text = f"Of {single['set'].nunique()} single components, as confirmed on held-out halves, "
    return f"{text}{'; '.join(parts)}."


def _group(part: pd.DataFrame, verb: str, verbs: str) -> str:
    """How many components do something, and the net change without the first of them."""
    if part.empty:
        return f"none {verb}"
    named = [f"{r['set']} {effect(r['net'], 'accuracy')}" for _, r in part[:_NAMED].iterrows()]
    named[0] += " without it"
    named += [f"{len(part) - _NAMED} more"] * (len(part) > _NAMED)
    return f"{len(part)} {verb if len(part) == 1 else verbs} ({', '.join(named)})"


def _two_sided(sets: pd.DataFrame) -> report.Table:
    """For every subset and label, what hurts most and what is needed most."""
    rows = []
    for (subset, label), part in sets.groupby(["subset", "label"], sort=False):
        cells = [str(subset), str(label), whole(part["n"].iloc[0])]
        ranked = part.sort_values("net", kind="stable")
        for row, sign in ((ranked.iloc[-1], 1), (ranked.iloc[0], -1)):
            net = with_interval(row["net"], row["net_low"], row["net_high"], "accuracy")
            name = row["set"] + " (not confirmed)" * (not row["confirmed"])
            known = [name, f"{row['fixed']} / {row['broken']}", net]
            cells += known if sign * row["net"] > 0 else [DASH] * len(known)
        rows.append(cells)
    figures = ("fixed / broken", "net (points)")
    header = ["subset", "label", "n", "hurts most", *figures, "needed most", *figures]
    caption = "What hurts and what is needed out of domain, by the answers that ablating it fixes "
    caption += "and breaks; all sets are in failure_sets.csv. Confirmed is what holds on the half "
    caption += "of the examples that did not select it"
    return report.Table(caption, header, rows, frozenset({0, 1, 3, 6}))


def _movers(run: report.RunFolder, sets: pd.DataFrame) -> Iterator[report.Table]:
    """The components whose role is to move the threshold, by direction and size."""
    import pandas as pd

    from mechcore.ablation.effects.failure import over_all
    from mechcore.ablation.effects.roles import COMPONENT_ROLES, THRESHOLD

    roles, every = run.filled(COMPONENT_ROLES.name), over_all(sets)
    if roles is None:
        return
    moved = every[every["set"].isin(roles.loc[roles["role"] == THRESHOLD, "component"])]
    moved = moved.assign(size=moved["said_change"].abs())
    moved = moved.sort_values("size", ascending=False, kind="stable")
    rows = []
    for (said, more), part in moved.groupby(["said", moved["said_change"] > 0]):
        counts = pd.cut(part["size"], _EDGES, right=False).value_counts(sort=False)
        top = [
            f"{r['set']} {effect(r['said_change'], 'accuracy', unit=False)}"
            for _, r in part[:_NAMED].iterrows()
        ]
        way = f"{said} {'more' if more else 'less'} often"
        rows.append([way, str(len(part)), *map(str, counts[::-1]), ", ".join(top)])
    if rows:
        sizes = ("5 points or more", "2 to 5", "under 2")
        header = ["without it the model says", "components", *sizes, "largest (points)"]
        caption = (
            f"The {count(len(moved), 'component')} that only move the threshold, by direction and "
            "size: how much more often a label is said out of domain without one, labels weighed "
            "alike"
        )
        yield report.Table(caption, header, rows, frozenset({0, len(header) - 1}))
