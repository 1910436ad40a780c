"""What an analysis is: a question about a model, with all that follows from it in one class.

An analysis is a frozen dataclass. Fields described by `mechcore.settings.setting` are the user's,
those that are `of_study` the study's. From the class follow a job in the store, an entry under
``analyses`` in a study's file, a command, a method of the lab, sections of the page and lines of
its summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import ConfigDict

from mechcore import report
from mechcore.registry import imported
from mechcore.settings import OF_STUDY
from mechcore.steps.base import MainStep
from mechcore.tables import Schema

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.ablation import Ablations
    from mechcore.ablation.cuts import Cut
    from mechcore.masking.fills import FillMaker
    from mechcore.masking.means import MeanActivations
    from mechcore.pruning.settings import PruneSettings
    from mechcore.steps.inputs import Inputs
    from mechcore.study.step import Job, Work


def of_study() -> Any:
    """A field whose value is the study's, by its name.

    These are ``seed`` (of draws), ``n_resamples`` (of the bootstrap), ``batch_size``, ``fill``,
    ``names`` (of the data in tables, by split) and ``groups`` (of out-of-domain subsets, by name).
    """
    return field(default=None, kw_only=True, metadata={OF_STUDY: True})


class tables_in:
    """The schemas at ``module:NAME``, imported when they are asked for."""

    def __init__(self, *places: str) -> None:
        self.places = places

    def __get__(self, instance: object, owner: type) -> tuple[Schema, ...]:
        return tuple(imported(place) for place in self.places)


class Planning(Protocol):
    """What an analysis plans its jobs with."""

    @property
    def known(self) -> Mapping[str, Job]:
        """The jobs so far, by what others need them as."""

    @property
    def fill(self) -> str:
        """What replaces an ablated output."""

    @property
    def splits(self) -> Sequence[str]:
        """The data that there are, of ``"train"``, ``"id"`` and ``"ood"``."""

    def job(
        self,
        step: MainStep,
        *,
        needs: Mapping[str, Job] | None = None,
        splits: Sequence[str] | None = None,
        label: str = "",
    ) -> Job:
        """A job of a step, with what is `of_study` filled in.

        Args:
            step: what is done.
            needs: jobs that it needs, beside those that the step names.
            splits: the data that it reads, in place of those of the step.
            label: for people, in place of that of the step.
        """

    def means(self, split: str) -> Job:
        """Mean activations on the data of a split."""

    def masks_of_halves(self) -> Mapping[str, Job]:
        """Subnetworks of each half of the training data, see `mechcore.steps.masks.half_of`."""

    def by_methods(self, methods: Sequence[str]) -> Mapping[str, Job]:
        """Subnetworks by each of several methods, and what they and the full model answer."""

    def at_checkpoints(
        self,
        target_sparsities: Sequence[float],
        seeds: Sequence[int] | None,
        prune: PruneSettings | None,
    ) -> Mapping[Any, Job]:
        """Accuracies of each checkpoint and its subnetworks; None is the study's own setting."""


class Analysis(MainStep):
    """A question about a model.

    Attributes:
        kind: its name everywhere: in the store, in files, as a command and as a method.
        section: id of its section on the page; the kind by default.
        title: of its section.
        opens: its section stands before the summary, together with those of others that do.
        first: its section and its lines of the summary stand before those of others.
        always: it cannot be left out, and has no settings.
        question: it can be asked alone, by a command and a method; else the planner makes its job.
        study_options: settings of the study that its command has options for, too.
        asked: a study asks for it by name; others are done unless they are left out.
        needs, reads, beside, answers, splits: see `MainStep`.
        schemas: of its tables.
        shows: names of those that its section is made from; all by default.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    section: ClassVar[str] = ""
    title: ClassVar[str] = ""
    opens: ClassVar[bool] = False
    first: ClassVar[bool] = False
    always: ClassVar[bool] = False
    question: ClassVar[bool] = True
    asked: ClassVar[bool] = False
    study_options: ClassVar[tuple[str, ...]] = ()
    shows: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Whether it can be done with a fill."""
        del fill
        return True

    def check_inputs(self, inputs: Inputs) -> None:
        """Make sure, before any work, that its settings suit the model and the data.

        Raises:
            InputError: they do not.
        """

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """Its tables by name, from what `mechcore.steps.base` reads of the job.

        Raises:
            MechcoreError: it cannot be done.
        """
        raise NotImplementedError

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        work.write_tables(self.compute(work))

    def jobs(self, plan: Planning) -> Iterator[tuple[str, Job]]:
        """Its jobs, each with what others need it as; here itself alone."""
        yield self.kind, plan.job(self)

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterable[report.Block]:
        """What the page and the notebook show of it; none where a run lacks its tables."""
        del run
        return ()

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterable[str]:
        """What it found, a sentence each, for the summary; the first is its headline."""
        del run
        return ()

    @classmethod
    def tiles(cls, run: report.RunFolder) -> Iterable[report.Tile]:
        """Its headline numbers, for the summary."""
        del run
        return ()

    @classmethod
    def sections(cls, run: report.RunFolder) -> Iterator[report.Section]:
        """Its sections of the page; here one of its blocks."""
        blocks: Sequence[report.Block] = [*cls.blocks(run)]
        if blocks:
            names = cls.shows or [schema.name for schema in cls.schemas]
            files = [f"{name}.csv" for name in names if run.table(name) is not None]
            yield report.Section(cls.section or cls.kind, cls.title, blocks, files)


@dataclass(frozen=True)
class Ablating(MainStep):
    """What steps that ablate components have in common: ``fill`` replaces what is ablated."""

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
        """`mechcore.ablate`, of components or paths, on the test data of a split."""
        from mechcore.ablation import ablate

        data, names = inputs.data[split], inputs.config.class_names
        options: dict[str, Any] = {"split": split, "fill": fill or self.fill, "seed": self.seed}
        options |= {"class_names": names, "batch_size": self.batch_size, "state": state}
        return ablate(inputs.model, cuts, data, means, **options)
