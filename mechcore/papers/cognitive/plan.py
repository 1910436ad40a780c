"""What of a study is to be done next; it grows with the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mechcore.papers.cognitive.arms import Run, read_result
from mechcore.papers.cognitive.compare import best_rate, compared, curve_table
from mechcore.papers.cognitive.settings import Arm, CognitiveSettings
from mechcore.papers.cognitive.work import ANALYSES, Unit, Units
from mechcore.study.store import Store

_BASE = Run("base")


class Plan:
    """The units of a study, as far as the results so far say which they are.

    The grid of learning rates is tried with the first seed; the other seeds train at the best
    rate; which models are analysed depends on their accuracies.

    Args:
        settings: the study.
        store: where results are.

    Raises:
        InputError: there is no such base.
    """

    def __init__(self, settings: CognitiveSettings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.units = Units(settings)
        self._results: dict[Run, Mapping[str, Any]] = {}

    @property
    def size(self) -> int:
        """Number of units in the end."""
        settings = self.settings
        trainings = sum(
            len(settings.training(arm).learning_rates) + len(settings.seeds) - 1
            for arm in settings.trained
        )
        made = len(settings.sizes) * trainings + ("base" in settings.arms)
        return made + len(ANALYSES) * settings.n_compared

    def wanted(self) -> list[Unit]:
        """All units known by now, done or not, the longest first."""
        units = [self.units.model(run) for run in self._runs()]
        return units + [self.units.analysis(kind, r) for r in self._compared() for kind in ANALYSES]

    def models(self) -> list[Mapping[str, Any]]:
        """Results of all training runs, in the order of `_runs`."""
        return [result for run in self._runs() if (result := self.result(run)) is not None]

    def chosen(self) -> list[Run]:
        """The base, and the runs at the best rates, as far as they are known."""
        found = [_BASE] if "base" in self.settings.arms else []
        for n in reversed(self.settings.sizes):
            for arm in self.settings.trained:
                rate = self._rate(arm, n)
                if rate is not None:
                    found += [Run(arm, n, seed, rate) for seed in self.settings.seeds]
        return found

    def curve(self) -> pd.DataFrame:
        """The learning curve so far."""
        found = map(self.result, self.chosen())
        return curve_table([each for each in found if each is not None])

    def result(self, run: Run) -> Mapping[str, Any] | None:
        """What is known of a model; None if it is not made."""
        if run not in self._results:
            key = self.units.model(run).key
            if not self.store.has(key):
                return None
            self._results[run] = read_result(self.store.whole(key))
        return self._results[run]

    def _runs(self) -> list[Run]:
        grid = [
            run
            for n in reversed(self.settings.sizes)
            for arm in self.settings.trained
            for run in self._grid(arm, n)
        ]
        return list(dict.fromkeys([*grid, *self.chosen()]))

    def _grid(self, arm: Arm, n: int) -> list[Run]:
        first = self.settings.seeds[0]
        rates = self.settings.training(arm).learning_rates
        return [Run(arm, n, first, rate) for rate in rates]

    def _rate(self, arm: Arm, n: int) -> float | None:
        results = [self.result(run) for run in self._grid(arm, n)]
        known = [each for each in results if each is not None]
        return best_rate(known) if len(known) == len(results) else None

    def _compared(self) -> list[Run]:
        chosen = self.chosen()
        done = [run for run in chosen if self.result(run) is not None]
        if len(done) < self.settings.n_chosen:
            return [run for run in done if run == _BASE]
        return [run_of(row) for row in compared(self.curve()).to_dict("records")]


def run_of(row: Mapping[Any, Any]) -> Run:
    """The run of a row of a table."""
    if row["n"] == 0:
        return _BASE
    return Run(row["arm"], int(row["n"]), int(row["seed"]), float(row["learning_rate"]))
