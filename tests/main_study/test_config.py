"""What a study's settings may be, and that they survive a file."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.analyses import ANALYSES
from mechcore.analyses.ablation import Ablation
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.attention.examples import ATTENTION_FILE, FLIPS_ATTENTION_FILE
from mechcore.data.examples import POPULATIONS
from mechcore.data.sources import Source
from mechcore.errors import InputError
from mechcore.main_study.config import RESERVED, Analyses, Resources, StudyConfig
from mechcore.main_study.study import STUDY
from mechcore.pruning.settings import PruneSettings, prune_settings
from mechcore.report.run_folder import CONFIG_FILE
from mechcore.steps.base import MASKS, MEANS_FILE
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.study.results import STORE
from mechcore.study.results import STUDY as STUDY_FILE
from mechcore.study.step import TABLES_FOLDER, plain
from mechcore.training.settings import train_settings

# -- values ---------------------------------------------------------------------------------------


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
        (StudyConfig, {"n_resamples": 10**5000}, "is a number of many digits"),
        (StudyConfig, {"checkpoints": ("",)}, r"is \[''\]; expected a list of values, each text"),
        (ModelConfig, {"source": " "}, "model: source is ' '; expected text"),
        (ModelConfig, {"source": "a\0b"}, "without control characters"),
        (ModelConfig, {"source": "x/" + "ä" * 128}, "255 bytes for the name"),
        (ModelConfig, {"source": "x/" * 501}, "at most 1000 characters"),
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


# -- checkpoints ----------------------------------------------------------------------------------


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
    assert {each.resources.cpus for each in both.each_variant().values()} == {3}


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


# -- plain values ---------------------------------------------------------------------------------


def test_plain_values_are_those_of_json() -> None:
    value = {"a": (1, 2.5, None, {"b": (True,)}), 3: ["x"]}
    assert plain(value) == {"a": [1, 2.5, None, {"b": [True]}], "3": ["x"]}
    assert json.loads(json.dumps(plain(value))) == plain(value)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=8)
words = texts.filter(lambda text: bool(text.strip()) and len(text.encode()) < 255)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True).filter(
    lambda name: name.lower() not in RESERVED
)
counts = st.integers(1, 2**31 - 1)
runs = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True).map(tuple)
shares = st.floats(0, 1, exclude_max=True)
grids = st.lists(shares, min_size=1, max_size=4, unique=True).map(tuple)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


models = st.builds(
    ModelConfig,
    source=maybe(words),
    embedded=st.sampled_from(["encoder", "decoder"]),
    checkpoint=names,
    revision=maybe(words),
    backend=st.sampled_from([None, "bridge", "hooked"]),
    class_names=maybe(st.lists(texts, max_size=3).map(tuple)),
    prompt=maybe(st.text(st.characters(codec="utf-8"))),
    chat_template=st.booleans(),
    answers=maybe(st.dictionaries(texts, texts, max_size=3)),
    max_length=maybe(counts),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    device_map=st.sampled_from([None, "auto", {"": "cpu"}]),
    allow_pickle=st.booleans(),
)
sources = st.lists(
    st.builds(Source, path=words, labels=st.lists(words, max_size=2).map(tuple), max=maybe(counts)),
    min_size=1,
    max_size=2,
).map(tuple)
schedules = st.builds(
    prune_settings,
    st.sampled_from(["fast", "paper"]),
    steps=counts,
    lr=st.floats(0, 1e6),
    log_alpha_mean=st.floats(-1e6, 1e6),
    ramp=st.floats(0, 1, exclude_min=True),
    precision=st.sampled_from(["float32", "bfloat16", "auto"]),
)
trainings = st.builds(
    train_settings,
    st.sampled_from(["quick", "bert-mnli"]),
    steps=st.integers(1, 10**6),
    warmup_steps=st.just(0),
    learning_rate=st.floats(0, 1, exclude_min=True),
    precision=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**31),
)
ANALYSED: dict[str, dict[str, Any]] = {
    "smallest": {"loss": 0.3},
    "halves": {},
    "methods": {"methods": ("attribution", "random")},
    "heads": {"max_examples": 1},
    "sweep": {"components": "mlps", "ood_mean": False},
    "roles": {"alpha": 0.9},
    "flips": {},
    "knockouts": {"categories": ("repeated",), "controls": 30},
    "ablation": {"max_joint": 0, "max_non_core": 99},
    "failure": {"n_pairs": 0},
    "repair": {"examples": (8,), "steps": 9},
    "paths": {"controls": 0, "max_examples": 2**31 - 1},
    "dose": {"components": 1, "max_examples": 1},
    "responses": {},
    "search": {"subset": "a b", "max_size": 9},
    "effective_size": {"target_sparsities": (0.0, 0.9), "seeds": (7,), "prune": PruneSettings(9)},
}
"""The analyses, each with values other than its own."""
analysed = {
    name: st.sampled_from([ANALYSES[name](), ANALYSES[name](**changes)])
    for name, changes in ANALYSED.items()
}
without = {name: maybe(values) for name, values in analysed.items() if name != "effective_size"}
analyses = st.builds(Analyses, fill=st.sampled_from(["mean", "mine"]), **(analysed | without))
configs = st.builds(
    StudyConfig,
    data=st.builds(
        DataConfig,
        **dict.fromkeys(("train", "id", "ood"), maybe(words | sources)),
        groups=st.dictionaries(
            texts.filter(lambda name: name not in ("ID", "mixed", "all")),
            st.lists(texts, min_size=1, max_size=2, unique=True).map(tuple),
            max_size=2,
        ),
        **dict.fromkeys(("columns", "label_map"), st.dictionaries(texts, texts, max_size=3)),
        population=st.sampled_from(POPULATIONS),
        ood_label=maybe(texts),
        ood_subsets=st.lists(texts, max_size=3).map(tuple),
        **dict.fromkeys(("max_train", "max_id", "max_ood"), maybe(counts)),
        seed=st.integers(0, 2**32 - 1),
    ),
    method=st.sampled_from(["l0", "random", "mine"]),
    prune=schedules,
    seeds=runs,
    target_sparsities=grids,
    seeds_per_job=counts,
    analyses=analyses,
    only=st.lists(st.sampled_from(["roles", "core"]), unique=True, max_size=2).map(tuple),
    batch_size=counts,
    n_resamples=counts,
    resources=st.builds(
        Resources,
        cpus=maybe(counts),
        gpus=st.floats(0, 2**31),
        device=st.sampled_from([None, "cpu", "mps", "cuda", "cuda:3"]),
    ),
)
single = (
    configs
    | st.builds(replace, configs, model=models)
    | st.builds(
        replace,
        configs,
        model=models.map(lambda model: replace(model, source="base")),
        training=trainings,
        checkpoints=st.sampled_from([(), ("training",)]),
    )
    | st.builds(
        replace,
        configs,
        data=st.builds(DataConfig, task=words, folder=maybe(words)),
    )
    | st.builds(
        replace,
        configs,
        model=models.map(lambda model: replace(model, source=None)),
        checkpoints=st.lists(words, min_size=1, max_size=3).map(tuple),
        target_sparsities=st.just(()) | grids,
    )
)
studies = single | st.builds(
    replace,
    configs,
    variants=st.dictionaries(names.map(str.lower), single, min_size=1, max_size=2),
)


@given(studies)
def test_a_study_comes_back_from_a_file(config: StudyConfig) -> None:
    text = json.dumps(plain(config), allow_nan=False)
    assert STUDY.read(json.loads(text), "study.json") == config


def test_every_setting_is_drawn_above() -> None:
    """Or the property would not hold for what it leaves at its default."""
    drawn = {
        StudyConfig: "model variants training checkpoints data method prune seeds "
        "target_sparsities seeds_per_job analyses only batch_size n_resamples resources",
        ModelConfig: "source embedded checkpoint revision backend class_names prompt "
        "chat_template answers max_length dtype device_map allow_pickle",
        DataConfig: "task folder train id ood columns label_map population groups ood_label "
        "ood_subsets max_train max_id max_ood seed",
        Analyses: " ".join([*ANALYSED, "fill"]),
        Resources: "cpus gpus device",
    }
    for kind, listed in drawn.items():
        assert [field.name for field in fields(kind)] == listed.split()
    assert set(plain(StudyConfig())["prune"]) == {field.name for field in fields(PruneSettings)}
