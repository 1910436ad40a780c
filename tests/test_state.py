"""The file of an interruptible run: what goes in comes out, and no other run's is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from helpers import Cases
from torch import Tensor

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.files import write_safetensors
from mechcore.masking.fills import FILLS, Fill
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.state import StateFile, encoded_inputs, fill_facts, input_facts

FACTS = {"seed": 3, "names": ["a", "b"], "lr": 0.1, "mask": None, "deep": {"x": [1, 2.5]}}
TENSORS = {
    "scores": torch.tensor([[0.1, -2.5], [float("inf"), 3e-40]]),
    "flags": torch.tensor([True, False]),
    "steps": torch.tensor(7),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "nothing": torch.zeros(0, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


def test_a_state_comes_back_bit_for_bit(path: Path) -> None:
    notes = {"done": [[0, 1], [2, 3]], "failed": {"a": "why"}}
    StateFile(path, "sweep", FACTS).save(TENSORS, notes)
    restored = StateFile(str(path), "sweep", FACTS).restore()
    assert restored is not None
    tensors, found = restored
    assert found == notes
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_notes_may_be_left_out_and_a_later_state_replaces_the_first(path: Path) -> None:
    store = StateFile(path, "sweep", {})
    store.save({"x": torch.ones(2)})
    restored = store.restore()
    assert restored is not None
    assert restored[1] == {}
    store.save({"y": torch.zeros(1)}, {"n": 2})
    restored = store.restore()
    assert restored is not None
    assert (list(restored[0]), restored[1]) == (["y"], {"n": 2})
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_there_is_nothing_before_the_first_state(path: Path) -> None:
    store = StateFile(path, "sweep", FACTS)
    assert store.restore() is None
    assert not path.exists()


def test_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "of" / "mine" / "state.safetensors"
    StateFile(path, "sweep", FACTS).save(TENSORS)
    assert path.exists()


def test_no_path_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = StateFile(None, "sweep", FACTS)
    store.save(TENSORS, {"n": 1})
    assert store.restore() is None
    assert list(tmp_path.iterdir()) == []


def test_facts_are_compared_as_json(path: Path) -> None:
    StateFile(path, "sweep", {"pairs": [(0, 1)], "n": 1}).save(TENSORS)
    assert StateFile(path, "sweep", {"pairs": [[0, 1]], "n": 1.0}).restore() is not None


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({"seed": 4}, "seed"),
        ({"names": ["b", "a"]}, "names"),
        ({"mask": 0}, "mask"),
        ({"deep": {"x": [1, 2]}}, "deep"),
        ({"seed": 4, "lr": 0.2, "deep": None}, "seed, lr, deep"),
        ({"another": 1}, "another"),
    ],
    ids=str,
)
def test_the_state_of_another_run_is_refused_by_the_names_of_what_differs(
    path: Path, changes: dict[str, Any], differ: str
) -> None:
    StateFile(path, "pruning", FACTS).save(TENSORS)
    with pytest.raises(InputError) as caught:
        StateFile(path, "pruning", FACTS | changes).restore()
    assert str(caught.value) == (
        f"pruning state {path}: is that of another run: {differ} differ; go on with the same "
        "ones, or remove it to begin anew"
    )
    assert StateFile(path, "pruning", FACTS).restore() is not None


def metadata(**changes: str) -> dict[str, str]:
    return {"format": "mechcore-sweep-1", "facts": json.dumps(FACTS), "notes": "{}"} | changes


BROKEN: dict[str, Callable[[Path], Any]] = {
    "text": lambda path: path.write_text("not a tensor"),
    "empty": lambda path: path.touch(),
    "folder": lambda path: path.mkdir(),
    "another kind": lambda path: StateFile(path, "pruning", FACTS).save(TENSORS),
    "no format": lambda path: write_safetensors(path, TENSORS, {"facts": "{}"}),
    "no facts": lambda path: write_safetensors(path, TENSORS, {"format": "mechcore-sweep-1"}),
    "broken facts": lambda path: write_safetensors(path, TENSORS, metadata(facts="{")),
    "broken notes": lambda path: write_safetensors(path, TENSORS, metadata(notes="x")),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_what_is_no_state_is_refused(path: Path, damage: str) -> None:
    BROKEN[damage](path)
    with pytest.raises(InputError) as caught:
        StateFile(path, "sweep", FACTS).restore()
    message = str(caught.value)
    assert message.startswith(f"sweep state {path}: not a state written by mechcore (")
    assert message.endswith("); remove it to begin anew")


def test_half_a_state_is_refused(path: Path) -> None:
    store = StateFile(path, "sweep", FACTS)
    store.save(TENSORS)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="not a state written by mechcore"):
        store.restore()


def test_another_kind_is_named(path: Path) -> None:
    StateFile(path, "pruning", FACTS).save(TENSORS)
    message = r"format 'mechcore-pruning-1', expected 'mechcore-sweep-1'"
    with pytest.raises(InputError, match=message):
        StateFile(path, "sweep", FACTS).restore()


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="is not a writable folder"):
        StateFile(file / "state.safetensors", "sweep", FACTS)


# -- facts about the inputs -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> EncodedExamples:
    frame = pd.DataFrame(
        {
            "text_a": ["the cat ran", "a dog"],
            "text_b": ["a bird", "no"],
            "label": ["neutral", "entailment"],
            "subset": ["s", "s"],
        }
    )
    return encode(Examples("x", frame), helpers.word_tokenizer(), max_length=48)


def test_input_facts_are_those_of_weights_tokens_and_means(
    cases: Cases, data: EncodedExamples
) -> None:
    model = load_model(cases.path("bert"))
    means, inputs = MeanActivations.compute(model, data, n_samples=6), encoded_inputs(data)
    facts = input_facts(model, inputs, means)
    assert facts == input_facts(model, inputs, means)
    assert facts == input_facts(load_model(cases.path("bert")), inputs, means)
    assert facts["torch"] == torch.__version__
    assert input_facts(model, inputs, None) == {**facts, "means": None}

    def differ(**changes: Any) -> set[str]:
        found = input_facts(**{"model": model, "inputs": inputs, "means": means, **changes})
        return {name for name in facts if found[name] != facts[name]}

    ids = [list(row) for row in data.input_ids]
    assert differ(inputs=encoded_inputs(replace(data, input_ids=ids))) == set()
    ids[1][1] += 1
    assert differ(inputs=encoded_inputs(replace(data, input_ids=ids))) == {"data"}
    assert differ(inputs=encoded_inputs(replace(data, token_type_ids=None))) == {"data"}
    answers = {"neutral": 5, "entailment": 6}
    assert differ(inputs=encoded_inputs(replace(data, answers=answers))) == {"data"}
    for name in ("z", "mlp", "samples_z", "samples_mlp"):
        changed = getattr(means, name).clone()
        changed.view(-1)[-1] += 1
        assert differ(means=replace(means, **{name: changed})) == {"means"}
    with torch.no_grad():
        model.original_model.bert.pooler.dense.bias[0] += 1
    assert differ() == {"model"}


def test_input_facts_are_those_of_the_configuration_wherever_the_model_lies(
    cases: Cases, tmp_path: Path
) -> None:
    path = cases.path("bert")
    facts = input_facts(load_model(path), [], None)
    moved = shutil.copytree(path, tmp_path / "moved")
    assert input_facts(load_model(moved), [], None) == facts
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    found = input_facts(load_model(moved), [], None)
    assert {name for name in facts if found[name] != facts[name]} == {"configuration"}


@pytest.mark.hooked
def test_input_facts_are_those_of_the_configuration_of_a_hooked_transformer(cases: Cases) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm"))
    facts = input_facts(model, [], None)
    assert input_facts(helpers.hooked_transformer(cases.path("gpt2-lm")), [], None) == facts
    model.cfg.eps *= 10
    found = input_facts(model, [], None)
    assert {name for name in facts if found[name] != facts[name]} == {"configuration"}


class _Half(Fill):
    def values(self, *_: Any) -> Tensor:
        return torch.tensor(0.5)


def _third() -> type[Fill]:
    """A class that is in no module: only its own source counts."""

    class Third(Fill):
        def values(self, *_: Any) -> Tensor:
            return torch.tensor(1 / 3)

    Third.__module__ = "in_no_module"
    return Third


def test_fill_facts_know_the_code_of_a_fill_of_ones_own() -> None:
    mean = ["mean", "mechcore.masking.fills.Mean"]
    assert fill_facts("mean") == {"fill": mean, "code of the fill": {}}
    found = []
    for each in (_Half, _third()):
        FILLS.register("own")(each)
        found.append(fill_facts("own"))
        assert found[-1] == fill_facts("own")
        FILLS.remove("own")
    assert found[0]["code of the fill"] != found[1]["code of the fill"]
    with pytest.raises(InputError, match="tells fills by their names"):
        fill_facts(_Half)
