"""The workbench: everything is loaded once, and is what the study was planned on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CLASSES, Cases, padded, texts
from study.sources import data_config, write_data

from mechcore.analyses.data import Describe
from mechcore.data.readers import read_examples
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.models.protocol import forward
from mechcore.steps import bench as module
from mechcore.steps.bench import (
    MODEL,
    MOST_MODELS,
    DataInput,
    ModelInput,
    Workbench,
    bench_of,
)
from mechcore.steps.config import ModelConfig
from mechcore.study.executors import done
from mechcore.study.step import Input, Job, Work, digest_of, hash_file
from mechcore.study.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")  # of draws


class Sources:
    """Checkpoints and data files; says how often data are read."""

    def __init__(self, folder: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cases = folder, cases
        self.data = data_config(folder / "data")
        self.reads: list[str] = []
        read_split = module.read_split

        def counted(split: str, *arguments: Any) -> Any:
            self.reads.append(split)
            return read_split(split, *arguments)

        monkeypatch.setattr(module, "read_split", counted)

    def path(self, split: str) -> Path:
        return Path(str(getattr(self.data, split)))

    def model(self, name: str = "model", **settings: Any) -> ModelConfig:
        path = self.folder / name
        if not path.exists():
            shutil.copytree(self.cases.path("bert"), path)
        return ModelConfig(source=str(path), class_names=CLASSES, **settings)

    def job(
        self, model: ModelConfig | None = None, splits: Any = SPLITS, half: int | None = None
    ) -> Job:
        model = model or self.model()
        inputs: dict[str, Input] = {MODEL: ModelInput(model)}
        inputs |= {split: DataInput(split, model, self.data, half) for split in splits}
        return Job.of(Describe({}, False), "the job", inputs=inputs, hash_file=hash_file)


@pytest.fixture
def sources(tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(tmp_path, cases, monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(Store(tmp_path / "store"))


def test_inputs_are_those_of_the_job(sources: Sources, bench: Workbench, cases: Cases) -> None:
    inputs = bench.inputs(sources.job(splits=("train", "id")))
    assert list(inputs.data) == ["train", "id"]
    assert inputs.available == {"train": 12, "id": 13}
    assert len(inputs.data["train"]) == 12
    assert len(inputs.data["id"]) == 9  # max_id
    whole = read_examples(sources.path("id"))
    assert set(inputs.data["id"].examples.frame["text_a"]) <= set(whole.frame["text_a"])
    assert set(inputs.data["id"].examples.frame["label"]) == set(CLASSES)
    batch = padded(texts(), "right")
    assert torch.equal(forward(inputs.model, batch), forward(cases.get("bert").model, batch))


def test_a_model_and_its_data_are_loaded_once(sources: Sources, bench: Workbench) -> None:
    first = bench.inputs(sources.job())
    second = bench.inputs(sources.job(splits=("id",)))
    copy = bench.inputs(sources.job(sources.model("copy")))  # an equal model in another place
    assert second.model is copy.model is first.model
    assert second.data["id"] is first.data["id"]
    assert list(second.data) == ["id"]
    assert len(bench.loads) == 1
    assert sources.reads == ["train", "id", "ood"]
    # Another reading is another model, and data that changed are read again.
    short = bench.inputs(sources.job(sources.model(max_length=5)))
    assert len(bench.loads) == 2
    assert max(map(len, first.data["id"].input_ids)) > 5
    assert max(map(len, short.data["id"].input_ids)) == 5
    write_data(sources.path("train"), 30)
    changed = bench.inputs(sources.job(splits=("train",)))
    assert (len(first.data["train"]), len(changed.data["train"])) == (12, 30)
    assert changed.model is first.model


def test_halves_are_other_data_and_share_no_example(sources: Sources, bench: Workbench) -> None:
    jobs = [sources.job(splits=("train",), half=half) for half in (None, 1, 2)]
    assert len({job.key for job in jobs}) == 3
    whole, first, second = (bench.inputs(job).data["train"].examples.frame for job in jobs)
    # Either subset has three pairs of texts, twice each: one of them is in the first half.
    assert (len(whole), len(first), len(second)) == (12, 4, 8)
    pairs = [[*zip(part["text_a"], part["text_b"], strict=True)] for part in (whole, first, second)]
    assert sorted(pairs[1] + pairs[2]) == sorted(pairs[0])
    assert not set(pairs[1]) & set(pairs[2])
    assert len(bench.loads) == 1


def test_only_so_many_models_are_kept(sources: Sources, bench: Workbench) -> None:
    assert MOST_MODELS == 2
    a, b, c = (sources.job(sources.model(max_length=n)) for n in (5, 6, 7))
    for job in (a, b, a, c, a):  # c takes the place of b, which was not used for longest
        bench.inputs(job)
    assert len(bench.loads) == 3
    bench.inputs(b)
    assert len(bench.loads) == 4
    assert len(sources.reads) == 12
    bench.inputs(b)
    assert len(sources.reads) == 12


def test_what_changes_while_a_job_reads_it_is_refused(
    sources: Sources, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sources.job()

    def run(step: Describe, work: Work) -> None:
        write_data(sources.path("id"), 30)

    monkeypatch.setattr(Describe, "run", run)
    receipt = done(job, bench.store, None, "cpu")
    assert receipt.error == "the id files changed while the study ran; rerun it"
    assert not bench.store.has(job.key)


def test_a_model_that_is_replaced_while_it_is_loaded_is_not_kept(
    sources: Sources, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, weights = sources.job(), sources.folder / "model" / "model.safetensors"
    planned, real = weights.read_bytes(), module.open_model

    def late(*given: Any, **options: Any) -> Any:
        weights.write_bytes(planned[:-1] + b"\x00")
        return real(*given, **options)

    monkeypatch.setattr(module, "open_model", late)
    with pytest.raises(InputError, match="the model files changed while the study ran"):
        bench.inputs(job)
    monkeypatch.undo()
    weights.write_bytes(planned)
    bench.inputs(job)
    assert len(bench.loads) == 1  # loaded anew, not what was there for a moment


def test_a_process_has_one_workbench_for_a_store_and_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_benches", {})
    monkeypatch.chdir(tmp_path)
    first = bench_of(Store("store"), "cpu")
    assert bench_of(Store(tmp_path / "store"), "cpu") is first
    assert bench_of(Store(tmp_path / "other"), "cpu") is not first
    assert bench_of(Store("store"), "cuda") is not first
    assert first.device == "cpu"


def test_the_order_of_answers_is_part_of_how_they_are_read() -> None:
    first, second = (
        ModelInput(ModelConfig(prompt="{a}", answers=dict(answers)), trained="final")
        for answers in ([("no", "x"), ("yes", "y")], [("yes", "y"), ("no", "x")])
    )
    assert digest_of(first.content(hash_file)) != digest_of(second.content(hash_file))
