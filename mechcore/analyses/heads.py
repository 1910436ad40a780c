"""What every head attends to: the category of each, and its attention on an example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.analyses.base import Analysis, Planning, of_study, tables_in
from mechcore.settings import check, setting
from mechcore.steps.base import HEADS_FILE, MainStep, Size, core_of, inputs_of
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.data.encoding import EncodedExamples
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
