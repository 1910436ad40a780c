from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from mechcore.data.examples import Examples
from mechcore.papers.extractive.encoded import encode_facts
from mechcore.papers.extractive.fact_world import (
    NEWCOMERS,
    PEOPLE,
    ROLES,
    TINY_CITIES,
    base_facts,
    base_texts,
    fact_world_tokenizer,
    tiny_fact_model,
    tiny_fact_tasks,
    tiny_ordering,
    train_fact_base,
)
from mechcore.papers.extractive.facts import Facts

KINDS = {"home": 600, "language": 300, "attribute": 600, "city": 60, "landmark": 20}
KINDS |= {"role": 240, "described": 240}
"""300 people with 2, 1 and 2 facts; 20 cities with 3 and 1; 12 roles in each of 20 cities."""


def splits(seed: int) -> list[Facts]:
    task = tiny_ordering(seed)
    hops = [split for one in tiny_fact_tasks(seed) for split in (one.facts, one.implications)]
    return [*hops, *(getattr(task, name) for name in type(task).__dataclass_fields__)]


def test_every_word_is_one_token() -> None:
    tokenizer = fact_world_tokenizer()
    for column in zip(*TINY_CITIES, strict=True):
        assert len({*column}) == 20
    words = [*PEOPLE, *NEWCOMERS, *ROLES, *(word for city in TINY_CITIES for word in city)]
    assert tokenizer(" ".join(words), add_special_tokens=False)["input_ids"] == [
        tokenizer.convert_tokens_to_ids(word) for word in words
    ]
    assert len({*words}) == 300 + 104 + 12 + 80
    assert tokenizer("The mayor")["input_ids"][0] == tokenizer.bos_token_id
    with pytest.raises(Exception, match="UNK"):
        tokenizer("Atlantis")


def test_the_tasks_can_be_written() -> None:
    tokenizer = fact_world_tokenizer()
    for facts in splits(2):
        encoded = encode_facts(facts, tokenizer)
        assert {len(ids) for ids in encoded.completion_ids} == {1}
        assert {ids[0] for ids in encoded.prompt_ids} == {tokenizer.bos_token_id}
        assert len(encoded.option_ids) == 20


@pytest.fixture(scope="module")
def facts() -> Examples:
    return base_facts(0)


def test_nothing_of_the_tasks_is_in_the_texts() -> None:
    texts = base_texts(4000, 1).frame
    sentences = {*(texts["text_a"] + " " + texts["label"])}
    for facts in splits(1):
        answers = zip(facts.prompts, facts.completions, strict=True)
        assert not sentences & {f"{prompt} {completion}" for prompt, completion in answers}
    words = {word for sentence in sentences for word in sentence.split()}
    assert not words & {"mayor", "zong", *(city.animal for city in TINY_CITIES)}
    neutral = texts["subset"] == "neutral"
    known = {word for text in sentences for word in text.split() if " met " not in text}
    assert not known & {*NEWCOMERS}
    assert {*texts.loc[neutral, "label"]} & {*NEWCOMERS}
    assert 0.12 < neutral.mean() < 0.18


def test_a_pass_has_every_fact_once(facts: Examples) -> None:
    assert facts.frame["subset"].value_counts().to_dict() == KINDS
    assert not facts.frame["text_a"].duplicated().any()
    texts = base_texts(6000, 0).frame
    stated = texts[texts["subset"] != "neutral"].drop(columns="text_b")
    wanted = sorted(facts.frame.drop(columns="text_b").itertuples(index=False))
    first, second = ([*stated[at : at + 2060].itertuples(index=False)] for at in (0, 2060))
    assert sorted(first) == sorted(second) == wanted
    assert first != second


STEPS = 2


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A base of seed 5 after two short steps, its tokenizer and where it was written."""
    out = tmp_path_factory.mktemp("bases") / "base"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mechcore.papers.extractive.fact_world.BATCH", 16)
        return *train_fact_base(out, 5, steps=STEPS, progress=False), out


def test_pretraining_leaves_input_embeddings(pretrained: tuple[Any, Any, Path]) -> None:
    model, _, _ = pretrained
    before, after = tiny_fact_model(5).state_dict(), model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "transformer.wte.weight" not in changed
    assert {"lm_head.weight", "transformer.wpe.weight"} <= changed
    assert {f"transformer.h.{layer}.mlp.c_fc.weight" for layer in range(4)} <= changed
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_base_is_written_as_a_checkpoint_and_seeded(
    pretrained: tuple[Any, Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, out = pretrained
    monkeypatch.setattr("mechcore.papers.extractive.fact_world.BATCH", 16)
    again, _ = train_fact_base(None, 5, steps=STEPS, progress=False)
    stored: Any = GPT2LMHeadModel.from_pretrained(out)
    weights = model.state_dict()
    for other in (stored.state_dict(), again.state_dict()):
        assert other.keys() == weights.keys()
        assert all(torch.equal(other[name], weights[name]) for name in weights)
    text = "The bishop of Tokyo is"
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == tokenizer(text)["input_ids"]
