"""What a few labelled out-of-domain examples can repair, rung by rung, held out by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Analysis, Tables, of_study, tables_in
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.repair import HELD_OUT, INSIDE, OWN_RUNGS, REPAIRED
from mechcore.settings import setting
from mechcore.steps.base import inputs_of, means_of
from mechcore.study.step import Work
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

    from mechcore.repair.ladder import Labelled
    from mechcore.steps.inputs import Inputs

CHECKPOINTS = "repaired"
_MOST_SUBSETS = 40  # subsets in the transfer matrix


def _labelled(inputs: Inputs, split: str, seed: int | None = None) -> Labelled:
    """The examples of a split, with what is correct; with a seed, as many as are tested at most."""
    from mechcore.repair.ladder import MOST_TESTED, Labelled

    data = inputs.data[split]
    if seed is not None:
        data = data.part(data.examples.sample_rows(MOST_TESTED, seed))
    return Labelled(data, inputs.readout(split).correct_classes(data))


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
    per_text = 200.0
    schemas = tables_in(
        "mechcore.repair.outcome:REPAIR",
        "mechcore.repair.outcome:REPAIR_CHOICES",
        "mechcore.repair.outcome:REPAIR_GATES",
        "mechcore.repair.outcome:REPAIR_TRANSFER",
    )

    rungs: tuple[str, ...] = setting(
        tuple(OWN_RUNGS), "Repairs to compare, by name; none is always among them.", distinct=True
    )
    examples: tuple[int, ...] = setting(
        (100,),
        "Out-of-domain examples to learn from: one number, or several.",
        least=8,
        distinct=True,
    )
    draws: int = setting(3, "Draws of repair examples.", least=1)
    folds: int = setting(2, "Folds of subsets, each held out once; 1 holds none out.", least=1)
    steps: int = setting(60, "Training steps of a repair, at most.", least=4)
    guard: float = setting(
        1.0, "Weight of the KL to the full model on in-domain training texts.", least=0
    )
    guard_examples: int = setting(200, "Training texts of the guard, at most.", least=1)
    save: tuple[str, ...] = setting(
        (), "Repairs to fit on all kinds and to leave as checkpoints in the run."
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

        check_rungs((*self.rungs, *self.save))
        if inputs.data["ood"].answers is not None:
            raise InputError(
                "repair: the model is a language model, whose answers are words of its vocabulary; "
                "expected a classifier, whose last layer can be fitted"
            )
        outside = _labelled(inputs, "ood")
        if len(set(outside.label.tolist())) < 2:
            raise InputError(
                "repair: the out-of-domain examples have one label, on which always saying it "
                "looks like a repair; expected two or more (leave out --ood-label)"
            )
        runs_of(outside, self.examples, self.draws, self.folds, self.seed, len(inputs.data["id"]))

    def compute(self, work: Work) -> Tables:
        """See `Analysis.compute`; also writes the checkpoints of repairs to save."""
        import numpy as np
        import pandas as pd

        from mechcore.ablation.effects.failure import label_names
        from mechcore.repair import outcome
        from mechcore.repair.fitting import Settings
        from mechcore.repair.ladder import Ladder, check_rungs, runs_of
        from mechcore.repair.model import RepairableModel
        from mechcore.repair.rungs import RUNGS

        inputs, rungs = inputs_of(work), check_rungs(self.rungs)
        gated = any(RUNGS[name].gated for name in (*rungs, *self.save))
        means, source = means_of(work, inputs) if gated else None, str(inputs.config.source)
        how = (inputs.tokenizer, means, inputs.config.revision)
        model = RepairableModel(inputs.model, source, *how)
        outside, inside = _labelled(inputs, "ood"), _labelled(inputs, "id", self.seed)
        train = inputs.data["train"]
        guard = train.part(train.examples.sample_rows(self.guard_examples, self.seed))
        settings = Settings(self.steps, guard=self.guard, seed=self.seed)
        ladder, n_inside = Ladder(model, outside, inside, guard, settings), len(inside.data)
        runs = runs_of(outside, self.examples, self.draws, self.folds, self.seed, n_inside)
        done, most = list(ladder.outcomes(runs, rungs, work.partial)), max(self.examples)
        names: dict[str, Sequence[str]] = {
            split: label_names(of.correct.numpy(), of.data.examples.frame["label"].tolist())
            for split, of in (("ood", outside), ("id", inside))
        }
        tables = {
            "repair": outcome.repair_table(done, outside, inside, names, least=self.least),
            "repair_choices": outcome.choices_table(done),
        }
        if "gates" in rungs:
            gates = ([o for o in done if o.run.n_examples == most], model.shape.components)
            tables["repair_gates"] = outcome.gates_table(*gates, model.shape.index)
        subsets = np.unique(outside.data.examples.frame["subset"].astype(str))
        if 1 < len(subsets) <= _MOST_SUBSETS:
            changes = pd.DataFrame(ladder.transfer(most), subsets, subsets).stack(future_stack=True)
            columns = outcome.REPAIR_TRANSFER.names
            tables["repair_transfer"] = changes.reset_index().set_axis(columns, axis=1)
        if self.save:
            (run,) = runs_of(outside, [most], 1, 1, self.seed, n_inside)
            fitting, folder = ladder.fitting(run.repair), work.folder / CHECKPOINTS
            for name in self.save:
                facts = {"repair": name, "source": source, "examples": most}
                model.save(fitting.fit(name).weights, folder / name, facts)
        return tables

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
        why = "as no gain is shown on repaired kinds"
        if gaining:
            why = f"as what gains on repaired kinds, {listed(gaining)}, is shown to lose in domain"
        lead = f"{text}no repair is recommended, {why}."
        if rung:
            lead = f"{text}{rung} is the cheapest repair whose gain is shown: {_gain(known, rung)}."
        which = "largest gain" if known.loc[(REPAIRED, best), "gain"] > 0 else "least loss"
        largest = f" The {which} is that of {best}: {_gain(known, best)}."
        yield lead + largest * (best != rung)
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


def _gain(known: pd.DataFrame, rung: str) -> str:
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
    moved = [f"{r['component']} ({r['gate']:.2f})" for _, r in signed.iterrows()]
    beyond = "farther than with permuted labels"
    chance = len(gates) / (comb(2 * n, n) * 2 ** (n - 1))  # the n largest of 2n, of one sign
    text = f"Gates as a diagnosis: {listed(moved)} moved {beyond} in every run, as "
    text += f"{number(chance, 1)} of {count(len(gates), 'gate')} would by chance."
    yield report.Paragraph(
        text if moved else f"As a diagnosis, no gate moved {beyond} in every run."
    )
    roles = run.table("roles")
    if roles is not None:
        gates = gates.merge(roles[["component", "role"]], how="left", on="component")
        gates = gates.fillna({"role": NOT_AVAILABLE})
    columns: list[report.Shown] = [*REPAIR_GATES.names]
    columns.append(Column("role", "text", optional=True))
    caption = "Every gate, those farthest from 1 first"
    yield report.table_of(gates, REPAIR_GATES, caption, columns, folded=True)
