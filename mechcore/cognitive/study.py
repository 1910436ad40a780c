"""A whole study of the cognitive task: arms, analyses, verdicts, one folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from mechcore import progress
from mechcore.cognitive.arms import Run, base_source, held_out_trials, make_model
from mechcore.cognitive.compare import GAP, compared, samples_table, training_table
from mechcore.cognitive.plan import Plan, run_of, undone
from mechcore.cognitive.settings import CognitiveSettings
from mechcore.cognitive.verdicts import verdicts
from mechcore.cognitive.work import ANALYSES, TABLES, Unit, perform
from mechcore.components import ModelShape
from mechcore.errors import InputError, MechcoreError, MechcoreWarning, reason
from mechcore.files import check_can_write, read_csv, write_json
from mechcore.models import load_model
from mechcore.models.running import n_parameters
from mechcore.report import build_report
from mechcore.report.cognitive.tables import KIND
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER
from mechcore.study.config import plain
from mechcore.study.folder import versions, write_tables
from mechcore.study.results import STORE
from mechcore.study.store import Store
from mechcore.tasks.cognitive import ANSWERS, PROMPT, encode_trials
from mechcore.training import answering

Submit: TypeAlias = Callable[[Unit], "Future[list[str]]"]


def run(
    settings: CognitiveSettings,
    out: str | Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    store: str | Path | None = None,
    device: str = "cpu",
) -> Path:
    """Make the arms, analyse them, and write tables, figures and the report.

    Called again it goes on: what is done is in the store, and only what depends on a change of
    settings is done again.

    Args:
        settings: the study.
        out: folder for the results.
        workers: units that are done at the same time, each in a process of its own; 1 for this
            process. A script that asks for more needs the ``if __name__ == "__main__"`` that
            Python's multiprocessing asks for.
        threads: cores for each unit; None shares those there are. Another number can change the
            last bits of results.
        store: folder of the run store; None is ``store`` in ``out``.
        device: where models are trained and run; another one can change the last bits of results.

    Returns:
        The report.

    Raises:
        InputError: the folder holds something else, or the base cannot be used.
        MechcoreError: a unit failed; what was finished is kept.
    """
    out = Path(out)
    check_out(out)
    if workers < 1 or (threads is not None and threads < 1):
        raise InputError(
            f"cognitive study: {workers} workers of {threads} threads; expected 1 or more of each"
        )
    check_base(settings, device)
    kept = Store(out / STORE if store is None else store)
    kept.create()
    kept.tidy()
    plan = Plan(settings, kept)
    write_json(out / CONFIG_FILE, _beginning(settings))  # whose folder it is, if interrupted
    each = threads or max(1, (os.cpu_count() or 1) // workers)
    _work_through(plan, out, workers, (settings, kept.path, each, device))
    return write_results(plan, out)


def check_out(out: Path) -> None:
    """See whether a study may put its results into ``out``; nothing is written.

    Raises:
        InputError: it cannot be written, or holds something else.
    """
    check_can_write(out)
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if there - {STORE} and not _is_own(out / CONFIG_FILE):
        raise InputError(
            f"{out}: the folder is not empty and is not that of a cognitive study; choose another "
            "--out"
        )


def check_base(settings: CognitiveSettings, device: str = "cpu") -> None:
    """Load the base and read trials with it, before hours of training.

    Raises:
        InputError: it cannot be loaded, for training or by TransformerLens, cannot read or answer
            the trials; or UMAP is asked for and not installed.
    """
    if settings.projection == "umap" and find_spec("umap") is None:
        raise InputError(
            "cognitive study: projection is 'umap', and umap-learn is not installed; install "
            "mechcore[umap], or use 'pca'"
        )
    load_model(base_source(settings))
    run = Run("fine_tuned", seed=settings.seeds[0])
    model, tokenizer = make_model(settings, run, device)
    objective = answering(model, tokenizer, PROMPT, ANSWERS)
    encode_trials(held_out_trials(settings, 8), tokenizer, max_length=objective.max_length)


def write_results(plan: Plan, out: Path) -> Path:
    """Write tables, ``config.json``, figures and the report of a finished study."""
    tables = tables_of(plan)
    stale = {path.stem for path in (out / TABLES_FOLDER).glob("*.csv")} - set(tables)
    for name in stale:
        (out / TABLES_FOLDER / f"{name}.csv").unlink()
    write_tables(out / TABLES_FOLDER, tables)
    write_json(out / CONFIG_FILE, _facts(plan))
    return build_report(out)


def tables_of(plan: Plan) -> dict[str, pd.DataFrame]:
    """All tables of a finished study, by name."""
    curve = plan.curve()
    models = compared(curve)
    tables = {
        "cognitive_training": training_table(plan.models(), plan.chosen()),
        "cognitive_curve": curve,
        "cognitive_samples": samples_table(curve, plan.settings.threshold),
        "cognitive_models": models,
    }
    parts: dict[str, list[pd.DataFrame]] = {}
    for row in models.to_dict("records"):
        for kind in ANALYSES:
            folder = plan.store.whole(plan.units.analysis(kind, run_of(row)).key) / TABLES
            for path in sorted(folder.glob("*.csv")):
                table = read_csv(path)
                table.insert(0, "arm", row["arm"])
                table.insert(1, "seed", row["seed"])
                parts.setdefault(path.stem, []).append(table)
    tables |= {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}
    return tables | {"cognitive_verdicts": verdicts(tables, threshold_gap=GAP)}


def _facts(plan: Plan) -> dict[str, Any]:
    settings = plan.settings
    seconds: dict[str, float] = {}
    for unit in plan.wanted():
        manifest = plan.store.manifest(unit.key)
        seconds[manifest.kind] = round(seconds.get(manifest.kind, 0.0) + manifest.seconds, 1)
    return {
        **_beginning(settings),
        "command": " ".join(["mechcore", *sys.argv[1:]]),
        "model": _model_facts(settings),
        "seconds": seconds,
        "units": {unit.name: unit.key for unit in plan.wanted()},
    }


def _beginning(settings: CognitiveSettings) -> dict[str, Any]:
    """What is known of a study before it is done."""
    return {
        "kind": KIND,
        "mechcore": version("mechcore"),
        "versions": versions(),
        "seeds": list(settings.seeds),
        "settings": plain(asdict(settings)),
    }


def _model_facts(settings: CognitiveSettings) -> dict[str, Any]:
    model = load_model(base_source(settings))
    return {
        "source": settings.base or "the tiny base that comes with mechcore",
        "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
        **asdict(ModelShape.of(model)),
        "d_model": model.cfg.d_model,
        "n_parameters": n_parameters(model),
    }


def _is_own(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


# -- work -----------------------------------------------------------------------------------------


def _work_through(plan: Plan, out: Path, workers: int, arguments: tuple[Any, ...]) -> None:
    """Do all units; each gets ``arguments`` after it."""
    running: dict[Future[list[str]], Unit] = {}
    told = _n_done(plan, out)
    new = plan.size - told
    try:
        with progress.work("cognitive task", new) as advance, _pool(workers, arguments) as do:
            while True:
                busy = {unit.key for unit in running.values()}
                free = [u for u in undone(plan.wanted(), plan.store) if u.key not in busy]
                for unit in free[: workers - len(running)]:
                    running[do(unit)] = unit
                if not running:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    _collect(running[future], future)
                    del running[future]
                done = _n_done(plan, out)
                advance(done - told)
                told = done
    except BrokenProcessPool as error:
        names = ", ".join(unit.name for unit in running.values())
        raise MechcoreError(
            f"cognitive study: a worker died during one of {names}: for want of memory, perhaps, "
            'or the study was started by a script without `if __name__ == "__main__"`. What was '
            "finished is kept: run the study again, with fewer workers"
        ) from error


def _n_done(plan: Plan, out: Path) -> int:
    """How many units are done; all that are known by now are noted as those of this study."""
    wanted = plan.wanted()
    plan.store.remember(out, [unit.key for unit in wanted])
    return len(wanted) - len(undone(wanted, plan.store))


def _collect(unit: Unit, future: Future[list[str]]) -> None:
    try:
        messages = future.result()
    except BrokenProcessPool:
        raise
    except MechcoreError as error:
        raise type(error)(f"{unit.name}: {error}") from error
    except (RuntimeError, MemoryError) as error:  # torch's want of memory among them
        raise MechcoreError(f"{unit.name}: {reason(error)}") from error
    for message in messages:
        warnings.warn(f"{unit.name}: {message}", MechcoreWarning, stacklevel=2)
    progress.say(f"done: {unit.name}")


@contextmanager
def _pool(workers: int, arguments: tuple[Any, ...]) -> Iterator[Submit]:
    if workers == 1:
        yield lambda unit: _here(unit, *arguments)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _leave_interrupts_to_the_parent) as pool:
        try:
            yield lambda unit: pool.submit(perform, unit, *arguments)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def _here(unit: Unit, *arguments: Any) -> Future[list[str]]:
    future: Future[list[str]] = Future()
    try:
        future.set_result(perform(unit, *arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
