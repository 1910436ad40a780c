"""Subnetworks of a lab's model, and the smallest of them that loses little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    ablation_table,
    information_table,
)
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation
from mechcore.models.export import export_checkpoint
from mechcore.pruning import Subnetwork
from mechcore.showing import Shown
from mechcore.steps.answers import load_answers
from mechcore.steps.base import ANSWERS_FILE
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import resolved
from mechcore.steps.plan import Part
from mechcore.study.step import Job
from mechcore.subnetworks.core import HeuristicCore, heuristic_core

if TYPE_CHECKING:
    from mechcore.lab.questions import Lab


_ENDS = ("drop", "drop_low", "drop_high", "p_adjusted")


def costs_of(ablations: Ablations, **options: Any) -> pd.DataFrame:
    """What each set costs in accuracy, margin, information and by a moved threshold."""
    place = ["set", "size", "data", "role", "subset", "n"]
    parts = [f"{part}_{end}" for part in ("information", "threshold") for end in _ENDS]
    information = information_table(ablations, **options)[[*place, *parts, "reason"]]
    return ablation_table(ablations, **options).merge(information, on=place)


@dataclass(frozen=True, eq=False, repr=False)
class Pruned(Shown):
    """Subnetworks of a lab's model.

    Attributes:
        lab: whose.
        part: the plan that they come from.
        subnetworks: by sparsity, then seed.
    """

    lab: Lab
    part: Part
    subnetworks: list[Subnetwork]

    def _summary(self) -> str:
        return f"{len(self)} subnetworks: {', '.join(each.name for each in self)}"

    def __len__(self) -> int:
        return len(self.subnetworks)

    def __iter__(self) -> Iterator[Subnetwork]:
        return iter(self.subnetworks)

    def __getitem__(self, index: int) -> Subnetwork:
        return self.subnetworks[index]

    @property
    def core(self) -> HeuristicCore:
        """The heads that all of them keep."""
        return heuristic_core([each.mask for each in self])

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What each of them loses, as in `Lab.ablate`; ``set`` is its name."""
        self.lab._done(self.part.jobs["accuracy"])
        needs = self.part.jobs["accuracy"].needs
        tables = []
        for role in reversed(TEST_ROLES):
            full = self._answers(needs[f"full {role}"])["full"]
            without: dict[str, Evaluation] = {}
            for what, job in needs.items():
                if what.startswith(f"answers {role} "):
                    without |= self._answers(job)
            chosen = {ComponentSet.of(s.mask, s.name): without[s.name] for s in self}
            name = self.lab.data[role].examples.name
            found = Ablations.of(full, chosen, name, role)
            tables.append(costs_of(found, **self.lab.statistics))
        return pd.concat(tables, ignore_index=True)

    def _answers(self, job: Job) -> dict[str, Evaluation]:
        return load_answers(self.lab.store.whole(job.key) / ANSWERS_FILE)

    def smallest(
        self, loss: float = 0.01, by: Literal["accuracy", "information"] = "accuracy"
    ) -> Smallest:
        """The subnetwork that keeps least among those within a loss, in domain and out of domain.

        It is chosen by the drops themselves and not by their intervals, which `Smallest.costs` has:
        of many candidates, the chosen one does a little better here than on new examples.

        Args:
            loss: share of accuracy, or of information, that it may lose, over all examples.
            by: which of the two.

        Raises:
            InputError: none is within the loss, or information cannot be measured on the data.
        """
        costs = self.costs[self.costs["subset"] == ALL]
        if (why := costs["reason"].max()) and by == "information":
            raise InputError(f"smallest: information cannot be measured: {why}; use by='accuracy'")
        worst = costs.groupby("set")[f"{by}_drop"].max()
        within = [each for each in self if worst.get(each.name, float("inf")) <= loss]
        if not within:
            raise InputError(
                f"smallest: none of {len(self)} subnetworks loses at most {loss:.1%} of {by} in "
                f"and out of domain; the best, {worst.idxmin()}, loses {worst.min():.1%}: allow "
                "more, or prune to lower sparsities"
            )
        best = min(within, key=lambda each: len(each.mask.kept))
        return Smallest(self.lab, best, costs[costs["set"] == best.name])


@dataclass(frozen=True, eq=False, repr=False)
class Smallest(Shown):
    """The smallest subnetwork within a loss.

    Attributes:
        lab: whose.
        subnetwork: what it keeps.
        costs: what it loses out of domain and in domain, with intervals, as in `Lab.ablate`.
    """

    lab: Lab
    subnetwork: Subnetwork
    costs: pd.DataFrame

    def _summary(self) -> str:
        mask = self.subnetwork.mask
        lost = ", ".join(f"{d:.1%} {r}" for r, d in zip(*self._drops(), strict=True))
        components = len(mask.shape.components)
        return f"{self.subnetwork.name}, {len(mask.kept)}/{components} kept; accuracy lost: {lost}"

    def _drops(self) -> tuple[list[str], list[float]]:
        return self.costs["role"].tolist(), self.costs["accuracy_drop"].tolist()

    def export(self, out: str | Path) -> Path:
        """Write it as an ordinary Hugging Face checkpoint, see `mechcore.export_checkpoint`."""
        model = resolved(self.lab.config.model)
        assert model.source is not None
        export_checkpoint(
            model.source,
            out,
            self.subnetwork.mask,
            self.lab.means,
            revision=model.revision,
            allow_pickle=model.allow_pickle,
        )
        return Path(out)
