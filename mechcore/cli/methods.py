"""The commands that fine-tune checkpoints, and compare methods on models of known truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.execution import BASE, TASK, TEST_DATA, TRAIN, show
from mechcore.cli.options import From, Given, grouped
from mechcore.errors import InputError
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.settings import setting
from mechcore.steps.config import ModelConfig
from mechcore.training.settings import TrainSettings

_MOST_ROWS = 20


@grouped
def train(
    given: Annotated[
        Given[StudyConfig],
        From(StudyConfig, (*BASE, *TRAIN, *TEST_DATA, *TASK), defaults={"data.max_train": None}),
    ],
    how: Annotated[Given[TrainSettings], From(TrainSettings)],
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu, cuda or mps; by default cuda if available."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints and history.")] = Path(
        "mechcore-training"
    ),
) -> None:
    """Fine-tune a checkpoint on your data, with intermediate checkpoints and a history.

    Rerun to resume after an interruption.
    """
    from mechcore.files import check_can_write

    if "checkpoint_every" in how.values:
        every = {"evaluate_every": how.values["checkpoint_every"]}
        how = replace(how, values={**every, **how.values})
    settings, config = how.settings, given.settings
    model, data = config.model, config.data
    _check_base(model)
    check_can_write(out)
    import torch

    from mechcore.steps.config import TEST_SPLITS
    from mechcore.steps.fitting import training_on
    from mechcore.steps.inputs import check_sources
    from mechcore.training import best_step
    from mechcore.training.loop import device_of

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    device_of(place)
    splits = [split for split in TEST_SPLITS if data.task or getattr(data, split) is not None]
    check_sources(model, data, ["train", *splits])
    begin = training_on(model, data, settings, place, splits)
    with progress.shown():
        history = begin(out)
    _show_history(history)
    if (best := best_step(out)) is not None:
        print(f"the best evaluation was at step {best}; its weights are in {out / 'final'}")
    print(f"checkpoints and history: {out}")


def _check_base(base: ModelConfig) -> None:
    if base.source is None:
        raise InputError(
            "--model is missing; name the checkpoint to fine-tune, a directory or a hub id such "
            "as google-bert/bert-base-cased"
        )
    if (base.prompt is None) != (base.answers is None):
        raise InputError(
            "--prompt and --answers belong together: the text for a language model and the words "
            "that complete it; give both, or neither to train a classifier"
        )


def _show_history(history: Any) -> None:
    from mechcore.data.examples import ALL

    overall = history[history["subset"] == ALL]
    if overall.empty:
        return
    table = overall.pivot(index="step", columns="dataset", values="accuracy").reset_index()
    names = {"id": "ID accuracy", "ood": "OOD accuracy"}
    show(table.rename(columns=names).tail(_MOST_ROWS))
    if len(table) > _MOST_ROWS:
        print(f"the last {_MOST_ROWS} of {len(table)} evaluations; all are in history.json")


@dataclass(frozen=True)
class BenchOptions:
    """What to compare."""

    cases: tuple[str, ...] = setting(
        ("planted", "trained"), "Cases; planted or trained: all of that type."
    )
    methods: tuple[str, ...] = setting((), "Methods that rank components; all by default.")
    interactions: tuple[str, ...] = setting((), "Predictors of interactions; all by default.")
    seeds: tuple[int, ...] = setting((0,), "Repetitions.")
    names: bool = setting(False, "List all cases and exit.", "--list")
    out: Path = setting(Path("mechcore-bench"), "Folder for tables and figures.")


@grouped
def bench(
    resources: Annotated[Given[Resources], From(Resources, ("device",))], how: BenchOptions
) -> None:
    """How well methods recover the known truth of planted and trained models.

    Rerun to resume.
    """
    from mechcore.bench.cases import case_names
    from mechcore.bench.methods import PREDICTORS, RANKERS
    from mechcore.bench.recovery import WITH_PAIRS, WITHOUT_TRUTH, over_cases
    from mechcore.report.blocks import Drawing, Gallery
    from mechcore.report.subnetwork_figures import recovery
    from mechcore.steps.benchmark import run_benchmark
    from mechcore.tables import write_tables

    cases, device = case_names(how.cases), resources.settings.place
    if how.names:
        print("\n".join(cases))
        return
    every = [name for name in RANKERS if name not in WITHOUT_TRUTH]
    ranked, paired = how.methods or (*every, WITH_PAIRS), how.interactions or tuple(PREDICTORS)
    if matching := [name for name in ranked if name in WITHOUT_TRUTH]:
        raise InputError(
            f"--methods: {matching[0]} copies the sizes of another method's masks; leave it out"
        )
    with progress.shown():
        nodes, pairs = run_benchmark(how.out, cases, ranked, paired, how.seeds, device)
    tables, gallery = {"nodes": nodes, "pairs": pairs}, Gallery(how.out)
    for name, columns in (("nodes", ["auroc", "cmd"]), ("pairs", ["auroc", "signs"])):
        if (table := tables[name]).empty:
            continue
        means = tables[f"{name}_by_method"] = over_cases(table, columns)
        gallery.add(Drawing(recovery(table, means, columns), name, "", ""))
        show(means)
    write_tables(how.out / "tables", tables)
    print(f"tables and figures: {how.out}")
