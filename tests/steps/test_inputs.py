"""What a study reads: draws, reported with the option that changes them, and model inputs."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from helpers import Cases

from mechcore.data.examples import Examples
from mechcore.data.sources import Source
from mechcore.errors import InputError, MechcoreWarning
from mechcore.evaluation.evaluate import evaluate
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.fitting import training_on
from mechcore.steps.inputs import Inputs, open_model, read_split
from mechcore.training import train_settings

MODEL = ModelConfig(source="mine")


@pytest.fixture
def six(tmp_path: Path) -> str:
    """A file of six examples."""
    texts = [f"text {i}" for i in range(6)]
    path = tmp_path / "six.csv"
    pd.DataFrame({"text_a": texts, "label": "yes"}).to_csv(path, index=False)
    return str(path)


def draw(split: str, data: DataConfig) -> tuple[int, int, list[str]]:
    """Examples of a split, how many there were, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MechcoreWarning)
        examples, available = read_split(split, MODEL, data)
    return len(examples), available, [str(warning.message) for warning in caught]


def test_a_draw_is_reported_with_the_option_that_set_it(six: str) -> None:
    for split in ("train", "id", "ood"):
        options: dict[str, Any] = {split: six, f"max_{split}": 4, "seed": 7}
        drawn = "examples 'six': 4 of 6 drawn at random, by subset, with seed 7; "
        drawn += f"--max-{split} 0 (max_{split}: null in a study's file) takes all"
        assert draw(split, DataConfig(**options)) == (4, 6, [drawn])
        for everything in (6, None):
            assert draw(split, DataConfig(**{**options, f"max_{split}": everything})) == (6, 6, [])
    # A draw from a drawn source tells of both.
    data = DataConfig(ood=(Source(path=six, max=5, seed=1),), max_ood=2)
    n, available, (first, second) = draw("ood", data)
    assert (n, available) == (2, 5)
    assert first.startswith(f"examples of {six}: 5 of 6 drawn at random, by subset, with seed 1; ")
    assert second.startswith(
        "examples 'six': 2 of 5 drawn at random, by subset, with seed 0; --max"
    )


PAIRS = [("the cat saw a dog", "a bird ran"), ("no", "the dog ran quickly")]


def inputs(cases: Cases, architecture: str) -> Inputs:
    """A model with a tokenizer that tells segments apart."""
    model = cases.get(architecture).model
    return Inputs(ModelConfig(architecture), model, helpers.word_tokenizer(), {}, {})


def examples(pairs: list[tuple[str, str]]) -> Examples:
    frame = pd.DataFrame(pairs, columns=["text_a", "text_b"])
    return Examples("id", frame.assign(label="neutral", subset="all"))


def test_models_that_tell_no_segments_apart_read_pairs_without_token_types(cases: Cases) -> None:
    encoded = inputs(cases, "roberta").encode(examples(PAIRS), words=True)
    assert encoded.token_type_ids is None
    assert encoded.segments is not None
    assert [max(row) for row in encoded.segments] == [1, 1]
    evaluation = evaluate(cases.get("roberta").model, encoded, in_domain=False)
    rows = [torch.tensor(ids) for ids in encoded.input_ids]
    expected = helpers.reference_logits(cases.get("roberta").reference, rows)
    torch.testing.assert_close(evaluation.logits, expected, rtol=0, atol=1e-5)


def test_token_types_stay_where_the_model_knows_them(cases: Cases) -> None:
    encoded = inputs(cases, "bert").encode(examples(PAIRS))
    assert encoded.token_type_ids == [[0] * 7 + [1] * 4, [0] * 3 + [1] * 5]
    single = inputs(cases, "roberta").encode(examples([("no", ""), ("the cat", "")]))
    assert single.token_type_ids == [[0] * 3, [0] * 4]


CHAT = "<user>{{ messages[0].content }}</>{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture
def instruct(tmp_path: Path) -> Path:
    """A language model whose tokenizer has a chat template."""
    helpers.gpt2_language_model().save_pretrained(tmp_path)
    tokenizer = helpers.word_tokenizer(segments=False)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_prompts_are_put_into_the_chat_template_where_asked_for(instruct: Path) -> None:
    plain = ModelConfig(str(instruct), prompt="{a} , {b}", answers={"x": "yes", "y": "no"})
    tokens = {}
    for asked in (False, True):
        opened = open_model(replace(plain, chat_template=asked))
        encoded = opened.encode(examples([("the cat", "a dog")]))
        tokens[asked] = opened.tokenizer.convert_ids_to_tokens(encoded.input_ids[0])
    known = [word for word in tokens[True] if word != "[UNK]"]
    assert known == tokens[False] == ["the", "cat", ",", "a", "dog"]
    assert len(tokens[True]) > len(known)
    assert opened.config.prompt == "<user>{a} , {b}</><assistant>"
    with pytest.raises(InputError, match=r"chat template: needs a prompt \(--prompt\)"):
        open_model(replace(plain, prompt=None, chat_template=True))


def test_a_model_that_is_trained_reads_the_same_chat(instruct: Path, six: str) -> None:
    answers = {"yes": "yes", "no": "no"}
    model = ModelConfig(str(instruct), prompt="{a}", chat_template=True, answers=answers)
    training = training_on(model, DataConfig(train=six), train_settings("quick"), splits=())
    assert training.args[1].prompt == "<user>{a}</><assistant>"


def test_the_same_texts_in_and_out_of_domain_are_reported(cases: Cases) -> None:
    pairs = [("a b", "c"), ("b", "c d"), ("d", "e"), ("e", "a")]
    loaded = inputs(cases, "bert")
    loaded.add("id", examples(pairs), 4)
    with pytest.warns(
        MechcoreWarning, match="2 of 3 distinct texts are also among the drawn id data"
    ):
        loaded.add("ood", examples([*pairs[:2], ("a", "e")]), 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*different texts", MechcoreWarning)
        loaded.add("ood", examples([pairs[0], ("a", "e"), ("b", "e")]), 3)
        loaded.add("train", examples([("a b", "c d"), ("c", "a b")]), 2)
    with pytest.warns(
        MechcoreWarning, match="1 of 2 distinct texts are also among the drawn id data"
    ):
        loaded.add("train", examples([pairs[3], ("c", "a b")]), 2)


def test_pairs_beside_single_texts_are_reported(cases: Cases) -> None:
    pairs, singles = examples([("the cat", "a dog")]), examples([("the cat", "")])
    given = inputs(cases, "bert")
    given.add("train", pairs, 1)
    with pytest.warns(MechcoreWarning, match="id: read as single texts, but train data as p"):
        given.add("id", singles, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MechcoreWarning)
        given = inputs(cases, "bert")
        given.add("train", pairs, 1)
        given.add("id", examples([("cat", "a dog")]), 1)
