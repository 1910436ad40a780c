"""What the verdicts on the cognitive task stand on: its tables, and models that learned it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechcore.papers.evidence import InconclusiveError, Seeds, Tables, percent, points

BASE, FINE_TUNED, SCRATCH = "base", "fine_tuned", "scratch"
MODEL = {BASE: "base model", FINE_TUNED: "fine-tuned model", SCRATCH: "model from scratch"}

IGNORING_CONTEXT = 0.75
"""Accuracy of following one modality always: a model has learned the task only above it."""

NEGLIGIBLE = 0.05
"""An accuracy that is surely no more than this above its floor reads nothing (a share)."""

_ROUNDING = 1e-9
"""Two shares this close are equal: 0.96 - 0.94 is more than 0.02 in floating point."""


@dataclass(frozen=True, eq=False)
class Evidence(Tables):
    """The tables of a study of the cognitive task; arms match up to ``threshold_gap`` (a share)."""

    threshold_gap: float

    def trained_seeds(self, *arms: str, matched: bool = False) -> Seeds:
        """Seeds in which all these arms have learned the task, and are matched if asked for."""
        every = self.seeds("cognitive_models", *({"arm": arm} for arm in arms))
        return every.keep(lambda seed: self._no_good(seed, arms, matched))

    def _no_good(self, seed: int, arms: Sequence[str], matched: bool) -> str | None:
        for arm in arms:
            try:
                model = self.row("cognitive_models", arm=arm, seed=seed)
            except InconclusiveError:
                return f"it has no {MODEL[arm]}"
            if not model["low"] > IGNORING_CONTEXT:
                return (
                    f"the {MODEL[arm]} has not learned the task, its accuracy is "
                    f"{percent(model['accuracy'])} and its interval begins at "
                    f"{percent(model['low'])}, not above the {percent(IGNORING_CONTEXT)} of "
                    "ignoring the context"
                )
            if matched and not model["gap"] <= self.threshold_gap + _ROUNDING:
                return (
                    f"the arms are not matched, their accuracies differ by {points(model['gap'])}, "
                    f"more than {points(self.threshold_gap)}"
                )
        return None
