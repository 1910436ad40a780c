"""Whether heads act by what they attend to: their effect with the keys of a category hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, Planning, of_study, tables_in
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError
from mechcore.settings import check, setting
from mechcore.steps.base import CORE, SHARED, Size, core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Job, Work
from mechcore.wording import ALL, FULL, OUT_FIRST, PLACES, count, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import Ablations, ComponentSet
    from mechcore.attention.categories import Category
    from mechcore.masking.means import MeanActivations
    from mechcore.steps.inputs import Inputs

CONTROL_EXAMPLES = 100
"""Examples of each split that controls run on, at most."""
_JOINT = 3


def _categories() -> dict[str, Category]:
    """All that there are, those of causal models and of pairs, too."""
    from mechcore.attention.categories import OF_TEXTS, registered_categories

    return {category.name: category for category in (*registered_categories(), *OF_TEXTS)}


def _with_words(inputs: Inputs) -> Inputs:
    data = {split: inputs.encode(of.examples, words=True) for split, of in inputs.data.items()}
    return replace(inputs, data=data)


def _core(work: Work) -> list[Component]:
    return core_of(work) if "core" in work.job.needs else []


def joint_sets(shape: ModelShape, core: Sequence[Component]) -> list[ComponentSet]:
    """All heads, the core's and the others, as far as these are several."""
    from mechcore.ablation import ComponentSet

    heads, parts = [*shape.heads], {"core": [*core]}
    parts["other heads"] = [head for head in heads if head not in core] if core else []
    named = [ComponentSet(tuple(part), name) for name, part in parts.items() if len(part) > 1]
    return [*dict.fromkeys([*named, ComponentSet(tuple(heads), "all heads")])]


@dataclass(frozen=True)
class KnockedOut(Ablating):
    """The answers with the keys of a category hidden from every head, and from several.

    In `mechcore.steps.answers.SWEPT`; none of a category without a key in the texts.
    """

    kind = "knocked_out"
    for_others = True
    needs = ("means",)
    beside = ("core",)
    splits = TEST_SPLITS
    category: str = ""

    def uses(self) -> list[object]:
        """The fill and the function of the category."""
        return [*super().uses(), _categories()[self.category].function]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return (SHARED * size.n_heads + 2 * _JOINT) * size.tested

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore.ablation import ComponentSet
        from mechcore.attention.knockouts import hideable, knockout
        from mechcore.steps.answers import SWEPT, save_swept

        inputs = _with_words(inputs_of(work))
        means, shape = means_of(work, inputs), ModelShape.of(inputs.model)
        joint = joint_sets(shape, _core(work))
        alone = [ComponentSet((head,)) for head in shape.heads]
        fill = knockout(self.category, otherwise=self.fill)
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
    needs = ("means", "swept")
    beside = ("core",)
    splits = TEST_SPLITS
    asked = True
    schemas = tables_in("mechcore.ablation.effects.knockouts:KNOCKOUTS")

    categories: tuple[str, ...] = setting(
        (), "Categories of keys to hide, of `mechcore.attention.categories`; by default all."
    )
    controls: int = setting(
        20,
        "Draws of as much attention on other keys, to compare shares with that are large.",
        least=20,
    )
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        check(self, self.kind)

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Queries without another key have no other text to take an output from."""
        return fill != "counterfactual"

    def uses(self) -> list[object]:
        """The fill and the functions of the categories."""
        return [*super().uses(), *(category.function for category in _categories().values())]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        n = sum(min(CONTROL_EXAMPLES, size.examples.get(split, 0)) for split in TEST_SPLITS)
        return self.controls * n * (len(job.needs) + SHARED * CORE * size.n_heads)

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The answers by category, and what is made of them."""
        known, needs = _categories(), dict[str, Job]()
        for name in self.categories or known:
            if name not in known:
                raise InputError(
                    f"knockouts: no category {name!r} to hide; expected some of {', '.join(known)}"
                )
            what = f"{KnockedOut.kind} {name}"
            needs[what] = plan.job(KnockedOut(category=name), label=f"hidden keys: {name}")
        yield from needs.items()
        yield self.kind, plan.job(self, needs=needs)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.effects.knockouts import knockout_table, to_control, with_controls
        from mechcore.attention.knockouts import masses
        from mechcore.steps.answers import ablations_in, joined, known_groups

        inputs = _with_words(inputs_of(work))
        means, shape = means_of(work, inputs), ModelShape.of(inputs.model)
        joint, tables = joint_sets(shape, _core(work)), []
        for split, plain in ablations_in(work.needed("swept"), self.names).items():
            plain = plain.with_more(self.ablations(inputs, means, joint, split))
            hidden = _hidden(work, joint, plain)
            table = knockout_table(
                plain,
                hidden,
                masses(inputs.model, inputs.data[split], self.batch_size),
                known_groups(plain, self.groups),
                n_resamples=self.n_resamples,
                seed=self.seed,
            )
            controls = dict[int, tuple[float, Sequence[float]]]()
            for category, rows in to_control(table).groupby("category"):
                of = hidden[str(category)]
                beside = self._beside(inputs, means, plain, of, str(category), [*rows["component"]])
                controls |= dict(zip(rows.index.tolist(), beside, strict=True))
            tables.append(with_controls(table, controls))
        return {self.kind: joined(tables)}

    def _beside(
        self,
        inputs: Inputs,
        means: MeanActivations,
        plain: Ablations,
        hidden: Ablations,
        category: str,
        heads: Sequence[str],
    ) -> Iterator[tuple[float, Sequence[float]]]:
        """By head the shares of the category and of its controls, on the same examples."""
        import numpy as np

        from mechcore.ablation import ComponentSet
        from mechcore.attention.knockouts import other_keys

        split, sets = plain.split, [ComponentSet.of([head]) for head in heads]
        n = len(plain.full.subsets)
        some = np.random.default_rng(self.seed).permutation(n)[:CONTROL_EXAMPLES]
        # A draw is by the number of the example, so that copies have their own.
        copies = inputs.data[split].part(np.tile(some, self.controls).tolist())
        fill = other_keys(category, otherwise=self.fill)
        drawn = self.ablations(replace(inputs, data={split: copies}), means, sets, split, fill=fill)
        for one in sets:
            whole = plain.changes(one, "margin").mean()
            own = hidden.changes(one, "margin")[some].mean()
            others = drawn.changes(one, "margin").reshape(self.controls, -1).mean(1)
            yield float(own / whole), (others / whole).tolist()

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Shares by head and category, of heads that are judged, and in a table."""
        if (table := _shown(run)) is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        for split, data in report.groups.data_sets(table):
            part = report.groups.of_data(table, split, data)
            yield report.Drawing(
                report.ablation_figures.knockout_shares(part),
                f"knockouts-{split}",
                f"Share of what each head does to the margin on {data} that is gone with its "
                "attention to a category of keys, in percent. Categories overlap, so shares do not "
                "add up to 100.",
                "Heatmap of shares, heads by categories; the numbers are in the table.",
                fold="" if split == OUT_FIRST[0] else f"Shares on {data}{report.AS_FIGURE}",
            )
        yield from _tables(run, table)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """How many heads act by attending to something, and the largest effect of these."""
        table = _shown(run)
        for split in () if table is None else OUT_FIRST:
            part = table[table["split"] == split]  # type: ignore[index]
            heads = part[part["size"] == 1].sort_values("share", ascending=False, kind="stable")
            carried = heads[heads["carried"] == "supported"]
            acting, n = count(heads["component"].nunique(), "head"), carried["component"].nunique()
            yield (
                f"Of {acting} that change the margin {PLACES[split]}, {n or 'none'} "
                f"{'is' if n < 2 else 'are'} shown to do so by attending to one category of keys."
            )
            sizes = -carried["margin_change_without"].abs()
            for _, row in carried.loc[sizes.sort_values(kind="stable").index[:1]].iterrows():
                yield _carried(row)
            core = part[part["component"] == "core"]
            for _, row in core.sort_values("share", ascending=False)[:1].iterrows():
                yield (
                    f"Of what the whole core does {PLACES[split]}, {_share(row)} is gone with its "
                    f"{_attention(row)}, the most of any category."
                )


def _hidden(work: Work, joint: Sequence[ComponentSet], plain: Ablations) -> dict[str, Ablations]:
    """The answers with hidden keys on the data of a split, by category."""
    from mechcore.ablation import Ablations, ComponentSet
    from mechcore.steps.answers import SWEPT, load_answers

    named, by_category = {str(one): one for one in joint}, {}
    for what, job in work.job.needs.items():
        if isinstance(job.step, KnockedOut):
            answers = load_answers(work.needed(what) / SWEPT[plain.split])
            if (full := answers.pop(FULL, None)) is not None:
                of = {named.get(k) or ComponentSet.of([k]): v for k, v in answers.items()}
                by_category[job.step.category] = Ablations.of(full, of, plain.data, plain.split)
    return by_category


def _shown(run: report.RunFolder) -> pd.DataFrame | None:
    """Rows over all examples whose share is known; None where there is none."""
    table = run.filled(Knockouts.kind)
    if table is not None:
        table = table[(table["subset"] == ALL) & (table["carried"] != "")]
    return None if table is None or table.empty else table


def _tables(run: report.RunFolder, table: pd.DataFrame) -> Iterator[report.Table]:
    """The carried ones, and all."""
    schema, caption = run.schemas[Knockouts.kind], "Effects with the keys of a category hidden"
    columns: list[report.Shown] = ["component", "category", report.groups.PLACED, "mass"]
    columns += ["margin_change", "margin_change_without", "share", "control_share", "p_control"]
    rows = report.groups.placed(table.sort_values("share", ascending=False, kind="stable"))
    large = rows[rows["carried"] == "supported"]
    if len(large):
        yield report.table_of(large, schema, f"{caption} that carries what a head does", columns)
    caption += "; all heads and groups of examples are in knockouts.csv"
    yield report.table_of(rows, schema, caption, [*columns, "carried"], folded=True)


def _carried(row: pd.Series) -> str:
    """What carries the effect of a head."""
    text = (
        f"{row['component']} acts by its {_attention(row)}: with these hidden, {_share(row)} of "
        f"its effect on the margin is gone; with as much other attention hidden, "
        f"{percent(row['control_share'])}"
    )
    if row["control_mass"] < 0.95:
        text += f" (of {percent(row['control_mass'])} of it: there is no more)"
    return f"{text}."


def _attention(row: pd.Series) -> str:
    return f"attention to {row['category'].replace('_', ' ')} keys"


def _share(row: pd.Series) -> str:
    low, high = (number(100 * row[f"share_{end}"], 0) for end in ("low", "high"))
    return f"{percent(row['share'])} [{low}, {high}]"
