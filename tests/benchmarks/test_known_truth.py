"""The shipped models of known truth follow the programs that they were trained for."""

import importlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from benchmarks.in_process import FOLDER
from transformers import AutoModelForSequenceClassification

from mechcore.bench.cases import TRAINED, case_dir
from mechcore.errors import MechcoreError
from mechcore.models import load_tokenizer


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER / "known_truth"))
    return importlib.import_module("train")


@pytest.mark.parametrize("name", TRAINED)
def test_it_follows_its_program_on_fresh_texts(name: str, train: Any) -> None:
    folder, program = case_dir(name), train.PROGRAMS[name]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    measured = train.measure(model, load_tokenizer(folder), program, n=150, seed=7)
    assert train.failures(measured) == []
    stored = json.loads((folder / train.MEASURED_FILE).read_text())["measured"]
    assert train.failures(stored) == []
    assert json.loads((folder / train.TRUTH_FILE).read_text()) == train.truth_of(program)
    texts = pd.read_parquet(folder / train.TEXTS_FILE)
    pd.testing.assert_frame_equal(texts, train.texts_of(program))


def test_a_model_that_does_not_follow_its_program_is_not_saved(tmp_path: Path, train: Any) -> None:
    with pytest.raises(MechcoreError, match=r"case copy: train: accuracy of answers is 0\.\d+"):
        train.make("copy", tmp_path / "copy", steps=1)
    assert not (tmp_path / "copy").exists()
