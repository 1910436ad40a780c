"""A whole study of extractive structures: experiments, verdicts, one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.files import read_csv, write_json
from mechcore.models.loading import load_tokenizer
from mechcore.models.vocabulary import check_vocabulary
from mechcore.papers.extractive.data import ordering_of, tasks_of
from mechcore.papers.extractive.encoded import encode_ordering, encode_task
from mechcore.papers.extractive.plan import Plan
from mechcore.papers.extractive.report.tables import KIND
from mechcore.papers.extractive.settings import BY_TASK, ExtractiveSettings
from mechcore.papers.extractive.verdicts import verdicts
from mechcore.papers.extractive.work import CHECKPOINT, TABLES, loaded, perform
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.study import paper
from mechcore.study.pool import cores_each, work_through

_WHAT = "extractive study"


def run(
    settings: ExtractiveSettings,
    out: str | Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    store: str | Path | None = None,
    device: str = "cpu",
) -> Path:
    """Do the experiments, judge the claims, and write tables, figures and the report.

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
        device: where models are run and fine-tuned; another one can change the last bits of
            results.

    Returns:
        The report.

    Raises:
        InputError: the folder holds something else, or the base cannot be used.
        MechcoreError: a unit failed; what was finished is kept.
    """
    out = Path(out)
    paper.check_out(out, KIND, "a study of extractive structures")
    cores = cores_each(_WHAT, workers, threads)
    check_base(settings, device)
    plan = Plan(settings, paper.opened_store(out, store))
    write_json(out / CONFIG_FILE, paper.beginning(KIND, settings))  # whose it is, if interrupted
    arguments = (settings, plan.store.path, cores, device)
    work_through(plan, out, perform, arguments, workers=workers, what=_WHAT)
    return write_results(plan, out)


def check_base(settings: ExtractiveSettings, device: str = "cpu") -> None:
    """Load the base and read all facts with it, before hours of training; nothing for a tiny one.

    Raises:
        InputError: it cannot be loaded, has no such cut, or its tokenizer does not tell options
            apart.
    """
    if settings.base is None:
        return
    model = loaded(settings, settings.base, device)
    n_layers = model.cfg.n_layers
    if settings.cuts is not None and max(settings.cuts) >= n_layers:
        raise InputError(
            f"extractive study: cuts is {list(settings.cuts)}; the base has {n_layers} layers: "
            f"expected 1 to {n_layers - 1}"
        )
    tokenizer = load_tokenizer(settings.base)
    check_vocabulary(settings.base, tokenizer, model)
    for seed in settings.seeds:
        if set(settings.experiments) & set(BY_TASK):
            for task in tasks_of(settings, seed):
                encode_task(task, tokenizer)
        if set(settings.experiments) - set(BY_TASK):
            encode_ordering(ordering_of(settings, seed), tokenizer)


def write_results(plan: Plan, out: Path) -> Path:
    """Write tables, ``config.json``, figures and the report of a finished study."""
    return paper.write_results(out, tables_of(plan), _facts(plan))


def tables_of(plan: Plan) -> dict[str, pd.DataFrame]:
    """All tables of a finished study, by name."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for unit in plan.wanted():
        for path in sorted((plan.store.whole(unit.key) / TABLES).glob("*.csv")):
            parts.setdefault(path.stem, []).append(read_csv(path))
    tables = {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}
    return tables | {"extractive_verdicts": verdicts(tables)}


def _facts(plan: Plan) -> dict[str, Any]:
    settings = plan.settings
    source, named = settings.base, settings.base
    if source is None:
        unit = plan.units.base(settings.seeds[0])
        source = str(plan.store.whole(unit.key) / CHECKPOINT)
        named = "tiny decoders, one for each seed, pretrained on a made-up world"
    return {
        **paper.beginning(KIND, settings),
        **paper.ending(plan),
        "model": paper.model_facts(loaded(settings, source), str(named)),
    }
