"""A whole study: a checkpoint and its data in, tables, figures and a report out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechcore import progress
from mechcore.errors import MechcoreError
from mechcore.report import build_report
from mechcore.study.bench import bench_of
from mechcore.study.config import StudyConfig
from mechcore.study.config_file import located
from mechcore.study.estimate import masks_of, passes
from mechcore.study.executors import Executor, Failure, in_process
from mechcore.study.fitting import fitting_of
from mechcore.study.inputs import check_names
from mechcore.study.plan import Plan, make_plan
from mechcore.study.results import STORE, begin, check_out, check_parts, write_results
from mechcore.study.store import Store
from mechcore.study.units import Unit


class StudyError(MechcoreError):
    """Some units failed; the others are in the store.

    Attributes:
        failures: what failed, and why.
    """

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = list(failures)
        causes = [each for each in failures if each.because_of is None]
        waiting = len(failures) - len(causes)
        more = f"; {waiting} that need them were not begun" if waiting else ""
        reasons = ". ".join(f"{each.unit.name}: {each.message}" for each in causes)
        super().__init__(
            f"study: {len(causes)} units failed{more}. {reasons}. What was finished is kept; after "
            "a change of settings only what depends on them is done again"
        )


@dataclass(frozen=True)
class Prepared:
    """A study that was checked, and what of it is left to do."""

    plan: Plan
    store: Store
    pending: list[Unit]


def prepare(config: StudyConfig, out: str | Path, store: str | Path | None = None) -> Prepared:
    """Check everything and work out what is left to do; nothing is written.

    Args:
        config: the study.
        out: folder for the results.
        store: folder of the run store; None is ``store`` in ``out``.

    Raises:
        InputError: the configuration, a file or a folder cannot be used.
    """
    out = Path(out)
    check_out(out)
    kept = Store(out / STORE if store is None else store)
    plan = make_plan(located(config, Path.cwd()), kept.hash_file)
    check_parts(out, plan)
    pending = [unit for unit in plan.units.values() if not kept.has(unit.key)]
    bench = bench_of(kept, config.resources.place)
    for part in plan.parts:
        check_names(part.config.model, part.config.data)
        training, described = part.units.get("training"), part.units["describe"]
        if training is not None and training in pending:
            fitting_of(training, config.resources.place)
        elif any(unit.recipe["model"] == described.recipe["model"] for unit in pending):
            bench.inputs(described)
    return Prepared(plan, kept, pending)


def run(
    config: StudyConfig,
    out: str | Path,
    *,
    store: str | Path | None = None,
    executor: Executor = in_process,
) -> list[Path]:
    """Do what is left of a study, and write its results and reports.

    Everything is checked before anything is written. Each unit of work is kept in the store, so
    that running again does only what is missing: after an interruption the rest, from the step of
    pruning last saved; after a change of settings, model, data or versions what depends on it.

    Args:
        config: the study.
        out: folder for the results; of several models each gets a folder in it.
        store: folder of the run store, which studies can share; None is ``store`` in ``out``.
        executor: `in_process`, or what `mechcore.study.ray_executor.on_ray` returns.

    Returns:
        Path of the report of each model.

    Raises:
        InputError: the configuration, a file or a folder cannot be used.
        StudyError: units failed; all that do not need them were done.
        StoreError: the disk is full.
    """
    out = Path(out)
    prepared = prepare(config, out, store)
    plan, kept = prepared.plan, prepared.store
    kept.create()
    kept.tidy()
    place = kept.remember(out, plan.units)
    with kept.lock(place):
        begin(out, plan.config, kept)
    # Again, as before it was remembered they could be cleaned away.
    pending = [unit for unit in plan.units.values() if not kept.has(unit.key)]
    done = len(plan.units) - len(pending)
    if done:
        progress.say(f"{done} of {len(plan.units)} units of work were done before")
    failures = executor(pending, kept, config.resources, _costs(plan, pending)) if pending else []
    if failures:
        raise StudyError(failures)
    with kept.lock(place):
        return [build_report(folder) for folder in write_results(plan, kept, out)]


def _costs(plan: Plan, units: Sequence[Unit]) -> dict[str, float]:
    """Passes through the model of each unit, by key."""
    masks = masks_of(plan.units)
    return {unit.key: passes(unit, None, masks) for unit in units}
