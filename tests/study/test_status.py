"""What of a study is done, and what could go: from settings, files and store as they are now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from study.sources import checkpoint_like, data_config

from mechcore.errors import InputError, MechcoreWarning
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import Plan, make_plan
from mechcore.steps.config import ModelConfig
from mechcore.study.kinds import DEFAULT
from mechcore.study.run import begin, check_out, job_table, status_table
from mechcore.study.step import Job
from mechcore.study.store import Store


class Study:
    """A study whose jobs are but written down, not done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.config = StudyConfig(
            model=ModelConfig(source=str(checkpoint_like(folder / "model"))),
            data=data_config(folder / "data"),
            seeds=(1, 2),
            target_sparsities=(0.5,),
            seeds_per_job=1,
            analyses=Analyses(heads=None, ablation=None, paths=None, dose=None, sweep=None),
        )
        self.store = Store(self.out / "store")
        self.store.create()
        self.plan = self.planned(self.config)

    def planned(self, config: StudyConfig) -> Plan:
        plan = make_plan(config)
        begin(self.out, DEFAULT, config, self.store)
        self.store.remember(self.out, plan.jobs)
        return plan

    def do(self, jobs: Iterable[Job], size: int = 2**19) -> None:
        for job in jobs:
            with (
                self.store.lock(job.key),
                self.store.making(job.key, job.step.kind, job.name, job.recipe) as folder,
            ):
                (folder / "result").write_bytes(bytes(size))

    def of(self, *kinds: str) -> list[Job]:
        return [job for job in self.plan.jobs if job.step.kind in kinds]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def test_states_of_jobs(study: Study) -> None:
    study.do(study.of("means", "describe"))
    first, second = study.of("prune")
    study.do([first])
    study.store.partial(second.key).mkdir(parents=True)
    table, store = job_table(study.out)
    assert store.path.resolve() == study.store.path.resolve()
    assert table["name"].tolist() == [job.name for job in study.plan.jobs]
    done = {job.key for job in [*study.of("means", "describe"), first]}
    states = {job.key: "done" if job.key in done else "to do" for job in study.plan.jobs}
    states[second.key] = "begun"
    assert [*zip(table["key"], table["state"], strict=True)] == [*states.items()]
    assert set(table["bytes"]) == {0, 2**19}
    assert (table["seconds"] >= 0).all()

    summary = status_table(table).set_index("kind")
    # One job each, two prunings, answers of the full model and of two masks on two test sets.
    n_jobs = dict.fromkeys(("describe", "means", "accuracy", "smallest", "core"), 1)
    assert summary["jobs"].to_dict() == n_jobs | {"answers": 6, "prune": 2, "masks": 2}
    n_done = dict.fromkeys(summary.index, 0) | {"describe": 1, "means": 1, "prune": 1}
    assert summary["done"].to_dict() == n_done
    assert (summary["MiB"]["prune"], summary["MiB"].sum()) == (0.5, 1.5)
    assert summary["seconds"].sum() == pytest.approx(table["seconds"].sum())


def test_a_folder_without_a_study_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no study in this folder \(no study\.json\)"):
        job_table(tmp_path)
    (study.out / "study.json").write_text(
        '{"kind": "heuristic-core", "settings": {"sedes": 1}, "store": "store"}'
    )
    with pytest.raises(InputError, match=r"study\.json: sedes: no such setting"):
        job_table(study.out)
    for text, what in (("{", "cannot be read"), ("[]", "cannot be read"), ("{}", "no 'kind'")):
        (study.out / "study.json").write_text(text)
        with pytest.raises(InputError, match=rf"study\.json: {what}.*rerun the study"):
            job_table(study.out)
        check_out(study.out, DEFAULT)  # which it can be


def test_damage_is_listed_and_left_alone(study: Study) -> None:
    study.do(study.plan.jobs)
    assert study.store.damaged() == []
    means, core = study.of("means")[0], study.of("core")[0]
    (study.store.folder(means.key) / "result").write_bytes(bytes(2**19 - 1) + b"x")
    (study.store.folder(core.key) / "result").unlink()
    store = Store(study.store.path)
    lines = store.damaged()
    assert sorted(lines) == [
        "core: result is missing, or was not written by mechcore",
        "means: the checksum of result differs",
    ]
    assert study.store.folder(means.key).is_dir()
    assert set(job_table(study.out)[0]["state"]) == {"done"}  # a look costs no reading
    with pytest.warns(MechcoreWarning, match="repeating the job"):
        assert not store.has(means.key)
    table, _ = job_table(study.out)
    assert table[table["state"] == "to do"]["kind"].tolist() == ["means"]


def test_what_could_go(study: Study) -> None:
    study.do(study.plan.jobs, size=1000)
    key = study.of("prune")[0].key
    study.store.partial(key).mkdir(parents=True)
    (study.store.partial(key) / "state").write_bytes(bytes(100))  # its job is done
    (study.store.partial(key) / ".abc.state").write_bytes(bytes(10))
    keys, leftovers, size = study.store.removable()
    assert keys == []
    assert leftovers == [study.store.partial(key)]
    assert size == 110

    study.planned(replace(study.config, seeds=(1,)))
    unused = [job.key for job in study.plan.jobs if getattr(job.step, "seeds", None) == (2,)]
    keys, _, size = study.store.removable()
    manifests = [study.store.folder(old) / "manifest.json" for old in keys]
    # Of seed 2 pruning, masks and two sets of answers; of both seeds the tables, the
    # smallest subnetwork and the core.
    assert len(keys) == 7
    assert set(unused) <= set(keys)
    assert size == 110 + 7000 + sum(path.stat().st_size for path in manifests)

    begun = "ab" * 32
    study.store.partial(begun).mkdir()
    (study.store.partial(begun) / "state").write_bytes(bytes(7))
    keys, leftovers, _ = study.store.removable()
    assert len(keys) == 8
    assert begun in keys
    for old in keys:
        study.store.remove(old)
    study.store.leftovers(remove=True)
    assert study.store.removable() == ([], [], 0)
