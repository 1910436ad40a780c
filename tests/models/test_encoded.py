"""The functions of mechcore take examples of any form, and batches of a DataLoader."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import datasets
import helpers
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader
from transformer_lens.model_bridge.sources import build_bridge_from_module

from mechcore import MeanActivations, categorize_heads, evaluate
from mechcore.ablation import sweep
from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model, load_tokenizer
from mechcore.models.encoded import as_encoded, tokenizer_of
from mechcore.papers.cognitive.probing import activations_at
from mechcore.pruning import PruneSettings, attribution_scores, prune

ROWS = [
    {"text_a": a, "text_b": b, "label": label, "subset": subset}
    for a, b, label, subset in (
        ("the cat saw a dog", "a dog ran", "neutral", "x"),
        ("a bird ran , and the dog", "the dog saw", "entailment", "y"),
        ("the dog never saw the cat", "the cat ran often", "contradiction", "x"),
        ("who saw the bird", "a cat", "entailment", "y"),
        ("the cat ran", "the bird ran", "neutral", "x"),
    )
]
FRAME = pd.DataFrame(ROWS)
FORMS: dict[str, Any] = {
    "frame": FRAME,
    "dataset": datasets.Dataset.from_list(ROWS),
    "rows": ROWS,
    "examples": Examples("id", FRAME),
}


@pytest.fixture
def model(cases: helpers.Cases) -> Any:
    return cases.get("bert").model


@pytest.fixture
def encoded(cases: helpers.Cases) -> Any:
    """By the tokenizer itself, and no code that looks for it."""
    tokenizer = load_tokenizer(cases.get("bert").path)
    return encode(Examples("id", FRAME), tokenizer, max_length=48, words=True)


@pytest.fixture
def means(model: Any, encoded: Any) -> MeanActivations:
    return MeanActivations.compute(model, encoded)


SETTINGS = PruneSettings(steps=4, warmup=1, batch_size=3, tolerance=1)
CALLS: dict[str, Callable[[Any, Any, MeanActivations], Any]] = {
    "means": lambda model, data, means: MeanActivations.compute(model, data).z,
    "evaluate": lambda model, data, means: evaluate(model, data, in_domain=False).logits,
    "sweep": lambda model, data, means: sweep(
        model, ["L0.H1"], data, means, split="ood", n_resamples=5
    ).drop(columns="data"),
    "attribution": attribution_scores,
    "heads": lambda model, data, means: categorize_heads(model, data, resamples=5),
    "activations": lambda model, data, means: activations_at(
        model, data, ["blocks.0.hook_mlp_out"]
    )["blocks.0.hook_mlp_out"],
}


def assert_same(value: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(value, expected)
    elif torch.is_tensor(expected):
        assert torch.equal(value, expected)
    else:
        assert value == expected


@pytest.mark.parametrize("call", CALLS)
def test_examples_of_any_form(call: str, model: Any, encoded: Any, means: MeanActivations) -> None:
    expected = CALLS[call](model, encoded, means)
    for form in FORMS.values():
        assert_same(CALLS[call](model, form, means), expected)


def loader(encoded: Any) -> Any:
    """Two examples a batch, in their order."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    batch = encoded.rows(range(len(encoded)))
    labels = [helpers.CLASSES.index(row["label"]) for row in ROWS]
    batch = {name: batch[name] for name in names} | {"labels": labels}
    rows = [{name: column[i] for name, column in batch.items()} for i in range(len(ROWS))]
    return DataLoader(rows, batch_size=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["means", "evaluate", "sweep"])
def test_a_data_loader_will_do(call: str, model: Any, encoded: Any, means: MeanActivations) -> None:
    batches = loader(encoded)
    assert_same(CALLS[call](model, batches, means), CALLS[call](model, list(batches), means))


def test_a_prompt_and_answers_for_a_language_model(cases: helpers.Cases) -> None:
    case = cases.get("gpt2-lm")
    frame = FRAME.assign(label=["yes", "no", "yes", "no", "no"])
    with pytest.raises(InputError, match=r"answer words.*mechcore.models.encoded.as_encoded"):
        evaluate(case.model, frame)
    data = as_encoded(
        case.model, frame, prompt="{a} . {b}", answers={"yes": "yes", "no": "no"}, split="ood"
    )
    ids = load_tokenizer(case.path)("the cat saw a dog . a dog ran", add_special_tokens=False)
    assert data.input_ids[0] == ids["input_ids"]
    assert evaluate(case.model, data, in_domain=False).logits.shape == (5, 2)


def test_a_prompt_without_the_token_that_texts_begin_with(cases: helpers.Cases) -> None:
    tokenizer = helpers.word_tokenizer(segments=False)
    tokenizer.bos_token = "[CLS]"  # which its layout begins with
    frame = FRAME.assign(label=["yes", "no", "yes", "no", "no"])
    options: dict[str, Any] = {"tokenizer": tokenizer, "answers": {"yes": "yes", "no": "no"}}
    with pytest.warns(MechcoreWarning, match=r"5 of 5 do not begin with '\[CLS\]'"):
        without = as_encoded(cases.get("gpt2-lm").model, frame, prompt="{a} . {b} ", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = as_encoded(cases.get("gpt2-lm").model, frame, prompt="[CLS] {a} . {b} ", **options)
    bos = tokenizer.bos_token_id
    assert list(data.input_ids) == [[bos, *ids] for ids in without.input_ids]


def test_texts_that_are_too_long_are_cut_when_asked(model: Any) -> None:
    rows = [{"text": "cat " * 60, "label": "neutral"}]
    with pytest.raises(InputError, match=r"longer than 48 .* begins 'cat cat .*[.][.][.][)]"):
        as_encoded(model, rows)
    with pytest.warns(UserWarning, match="were cut"):
        assert list(map(len, as_encoded(model, rows, max_length=9).input_ids)) == [9]


def test_a_model_without_a_checkpoint_has_no_tokenizer() -> None:
    hf_model = helpers.hf_classifier("bert")
    model = build_bridge_from_module(
        hf_model, "BertForSequenceClassification", hf_config=hf_model.config
    )
    with pytest.raises(InputError, match=r"tokenizer: not known for Bert.*mechcore\.load_model"):
        MeanActivations.compute(model, FRAME)
    tokenizer = helpers.word_tokenizer()
    activations = MeanActivations.compute(model, as_encoded(model, FRAME, tokenizer=tokenizer))
    pairs = tokenizer(FRAME["text_a"].tolist(), FRAME["text_b"].tolist())
    assert int(activations.counts) == sum(map(len, pairs["input_ids"]))


def test_batches_are_no_examples(model: Any, encoded: Any, means: MeanActivations) -> None:
    with pytest.raises(InputError, match=r"train data: found DataLoader; expected a file"):
        prune(model, loader(encoded), means, target_sparsities=0.5)


def test_the_tokenizer_is_read_once_and_goes_with_the_model(
    cases: helpers.Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mechcore.models import encoded as module

    model = load_model(cases.path("bert"))
    first = tokenizer_of(model)
    monkeypatch.setattr(module, "load_tokenizer", None)
    assert tokenizer_of(model) is first
    known = len(module._tokenizers)
    del model
    gc.collect()
    assert len(module._tokenizers) < known
