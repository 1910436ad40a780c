"""What every head attends to: the category of each, and its attention on an example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.analyses.base import Analysis, Planning, of_study, tables_in
from mechcore.settings import check, setting
from mechcore.steps.base import HEADS_FILE, MainStep, Size, core_of, inputs_of
from mechcore.study.step import Job, Work
from mechcore.wording import listed, number, whole

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.data.encoding import EncodedExamples
    from mechcore.report.blocks import Block, Shown, Table
    from mechcore.report.run_folder import RunFolder
    from mechcore.steps.inputs import Inputs


@dataclass(frozen=True)
class Scores(MainStep):
    """What every head attends to, on in-domain examples drawn by the seed."""

    kind: ClassVar[str] = "scores"
    label: ClassVar[str] = "head categories"
    for_others: ClassVar[bool] = True
    roles: ClassVar[tuple[str, ...]] = ("id",)
    max_examples: int
    seed: int = of_study()

    def settings(self) -> dict[str, Any]:
        """With the categories that there are."""
        from mechcore.attention.categories import registered_categories

        known = [[category.name, category.causal_only] for category in registered_categories()]
        return {**super().settings(), "categories": known}

    def uses(self) -> list[object]:
        """The functions of the categories."""
        from mechcore.attention.categories import registered_categories

        return [category.function for category in registered_categories()]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return float(min(self.max_examples, size.examples["id"]))

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore.steps.tables import category_table

        inputs = inputs_of(work)
        table = category_table(inputs.model, sampled(inputs, self.max_examples, self.seed))
        table.to_parquet(work.folder / HEADS_FILE)


def sampled(inputs: Inputs, n: int, seed: int) -> EncodedExamples:
    """In-domain examples, with their words."""
    return inputs.encode(inputs.data["id"].examples.sample(n, seed), words=True)


@dataclass(frozen=True)
class Heads(Analysis):
    """The categories of heads with the core marked, and attention of the core's heads."""

    kind: ClassVar[str] = "heads"
    section: ClassVar[str] = "categories"
    title: ClassVar[str] = "What heads attend to"
    label: ClassVar[str] = "pictures of attention"
    needs: ClassVar[tuple[str, ...]] = ("core", "scores")
    roles: ClassVar[tuple[str, ...]] = ("id",)
    schemas = tables_in("mechcore.attention.labels:HEAD_CATEGORIES")

    max_examples: int = setting(512, "Examples on which attention is scored.", least=1)
    seed: int = of_study()

    def __post_init__(self) -> None:
        check(self, "heads")

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The scores, and what is made of them."""
        yield "scores", plan.job(Scores(self.max_examples))
        yield "heads", plan.job(self)

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return float(min(self.max_examples, size.examples["id"]))

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.attention.examples import ATTENTION_FILE
        from mechcore.files import write_json
        from mechcore.steps.tables import attention_pictures

        inputs, core = inputs_of(work), core_of(work)
        table = pd.read_parquet(work.needed("scores") / HEADS_FILE)
        table["in_core"] = table["component"].isin([str(head) for head in core])
        examples = sampled(inputs, self.max_examples, self.seed)
        pictures = attention_pictures(inputs, examples, table, core)
        write_json(work.folder / ATTENTION_FILE, pictures)
        return {"head_categories": table}

    @classmethod
    def blocks(cls, run: RunFolder) -> Iterator[Block]:
        """The category of every head with the masses behind it, and attention of core heads."""
        from mechcore.report import figures
        from mechcore.report.attention_views import attention_view
        from mechcore.report.blocks import AS_FIGURE, Drawing, Paragraph, View, missing

        categories, examples = run.filled("head_categories"), run.attention_examples
        if categories is None:
            yield missing("the sorting of heads by what they attend to")
            return
        core = categories[categories["in_core"]]
        yield Drawing(
            figures.head_categories(categories),
            "head-categories",
            "The category that each head attends to most, among those with a large enough mass "
            "that is also clearly more than under uniform attention; mixed where none has both."
            + ("" if core.empty else " Core heads are outlined."),
            "Grid, layer by head, of attention categories; the categories are in the table below.",
            fold=f"The category of every head{AS_FIGURE}",
        )
        if core.empty:
            yield Paragraph(f"{run.no_core.capitalize()}, so no head is outlined.", note=True)
        else:
            yield _masses(core, "Attention mass of the core heads")
        yield _masses(categories, f"All {len(categories)} heads", folded=True)
        for start in range(0, len(examples), _HEADS_PER_FIGURE):
            part = examples[start : start + _HEADS_PER_FIGURE]
            names = ", ".join(example.component for example in part)
            several = len(examples) > _HEADS_PER_FIGURE
            yield Drawing(
                figures.attention_patterns(part),
                f"attention-{start // _HEADS_PER_FIGURE + 1}" if several else "attention",
                f"Attention of {names} on an example each: rows are queries, columns keys; lines "
                "mark where a segment begins or ends. Colours follow the square root of the "
                "weight.",
                f"Heatmaps of the attention of {names} between the tokens of one example each.",
                fold=f"Attention of {names}{AS_FIGURE}",
            )
        if examples:
            titles = [example.component for example in examples]  # small boxes hold no more
            view = attention_view(examples, titles=titles).html("attention")
            what = "Attention on an example each: choose a head, and point at a weight."
            yield View(what, view)

    @classmethod
    def headlines(cls, run: RunFolder) -> Iterator[str]:
        """What the core heads attend to."""
        categories = run.filled("head_categories")
        core = None if categories is None else categories[categories["in_core"]]
        if core is None or core.empty:
            return
        counts = core["category"].value_counts()
        parts = [f"{name} ({whole(n)})" for name, n in counts.items()]
        heads = "core head attends" if len(core) == 1 else f"{len(core)} core heads attend"
        yield f"What the {heads} to: {listed(parts)}."


_HEADS_PER_FIGURE = 6


def _masses(categories: pd.DataFrame, caption: str, folded: bool = False) -> Table:
    """Category, masses with their ratios, and entropy of heads."""
    from mechcore.attention.labels import HEAD_CATEGORIES
    from mechcore.report.blocks import table_of
    from mechcore.tables import COMPONENT

    names = [str(c).removeprefix("mass_") for c in categories if str(c).startswith("mass_")]
    columns: list[Shown] = [COMPONENT.called("head"), "category"]
    for name in names:
        texts = []
        ratios = categories.get(f"ratio_{name}", [math.nan] * len(categories))
        for mass, ratio in zip(categories[f"mass_{name}"], ratios, strict=True):
            times = f" ({number(ratio, 1)}\u00d7)" if math.isfinite(ratio) else ""
            texts.append(f"{number(100 * mass, 1)}{times}")
        columns.append((name, texts))
    n = whole(categories["n_examples"].max())
    caption += f", over {n} examples: mass in % of attention (times the mass under uniform "
    caption += "attention)"
    return table_of(categories, HEAD_CATEGORIES, caption, [*columns, "entropy"], folded=folded)
