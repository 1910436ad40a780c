"""What the steps of the main study have in common: a model, data, means, tables of other steps."""

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
"""A pass forward and back, in passes forward."""

SHARED = 0.5
"""Share of a pass that an ablation costs on the prefix tree."""

BEHIND = 0.3
"""Share of a forward that one blind component takes, mostly what runs after it."""

CORE = 0.2
"""Share of heads in a core that is not known yet."""

FEW = 20.0
"""Passes that writing tables is worth."""

_UNKNOWN = 2000
"""Examples in a file that was not read yet, where there is no limit."""


@dataclass(frozen=True)
class Size:
    """What the cost of a job depends on: examples by split, components."""

    examples: Mapping[str, int]
    n_heads: int
    n_mlps: int

    @classmethod
    def guessed(cls, job: Job) -> Size:
        """A coarse guess, for a model and files that were not read yet."""
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
    """A step of the main study; one that is added names what it reads.

    Attributes:
        needs: other steps of the study whose results it reads: ``"means"``, ``"core"``,
            ``"accuracy"`` or the kind of another analysis.
        reads: the same, where a study has them.
        beside: the same, where a study is asked for them, too.
        answers: whether it needs what the model answers; what does not can be done of a model
            without a head.
        splits: data that it reads, of ``"train"``, ``"id"`` and ``"ood"``.
        label: of its jobs, for people; the kind by default.
        for_others: its files are for other jobs, and no results of the study.
    """

    for_others: ClassVar[bool] = False
    label: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    answers: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ()

    def wants(self) -> Sequence[str]:
        """What it needs with its settings, of ``needs``."""
        return self.needs

    def may_read(self) -> Sequence[str]:
        """What it reads with its settings, of ``reads``."""
        return self.reads

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return self.passes(job, Size.guessed(job))

    def passes(self, job: Job, size: Size) -> float:
        """About how many passes of one example forward through the model it costs."""
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
    return parse_components(work.table("core")["component"].tolist())


def subnetworks_in(*folders: Path) -> list[Subnetwork]:
    """The subnetworks of jobs, by target sparsity, then seed."""
    from mechcore.pruning import Subnetwork

    paths = [path for folder in folders for path in (folder / MASKS).glob("*.safetensors")]
    return sorted(map(Subnetwork.load, paths), key=lambda one: (one.target_sparsity, one.seed))
