"""From settings to units: which results a change invalidates, and which it leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mechcore.steps.units import Unit
from study.sources import checkpoint_like, data_config, write_data

from mechcore.errors import InputError
from mechcore.pruning import PruneSettings
from mechcore.steps.config import (
    AblationConfig,
    Analyses,
    DataConfig,
    HeadsConfig,
    ModelConfig,
    Resources,
    SizesConfig,
    StudyConfig,
)
from mechcore.steps.plan import Plan, make_plan
from mechcore.study import inputs, units


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan reads files, but opens no model and parses no data."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded by a plan")

    for name in ("load_model", "load_tokenizer", "read_sources", "encode"):
        monkeypatch.setattr(inputs, name, refuse)


@pytest.fixture
def config(tmp_path: Path) -> StudyConfig:
    model = checkpoint_like(tmp_path / "model")
    return StudyConfig(
        model=ModelConfig(source=str(model)),
        data=data_config(tmp_path / "data"),
        seeds=(1, 2, 3),
        sparsities=(0.3, 0.5),
        seeds_per_job=2,
        prune=PruneSettings(steps=9, batch_size=4),
        analyses=Analyses(sweep="heads"),
    )


def label(unit: Unit) -> str:
    """What a unit is, in a word of the table below."""
    if unit.kind != "answers":
        return unit.kind
    return f"{'sub' if unit.needs else 'full'} {unit.settings['role']}"


def changed(before: Plan, after: Plan) -> set[str]:
    """Labels of units whose key is new; all units of a label change together."""
    new: dict[str, set[bool]] = {}
    for unit in after.units.values():
        new.setdefault(label(unit), set()).add(unit.key not in before.units)
    assert all(len(answers) == 1 for answers in new.values())
    return {name for name, answers in new.items() if answers == {True}}


EVERYTHING = {
    *("describe", "means", "full id", "full ood", "prune", "masks", "sub id", "sub ood"),
    *("accuracy", "core", "heads", "pictures", "ablate", "sweep"),
}
TRAIN = EVERYTHING - {"heads", "full id", "full ood"}
ID = {"describe", "full id", "sub id", "accuracy", "heads", "pictures", "ablate", "sweep"}
OOD = {"describe", "full ood", "sub ood", "accuracy", "ablate", "sweep"}
READ = {"masks", "sub id", "sub ood", "accuracy", "core", "pictures", "ablate"}
MASKS = READ | {"prune"}
TABLES = {"accuracy", "ablate", "sweep"}
ANSWERS = {"full id", "full ood", "sub id", "sub ood"}


@dataclass(frozen=True)
class World:
    """A study and where its files are."""

    config: StudyConfig
    folder: Path

    def model(self, **settings: Any) -> StudyConfig:
        return replace(self.config, model=replace(self.config.model, **settings))

    def data(self, **settings: Any) -> StudyConfig:
        return replace(self.config, data=replace(self.config.data, **settings))

    def prune(self, **settings: Any) -> StudyConfig:
        return replace(self.config, prune=replace(self.config.prune, **settings))

    def analyses(self, **settings: Any) -> StudyConfig:
        return replace(self.config, analyses=replace(self.config.analyses, **settings))

    def set(self, **settings: Any) -> StudyConfig:
        return replace(self.config, **settings)

    def write(self, name: str, content: str = "new") -> StudyConfig:
        (self.folder / name).write_text(content)
        return self.config

    def touch(self) -> StudyConfig:
        for path in self.folder.rglob("*.*"):
            os.utime(path, (1, 1))
        return self.config

    def data_moved(self, role: str, name: str) -> StudyConfig:
        target = self.folder / "elsewhere" / name
        target.parent.mkdir()
        shutil.move(str(getattr(self.config.data, role)), target)
        return self.data(**{role: str(target)})

    def model_moved(self) -> StudyConfig:
        target = self.folder / "elsewhere"
        (self.folder / "model").rename(target)
        return self.model(source=str(target))

    def longer(self, role: str) -> StudyConfig:
        write_data(Path(getattr(self.config.data, role)), 20)
        return self.config


CHANGES: dict[str, tuple[Callable[[World], StudyConfig], set[str]]] = {
    # files
    "weights": (lambda w: w.write("model/model.safetensors"), EVERYTHING),
    "more weights": (lambda w: w.write("model/model-2.safetensors"), EVERYTHING),
    "model's config": (lambda w: w.write("model/config.json", "{}"), EVERYTHING),
    "tokenizer": (lambda w: w.write("model/tokenizer.json"), EVERYTHING),
    "new vocabulary": (lambda w: w.write("model/vocab.txt"), EVERYTHING),
    "model's notes": (lambda w: w.write("model/README.md"), set()),
    "model's place": (World.model_moved, set()),
    "times of files": (World.touch, set()),
    "train content": (lambda w: w.longer("train"), TRAIN),
    "id content": (lambda w: w.longer("id"), ID),
    "ood content": (lambda w: w.longer("ood"), OOD),
    "train place": (lambda w: w.data_moved("train", "train-data.csv"), set()),
    "id place": (lambda w: w.data_moved("id", "id-data.csv"), set()),
    "ood place": (lambda w: w.data_moved("ood", "ood-data.csv"), set()),
    "id name, as tables give it": (
        lambda w: w.data_moved("id", "other.csv"),
        {"describe", *TABLES},
    ),
    "id kind": (lambda w: w.data_moved("id", "id-data.tsv"), ID),
    # model
    "max_length": (lambda w: w.model(max_length=9), EVERYTHING),
    "class_labels": (lambda w: w.model(class_labels=("a", "b", "c")), EVERYTHING),
    "prompt": (lambda w: w.model(prompt="{a}"), EVERYTHING),
    "answers": (lambda w: w.model(answers={"a": "b"}), EVERYTHING),
    "backend": (lambda w: w.model(backend="hooked"), EVERYTHING),
    "backend, as it was chosen": (lambda w: w.model(backend="bridge"), set()),
    "allow_pickle": (lambda w: w.model(allow_pickle=True), set()),
    "revision of a folder": (lambda w: w.model(revision="v2"), set()),
    "embedded, not used": (lambda w: w.model(embedded="decoder", checkpoint="x"), set()),
    # data
    "data seed": (lambda w: w.data(seed=1), EVERYTHING),
    "max_train": (lambda w: w.data(max_train=3), TRAIN),
    "max_id": (lambda w: w.data(max_id=3), ID),
    "max_id, all": (lambda w: w.data(max_id=None), ID),
    "max_ood": (lambda w: w.data(max_ood=3), OOD),
    "ood_label": (lambda w: w.data(ood_label="neutral"), OOD),
    "ood_subsets": (lambda w: w.data(ood_subsets=("x",)), OOD),
    "columns": (lambda w: w.data(columns={"text_a": "text_b"}), EVERYTHING),
    "label_names": (lambda w: w.data(label_names={"0": "neutral"}), EVERYTHING),
    # pruning
    "steps": (lambda w: w.prune(steps=10), MASKS),
    "batch of pruning": (lambda w: w.prune(batch_size=5), MASKS),
    "lr": (lambda w: w.prune(lr=0.2), MASKS),
    "precision": (lambda w: w.prune(precision="bfloat16"), MASKS),
    "masks_per_pass": (lambda w: w.prune(masks_per_pass=3), MASKS),
    "save_every": (lambda w: w.prune(save_every=3), set()),
    "tolerance": (lambda w: w.prune(tolerance=0.5), READ),
    "discretisation": (lambda w: w.prune(discretisation="threshold"), READ),
    "seeds_per_job": (lambda w: w.set(seeds_per_job=3), MASKS),
    "order of seeds": (lambda w: w.set(seeds=(3, 1, 2)), set()),
    "order of sparsities": (lambda w: w.set(sparsities=(0.5, 0.3)), set()),
    # analyses
    "batch_size": (lambda w: w.set(batch_size=7), ANSWERS | TABLES),
    "n_resamples": (lambda w: w.set(n_resamples=7), TABLES),
    "heads.max_examples": (lambda w: w.analyses(heads=HeadsConfig(7)), {"heads", "pictures"}),
    "no heads": (lambda w: w.analyses(heads=None), set()),
    "max_joint": (lambda w: w.analyses(ablation=AblationConfig(max_joint=1)), {"ablate"}),
    "max_non_core": (lambda w: w.analyses(ablation=AblationConfig(max_non_core=1)), {"ablate"}),
    "no ablation": (lambda w: w.analyses(ablation=None), set()),
    "sweep": (lambda w: w.analyses(sweep="all"), {"sweep"}),
    "sizes without checkpoints": (
        lambda w: w.analyses(effective_size=SizesConfig((0.1,), 0.1)),
        set(),
    ),
    "resources": (lambda w: w.set(resources=Resources(1, 1.0, "cuda")), set()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_invalidates_what_depends_on_it(
    what: str, config: StudyConfig, tmp_path: Path
) -> None:
    change, expected = CHANGES[what]
    before = make_plan(config)
    assert {label(unit) for unit in before.units.values()} == EVERYTHING
    after = make_plan(change(World(config, tmp_path)))
    assert changed(before, after) == expected


def test_versions_and_formats_invalidate_everything(
    config: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_plan(config)
    for name, value in (
        ("WORK_FORMAT", 0),
        ("version", lambda package: "0"),
        ("versions", lambda: {"torch": "0"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(units, name, value)
            assert changed(before, make_plan(config)) == EVERYTHING
    assert changed(before, make_plan(config)) == set()


# -- growing studies ------------------------------------------------------------------------------


def keys(config: StudyConfig, *kinds: str) -> set[str]:
    found = make_plan(config).units
    return {key for key, unit in found.items() if not kinds or label(unit) in kinds}


def test_the_units_of_a_study(config: StudyConfig) -> None:
    plan = make_plan(config)
    (part,) = plan.parts
    counts = dict.fromkeys(EVERYTHING, 0)
    for unit in plan.units.values():
        counts[label(unit)] += 1
    # Seeds 1 and 2, and 3, at two sparsities.
    expected = dict.fromkeys(EVERYTHING, 1)
    expected |= dict.fromkeys(("prune", "masks", "sub id", "sub ood"), 4)
    assert counts == expected
    assert [(u.settings["target"], u.settings["seeds"]) for u in part.pruned] == [
        (0.3, [1, 2]),
        (0.3, [3]),
        (0.5, [1, 2]),
        (0.5, [3]),
    ]
    assert len({unit.name for unit in plan.units.values()}) == len(plan.units)


def test_every_unit_comes_after_those_that_it_needs(config: StudyConfig) -> None:
    both = replace(config, models={"a": config.model, "b": config.model}, model=ModelConfig())
    for each in (config, both, embedded(checkpoints=("embedded",))):
        seen: set[str] = set()
        for key, unit in make_plan(each).units.items():
            assert unit.key == key
            assert set(unit.needs.values()) <= seen
            seen.add(key)


def test_seeds_added_at_the_end_keep_full_chunks(config: StudyConfig) -> None:
    before, after = make_plan(config), make_plan(replace(config, seeds=(1, 2, 3, 4, 5)))
    of_masks = [
        {
            tuple(u.settings["seeds"])
            for u in after.parts[0].pruned
            if (u.key in before.units) is old
        }
        for old in (True, False)
    ]
    assert of_masks == [{(1, 2)}, {(3, 4), (5,)}]
    new = {label(unit) for key, unit in after.units.items() if key not in before.units}
    assert new == MASKS


def test_sparsities_added_keep_everything_of_the_others(config: StudyConfig) -> None:
    kinds = ("describe", "means", "prune", "full id", "full ood", "sub id", "sub ood", "heads")
    before = keys(config, *kinds)
    after = keys(replace(config, sparsities=(0.3, 0.4, 0.5)), *kinds)
    assert before < after
    assert len(after - before) == 6  # two chunks, each pruned and answered twice


def test_sparsities_that_look_alike_are_kept_apart(config: StudyConfig) -> None:
    plan = make_plan(replace(config, sparsities=(0.5, 0.5000001), seeds=(1,)))
    accuracy = plan.parts[0].units["accuracy"]
    pruned = {unit.key for unit in plan.parts[0].pruned}
    assert len(pruned) == 2
    assert pruned <= set(accuracy.needs.values())


# -- several models, and checkpoints --------------------------------------------------------------


def test_equal_models_share_their_units(config: StudyConfig, tmp_path: Path) -> None:
    same = shutil.copytree(tmp_path / "model", tmp_path / "same")
    other = checkpoint_like(tmp_path / "other", "else")
    models = {name: ModelConfig(source=str(tmp_path / name)) for name in ("model", "same")}
    study = replace(config, model=ModelConfig(), models=models)
    alone = make_plan(config)
    plan = make_plan(study)
    assert same.is_dir()
    assert [part.name for part in plan.parts] == ["model", "same"]
    assert set(plan.units) == set(alone.units)
    first, second = ({u.key for u in part.made} for part in plan.parts)
    assert first == second
    plan = make_plan(replace(study, models={**models, "other": ModelConfig(source=str(other))}))
    # Tables of other masks are other units, and so is everything else.
    assert len(plan.units) == 2 * len(alone.units)


def embedded(**settings: Any) -> StudyConfig:
    return replace(
        StudyConfig(
            data=DataConfig(max_train=8, max_id=8, max_ood=8),
            seeds=(1,),
            sparsities=(0.5,),
            analyses=Analyses(effective_size=SizesConfig((0.3, 0.5))),
        ),
        **settings,
    )


def test_checkpoints_share_what_the_study_has(tmp_path: Path) -> None:
    alone, plan = make_plan(embedded()), make_plan(embedded(checkpoints=("embedded",)))
    assert alone.units.keys() < plan.units.keys()
    sizes = plan.parts[0].units["sizes"]
    n = len(sizes.settings["checkpoints"])
    assert n > 2
    assert len(sizes.needs) == n
    pruned = [unit for unit in plan.units.values() if unit.kind == "prune"]
    # Two sparsities at every checkpoint, of which the last is the model itself, at 0.5.
    assert len(pruned) == 2 * n
    assert len(plan.parts[0].pruned) == 1
    only = make_plan(embedded(checkpoints=("embedded",), sparsities=()))
    assert set(only.units) <= set(plan.units)
    assert "core" not in only.parts[0].units


def test_margins_of_effective_size_invalidate_it_alone() -> None:
    config = embedded(checkpoints=("embedded",))
    other = Analyses(effective_size=SizesConfig((0.3, 0.5), margin=0.1))
    before, after = make_plan(config), make_plan(replace(config, analyses=other))
    assert changed(before, after) == {"sizes"}


def test_a_checkpoint_that_changes_invalidates_its_own_units(
    config: StudyConfig, tmp_path: Path
) -> None:
    for step in (1, 2):
        checkpoint_like(tmp_path / "run" / f"step-{step}", str(step))
    study = replace(config, checkpoints=(str(tmp_path / "run"),))
    before = make_plan(study)
    assert before.parts[0].units["sizes"].settings["checkpoints"] == [1, 2]
    (tmp_path / "run" / "step-2" / "model.safetensors").write_text("new")
    after = make_plan(study)
    new = [unit for key, unit in after.units.items() if key not in before.units]
    assert {label(unit) for unit in new} == {
        *("means", "prune", "masks", "full id", "full ood", "sub id", "sub ood", "accuracy"),
        "sizes",
    }
    assert all(unit.kind == "sizes" or "checkpoint 2" in unit.name for unit in new)


# -- what cannot be planned -----------------------------------------------------------------------


def test_missing_files_are_named(config: StudyConfig, tmp_path: Path) -> None:
    for role in ("train", "id", "ood"):
        data = replace(config.data, **{role: str(tmp_path / "no.csv")})
        with pytest.raises(InputError, match=r"no\.csv: no such file"):
            make_plan(replace(config, data=data))
    with pytest.raises(InputError, match="data of your own; missing --train, --id, --ood"):
        make_plan(replace(config, data=DataConfig()))
    with pytest.raises(InputError, match="without --model"):
        make_plan(replace(config, model=ModelConfig()))
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json and no weights"):
        make_plan(config)
    with pytest.raises(InputError, match="is no checkpoint and has none in it"):
        make_plan(embedded(checkpoints=(str(tmp_path),)))


def test_names_of_data(config: StudyConfig, tmp_path: Path) -> None:
    data = write_data(tmp_path / "mnli.train.csv", 3)
    study = replace(config, data=replace(config.data, train=str(data)))
    names = make_plan(study).parts[0].units["describe"].settings["names"]
    assert names == {"train": "mnli", "id": "id-data", "ood": "ood-data"}
    own = make_plan(embedded()).parts[0].units["describe"].settings["names"]
    assert own == {role: role for role in ("train", "id", "ood")}


def test_the_hasher_reads_each_file_once(config: StudyConfig) -> None:
    asked: list[str] = []

    def hasher(path: Path) -> str:
        asked.append(path.name)
        return path.name

    make_plan(config, hasher)
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(asked) == sorted([*names, "train-data.csv", "id-data.csv", "ood-data.csv"])
