"""What a few labelled out-of-domain examples can repair, rung by rung, held out by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.repair import HELD_OUT, INSIDE, OWN_RUNGS, REPAIRED
from mechcore.settings import setting
from mechcore.steps.base import WITH_GRADIENT, Size, inputs_of, means_of
from mechcore.study.step import Job, Work
from mechcore.wording import (
    ALL,
    DASH,
    NOT_AVAILABLE,
    count,
    effect,
    listed,
    number,
    percent,
    whole,
    with_interval,
)

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.steps.inputs import Inputs


@dataclass(frozen=True)
class Repair(Analysis):
    """What a few labelled out-of-domain examples can repair, held out by kind."""

    kind = "repair"
    title = "What can be repaired?"
    story = True
    label = "repairs"
    asked = True
    needs = ("means",)
    splits = SPLITS
    schemas = tables_in(
        "mechcore.repair.outcome:REPAIR",
        "mechcore.repair.outcome:REPAIR_CHOICES",
        "mechcore.repair.outcome:REPAIR_GATES",
        "mechcore.repair.outcome:REPAIR_TRANSFER",
    )

    rungs: tuple[str, ...] = setting(
        tuple(OWN_RUNGS),
        "Repairs to compare, by name; none is always among them.",
        "--rungs",
        distinct=True,
    )
    examples: tuple[int, ...] = setting(
        (100,),
        "Out-of-domain examples to learn from: one number, or several.",
        "--examples",
        least=8,
        distinct=True,
    )
    draws: int = setting(3, "Draws of repair examples.", "--draws", least=1)
    folds: int = setting(
        2, "Folds of subsets, each held out once; 1 holds none out.", "--folds", least=1
    )
    steps: int = setting(60, "Training steps of a repair, at most.", "--steps", least=4)
    guard: float = setting(
        1.0, "Weight of the KL to the full model on in-domain training texts.", "--guard", least=0
    )
    guard_examples: int = setting(200, "Training texts of the guard, at most.", least=1)
    save: tuple[str, ...] = setting(
        (), "Repairs to fit on all kinds and to leave as checkpoints in the run.", "--save"
    )
    batch_size: int = of_study()
    seed: int = of_study()
    least: float = of_study()

    def uses(self) -> Sequence[object]:
        """The rungs."""
        from mechcore.repair.rungs import RUNGS

        return [RUNGS[name] for name in (*self.rungs, *self.save)]

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        from mechcore.repair.ladder import check_rungs, runs_of
        from mechcore.steps.repair import labelled

        check_rungs((*self.rungs, *self.save))
        if inputs.data["ood"].answers is not None:
            raise InputError(
                "repair: the model is a language model, whose answers are words of its vocabulary; "
                "expected a classifier, whose last layer can be fitted"
            )
        outside = labelled(inputs, "ood")
        if len(set(outside.label.tolist())) < 2:
            raise InputError(
                "repair: the out-of-domain examples have one label, on which always saying it "
                "looks like a repair; expected two or more (leave out --ood-label)"
            )
        runs_of(outside, self.examples, self.draws, self.folds, self.seed, len(inputs.data["id"]))

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        del job
        trained = 16 * 2 * self.steps * 5 * WITH_GRADIENT
        runs = len(self.examples) * self.draws * self.folds
        return runs * len(self.rungs) * (trained + min(size.tested, 3000))

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.steps.repair import repair_tables

        inputs = inputs_of(work)
        return repair_tables(self, inputs, means_of(work, inputs), work.folder, work.partial)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The ladder, by label and by number of examples, transfer, and gates as a diagnosis."""
        from mechcore.repair.outcome import REPAIR, REPAIR_CHOICES

        table = run.filled("repair")
        if table is None:
            return
        for i, text in enumerate(cls.headlines(run)):
            yield report.Paragraph(text, lead=i == 0)
        whole_ones, by_label = table[table["label"] == ALL], table[table["label"] != ALL]
        sizes = sorted(table["n_examples"].unique(), reverse=True)
        if len(sizes) > 1:
            figure = report.subnetwork_figures.gains_by_examples(whole_ones)
            yield report.Drawing(figure, "repair-examples", _EFFICIENCY, _ALT)
        for n in sizes:
            yield _ladder(whole_ones[whole_ones["n_examples"] == n], n)
        for part, caption, columns in (
            (by_label, _BY_LABEL, ["label", "n", "accuracy", "gain"]),
            (whole_ones, _COMPARED, ["auc", "over_threshold", "over_last_layer"]),
        ):
            columns = ["n_examples", "rung", "place", *columns]
            yield report.table_of(part, REPAIR, caption, columns, folded=True)
        if (transfer := run.filled("repair_transfer")) is not None:
            yield _matrix(transfer)
        if (gates := run.filled("repair_gates")) is not None:
            yield from _gates(run, gates, int(table["runs"].max()))
        if (choices := run.filled("repair_choices")) is not None:
            caption = "What was chosen inside the repair examples"
            yield report.table_of(
                choices, REPAIR_CHOICES, caption, REPAIR_CHOICES.names, folded=True
            )

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """Which repair to take, where it holds and where not."""
        from mechcore.repair.outcome import recommended

        table = run.filled("repair")
        if table is None:
            return
        n = table["n_examples"].max()
        table = table[(table["n_examples"] == n) & (table["label"] == ALL)]
        rung, known = recommended(table), table.set_index(["place", "rung"])
        text = f"With {count(n, 'repair example')} ({count(table['runs'].iloc[0], 'run')}), "
        repaired = table[(table["place"] == REPAIRED) & (table["rung"] != "none")]
        gaining = repaired.loc[repaired["shown"] == "gain", "rung"].tolist()
        best = repaired.sort_values("gain", ascending=False, kind="stable")["rung"].iloc[0]
        if rung:
            yield f"{text}{rung} is the cheapest repair whose gain is shown: {_told(known, rung)}."
        elif gaining:
            yield (
                f"{text}no repair is recommended: what gains on unseen examples of repaired kinds, "
                f"{listed(gaining)}, is shown to lose in domain."
            )
        else:
            yield f"{text}no repair is recommended, as no gain is shown on repaired kinds."
        if best != rung:
            yield f"The largest gain is that of {best}: {_told(known, best)}."
        held = table[(table["place"] == HELD_OUT) & (table["rung"] != "none")]
        if held.empty:
            yield "The subsets are too few to hold any out, so nothing is known of other kinds."
            return
        gains, losses = (held.loc[held["shown"] == way, "rung"] for way in ("gain", "loss"))
        text = f"a gain is shown for {listed(gains.tolist())}" if len(gains) else "no gain is shown"
        text += f", and a loss for {listed(losses.tolist())}" if len(losses) else ""
        yield f"On kinds that were not repaired, {text}."


_WHERE = {
    REPAIRED: "on unseen examples of repaired kinds",
    HELD_OUT: "on kinds not repaired",
    INSIDE: INSIDE,
}
_EFFICIENCY = (
    "Gain in balanced accuracy (points) by number of repair examples, with 95 % intervals, on "
    "kinds that were repaired and on kinds that were held out"
)
_ALT = "Line charts of gain against number of repair examples; the numbers are in the tables below."
_BY_LABEL = "The same by label: a shift towards one label is no repair"
_COMPARED = "Compared with the threshold and the last layer"


def _there(known: pd.DataFrame) -> list[str]:
    return [place for place in _WHERE if place in known.index.get_level_values(0)]


def _told(known: pd.DataFrame, rung: str) -> str:
    """The gains of a rung everywhere, and whether they are shown."""
    parts = []
    for place in _there(known):
        row: Any = known.loc[(place, rung)]
        gain = with_interval(row["gain"], row["gain_low"], row["gain_high"], "accuracy", unit=True)
        doubt = "" if row["shown"] else ", not shown"
        parts.append(f"{gain} {_WHERE[place]} (to {percent(row['accuracy'])}{doubt})")
    return listed(parts)


def _ladder(table: pd.DataFrame, n: int) -> report.Table:
    """Every rung, with accuracies and gains on each kind of data."""
    known = table.set_index(["place", "rung"])
    places, rows, header = _there(known), [], ["repair"]
    for rung in table["rung"].unique():
        cells = [str(rung)]
        for place in places:
            row: Any = known.loc[(place, rung)]
            gain = with_interval(row["gain"], row["gain_low"], row["gain_high"], "accuracy")
            cells += [percent(row["accuracy"]), DASH if rung == "none" else gain, row["shown"]]
        rows.append(cells)
    for place in places:
        header += [place, "gain (points)", "shown"]
    tested = table.drop_duplicates("place").set_index("place")["n"]
    over = ", draws and folds" if table["runs"].iloc[0] > 2 else " alone (under three runs)"
    caption = (
        f"The ladder with {count(n, 'repair example')}, cheapest first: balanced accuracy, and "
        f"the gain over the model as it is, with 95 % intervals over examples{over}; shown is "
        "what also holds corrected for how many repairs there are. Tested on "
        f"{listed([f'{whole(tested[place])} examples ({place})' for place in places])}"
    )
    return report.Table(caption, header, rows, frozenset({0, *range(3, len(header), 3)}))


def _matrix(transfer: pd.DataFrame) -> report.Table:
    """Repaired subsets by tested ones."""
    wide = transfer.pivot(index="repaired", columns="tested", values="change")
    names = transfer["repaired"].unique().tolist()
    rows = [
        [name, *(effect(wide.loc[name, other], "accuracy", unit=False) for other in names)]
        for name in names
    ]
    caption = (
        "Transfer: change of accuracy (points) on the subset of a column, on unseen examples, "
        "where the last layer is repaired on the subset of a row alone; of labels that it lacks, "
        "examples are drawn from all subsets"
    )
    return report.Table(caption, ["repaired", *names], rows, frozenset({0}), folded=len(names) > 8)


def _gates(run: report.RunFolder, gates: pd.DataFrame, n: int) -> Iterator[report.Block]:
    """What gates turn down or up in every one of n runs, beside the roles."""
    from mechcore.repair.outcome import REPAIR_GATES
    from mechcore.tables import Column

    signed = gates[gates["sign"] != ""]
    told = [f"{r['component']} ({r['gate']:.2f})" for _, r in signed.iterrows()]
    beyond = "farther than with permuted labels"
    chance = len(gates) / (comb(2 * n, n) * 2 ** (n - 1))  # the n largest of 2n, of one sign
    text = f"Gates as a diagnosis: {listed(told)} moved {beyond} in every run, as "
    text += f"{number(chance, 1)} of {count(len(gates), 'gate')} would by chance."
    yield report.Paragraph(
        text if told else f"As a diagnosis, no gate moved {beyond} in every run."
    )
    roles = run.table("roles")
    if roles is not None:
        gates = gates.merge(roles[["component", "role"]], how="left", on="component")
        gates = gates.fillna({"role": NOT_AVAILABLE})
    columns: list[report.Shown] = [*REPAIR_GATES.names]
    columns.append(Column("role", "text", optional=True))
    caption = "Every gate, those farthest from 1 first"
    yield report.table_of(gates, REPAIR_GATES, caption, columns, folded=True)
