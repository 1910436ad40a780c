"""What of a study is to be done next; it grows with the results."""

from __future__ import annotations

from dataclasses import replace

from mechcore.papers.extractive.settings import BY_TASK, ExtractiveSettings, TuneSettings
from mechcore.papers.extractive.work import Unit, Units, chosen_tuning
from mechcore.study.store import Store

_N_TASKS = 2


class Plan:
    """The units of a study, as far as the results so far say which they are.

    Experiments come after their base. Scores and freezing come after OCR, which chooses how they
    are trained.

    Args:
        settings: the study.
        store: where results are.

    Raises:
        InputError: there is no such base.
    """

    def __init__(self, settings: ExtractiveSettings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.units = Units(settings)

    @property
    def size(self) -> int:
        """Number of units in the end."""
        settings = self.settings
        per_seed = int(settings.base is None)
        for kind in settings.experiments:
            per_seed += _N_TASKS if kind in BY_TASK else 1
        if "ordering" in settings.experiments:
            per_seed += len(settings.orderings(0)) - 1
        return per_seed * len(settings.seeds)

    def wanted(self) -> list[Unit]:
        """All units known by now, done or ready to be done, bases and long trainings first."""
        found = [] if self.settings.base else [self.units.base(s) for s in self.settings.seeds]
        ready = [seed for seed in self.settings.seeds if self._has_base(seed)]
        for kind in _LONGEST_FIRST:
            if kind in self.settings.experiments:
                found += [unit for seed in ready for unit in self._units(kind, seed)]
        return found

    def _has_base(self, seed: int) -> bool:
        return self.settings.base is not None or self.store.has(self.units.base(seed).key)

    def _units(self, kind: str, seed: int) -> list[Unit]:
        settings = self.settings
        if kind == "ordering":
            trained = settings.orderings(seed)
            return [self.units.experiment(kind, seed, (each,)) for each in trained]
        if kind in ("grafting", "localization"):
            tuning = replace(settings.grafting, seed=seed)
            return [self.units.experiment(kind, seed, (tuning,))]
        ocr = [
            self.units.experiment("ocr", seed, tuple(settings.grid(seed)), task)
            for task in range(_N_TASKS)
        ]
        if kind == "ocr":
            return ocr
        chosen = [self._chosen(unit) for unit in ocr if self.store.has(unit.key)]
        return [self.units.experiment(kind, seed, (each,), task) for task, each in chosen]

    def _chosen(self, ocr: Unit) -> tuple[int, TuneSettings]:
        assert ocr.task is not None
        return ocr.task, chosen_tuning(self.store.whole(ocr.key))


_LONGEST_FIRST = ("ocr", "freezing", "ordering", "localization", "grafting", "scores")
