"""Estimates: passes counted by hand, and a measurement that leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import CLASSES, N_HEADS, N_LAYERS, Cases
from study.sources import data_config

import mechcore.steps.estimate as module
from mechcore.errors import MechcoreWarning
from mechcore.pruning import PruneSettings
from mechcore.steps.analyses import Answers
from mechcore.steps.analyses_config import AblationConfig, Analyses, HeadsConfig, SearchConfig
from mechcore.steps.base import MainStep, Size
from mechcore.steps.bench import MODEL, Workbench, bench_of
from mechcore.steps.config import ModelConfig, StudyConfig
from mechcore.steps.estimate import estimate
from mechcore.steps.plan import make_plan
from mechcore.study.run import prepare
from mechcore.study.step import Job
from mechcore.study.store import Store
from mechcore.training import TrainSettings

SIZE = Size({"train": 100, "id": 30, "ood": 50}, n_heads=40, n_mlps=5)


@pytest.fixture
def config(tmp_path: Path, cases: Cases) -> StudyConfig:
    return StudyConfig(
        model=ModelConfig(source=str(cases.path("bert")), class_names=CLASSES),
        data=data_config(tmp_path / "data"),
        seeds=(1, 2, 3),
        sparsities=(0.5,),
        seeds_per_job=2,
        prune=PruneSettings(steps=10, steps_per_percent=2, batch_size=4, tolerance=1),
        analyses=Analyses(
            heads=HeadsConfig(20), ablation=AblationConfig(max_joint=4, max_non_core=6)
        ),
    )


def passes(job: Job, size: Size | None) -> float:
    """Passes that a job costs; without a size as they are guessed before files are read."""
    assert isinstance(job.step, MainStep)
    return job.step.cost(job) if size is None else job.step.passes(job, size)


def counted(config: StudyConfig, size: Size | None) -> dict[str, list[float]]:
    """Passes of the jobs of each kind, in order; answers of masks apart."""
    found: dict[str, list[float]] = {}
    for job in make_plan(config).jobs:
        kind = job.step.kind
        if isinstance(job.step, Answers):
            kind = f"{'masks' if job.needs else 'full'} {job.step.role}"
        found.setdefault(kind, []).append(passes(job, size))
    return found


def test_passes_are_those_counted_by_hand(config: StudyConfig) -> None:
    assert counted(config, SIZE) == {
        "describe": [20],
        "means": [100],
        # Forward and back is 3 passes; 10 + 2 * 50 steps of 4 examples, for 2 masks and for 1.
        "prune": [3 * 110 * 4 * 2, 3 * 110 * 4],
        "masks": [20, 20],
        "full id": [30],
        "full ood": [50],
        "masks id": [60, 30],
        "masks ood": [100, 50],
        "accuracy": [20],
        "smallest": [20],
        "core": [20],
        "heads": [20],  # of 30 in the data
        "pictures": [20],
        "sweep": [0.5 * 45 * 80],
        "drops": [20],
        "roles": [20],
        "flips": [3 * 40],  # at most 3 texts for each head
        # 6 pairs of 4 and 99 controls of the core, at half a pass each; the sweep has the rest.
        "ablate": [0.5 * (6 + 99) * 80],
        # Of 45 components and 8 core heads: the full model and the answers, 4 passes; what is
        # blind to the core, and 10 readers by 8 heads, at three tenths of a pass each. Out of
        # domain 20 controls beside the 10 readers.
        "paths": [80 * (4 + 0.3 * (45 + 80)) + 50 * 0.3 * (20 * 10)],
    }


def test_without_a_sweep_the_core_is_ablated_alone_too(config: StudyConfig) -> None:
    changed = replace(config, analyses=replace(config.analyses, sweep=None))
    # A fifth of 40 heads in the core, 6 pairs of 4, 6 others and 99 controls of the core.
    found = counted(changed, SIZE)
    assert found["ablate"] == [0.5 * (8 + 6 + 6 + 99) * 80]
    few = AblationConfig(max_joint=4, max_non_core=6, controls=7, control_examples=40)
    fewer = replace(changed, analyses=replace(changed.analyses, ablation=few))
    assert counted(fewer, SIZE)["ablate"] == [0.5 * ((8 + 6 + 6) * 80 + 7 * (30 + 40))]
    assert found["paths"] == [80 * (4 + 0.3 * (90 + 80))]  # no roles, so no controls


@pytest.mark.parametrize(("sweep", "sets"), [("heads", 40), ("mlps", 5), ("all", 45)])
def test_sweeps_are_of_the_components_chosen(config: StudyConfig, sweep: Any, sets: int) -> None:
    changed = replace(config, analyses=replace(config.analyses, sweep=sweep))
    assert counted(changed, SIZE)["sweep"] == [0.5 * sets * 80]


@pytest.mark.parametrize(
    ("by", "passes"),
    [
        ("screening", 3 * 46),  # forward and back, of the full model and without each of 45
        ("exact", 0.5 * (45 * 44 / 2 + 45)),
    ],
)
def test_a_search_costs_what_its_screening_does(
    config: StudyConfig, by: str, passes: float
) -> None:
    search = SearchConfig(screening_by=by, n_pairs=8)
    changed = replace(config, analyses=replace(config.analyses, search=search))
    # Pairs and triples on the half of 50 examples out of domain that screening sees, too; ten of
    # each with members of theirs on the other half.
    reported = 0.5 * 20 * 2 * 25
    assert counted(changed, SIZE)["search"] == [0.5 * 8 * 2 * 25 + passes * 25 + reported]
    raced = replace(search, guarantee=0.05, largest=3)
    changed = replace(config, analyses=replace(config.analyses, search=raced))
    assert counted(changed, SIZE)["search"] == [0.4 * 0.5 * 8 * 2 * 25 + passes * 25 + reported]
    raced = replace(search, all_pairs=True)
    changed = replace(config, analyses=replace(config.analyses, search=raced))
    pairs = 0.3 * (45 * 46 / 2) + 0.5 * 8
    assert counted(changed, SIZE)["search"] == [pytest.approx(0.4 * pairs * 25 + reported)]


def test_without_the_data_limits_are_what_is_counted(config: StudyConfig) -> None:
    config = replace(config, data=replace(config.data, max_train=70, max_id=9, max_ood=None))
    found = counted(config, None)
    assert found["means"] == [70]
    assert found["full id"] == [9]
    assert found["full ood"] == [2000]
    assert found["masks id"] == [18, 9]
    assert found["heads"] == [9]
    assert found["sweep"] == [0.5 * (144 + 12) * 2009]


def test_every_job_costs_something(config: StudyConfig) -> None:
    assert all(cost > 0 for costs in counted(config, None).values() for cost in costs)


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
def test_an_estimate_measures_and_leaves_nothing(config: StudyConfig, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    prepared = prepare(config, tmp_path / "out")
    jobs = prepared.jobs
    bench = bench_of(prepared.store, "cpu")
    table = estimate(prepared.pending, jobs, bench)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert table["name"].tolist() == [job.name for job in jobs]
    assert table["kind"].tolist() == [job.step.kind for job in jobs]
    assert (table["seconds"] > 0).all()
    with_model = [MODEL in job.inputs for job in jobs]
    assert ((table["memory"] > 0) == with_model).all()
    assert len(bench.loads) == 1

    # Seconds are passes times the length of texts and a rate, or in training times another rate.
    size = Size.of(bench.inputs(next(job for job in jobs if job.step.kind == "describe")))
    assert size == Size({"train": 12, "id": 9, "ood": 14}, N_LAYERS * N_HEADS, N_LAYERS)
    data = bench.inputs(next(job for job in jobs if job.step.kind == "describe")).data
    lengths = {role: sum(map(len, each.input_ids)) for role, each in data.items()}

    def length(job: Job) -> float:
        roles = [role for role in lengths if role in job.inputs]
        n = sum(size.examples[role] for role in roles)
        return 1 if job.step.kind == "prune" else sum(lengths[role] for role in roles) / n

    costs = [passes(job, size) * length(job) if MODEL in job.inputs else 1 for job in jobs]
    for training in (True, False):
        rates = [
            time / cost
            for job, cost, time in zip(jobs, costs, table["seconds"], strict=True)
            if MODEL in job.inputs and (job.step.kind == "prune") is training
        ]
        assert rates == pytest.approx([rates[0]] * len(rates))


TRAINING = TrainSettings(
    steps=25, batch_size=4, accumulate=2, evaluate_every=10, checkpoint_every=10
)


def test_passes_of_a_training_are_those_counted_by_hand(config: StudyConfig) -> None:
    found = counted(replace(config, training=TRAINING), SIZE)
    # Forward and back for 25 steps of 8 examples; evaluations after 10, 20 and 25 steps.
    assert found["train"] == [3 * 25 * 8 + 3 * (30 + 50)]


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
def test_a_training_is_measured_by_steps_of_its_own(
    config: StudyConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prepared = prepare(replace(config, training=TRAINING), tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    table = estimate(prepared.pending, prepared.jobs, bench_of(prepared.store, "cpu"))
    assert sorted(tmp_path.rglob("*")) == before
    assert "step" not in capfd.readouterr().err
    kinds = table["kind"].tolist()
    size = Size({"train": 12, "id": 9, "ood": 14}, N_LAYERS * N_HEADS, N_LAYERS)
    costs = [passes(job, size) for job in prepared.pending]
    rates = dict(zip(kinds, table["seconds"] / costs, strict=True))
    assert rates["train"] > 0
    assert len({rates["train"], rates["prune"], rates["means"]}) == 3
    memory = dict(zip(kinds, table["memory"], strict=True))
    assert memory["train"] >= memory["prune"] >= memory["means"] > 0


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
def test_what_is_left_can_be_estimated_without_pruning(config: StudyConfig, tmp_path: Path) -> None:
    jobs = make_plan(config).jobs
    wanted = [job for job in jobs if job.step.kind in ("sweep", "core")]
    bench = Workbench(Store(tmp_path / "store"))
    table = estimate(wanted, jobs, bench)
    assert sorted(table["kind"]) == ["core", "sweep"]
    assert table.set_index("kind").loc["core"].tolist()[1:] == [1.0, 0.0]
    alone = [job for job in wanted if job.step.kind == "sweep"]
    assert estimate(alone, alone, bench)["seconds"].item() > 0
    assert list(estimate([], [], bench).columns) == ["kind", "name", "seconds", "memory"]


def test_estimates_warn_as_a_run_would(config: StudyConfig, tmp_path: Path) -> None:
    with pytest.warns(MechcoreWarning, match="9 of 13 drawn"):
        prepare(config, tmp_path / "out")


def test_memory_is_measured_on_batches_of_the_longest_texts(
    config: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few random steps rarely meet them, and a batch of them takes the most."""
    for role in ("train", "id", "ood"):
        path = Path(getattr(config.data, role))
        text = path.read_text().replace("the dog ran,", "the dog ran the dog ran the dog ran,", 1)
        path.write_text(text)
    met: dict[str, set[tuple[int, ...]]] = {"forward": set(), "pruning": set(), "training": set()}

    def spy(name: str, what: str, rows: Any) -> None:
        real = getattr(module, name)

        def run(*arguments: Any, **options: Any) -> Any:
            met[what].add(rows(*arguments))
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, run)

    def lengths(model: Any, data: Any, *_: Any) -> tuple[int, ...]:
        del model
        return tuple(map(len, data.input_ids))

    spy("evaluate", "forward", lengths)
    spy("prune", "pruning", lengths)
    fit = module.Fitting.run

    def trained(fitting: Any, *arguments: Any, **options: Any) -> Any:
        met["training"].add(tuple(map(len, fitting.objective.encode(fitting.examples).input_ids)))
        return fit(fitting, *arguments, **options)

    monkeypatch.setattr(module.Fitting, "run", trained)
    config = replace(config, data=replace(config.data, max_id=None), batch_size=7)
    prepared = prepare(replace(config, training=TRAINING), tmp_path / "out")
    module.estimate(prepared.pending, prepared.jobs, bench_of(prepared.store, "cpu"))
    most = 3 + 9 + 3  # the words, and three special tokens
    assert (most,) * 7 in met["forward"]
    assert (most,) * 4 in met["pruning"]
    assert (most,) * 8 in met["training"]
