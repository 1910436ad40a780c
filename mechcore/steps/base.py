"""The base of the steps of the main study: a model, data, means and tables of other steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mechcore.components import KINDS, Component, parse_components
from mechcore.data.task import SPLITS
from mechcore.steps.config import TEST_SPLITS
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

SHARED = 0.5
"""Cost of an ablation on the prefix tree, as a share of a forward pass."""

BEHIND = 0.3
"""Cost of one blind component, as a share of a forward pass; mostly later layers."""

CORE = 0.2
"""Assumed share of heads in a core that is not yet known."""

FEW = 20.0
"""Cost of writing tables, in forward passes."""

_UNKNOWN = 2000
"""Assumed number of examples in a file that has not been read, without a limit."""


@dataclass(frozen=True)
class Size:
    """The sizes that determine a job's cost: examples by split, and components."""

    examples: Mapping[str, int]
    n_heads: int
    n_mlps: int

    @classmethod
    def guessed(cls, job: Job) -> Size:
        """A coarse guess for a model and files that have not been read yet."""
        data: dict[str, Any] = {split: job.inputs[split] for split in SPLITS if split in job.inputs}
        return cls({split: given.limit or _UNKNOWN for split, given in data.items()}, 144, 12)

    @property
    def tested(self) -> int:
        """Test examples of both splits."""
        return sum(self.examples.get(split, 0) for split in TEST_SPLITS)

    def components(self, kind: str) -> int:
        """Number of ``heads``, ``mlps`` or ``all`` components."""
        sizes = (self.n_heads, self.n_mlps, self.n_heads + self.n_mlps)
        return dict(zip(KINDS, sizes, strict=True))[kind]


class MainStep(Step):
    """A step of the main study.

    Attributes:
        needs: steps whose results it reads: ``"means"``, ``"core"`` or the kind of an analysis.
        reads: steps whose results it reads if the study has them.
        beside: steps whose results it reads if the study is asked for them.
        answers: whether it needs a model with a head.
        splits: the splits it reads, of ``"train"``, ``"id"`` and ``"ood"``.
        label: the displayed label of its jobs; by default the kind.
        for_others: its files are only for other jobs, not results of the study.
    """

    for_others: ClassVar[bool] = False
    label: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ()

    def wants(self) -> Sequence[str]:
        """The subset of ``needs`` that it needs with its settings."""
        return self.needs

    def may_read(self) -> Sequence[str]:
        """The subset of ``reads`` that it reads with its settings."""
        return self.reads

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return self.passes(job, Size.guessed(job))

    def passes(self, job: Job, size: Size) -> float:
        """Its approximate cost, in forward passes of one example."""
        del job, size
        return FEW


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
