"""The base class of analyses: one question about a model, a frozen dataclass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import ConfigDict

from mechcore import report
from mechcore.settings import OF_STUDY, check
from mechcore.steps.base import MainStep
from mechcore.tables import Schema

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import Ablations
    from mechcore.ablation.sets import Cut
    from mechcore.main_study.plan import Planner
    from mechcore.masking.fills import FillMaker
    from mechcore.masking.means import MeanActivations
    from mechcore.steps.inputs import Inputs
    from mechcore.study.step import Job, Work


Tables: TypeAlias = "Mapping[str, pd.DataFrame]"
Planning: TypeAlias = "Planner"


def of_study() -> Any:
    """A field that takes the study's value of the same name.

    These are ``seed`` (of draws), ``n_resamples`` (of the bootstrap), ``batch_size``, ``fill``,
    ``names`` (of the data in tables, by split) and ``groups`` (of out-of-domain subsets, by name).
    """
    return field(default=None, kw_only=True, metadata={OF_STUDY: True})


class tables_in:
    """The schemas at ``module:NAME``, imported on first use."""

    def __init__(self, *places: str) -> None:
        self.places = places

    def __get__(self, instance: object, owner: type) -> tuple[Schema, ...]:
        return tuple(map(resolve_name, self.places))


class Analysis(MainStep):
    """A question about a model.

    Attributes:
        kind: its name in the store, in files, as a command and as a method.
        section: id of its section on the page; the kind by default.
        title: title of its section.
        opens: whether its section precedes the summary.
        first: whether its section and summary lines precede those of others.
        story: whether its first headline is in the story that opens the page.
        always: whether it always runs; it then has no settings.
        question: whether it has a command and a method of its own; else only studies run it.
        study_options: study settings that its command also has options for.
        asked: whether it runs only when a study names it; others run unless excluded.
        needs, reads, beside, answers, splits: see `MainStep`.
        schemas: the schemas of its tables.
        shows: names of the tables its section is made from; all by default.
        cuts_paths: whether it cuts paths, which fills from other examples do not support.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    section: ClassVar[str] = ""
    title: ClassVar[str] = ""
    opens: ClassVar[bool] = False
    first: ClassVar[bool] = False
    story: ClassVar[bool] = False
    always: ClassVar[bool] = False
    question: ClassVar[bool] = True
    asked: ClassVar[bool] = False
    study_options: ClassVar[tuple[str, ...]] = ()
    shows: ClassVar[tuple[str, ...]] = ()
    cuts_paths: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self, self.kind)

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Whether the analysis supports a fill."""
        return not cls.cuts_paths or fill != "counterfactual"

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise `InputError`, before any work, unless the settings fit the model and the data."""

    def compute(self, work: Work) -> Tables:
        """Its tables, by name; raises `MechcoreError` if they cannot be computed."""
        raise NotImplementedError

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        work.write_tables(self.compute(work))

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """Its jobs, each under the name by which others need it; by default only itself."""
        yield self.kind, plan.job(self)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterable[report.Block]:
        """The blocks that page and notebook show; none where a run lacks its tables."""
        return ()

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterable[str]:
        """Its results for the summary, one sentence each; the first is its headline."""
        return ()

    @classmethod
    def tiles(cls, run: report.RunFolder) -> Iterable[report.Tile]:
        """Its headline numbers, for the summary."""
        return ()

    @classmethod
    def sections(cls, run: report.RunFolder) -> Iterator[report.Section]:
        """Its sections of the page; by default one, made of its blocks."""
        blocks: Sequence[report.Block] = [*cls.blocks(run)]
        if blocks:
            names = cls.shows or [schema.name for schema in cls.schemas]
            files = [f"{name}.csv" for name in names if run.table(name) is not None]
            yield report.Section(cls.section or cls.kind, cls.title, blocks, files)


@dataclass(frozen=True)
class Ablating(MainStep):
    """Base of steps that ablate components: ``fill`` replaces the ablated outputs."""

    seed: int = of_study()
    batch_size: int = of_study()
    fill: str = of_study()

    def uses(self) -> list[object]:
        """The fill."""
        from mechcore.masking.fills import FILLS

        return [FILLS[self.fill]]

    def ablations(
        self,
        inputs: Inputs,
        means: MeanActivations | None,
        cuts: Sequence[Cut],
        split: str,
        state: Path | None = None,
        fill: FillMaker | None = None,
    ) -> Ablations:
        """`mechcore.ablate` components or paths on the test data of a split."""
        from mechcore.ablation import ablate

        data, names = inputs.data[split], inputs.config.class_names
        options: dict[str, Any] = {"split": split, "fill": fill or self.fill, "seed": self.seed}
        options |= {"class_names": names, "batch_size": self.batch_size, "state": state}
        return ablate(inputs.model, cuts, data, means, **options)
