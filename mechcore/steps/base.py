"""What the steps of the main study have in common: a model, data, means, tables of other steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mechcore.components import Component, parse_components
from mechcore.masking.means import MeanActivations
from mechcore.pruning import Subnetwork
from mechcore.steps.bench import bench_of, data_inputs
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs
from mechcore.study.step import Job, Step, Work

MEANS_FILE = "means.safetensors"
ANSWERS_FILE = "answers.safetensors"
FACTS_FILE = "facts.json"
MISSING_FILE = "missing.json"
HEADS_FILE = "heads.parquet"
MASKS = "masks"

WITH_GRADIENT = 3.0
"""A pass forward and back, in passes forward."""

SHARED = 0.5
"""Share of a pass that an ablation costs on the prefix tree."""

FEW = 20.0
"""Passes that writing tables is worth."""

_UNKNOWN = 2000
"""Examples in a file that was not read yet, where there is no limit."""


@dataclass(frozen=True)
class Size:
    """What the cost of a job depends on: examples by role, components."""

    examples: Mapping[str, int]
    n_heads: int
    n_mlps: int

    @classmethod
    def guessed(cls, job: Job) -> Size:
        """A coarse guess, for a model and files that were not read yet."""
        counts = {role: data.limit or _UNKNOWN for role, data in data_inputs(job).items()}
        return cls(counts, 144, 12)

    @property
    def tested(self) -> int:
        """Test examples of both roles."""
        return sum(self.examples.get(role, 0) for role in TEST_ROLES)

    def components(self, kind: str) -> int:
        """Number of ``heads``, ``mlps`` or ``all`` components."""
        return {"heads": self.n_heads, "mlps": self.n_mlps}.get(kind, self.n_heads + self.n_mlps)


class MainStep(Step):
    """A step of the main study; one that is added names what it reads.

    In those of mechcore ``names`` are those of the data in tables, by role; ``groups`` are
    out-of-domain subsets by the name of their group; ``n_resamples`` are of the bootstrap, ``seed``
    is that of all draws.

    Attributes:
        needs: other steps of the study whose results it reads: ``"means"``, ``"core"``,
            ``"accuracy"`` or the name of an added one.
        roles: data that it reads, of ``"train"``, ``"id"`` and ``"ood"``.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    roles: ClassVar[tuple[str, ...]] = ()

    def cost(self, job: Job) -> float:
        """See `Step.cost`."""
        return self.passes(job, Size.guessed(job))

    def passes(self, job: Job, size: Size) -> float:
        """About how many passes of one example forward through the model it costs."""
        del job, size
        return FEW


def inputs_of(work: Work) -> Inputs:
    """The job's model and data."""
    return bench_of(work.store, work.device).inputs(work.job)


def means_of(work: Work, inputs: Inputs, needed: str = "means") -> MeanActivations:
    """The means that the job needs."""
    return MeanActivations.load(work.needed(needed) / MEANS_FILE, inputs.model)


def core_of(work: Work) -> list[Component]:
    """The heads of the core that the job needs."""
    return parse_components(work.table("core", "core")["component"].tolist())


def subnetworks_in(folder: Path) -> list[Subnetwork]:
    """The subnetworks of a job, by seed."""
    found = [Subnetwork.load(path) for path in (folder / MASKS).glob("*.safetensors")]
    return sorted(found, key=lambda each: each.seed)
