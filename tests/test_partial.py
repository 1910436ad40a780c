"""Partial results: what goes in comes out, and no other work's is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from helpers import Cases
from torch import Tensor

from mechcore import partial
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.files import write_safetensors
from mechcore.masking.fills import FILLS, Fill
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.partial import Partial, Steps, known_fill

FACTS: dict[str, Any] = {"seed": 3, "names": ["a", "b"], "lr": 0.1, "mask": None, "x": [1, 2.5]}
TENSORS = {
    "scores": torch.tensor([[0.1, -2.5], [float("inf"), 3e-40]]),
    "flags": torch.tensor([True, False]),
    "steps": torch.tensor(7),
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "nothing": torch.zeros(0, 4),
}


def test_what_is_kept_comes_back_bit_for_bit(tmp_path: Path) -> None:
    notes = {"done": [[0, 1], [2, 3]], "failed": {"a": "why"}}
    folder = tmp_path / "of" / "mine"
    assert Partial(folder, "sweep", **FACTS).restore() is None
    assert not folder.exists()
    Partial(folder, "sweep", **FACTS).save(TENSORS, notes)
    restored = Partial(str(folder), "sweep", **FACTS).restore()
    assert restored is not None
    tensors, kept = restored
    assert kept == notes
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_no_folder_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Partial(None, "sweep", anything=object())
    kept.save(TENSORS, {"n": 1})
    assert kept.restore() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [{"seed": 4}, {"names": ["b", "a"]}, {"mask": 0}, {"x": [1, 2]}, {"lr": None}, {"another": 1}],
    ids=str,
)
def test_other_work_has_a_file_of_its_own(tmp_path: Path, changes: dict[str, Any]) -> None:
    Partial(tmp_path, "sweep", **FACTS).save(TENSORS)
    assert Partial(tmp_path, "sweep", **FACTS | changes).restore() is None
    assert Partial(tmp_path, "pruning", **FACTS).restore() is None
    assert Partial(tmp_path, "sweep", **FACTS).restore() is not None


BROKEN: dict[str, Callable[[Path], Any]] = {
    "half": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "no digest": lambda path: write_safetensors(path, TENSORS, {"notes": "{}"}),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_what_is_damaged_is_done_again(tmp_path: Path, damage: str) -> None:
    kept = Partial(tmp_path, "sweep", **FACTS)
    assert kept.path is not None
    if damage in ("half", "changed"):
        kept.save(TENSORS)
    BROKEN[damage](kept.path)
    with pytest.warns(MechcoreWarning, match="damaged .*; repeating its work"):
        assert kept.restore() is None
    kept.save(TENSORS)
    assert kept.restore() is not None


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a writable folder"):
        Partial(tmp_path / "file", "sweep")


def test_steps_are_kept_every_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, saved = Partial(tmp_path, "sweep"), []
    real = Partial.save
    monkeypatch.setattr(
        Partial, "save", lambda *given: (saved.append(len(given[2]["done"])), real(*given))
    )

    def work(until: int) -> Tensor:
        total = torch.zeros(4)
        with Steps(kept, {"total": total}) as steps:
            for number in range(4):
                if (number,) not in steps.done:
                    if number == until:
                        raise KeyboardInterrupt
                    total[number] += 1
                    steps.finish(number)
        return total

    with pytest.raises(KeyboardInterrupt):
        work(2)
    assert saved == [2]
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_SAVES", -1.0)
    assert torch.equal(work(4), torch.ones(4))
    assert torch.equal(work(0), torch.ones(4))
    assert saved == [2, 3, 4]


@pytest.fixture(scope="module")
def data() -> EncodedExamples:
    return helpers.encoded_of([("the cat ran", "a bird"), ("a dog", "no")])


def file_of(**depends_on: Any) -> str:
    path = Partial("folder", "sweep", **depends_on).path
    assert path is not None
    return path.name


def test_files_are_those_of_weights_tokens_and_means(cases: Cases, data: EncodedExamples) -> None:
    model = load_model(cases.path("bert"))
    means = MeanActivations.compute(model, data, n_samples=6)
    own = {"model": model, "data": data, "means": means}
    name = file_of(**own)
    assert file_of(**own | {"model": load_model(cases.path("bert"))}) == name
    ids = [list(row) for row in data.input_ids]
    assert file_of(**own | {"data": replace(data, input_ids=ids)}) == name
    ids[1][1] += 1
    answers = {"neutral": 5, "entailment": 6}
    others: list[dict[str, Any]] = [{"means": None}]
    others += [
        {"data": replace(data, **change)}
        for change in ({"input_ids": ids}, {"token_type_ids": None}, {"answers": answers})
    ]
    for kind in ("z", "mlp", "samples_z", "samples_mlp"):
        changed = getattr(means, kind).clone()
        changed.view(-1)[-1] += 1
        others.append({"means": replace(means, **{kind: changed})})
    names = {file_of(**own | change) for change in others}
    with torch.no_grad():
        model.original_model.bert.pooler.dense.bias[0] += 1
    assert len({name, file_of(**own), *names}) == len(others) + 2


def test_files_are_those_of_the_configuration_wherever_the_model_lies(
    cases: Cases, tmp_path: Path
) -> None:
    path = cases.path("bert")
    name = file_of(model=load_model(path))
    moved = shutil.copytree(path, tmp_path / "moved")
    assert file_of(model=load_model(moved)) == name
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    assert file_of(model=load_model(moved)) != name


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


def test_fills_of_ones_own_are_known_by_their_code() -> None:
    assert known_fill("mean") == ["mean", "mechcore.masking.fills.Mean", []]
    known = []
    for kind in (_Half, _third()):
        FILLS.register("own")(kind)
        known.append(known_fill("own"))
        assert known[-1] == known_fill("own")
        FILLS.remove("own")
    assert known[0][2] != known[1][2]
    with pytest.raises(InputError, match="partial results need a registered fill"):
        known_fill(_Half)
