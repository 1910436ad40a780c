"""A whole study of the cognitive task: arms, analyses, verdicts, one folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.errors import InputError
from mechcore.files import read_csv, write_json
from mechcore.models import load_model
from mechcore.papers.cognitive.arms import Run, base_source, held_out_trials, make_model
from mechcore.papers.cognitive.compare import GAP, compared, samples_table, training_table
from mechcore.papers.cognitive.plan import Plan, run_of
from mechcore.papers.cognitive.report.tables import KIND
from mechcore.papers.cognitive.settings import CognitiveSettings
from mechcore.papers.cognitive.trials import ANSWERS, PROMPT, encode_trials
from mechcore.papers.cognitive.verdicts import verdicts
from mechcore.papers.cognitive.work import ANALYSES, TABLES, perform
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.study import paper
from mechcore.study.pool import cores_each, work_through
from mechcore.training import answering

_WHAT = "cognitive study"


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
    cores = cores_each(_WHAT, workers, threads)
    check_base(settings, device)
    plan = Plan(settings, paper.opened_store(out, store))
    write_json(out / CONFIG_FILE, paper.beginning(KIND, settings))  # whose it is, if interrupted
    arguments = (settings, plan.store.path, cores, device)
    work_through(plan, out, perform, arguments, workers=workers, what=_WHAT)
    return write_results(plan, out)


def check_out(out: Path) -> None:
    """See whether a study may put its results into ``out``; nothing is written.

    Raises:
        InputError: it cannot be written, or holds something else.
    """
    paper.check_out(out, KIND, "a cognitive study")


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
    return paper.write_results(out, tables_of(plan), _facts(plan))


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
    source = settings.base or "the tiny base that comes with mechcore"
    return {
        **paper.beginning(KIND, settings),
        **paper.ending(plan),
        "model": paper.model_facts(load_model(base_source(settings)), source),
    }
