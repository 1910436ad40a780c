"""Heads' outputs of the cognitive task: planted codes, classes that are too rare, answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mechcore.components import ModelShape
from mechcore.models import load_model
from mechcore.models.protocol import hook_z
from mechcore.papers.cognitive import decoding
from mechcore.papers.cognitive.decoding import answers_of, svm_table
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.papers.cognitive.trials import Trials, encode_trials, generate

HEADS = ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
TARGETS = ["choice", "correct", "congruent", "condition"]
FIGURES = ["accuracy", "low", "high", "chance", "floor", "shuffled", "shuffled_high", "p"]


@pytest.fixture(scope="module")
def trials() -> Trials:
    return generate(160, 1, split="test")


def plant(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], codes: dict[tuple[int, int], np.ndarray]
) -> None:
    """Heads of noise, with these codes [trial] at some (layer, head), and these answers."""

    def noise(model: Any, data: Any, hooks: list[str], **options: Any) -> dict[str, torch.Tensor]:
        z = np.random.default_rng(0).standard_normal((len(answers), 1, 2, 2, 4))
        for (layer, head), code in codes.items():
            z[:, 0, layer, head, 0] += 9.0 * code
        values = torch.tensor(z, dtype=torch.float32)
        return {hook_z(layer): values[:, :, layer] for layer in (0, 1)}

    monkeypatch.setattr(decoding, "activations_at", noise)
    monkeypatch.setattr(decoding, "answers_of", lambda *args, **options: answers)


def some_wrong(trials: Trials, wrong: np.ndarray) -> list[str]:
    other = {"left": "right", "right": "left"}
    labels = trials.frame["label"]
    return [other[right] if w else right for right, w in zip(labels, wrong, strict=True)]


def test_one_row_for_each_target_and_head(tiny: Any, trials: Trials) -> None:
    table = svm_table(*tiny, trials, shuffles=3)
    assert list(table) == ["component", "layer", "head", "target", "n", "smallest", *FIGURES]
    for name, values in (("component", HEADS), ("layer", [0, 0, 1, 1]), ("head", [0, 1, 0, 1])):
        assert table[name].tolist() == values * 4
    assert table["target"].tolist() == [target for target in TARGETS for _ in HEADS]
    first = table.groupby("target").first().loc[["congruent", "condition"]]
    assert first[["smallest", "chance"]].values.tolist() == [[80, 0.5], [20, 0.125]]


def test_codes_are_found_in_the_heads_that_have_them(
    monkeypatch: pytest.MonkeyPatch, tiny: Any, trials: Trials
) -> None:
    wrong = np.arange(160) % 4 == 0
    answers = some_wrong(trials, wrong)
    chosen = np.array([1 if answer == "right" else -1 for answer in answers])
    congruent = trials.frame["congruent"].to_numpy()
    plant(monkeypatch, answers, {(0, 1): chosen, (1, 0): wrong, (1, 1): congruent})
    table = svm_table(*tiny, trials, shuffles=3)
    for target, head in (("choice", 1), ("correct", 2), ("congruent", 3)):
        shares = table.loc[table["target"] == target, "accuracy"].tolist()
        assert shares[head] == 1
        assert shares[0] < 0.65
    correct = table[table["target"] == "correct"]
    assert correct["n"].tolist() == [80] * 4  # 40 wrong ones and as many right ones
    assert correct["smallest"].tolist() == [40] * 4
    assert correct["chance"].tolist() == [0.5] * 4


def test_the_floor_of_errors_is_what_congruence_tells(
    monkeypatch: pytest.MonkeyPatch, tiny: Any, trials: Trials
) -> None:
    # Wrong on all 80 incongruent trials, right on all congruent ones.
    plant(monkeypatch, some_wrong(trials, ~trials.frame["congruent"].to_numpy()), {})
    table = svm_table(*tiny, trials, shuffles=1).groupby("target")
    floor = table["floor"].first()
    assert floor["correct"] == 1
    assert floor["congruent"] == 0.5  # the choice says nothing of it
    assert floor["condition"] == 0.25


def test_a_head_that_knows_numbers_again_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, tiny: Any
) -> None:
    trials = generate(160, 1, split="test", differences=[5, 15, 50])
    texts = trials.frame["text"].str.split()
    cued = trials.frame["context"] == "motion"
    shown = (texts.str[5] + texts.str[7]).where(cued, texts.str[11] + texts.str[13])
    shown = trials.frame["context"] + shown
    drawn = dict(zip(sorted(set(shown)), np.eye(99), strict=False))
    states = torch.tensor(np.stack([drawn[text] for text in shown]), dtype=torch.float32)

    def known(_: Any, data: Any, hooks: list[str], **options: Any) -> dict[str, torch.Tensor]:
        return {hook_z(0): states[:, None, None]}  # of the one head of one layer

    monkeypatch.setattr(decoding, "ModelShape", SimpleNamespace(of=lambda model: ModelShape(1, 1)))
    monkeypatch.setattr(decoding, "activations_at", known)
    monkeypatch.setattr(
        decoding, "answers_of", lambda *_, **options: trials.frame["label"].tolist()
    )
    table = svm_table(*tiny, trials, shuffles=20)
    (choice,) = table[table["target"] == "choice"].itertuples()
    assert choice.low < 0.5
    assert choice.p > 0.05


@pytest.mark.parametrize(("n_wrong", "there"), [(0, False), (9, False), (10, True), (160, False)])
def test_classes_that_are_too_rare_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tiny: Any, trials: Trials, n_wrong: int, there: bool
) -> None:
    plant(monkeypatch, some_wrong(trials, np.arange(160) < n_wrong), {})
    table = svm_table(*tiny, trials, shuffles=1)
    rows = table[table["target"] == "correct"]
    smallest = min(n_wrong, 160 - n_wrong)
    assert rows["component"].tolist() == HEADS
    assert rows["smallest"].tolist() == [smallest] * 4
    assert rows["n"].tolist() == [2 * smallest] * 4
    assert rows[FIGURES].notna().all().all() == rows[FIGURES].notna().any().any() == there
    assert table.loc[table["target"] != "correct", FIGURES].notna().all().all()


def test_classes_with_the_same_few_numbers_and_a_single_answer_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tiny: Any, trials: Trials
) -> None:
    same = trials.rows([*range(80), *[0, 1, 2, 3] * 20])  # of the second half, 4 pairs
    for given, answers, target, smallest in (
        (same, some_wrong(same, np.arange(160) >= 80), "correct", 80),
        (trials, ["left"] * 160, "choice", 0),
    ):
        plant(monkeypatch, answers, {})
        rows = svm_table(*tiny, given, shuffles=1).query(f"target == '{target}'")
        assert rows["smallest"].tolist() == [smallest] * 4
        assert rows[FIGURES].isna().all().all()


@pytest.mark.parametrize(("seed", "answer"), [(0, "right"), (1, "left")])
def test_answers_are_those_of_hugging_face(tmp_path: Path, seed: int, answer: str) -> None:
    trials, tokenizer = generate(24, 3), tiny_tokenizer()
    reference = helpers.gpt2_language_model(seed, vocab_size=len(tokenizer), pad_token_id=0)
    reference.save_pretrained(tmp_path)
    ids = torch.tensor(tokenizer(trials.frame["text"].tolist())["input_ids"])
    left, right = tokenizer.convert_tokens_to_ids(["left", "right"])
    with torch.no_grad():
        last = reference(input_ids=ids).logits[:, -1]
    expected = ["left" if row[left] > row[right] else "right" for row in last]
    assert set(expected) == {answer}  # while half of the labels are the other
    data = encode_trials(trials, tokenizer, max_length=20)
    assert answers_of(load_model(tmp_path), data) == expected
