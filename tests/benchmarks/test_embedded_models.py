"""The script that trains the embedded models."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.in_process import FOLDER

from mechcore.papers.cognitive.text import split_of
from mechcore.training import read_history


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER / "embedded_models"))
    for name in ("train", "encoder", "decoder", "base"):  # there are others of these names
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("train")
    for name in ("train", "encoder", "decoder", "base"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["encoder", "decoder", "base"])
def test_each_is_trained_in_a_folder_of_its_own(
    name: str, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, encoder, base = (sys.modules[part] for part in ("decoder", "encoder", "base"))
    monkeypatch.setattr(decoder, "EVALUATION_PAIRS", {"id": 30, "ood": 8})
    monkeypatch.setattr(encoder, "PRETRAINING_STEPS", 2)
    monkeypatch.setattr(base, "EVALUATION_TEXTS", 20)
    train.train(name, tmp_path / name, steps=2, texts=128)
    assert (tmp_path / name / "final" / "model.safetensors").is_file()
    assert {*read_history(tmp_path / name)["step"]} == {2}


@pytest.mark.parametrize("split", ["train", "test"])
def test_each_split_compares_its_own_pairs(split: str, train: Any) -> None:
    texts = sys.modules["base"].generate_texts(600, 0, split).frame
    compared = texts[texts["subset"].isin(["compare", "side"])]["text_a"]
    pattern = r"of (\d\d) and (\d\d)|left (\d\d) right (\d\d)"
    pairs = [[*filter(None, pair)] for text in compared for pair in re.findall(pattern, text)]
    assert len(pairs) == 2 * 3 * 120
    assert {split_of(int(one), int(other)) for one, other in pairs} == {split}
