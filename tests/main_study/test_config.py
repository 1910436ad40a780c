"""What a study's settings may be, and that they survive a file."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.dose import Dose
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.analyses.failure import Failure
from mechcore.analyses.halves import Halves
from mechcore.analyses.knockouts import Knockouts
from mechcore.analyses.methods import Methods
from mechcore.analyses.repair import Repair
from mechcore.analyses.roles import Roles
from mechcore.analyses.search import Search
from mechcore.analyses.smallest import Smallest
from mechcore.analyses.sweep import Sweep
from mechcore.attention.examples import ATTENTION_FILE, FLIPS_ATTENTION_FILE
from mechcore.data.sources import Source
from mechcore.errors import InputError
from mechcore.main_study.config import RESERVED, Analyses, Resources, StudyConfig
from mechcore.main_study.study import STUDY
from mechcore.pruning.settings import PruneSettings, prune_settings
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.steps.base import MASKS, MEANS_FILE
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.study.run import STORE
from mechcore.study.run import STUDY as STUDY_FILE
from mechcore.study.step import TABLES_FOLDER, plain
from mechcore.training.settings import train_settings


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (StudyConfig, {"seeds": ()}, "at least one, each once"),
        (StudyConfig, {"seeds": (1, 1)}, "each once"),
        (StudyConfig, {"seeds": (2**63,)}, "whole number from 0 to"),
        (StudyConfig, {"target_sparsities": (1.0,)}, r"in \[0, 1\)"),
        (StudyConfig, {"target_sparsities": (math.nan,)}, r"in \[0, 1\)"),
        (StudyConfig, {"target_sparsities": ()}, "sparsities .*at least one"),
        (StudyConfig, {"seeds_per_job": 0}, "seeds_per_job is 0; expected a whole number from 1"),
        (StudyConfig, {"n_resamples": 2**31}, f"from 1 to {2**31 - 1}"),
        (StudyConfig, {"checkpoints": ("",)}, r"is \[''\]; expected a list of values, each text"),
        (ModelConfig, {"source": " "}, "model: source is ' '; expected text"),
        (ModelConfig, {"source": "a\0b"}, "without control characters"),
        (ModelConfig, {"revision": "a\nb"}, "model: revision"),
        (ModelConfig, {"checkpoint": "../../etc"}, "model: checkpoint: invalid name '../../etc'"),
        (ModelConfig, {"checkpoint": ".."}, "invalid name '..'"),
        (DataConfig, {"seed": -1}, "data: seed is -1; expected a whole number from 0"),
        (Ablation, {"max_joint": -1}, "ablation: max_joint is -1"),
        (EffectiveSize, {"tolerance": 1.0}, "effective_size: tolerance is 1.0"),
        (EffectiveSize, {"target_sparsities": (0.5, 0.5)}, "each once"),
        (Resources, {"cpus": 0}, "resources: cpus is 0"),
        (Resources, {"gpus": math.nan}, "resources: gpus is nan"),
        (Resources, {"device": "tpu"}, "device is 'tpu'; expected cpu, mps, cuda or cuda:N"),
        (Resources, {"device": "cuda:0; rm"}, "resources: device"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        kind(**settings)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "/", "-x", "a b", "a\n", "ä", "x" * 101, "~"]
)
def test_names_that_would_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected at most 100 letters"):
        StudyConfig(variants={name: StudyConfig()})


def test_variants_cannot_take_the_names_of_the_study_s_own_files() -> None:
    steps = {MASKS, MEANS_FILE, ATTENTION_FILE, FLIPS_ATTENTION_FILE}
    report = {"report.html", "figures"}
    assert {STORE, STUDY_FILE, CONFIG_FILE, TABLES_FOLDER, *steps, *report} == set(RESERVED)
    for name in [*RESERVED, "Store", "MASKS"]:
        with pytest.raises(InputError, match="reserved for the study's own files; choose another"):
            StudyConfig(variants={name: StudyConfig()})
    with pytest.raises(InputError, match="base, Base differ only in case"):
        StudyConfig(variants={"base": StudyConfig(), "Base": StudyConfig(seeds=(1,))})


def test_the_embedded_checkpoints_are_those_of_no_other_model() -> None:
    assert StudyConfig(checkpoints=("embedded",)).checkpoints == ("embedded",)
    with pytest.raises(InputError, match="source is 'my-bert'; name the checkpoints"):
        StudyConfig(checkpoints=("embedded",), model=ModelConfig(source="my-bert"))


def test_a_training_that_ends_when_it_will_has_no_series_and_watches_a_role() -> None:
    model, training = ModelConfig(source="base"), train_settings("quick", patience=3)
    assert StudyConfig(model=model, training=training).training == training
    with pytest.raises(InputError, match=r"but with patience \(3\) the last step is unknown"):
        StudyConfig(model=model, training=training, checkpoints=("training",))
    with pytest.raises(InputError, match="watch is 'dev'; expected id or ood, the splits of"):
        StudyConfig(model=model, training=replace(training, watch="dev"))
    assert StudyConfig(model=model, training=replace(training, watch="ood")).training is not None


def test_without_sparsities_there_must_be_checkpoints() -> None:
    config = StudyConfig(target_sparsities=(), checkpoints=("embedded",))
    for changes, message in (
        ({"checkpoints": ()}, "at least one"),
        ({"seeds": (1, 1)}, "each once"),
    ):
        with pytest.raises(InputError, match=message):
            replace(config, **changes)


def test_each_variant_has_its_study() -> None:
    alone = StudyConfig(seeds=(1,))
    assert alone.each_variant() == {"": alone}
    named = {name: replace(alone, model=ModelConfig(source=name)) for name in ("small", "large")}
    both = replace(alone, variants=named)
    assert [*both.each_variant().items()] == [*named.items()]
    # Jobs have the resources of the whole study.
    both = replace(both, resources=Resources(cpus=3))
    assert {study.resources.cpus for study in both.each_variant().values()} == {3}


@pytest.mark.parametrize(
    ("resources", "place"),
    [
        (Resources(), "cpu"),
        (Resources(gpus=0.5), "cuda"),
        (Resources(gpus=1, device="cuda:1"), "cuda:1"),
        (Resources(device="mps"), "mps"),
        (Resources(gpus=1, device="cpu"), "cpu"),
    ],
)
def test_the_device(resources: Resources, place: str) -> None:
    assert resources.place == place


def test_plain_values_are_those_of_json() -> None:
    value = {"a": (1, 2.5, None, {"b": (True,)}), 3: ["x"]}
    assert plain(value) == {"a": [1, 2.5, None, {"b": [True]}], "3": ["x"]}
    assert json.loads(json.dumps(plain(value))) == plain(value)


PRUNE = {"preset": "paper", "steps": 9, "lr": 0.2, "log_alpha_mean": -1.5, "precision": "auto"}
SOURCES = (Source(path="a b", labels=("x",), max=3), Source(dataset="org/name"))
CHANGES: dict[Any, list[dict[str, Any]]] = {
    ModelConfig: [
        {"source": "ü/\u2028", "revision": "v 2", "allow_pickle": True, "dtype": "float16"},
        {"embedded": "decoder", "checkpoint": "step-1.0_x", "backend": "hooked"},
        {"class_names": (), "prompt": "", "answers": {}, "device_map": "auto"},
        {"class_names": ("no", "1"), "prompt": "{a}\n", "answers": {"no": " No", "yes": "1"}},
        {"chat_template": True, "max_length": 2**31 - 1, "device_map": {"": "cpu"}},
    ],
    DataConfig: [
        {"train": "a", "id": SOURCES, "ood": SOURCES[:1], "ood_label": "no", "seed": 2**32 - 1},
        {"task": "mine", "folder": "here", "max_train": None, "max_id": 1, "max_ood": 2**31 - 1},
        {"columns": {"text_a": "0"}, "label_map": {"0": "null"}, "ood_subsets": ("a", "1")},
        {"groups": {"one": ("a", "b"), "2": ("c",)}, "population": "texts"},
    ],
    Resources: [{"cpus": 1, "gpus": 0.1, "device": "cuda:3"}],
    Analyses: [
        {"smallest": Smallest(0.3), "halves": Halves(), "methods": Methods(methods=("random",))},
        {"heads": None, "sweep": Sweep("mlps", ood_mean=False), "roles": Roles(alpha=0.9)},
        {"flips": None, "knockouts": Knockouts(controls=30), "failure": Failure(n_pairs=0)},
        {"ablation": Ablation(max_joint=0), "repair": Repair(examples=(8,)), "paths": None},
        {"dose": Dose(1), "responses": None, "search": Search(subset="a b"), "fill": "mine"},
        {"effective_size": EffectiveSize((0.0, 0.9), 0.5, (7,), PruneSettings(9))},
    ],
}
"""Values other than the defaults, of every setting."""
STUDIES = [
    *({"model": ModelConfig(**changes)} for changes in CHANGES[ModelConfig]),
    *({"data": DataConfig(**changes)} for changes in CHANGES[DataConfig]),
    *({"resources": Resources(**changes)} for changes in CHANGES[Resources]),
    *({"analyses": Analyses(**changes)} for changes in CHANGES[Analyses]),
    {"prune": prune_settings(**PRUNE), "method": "mine", "seeds": (2**63 - 1, 0)},
    {"target_sparsities": (0.1 + 0.2, 0.0), "seeds_per_job": 7, "only": ("roles", "core")},
    {"batch_size": 1, "n_resamples": 2**31 - 1, "checkpoints": ("a", "b c"), "beside": "a b"},
    {"model": ModelConfig("base"), "training": train_settings("bert-mnli", seed=7, epochs=0.5)},
    {"checkpoints": ("embedded",), "target_sparsities": ()},
    {"variants": {"a": StudyConfig(seeds=(1,)), "b": StudyConfig(model=ModelConfig("base"))}},
]


@pytest.mark.parametrize("changes", STUDIES, ids=lambda changes: " ".join(changes))
def test_a_study_comes_back_from_a_file(changes: dict[str, Any]) -> None:
    config = StudyConfig(**changes)
    text = json.dumps(plain(config), allow_nan=False)
    assert STUDY.read(json.loads(text), "study.json") == config


def test_every_setting_is_changed_above() -> None:
    """Or the property would not hold for what it leaves at its default."""
    for kind, changes in {**CHANGES, StudyConfig: STUDIES}.items():
        assert {field.name for field in fields(kind)} == {n for change in changes for n in change}
