"""The base of the steps of the main study: a model, data, means and tables of other steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.components import Component, parse_components
from mechcore.data.task import SPLITS
from mechcore.study.step import Job, Step, Work

if TYPE_CHECKING:
    from mechcore.masking.means import MeanActivations
    from mechcore.pruning import Subnetwork
    from mechcore.steps.inputs import Inputs

MEANS_FILE = "means.safetensors"
FACTS_FILE = "facts.json"
MISSING_FILE = "missing.json"
MASKS = "masks"

WITH_GRADIENT = 3.0
"""Cost of a forward and backward pass, in forward passes."""

_FEW = 20.0
"""Cost of writing tables, in forward passes."""

_UNKNOWN = 2000
"""Assumed number of examples in a file that has not been read, without a limit."""


class MainStep(Step):
    """A step of the main study.

    Attributes:
        needs: steps whose results it reads: ``"means"``, ``"core"`` or the kind of an analysis.
        reads, beside: the same, but only if the study has them, or if it is asked for them.
        answers: whether it needs a model with a head.
        splits: the splits it reads, of ``"train"``, ``"id"`` and ``"ood"``.
        label: the displayed label of its jobs; by default the kind.
        for_others: its files are only for other jobs, not results of the study.
        per_text: roughly how many forward passes it takes per text, with 12 layers of 12 heads.
    """

    for_others: ClassVar[bool] = False
    label: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ()
    per_text: ClassVar[float] = 0.0

    def wants(self) -> Sequence[str]:
        """The subset of ``needs`` that it needs with its settings."""
        return self.needs

    def may_read(self) -> Sequence[str]:
        """The subset of ``reads`` that it reads with its settings."""
        return self.reads

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        data: list[Any] = [job.inputs[split] for split in SPLITS if split in job.inputs]
        most = getattr(self, "max_examples", inf)
        texts = sum(min(given.limit or _UNKNOWN, most) for given in data)
        return _FEW + self.per_text * texts


def inputs_of(work: Work) -> Inputs:
    """The job's model and data."""
    from mechcore.steps.bench import bench_of

    return bench_of(work.store, work.device).inputs(work.job)


def means_of(work: Work, inputs: Inputs, needed: str = "means") -> MeanActivations:
    """The means that the job needs."""
    from mechcore.masking.means import MeanActivations

    return MeanActivations.load(work.needed(needed) / MEANS_FILE, inputs.model)


def core_of(work: Work) -> list[Component]:
    """The heads of the core that the job needs."""
    return parse_components(" ".join(work.table("core")["heads"]).split())


def subnetworks_in(*folders: Path) -> list[Subnetwork]:
    """The subnetworks of jobs, by target sparsity, then seed."""
    from mechcore.pruning import Subnetwork

    paths = [path for folder in folders for path in (folder / MASKS).glob("*.safetensors")]
    return sorted(map(Subnetwork.load, paths), key=lambda one: (one.target_sparsity, one.seed))
