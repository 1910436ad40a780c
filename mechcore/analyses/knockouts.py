"""Whether heads act by what they attend to: their effect with the keys of a category hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, Planning, of_study, tables_in
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.settings import setting
from mechcore.steps.base import core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Job, Work
from mechcore.wording import ALL, PLACES, count, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import Ablations, ComponentSet
    from mechcore.attention.categories import Category
    from mechcore.masking.means import MeanActivations
    from mechcore.steps.inputs import Inputs

CONTROL_EXAMPLES = 100  # of each split at most


def _categories() -> dict[str, Category]:
    """All that there are, those of causal models and of pairs, too."""
    from mechcore.attention.categories import OF_TEXTS, registered_categories

    return {category.name: category for category in (*registered_categories(), *OF_TEXTS)}


def _opened(work: Work) -> tuple[Inputs, MeanActivations, list[ComponentSet]]:
    """The inputs with words, means, and as far as they are several the core, others, all heads."""
    from mechcore.ablation import ComponentSet

    inputs = inputs_of(work)
    data = {split: inputs.encode(of.examples, words=True) for split, of in inputs.data.items()}
    heads = ModelShape.of(inputs.model).heads
    core = core_of(work) if "core" in work.job.needs else []
    parts = {"all heads": heads, "core": core, "other heads": [h for h in heads if h not in core]}
    sets = dict.fromkeys(ComponentSet(tuple(of), name) for name, of in parts.items() if len(of) > 1)
    joint = [*sets] if core else [*sets][:1]
    return replace(inputs, data=data), means_of(work, inputs), joint


@dataclass(frozen=True)
class KnockedOut(Ablating):
    """As `Swept`, with the keys of a category hidden; nothing where the texts have none."""

    kind = "knocked_out"
    for_others = True
    needs = ("means",)
    beside = ("core",)
    splits = TEST_SPLITS
    per_text = 80.0
    category: str = ""
    renormalise: bool = True

    def uses(self) -> list[object]:
        """The fill and the function of the category."""
        return [*super().uses(), _categories()[self.category].function]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore.ablation import ComponentSet
        from mechcore.attention.knockouts import hideable, knockout
        from mechcore.steps.answers import SWEPT, save_swept

        inputs, means, joint = _opened(work)
        alone = [ComponentSet((head,)) for head in ModelShape.of(inputs.model).heads]
        fill = knockout(self.category, renormalise=self.renormalise, otherwise=self.fill)
        for split, data in inputs.data.items():
            pairs = (hideable(inputs.model, batch) for batch in data.batches(self.batch_size))
            if any(bool(of[self.category].any()) for of in pairs if self.category in of):
                swept = self.ablations(inputs, means, alone, split, fill=fill)
                together = self.ablations(inputs, means, joint, split, fill=fill)
                save_swept(work.folder / SWEPT[split], swept.with_more(together))


@dataclass(frozen=True)
class Knockouts(Ablating, Analysis):
    """Whether heads act by what they attend to."""

    kind = "knockouts"
    title = "Do heads act by what they attend to?"
    story = True
    needs = ("means", "swept")
    beside = ("core",)
    splits = TEST_SPLITS
    per_text = 20.0
    asked = True
    cuts_paths = True  # queries without another key have no other text's output
    schemas = tables_in("mechcore.ablation.effects.knockouts:KNOCKOUTS")

    categories: tuple[str, ...] = setting((), "Categories of keys to hide; by default all.")
    renormalise: bool = setting(
        True, "Scale attention on the other keys up to 1; without, hidden attention is dropped."
    )
    controls: int = setting(20, "Draws of other keys with as much attention.", least=20)
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The answers by category, and what is made of them."""
        known, needs = _categories(), dict[str, Job]()
        for name in self.categories or known:
            if name not in known:
                raise InputError(
                    f"knockouts: no category {name!r} to hide; expected some of {', '.join(known)}"
                )
            what = f"{KnockedOut.kind} {name}"
            step = KnockedOut(category=name, renormalise=self.renormalise)
            needs[what] = plan.job(step, label=f"hidden keys: {name}")
        yield from needs.items()
        yield self.kind, plan.job(self, needs=needs)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.effects.knockouts import knockout_table, to_control, with_controls
        from mechcore.attention.knockouts import masses
        from mechcore.steps.answers import ablations_in, joined, known_groups

        inputs, means, joint = _opened(work)
        tables = []
        answers = {
            job.step.category: ablations_in(work.needed(what), self.names, joint)
            for what, job in work.job.needs.items()
            if isinstance(job.step, KnockedOut)
        }
        for split, plain in ablations_in(work.needed("swept"), self.names).items():
            plain = plain.with_more(self.ablations(inputs, means, joint, split))
            hidden = {name: of[split] for name, of in answers.items() if split in of}
            mass = masses(inputs.model, inputs.data[split], self.batch_size)
            groups = known_groups(plain, self.groups)
            options = {"n_resamples": self.n_resamples, "seed": self.seed}
            table = knockout_table(plain, hidden, mass, groups, **options)
            controls = self._controls(inputs, means, plain, hidden, to_control(table))
            tables.append(with_controls(table, controls))
        return {self.kind: joined(tables)}

    def _controls(
        self,
        inputs: Inputs,
        means: MeanActivations,
        plain: Ablations,
        hidden: Mapping[str, Ablations],
        rows: pd.DataFrame,
    ) -> dict[int, tuple[float, Sequence[float]]]:
        """Shares of categories and of controls, on the same examples, by the index of rows."""
        import numpy as np

        from mechcore.ablation import ComponentSet
        from mechcore.attention.knockouts import other_keys

        split, controls, n = plain.split, {}, len(plain.full.subsets)
        some = np.random.default_rng(self.seed).permutation(n)[:CONTROL_EXAMPLES]
        # Keys are drawn by the number of the example, so that copies have their own.
        data = {split: inputs.data[split].part(np.tile(some, self.controls).tolist())}
        for category, part in rows.groupby("category"):
            sets = [ComponentSet.of([head]) for head in part["component"]]
            fill = other_keys(str(category), renormalise=self.renormalise, otherwise=self.fill)
            drawn = self.ablations(replace(inputs, data=data), means, sets, split, fill=fill)
            for row, one in zip(part.index.tolist(), sets, strict=True):
                whole = plain.changes(one, "margin").mean()
                own = hidden[str(category)].changes(one, "margin")[some].mean()
                others = drawn.changes(one, "margin").reshape(self.controls, -1).mean(1)
                controls[row] = float(own / whole), (others / whole).tolist()
        return controls

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Shares by head and category, in figures and a table."""
        if (table := _shown(run)) is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        scaled = (run.analyses.get(cls.kind) or {}).get("renormalise", True)
        rest = "" if scaled else ", and the rest of its attention not scaled up"
        for split, data in report.groups.data_sets(table):
            yield report.Drawing(
                report.ablation_figures.knockout_shares(table[table["split"] == split]),
                f"knockouts-{split}",
                f"Change in margin with keys of a category hidden from a head{rest}, in percent of "
                f"that without the head, on {data}. Categories overlap, so these do not add up.",
                "Heatmap of shares, heads by categories; the numbers are in the table.",
            )
        columns: list[report.Shown] = ["component", "category", report.groups.PLACED, "mass"]
        columns += ["margin_change", "margin_change_without", "share", "control_share", "carried"]
        ordered = report.groups.placed(table.sort_values("carried", ascending=False, kind="stable"))
        caption = "Effects with hidden keys; groups are in knockouts.csv"
        yield report.table_of(ordered, run.schemas[cls.kind], caption, columns, folded=True)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The largest effect of attention, how many heads have some, and that of the core's."""
        if (table := _shown(run)) is None:
            return
        for split, _ in report.groups.data_sets(table):
            part = table[table["split"] == split]
            part = part.sort_values(["margin_change_without", "share"], key=lambda of: -of.abs())
            heads, core = part[part["size"] == 1], part[part["component"] == "core"][:1]
            carried = heads[heads["carried"] == "supported"]
            yield from (_carried(row) for _, row in carried[:1].iterrows())
            n, m = (of["component"].nunique() for of in (carried, heads))
            yield (
                f"Attention to one category is shown to carry most of what a head does to the "
                f"margin {PLACES[split]} for {n} of {count(m, 'head')} with an effect."
            )
            yield from (
                f"Hiding {_keys(row)} from the whole core has {_share(row)} of the effect of "
                f"ablating it {PLACES[split]}, the most of any category."
                for _, row in core.iterrows()
            )


def _shown(run: report.RunFolder) -> pd.DataFrame | None:
    """Rows over all examples whose share is known; None where there is none."""
    if (table := run.filled(Knockouts.kind)) is None:
        return None
    table = table[(table["subset"] == ALL) & table["share"].notna()]
    return None if table.empty else table


def _carried(row: pd.Series) -> str:
    less = f"all other attention of the same queries ({percent(row['control_mass'])} as much)"
    other = less if row["control_mass"] < 0.95 else "as much other attention"
    return (
        f"{row['component']} acts {PLACES[row['split']]} by attending to {_keys(row)}: hiding them "
        f"has {_share(row)} of the effect of ablating the head, hiding {other} "
        f"{percent(row['control_share'])}."
    )


def _keys(row: pd.Series) -> str:
    return f"{row['category'].replace('_', ' ')} keys"


def _share(row: pd.Series) -> str:
    low, high = (number(100 * row[f"share_{end}"], 0) for end in ("low", "high"))
    return f"{percent(row['share'])} [{low}, {high}]"
