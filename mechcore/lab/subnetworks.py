"""Subnetworks of a lab's model, and the smallest of them that loses little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from mechcore.analyses.smallest import Smallest as Within
from mechcore.errors import InputError
from mechcore.main_study.plan import Part
from mechcore.models.export import export_checkpoint
from mechcore.pruning import Subnetwork, draws_of
from mechcore.settings import with_values
from mechcore.showing import Shown
from mechcore.steps.inputs import resolved
from mechcore.steps.tables import SUBNETWORKS
from mechcore.study.folder import TABLES_FOLDER
from mechcore.subnetworks.core import HeuristicCore, heuristic_core
from mechcore.subnetworks.smallest import SMALLEST, explain_smallest
from mechcore.wording import count

if TYPE_CHECKING:
    from mechcore.lab.questions import Lab


@dataclass(frozen=True, eq=False, repr=False)
class Pruned(Shown):
    """Subnetworks of a lab's model, by sparsity, then seed."""

    lab: Lab
    part: Part
    subnetworks: list[Subnetwork]

    def _summary(self) -> str:
        return f"{count(len(self), 'subnetwork')}: {', '.join(each.name for each in self)}"

    def __len__(self) -> int:
        return len(self.subnetworks)

    def __iter__(self) -> Iterator[Subnetwork]:
        return iter(self.subnetworks)

    def __getitem__(self, index: int) -> Subnetwork:
        return self.subnetworks[index]

    @property
    def core(self) -> HeuristicCore:
        """The heads that all of them keep."""
        return heuristic_core([each.mask for each in self], draws_of(self.subnetworks))

    def table(self) -> pd.DataFrame:
        """What each of them keeps and how well it does, a row each."""
        (folder,) = self.lab.done(self.part.jobs["accuracy"])
        return SUBNETWORKS.read(folder / TABLES_FOLDER / f"{SUBNETWORKS.name}.csv")

    def smallest(
        self, loss: float = 0.01, by: Literal["accuracy", "information"] = "accuracy"
    ) -> Smallest:
        """The sparsest of them within a loss, see `mechcore.subnetworks.smallest`.

        Args:
            loss: share that it may lose in domain and out of domain, the upper ends of the
                intervals included.
            by: of what.

        Raises:
            InputError: none is within the loss.
        """
        config = self.part.config
        part = self.lab.plan(
            sparsities=config.sparsities,
            seeds=config.seeds,
            analyses=with_values(config.analyses, {"smallest": Within(loss)}),
        )
        (folder,) = self.lab.done(part.jobs["smallest"])
        table = SMALLEST.read(folder / TABLES_FOLDER / f"{SMALLEST.name}.csv")
        found = table[table["measure"] == by]
        if found.empty:
            raise InputError(f"smallest: by is {by!r}; expected {' or '.join(table['measure'])}")
        if not found["within"].item():
            raise InputError(
                f"{explain_smallest(dict(found.iloc[0]))}; allow a larger loss, prune to lower "
                "sparsities, or have more examples"
            )
        (chosen,) = (each for each in self if each.name == found["subnetwork"].item())
        return Smallest(self.lab, chosen, found)


@dataclass(frozen=True, eq=False, repr=False)
class Smallest(Shown):
    """The smallest subnetwork within a loss, and its losses with intervals, a row of `SMALLEST`."""

    lab: Lab
    subnetwork: Subnetwork
    losses: pd.DataFrame

    def _summary(self) -> str:
        row, mask = self.losses.iloc[0], self.subnetwork.mask
        kept = f"{len(mask.kept)}/{len(mask.shape.components)} kept"
        losses = {row["measure"]: "change"}
        losses.setdefault("accuracy", "accuracy_change")
        lost = (
            f"change of {measure}: {_points(row, f'id_{name}')} in domain, "
            f"{_points(row, f'ood_{name}')} out of domain"
            for measure, name in losses.items()
        )
        return f"{self.subnetwork.name}, {kept}, {'; '.join(lost)}"

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


def _points(row: pd.Series, name: str) -> str:
    low = 100 * row.get(f"{name}_low", float("nan"))
    worst = f" (at worst {low:+.1f})" if np.isfinite(low) else ""
    return f"{100 * row[name]:+.1f} points{worst}"
