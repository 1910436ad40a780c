"""Answers: what is read is what was saved, groups of subsets, what an interrupted job keeps."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mechcore.ablation import ablate
from mechcore.analyses.search import Search
from mechcore.analyses.sweep import Swept
from mechcore.evaluation.evaluate import Evaluation
from mechcore.masking.means import MeanActivations
from mechcore.steps.answers import known_groups, load_answers, save_answers
from mechcore.steps.inputs import Inputs

SUBSETS = np.array(["x", "", "ü <b>", "x"], dtype=object)


def evaluation(seed: int, correct: torch.Tensor, mapping: str = "0: a, 1: b") -> Evaluation:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 3, generator=generator) * 100
    logits[:, 1] = float("-inf")  # a word that a language model never says
    return Evaluation(logits, correct, SUBSETS, mapping)


@pytest.fixture
def correct() -> torch.Tensor:
    return torch.tensor([[True, False, False], [False, True, True], [True] * 3, [False] * 3])


def test_answers_come_back(tmp_path: Path, correct: torch.Tensor) -> None:
    # Not in the order of the alphabet; names and mapping are any text.
    saved = {name: evaluation(i, correct, "ö: \n'") for i, name in enumerate(["s0.5", "a", "Ä/'"])}
    path = tmp_path / "deep" / "answers.safetensors"
    save_answers(path, saved)
    loaded = load_answers(path)
    assert list(loaded) == list(saved)
    for name, back in loaded.items():
        assert torch.equal(back.logits, saved[name].logits)
        assert back.logits.dtype == torch.float32
        assert torch.equal(back.correct_classes, correct)
        assert back.correct_classes.dtype == torch.bool
        assert back.subsets.tolist() == SUBSETS.tolist()
        assert back.mapping == "ö: \n'"
        assert back.accuracy == saved[name].accuracy
        np.testing.assert_array_equal(back.margin, saved[name].margin)


def test_views_and_other_precisions_can_be_saved(tmp_path: Path, correct: torch.Tensor) -> None:
    wide = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    wrong = Evaluation(wide.T, correct.T.contiguous().T, SUBSETS, "")
    save_answers(tmp_path / "answers", {"full": wrong})
    (back,) = load_answers(tmp_path / "answers").values()
    assert back.logits.tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert torch.equal(back.correct_classes, correct)


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
def test_groups_are_reported_where_all_their_subsets_are_there(inputs: Inputs) -> None:
    ablations = ablate(inputs.model, ["L0.H1"], inputs.data["ood"], fill="zero", split="ood")
    whole, part = ("hans 0", "hans 1"), ("hans 0", "hans 7")
    groups = {"both": whole, "one gone": part, "hans 0": whole}
    assert known_groups(ablations, groups) == {"both": whole}
    inside = ablate(inputs.model, ["L0.H1"], inputs.data["id"], fill="zero", split="id")
    assert known_groups(inside, groups) == {}


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
@pytest.mark.parametrize("step", ["sweep", "search"])
def test_a_job_of_a_study_keeps_what_an_interrupted_one_finds_again(
    step: str,
    inputs: Inputs,
    means: MeanActivations,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module(f"mechcore.analyses.{step}")
    monkeypatch.setattr(module, "inputs_of", lambda _: inputs)
    monkeypatch.setattr(module, "means_of", lambda *_: means)
    common: Any = {"seed": 0, "batch_size": 8, "fill": "mean", "components": "mlps"}
    search = Search(**common, n_resamples=10, split="id", max_size=2)
    made = search if step == "search" else Swept(**common)
    folder, partial = tmp_path / "result", tmp_path / "partial"
    folder.mkdir()
    work: Any = SimpleNamespace(folder=folder, partial=partial, write_tables=lambda _: None)
    made.run(work)
    kept = [path.name.partition("-")[0] for path in partial.iterdir()]
    expected = {"sweep": {"sweep": 2}, "search": {"screening": 1, "sweep": 3}}
    assert dict(Counter(kept)) == expected[step]
