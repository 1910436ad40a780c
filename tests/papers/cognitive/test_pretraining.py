from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mechcore.papers.cognitive.pretraining import ANSWER_WORDS, generate_texts, train_tiny_base
from mechcore.papers.cognitive.text import split_of, tiny_tokenizer
from mechcore.training import read_history

KINDS = ["copy", "recall", "look_up", "compare", "side"]
NUMBER = r"(\d\d)"


def whole(texts: Any) -> dict[str, list[str]]:
    """Texts with their answers, by kind."""
    found: dict[str, list[str]] = {}
    for row in texts.frame.itertuples():
        found.setdefault(row.subset, []).append(f"{row.text_a} {row.label}")
    return found


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    return whole(generate_texts(1500, 0))


def test_the_kinds_take_turns(texts: dict[str, list[str]]) -> None:
    assert generate_texts(7, 0).frame["subset"].tolist() == [*KINDS, *KINDS[:2]]
    assert {kind: len(found) for kind, found in texts.items()} == dict.fromkeys(KINDS, 300)


def test_a_draw_is_the_beginning_of_a_larger_one() -> None:
    larger = generate_texts(50, 3).frame.head(20)
    assert larger.equals(generate_texts(20, 3).frame)
    assert not larger.equals(generate_texts(20, 4).frame)


def test_copies_are_copies(texts: dict[str, list[str]]) -> None:
    for text in texts["copy"]:
        first, second = text.split(" . ")
        assert first == second
        assert 5 <= len(first.split()) <= 10


@pytest.mark.parametrize(("kind", "question"), [("recall", ""), ("look_up", "item ")])
def test_keys_are_looked_up(texts: dict[str, list[str]], kind: str, question: str) -> None:
    for text in texts[kind]:
        values: dict[str, str] = {}
        asked = 0
        for sentence in text.split(" . "):
            words = sentence.removeprefix(question).replace(" is ", " ").split()
            key, value = words
            asked += key in values
            assert values.setdefault(key, value) == value
        assert 2 <= len(values) == len({*values.values()}) <= 4
        assert asked == (5 if kind == "recall" else 3)


def test_comparisons_are_right(texts: dict[str, list[str]]) -> None:
    for text in texts["compare"]:
        sentences = text.split(" . ")
        assert len(sentences) == 3
        for sentence in sentences:
            found = re.fullmatch(rf"the (\w+) of {NUMBER} and {NUMBER} is {NUMBER}", sentence)
            assert found
            pair = [int(found[2]), int(found[3])]
            assert int(found[4]) == (max if found[1] == "larger" else min)(pair)


def test_sides_are_right(texts: dict[str, list[str]]) -> None:
    forms = set()
    for text in texts["side"]:
        sides: dict[str, str] = {}
        for sentence in text.split(" . "):
            if found := re.fullmatch(rf"left {NUMBER} right {NUMBER}", sentence):
                sides = {"left": found[1], "right": found[2]}
                continue
            extremes = {"smaller": min(sides.values()), "larger": max(sides.values())}
            words = sentence.replace("the ", "").replace("item ", "").replace(" is ", " ").split()
            forms.add(sentence.split()[-1].isdigit())
            named, answer = (extremes.get(words[0], words[0]), words[1])
            assert sides.get(answer, answer) == named
    assert forms == {True, False}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_each_split_compares_its_own_pairs(split: Any) -> None:
    found = whole(generate_texts(600, 0, split))
    pairs = [
        pair
        for kind, pattern in (
            ("compare", rf"of {NUMBER} and {NUMBER}"),
            ("side", rf"left {NUMBER} right {NUMBER}"),
        )
        for text in found[kind]
        for pair in re.findall(pattern, text)
    ]
    assert len(pairs) == 2 * 3 * 120
    assert {split_of(int(one), int(other)) for one, other in pairs} == {split}


def test_nothing_of_the_task_is_in_the_texts(texts: dict[str, list[str]]) -> None:
    words = {word for found in texts.values() for text in found for word in text.split()}
    assert not words & {"context", "motion", "color", "choice"}
    ids = tiny_tokenizer()(" ".join(sorted(words)))["input_ids"]
    assert len(ids) == len(words)
    labels = {text.split()[-1] for found in texts.values() for text in found}
    assert labels <= set(ANSWER_WORDS)


def test_pretraining_is_on_whole_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "mechcore.papers.cognitive.pretraining"
    monkeypatch.setattr(f"{module}.TRAINING_TEXTS", 128)
    monkeypatch.setattr(f"{module}.EVALUATION_TEXTS", 20)
    train_tiny_base(tmp_path / "base", steps=2, progress=False)
    history = read_history(tmp_path / "base")
    assert {*history["subset"]} == {"all", *KINDS}
    assert '"whole": true' in (tmp_path / "base" / "training.json").read_text()
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == [
        "final",
        "history.json",
        "training.json",
    ]
