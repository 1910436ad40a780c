"""Files of answers: what is read is what was saved, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mechcore.evaluation.evaluate import Evaluation
from mechcore.steps.answers import load_answers, save_answers

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
    found = load_answers(path)
    assert list(found) == list(saved)
    for name, each in found.items():
        assert torch.equal(each.logits, saved[name].logits)
        assert each.logits.dtype == torch.float32
        assert torch.equal(each.correct_classes, correct)
        assert each.correct_classes.dtype == torch.bool
        assert each.subsets.tolist() == SUBSETS.tolist()
        assert each.mapping == "ö: \n'"
        assert each.accuracy == saved[name].accuracy
        np.testing.assert_array_equal(each.margin, saved[name].margin)


def test_views_and_other_precisions_can_be_saved(tmp_path: Path, correct: torch.Tensor) -> None:
    wide = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    wrong = Evaluation(wide.T, correct.T.contiguous().T, SUBSETS, "")
    save_answers(tmp_path / "answers", {"full": wrong})
    (found,) = load_answers(tmp_path / "answers").values()
    assert found.logits.tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert torch.equal(found.correct_classes, correct)
