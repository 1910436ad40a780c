"""What every head attends to: its category, and its attention on an example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Analysis, Planning, of_study, tables_in
from mechcore.settings import setting
from mechcore.steps.base import MainStep, core_of, inputs_of
from mechcore.study.step import Job, Work
from mechcore.wording import listed, number, whole

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.data.encoding import EncodedExamples
    from mechcore.steps.inputs import Inputs


HEADS_FILE = "heads.parquet"
_BATCH = 64
_HEADS_PER_FIGURE = 6
_MOST_NAMED = 4  # heads of a category


@dataclass(frozen=True)
class Scores(MainStep):
    """What every head attends to, on examples drawn by the seed."""

    kind = "scores"
    label = "head categories"
    for_others = True
    answers = False
    per_text = 1.0
    max_examples: int
    min_mass: float
    min_ratio: float
    ignore: tuple[str, ...]
    seed: int = of_study()

    def settings(self) -> dict[str, Any]:
        """The settings, including the registered categories."""
        from mechcore.attention.categories import registered_categories

        known = [[category.name, category.causal_only] for category in registered_categories()]
        return {**super().settings(), "categories": known}

    def uses(self) -> list[object]:
        """The functions of the categories."""
        from mechcore.attention.categories import registered_categories

        return [category.function for category in registered_categories()]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        from mechcore import progress
        from mechcore.attention import Thresholds, score_heads

        inputs = inputs_of(work)
        texts = sampled(inputs, self.max_examples, self.seed)
        options: dict[str, Any] = {"batch_size": _BATCH, "ignore": self.ignore}
        with progress.bar("attention", texts.n_batches(_BATCH)) as advance:
            scores = score_heads(inputs.model, texts, **options, progress=advance)
        table = scores.categorised(Thresholds(self.min_mass, self.min_ratio))
        table.to_parquet(work.folder / HEADS_FILE)


def sampled(inputs: Inputs, n: int, seed: int) -> EncodedExamples:
    """Examples drawn from the one split, with their words."""
    (data,) = inputs.data.values()
    return inputs.encode(data.examples.sample(n, seed), words=True)


@dataclass(frozen=True)
class Heads(Analysis):
    """What every head attends to."""

    kind = "heads"
    section = "categories"
    title = "What heads attend to"
    label = "attention examples"
    needs = ("scores",)
    beside = ("core",)
    answers = False
    per_text = 1.0
    schemas = tables_in("mechcore.attention.labels:HEAD_CATEGORIES")

    max_examples: int = setting(
        512, "Examples on which attention is scored, in-domain if available.", least=1
    )
    min_mass: float = setting(
        0.25, "Minimum attention mass on a category for a label.", above=0, most=1
    )
    min_ratio: float = setting(
        3.0, "Minimum ratio of that mass to its value under uniform attention.", least=1
    )
    ignore: tuple[str, ...] = setting(
        (), "Categories of keys to exclude; first is the attention sink."
    )
    seed: int = of_study()

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """The job of the scores, and the job of the categories made from them."""
        splits = ("train",) if plan.splits == ["train"] else ("id",)
        scores = Scores(self.max_examples, self.min_mass, self.min_ratio, self.ignore)
        yield "scores", plan.job(scores, splits=splits)
        yield self.kind, plan.job(self, splits=splits)

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        from mechcore.attention.scores import HeadScores
        from mechcore.components import ModelShape
        from mechcore.models.protocol import is_causal

        HeadScores(ModelShape.of(inputs.model), is_causal(inputs.model), 0, ignore=self.ignore)

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.attention import attention_examples, telling_example
        from mechcore.attention.examples import ATTENTION_FILE
        from mechcore.files import write_json

        inputs = inputs_of(work)
        table = pd.read_parquet(work.needed("scores") / HEADS_FILE)
        if "core" not in work.job.needs:
            return {"head_categories": table}
        core = core_of(work)
        table["in_core"] = table["component"].isin([str(head) for head in core])
        texts = sampled(inputs, self.max_examples, self.seed)
        options: dict[str, Any] = {"row": telling_example(texts), "categories": table}
        shown = attention_examples(inputs.model, texts, inputs.tokenizer, core, **options)
        write_json(work.folder / ATTENTION_FILE, [asdict(example) for example in shown])
        return {"head_categories": table}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """Every head's category with its attention masses, and the attention of core heads."""
        categories, examples = run.filled("head_categories"), run.attention_examples
        if categories is None:
            yield report.missing("the categories of heads")
            return
        core = _core(categories)
        yield report.Drawing(
            report.figures.head_categories(categories),
            "head-categories",
            "The category with the largest attention mass among those well above both the minimum "
            "and uniform attention; mixed where there is none."
            + ("" if core.empty else " Core heads are outlined."),
            "Grid, layer by head, of attention categories; the categories are in the table below.",
            fold=f"The category of every head{report.AS_FIGURE}",
        )
        if core.empty and "in_core" in categories:
            yield report.Paragraph(
                f"{run.no_core.capitalize()}, so no head is outlined.", note=True
            )
        elif not core.empty:
            yield _masses(core, "Attention mass of the core heads")
        yield _masses(categories, f"All {len(categories)} heads", folded=True)
        for start in range(0, len(examples), _HEADS_PER_FIGURE):
            part = examples[start : start + _HEADS_PER_FIGURE]
            names = ", ".join(example.component for example in part)
            several = len(examples) > _HEADS_PER_FIGURE
            yield report.Drawing(
                report.figures.attention_patterns(part),
                f"attention-{start // _HEADS_PER_FIGURE + 1}" if several else "attention",
                f"Attention of {names}, each on one example: rows are queries, columns keys; lines "
                "mark segment boundaries. The colour scale is the square root of the "
                "weight.",
                f"Heatmaps of the attention of {names} between the tokens of one example each.",
                fold=f"Attention of {names}{report.AS_FIGURE}",
            )
        if examples:
            titles = [example.component for example in examples]  # small boxes hold no more
            view = report.attention_views.attention_view(examples, titles=titles).html("attention")
            what = "Attention on one example per head: choose a head and hover over a weight."
            yield report.View(what, view)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """What the core heads attend to, or all heads if the core is not known."""
        if (categories := run.filled("head_categories")) is None:
            return
        from mechcore.attention.categories import MIXED

        what, chosen = "head", categories
        if "in_core" in categories:
            what, chosen = "core head", _core(categories)
        counts = chosen["category"].value_counts()
        parts = []
        for name, n in counts.items():
            of_category = whole(n)
            if n <= _MOST_NAMED and name != MIXED:
                of_category = ", ".join(chosen.loc[chosen["category"] == name, "component"])
            parts.append(f"{name} ({of_category})")
        heads = f"{what} attends" if len(chosen) == 1 else f"{len(chosen)} {what}s attend"
        if parts:
            yield f"What the {heads} to: {listed(parts)}."


def _core(categories: pd.DataFrame) -> pd.DataFrame:
    """The heads in the core, if it is known."""
    return categories[categories["in_core"]] if "in_core" in categories else categories[:0]


def _masses(categories: pd.DataFrame, caption: str, folded: bool = False) -> report.Table:
    """Category, masses with their ratios, and entropy of every head."""
    from mechcore.attention.labels import HEAD_CATEGORIES
    from mechcore.tables import COMPONENT

    names = [str(c).removeprefix("mass_") for c in categories if str(c).startswith("mass_")]
    columns: list[report.Shown] = [COMPONENT.called("head"), "category"]
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
    return report.table_of(
        categories, HEAD_CATEGORIES, caption, [*columns, "entropy"], folded=folded
    )
