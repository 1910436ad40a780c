"""The workbench: everything is loaded once, and is what the study was planned on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CLASSES, Cases, padded, texts
from mechcore.steps.units import Recipes, Unit
from study.sources import data_config, write_data

from mechcore.data.readers import read_examples
from mechcore.data.task import ROLES
from mechcore.errors import InputError
from mechcore.models.running import forward
from mechcore.steps.bench import MOST_MODELS, Workbench, bench_of
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.study import bench as module
from mechcore.study.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")  # of draws


class Sources:
    """Checkpoints and data files; says how often data are read."""

    def __init__(self, folder: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cases = folder, cases
        self.data = data_config(folder / "data")
        self.reads: list[str] = []
        read_role = module.read_role

        def counted(role: str, *arguments: Any) -> Any:
            self.reads.append(role)
            return read_role(role, *arguments)

        monkeypatch.setattr(module, "read_role", counted)

    def model(self, name: str = "model", architecture: str = "bert", **settings: Any) -> Any:
        path = self.folder / name
        if not path.exists():
            shutil.copytree(self.cases.path(architecture), path)
        return ModelConfig(source=str(path), class_labels=CLASSES, **settings)

    def unit(
        self, model: ModelConfig | None = None, data: DataConfig | None = None, roles: Any = ROLES
    ) -> Unit:
        recipes = Recipes(model or self.model(), data or self.data)
        return recipes.unit("describe", "the unit", {}, roles=roles)


@pytest.fixture
def sources(tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(tmp_path, cases, monkeypatch)


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(Store(tmp_path / "store"))


def test_inputs_are_those_of_the_unit(sources: Sources, bench: Workbench, cases: Cases) -> None:
    found = bench.inputs(sources.unit(roles=("train", "id")))
    assert list(found.data) == ["train", "id"]
    assert found.available == {"train": 12, "id": 13}
    assert len(found.data["train"]) == 12
    assert len(found.data["id"]) == 9  # max_id
    whole = read_examples(Path(str(sources.data.id)))
    assert set(found.data["id"].examples.frame["text_a"]) <= set(whole.frame["text_a"])
    assert set(found.data["id"].examples.frame["label"]) == set(CLASSES)
    batch = padded(texts(), "right")
    assert torch.equal(forward(found.model, batch), forward(cases.get("bert").model, batch))


def test_a_model_and_its_data_are_loaded_once(sources: Sources, bench: Workbench) -> None:
    first = bench.inputs(sources.unit())
    second = bench.inputs(sources.unit(roles=("id",)))
    assert second.model is first.model
    assert second.data["id"] is first.data["id"]
    assert list(second.data) == ["id"]
    assert len(bench.loads) == 1
    assert sources.reads == ["train", "id", "ood"]


def test_equal_models_in_two_places_are_one(sources: Sources, bench: Workbench) -> None:
    first = bench.inputs(sources.unit())
    second = bench.inputs(sources.unit(sources.model("copy")))
    assert second.model is first.model
    assert len(bench.loads) == 1
    assert len(sources.reads) == 3


def test_other_readings_of_a_model_are_other_models(sources: Sources, bench: Workbench) -> None:
    first = bench.inputs(sources.unit())
    second = bench.inputs(sources.unit(sources.model(max_length=5)))
    assert len(bench.loads) == 2
    assert max(map(len, first.data["id"].input_ids)) > 5
    assert max(map(len, second.data["id"].input_ids)) == 5


def test_other_draws_are_other_data(sources: Sources, bench: Workbench) -> None:
    first = bench.inputs(sources.unit(roles=("id",)))
    second = bench.inputs(sources.unit(data=replace(sources.data, max_id=3), roles=("id",)))
    assert (len(first.data["id"]), len(second.data["id"])) == (9, 3)
    assert second.model is first.model


def test_only_so_many_models_are_kept(sources: Sources, bench: Workbench) -> None:
    assert MOST_MODELS == 2
    a, b, c = (sources.unit(sources.model(max_length=n)) for n in (5, 6, 7))
    for unit in (a, b, a, c, a):  # c takes the place of b, which was not used for longest
        bench.inputs(unit)
    assert len(bench.loads) == 3
    bench.inputs(b)
    assert len(bench.loads) == 4
    assert len(sources.reads) == 12
    bench.inputs(b)
    assert len(sources.reads) == 12


@pytest.mark.parametrize("role", ROLES)
def test_data_that_changed_after_planning_are_refused(
    sources: Sources, bench: Workbench, role: str
) -> None:
    unit, path = sources.unit(), Path(str(getattr(sources.data, role)))
    bench.inputs(unit)
    write_data(path, 30)
    for action in (bench.inputs, bench.check):
        with pytest.raises(InputError, match=f"the unit: the {role} files changed while.*again"):
            action(unit)
    others = tuple(each for each in ROLES if each != role)
    bench.inputs(sources.unit(roles=others))
    path.unlink()
    with pytest.raises(InputError, match=rf"{role}-data\.csv: no such file.*when the study was"):
        bench.inputs(unit)


def test_a_model_that_changed_after_planning_is_refused(sources: Sources, bench: Workbench) -> None:
    unit = sources.unit()
    bench.inputs(unit)
    weights = sources.folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(InputError, match="the model files changed while the study ran"):
        bench.inputs(unit)
    assert bench.loads == [bench.loads[0]]
    bench.inputs(sources.unit())  # planned anew
    assert len(set(bench.loads)) == 2


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
