"""Tokenizers of other models: ids that the model has no embedding for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from helpers import ARCHITECTURES, VOCABULARY, Cases, padded, texts

from mechcore import evaluate
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.models.running import forward, model_inputs, n_tokens
from mechcore.models.tokenizers import check_vocabulary
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import load_inputs


def checkpoint(cases: Cases, folder: Path, tokens: list[str], *, special: bool = False) -> Path:
    """A BERT whose tokenizer has tokens added at its end."""
    path = Path(shutil.copytree(cases.path("bert"), folder / "checkpoint"))
    tokenizer = helpers.word_tokenizer(segments=True)
    assert len(tokenizer) <= VOCABULARY
    filler = [f"filler{i}" for i in range(VOCABULARY - len(tokenizer))]
    tokenizer.add_tokens(filler)
    tokenizer.add_tokens(tokens, special_tokens=special)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2-lm"])
def test_how_many_tokens_a_model_knows(cases: Cases, architecture: str) -> None:
    model = cases.get(architecture).model
    assert n_tokens(model) == VOCABULARY
    ids = torch.tensor([[2, VOCABULARY - 1]])
    assert torch.isfinite(forward(model, {"input_ids": ids})).all()
    with pytest.raises(InputError, match=f"expected 0 to {VOCABULARY - 1}, the rows of the embedd"):
        forward(model, {"input_ids": ids + 1})


def test_a_hooked_transformer_knows_as_many(cases: Cases) -> None:
    pytest.importorskip("transformer_lens.HookedTransformer", reason="removed in 4.x")
    model = load_model(cases.path("gpt2-lm"), backend="hooked")
    assert n_tokens(model) == VOCABULARY
    with pytest.raises(InputError, match="input_ids has 40 in row 0 at position 1"):
        forward(model, {"input_ids": [[2, 40]]})


@pytest.mark.parametrize("value", [40, -1, 30_521])
def test_ids_that_a_model_does_not_know(cases: Cases, value: int) -> None:
    model, batch = cases.get("bert").model, padded(texts())
    batch["input_ids"][1, 2] = batch["input_ids"][3, 0] = value
    message = (
        f"batch: input_ids has {value} in row 1 at position 2; expected 0 to 39, the rows of the "
        f"embedding of BertForSequenceClassification ({cases.path('bert')}): tokenize with the "
        "tokenizer of the model's own checkpoint"
    )
    labels = torch.zeros(len(batch["input_ids"]), dtype=torch.long)
    uses: list[Any] = [
        lambda: forward(model, batch),
        lambda: model_inputs(model, batch),
        lambda: MeanActivations.compute(model, batch),
        lambda: evaluate(model, {**batch, "labels": labels}),
    ]
    for use in uses:
        with pytest.raises(InputError) as caught:
            use()
        assert str(caught.value) == message


def test_the_tokenizer_of_another_model_is_refused_on_loading(cases: Cases, tmp_path: Path) -> None:
    path = checkpoint(cases, tmp_path, ["one", "more"])
    data = tmp_path / "data.csv"
    data.write_text("premise,hypothesis,label\nw1,w2,entailment\n")
    message = (
        f"checkpoint {path}: its tokenizer \\(.*\\) has the token 'more' with id 41; expected ids "
        r"from 0 to 39, the rows of the embedding of BertForSequenceClassification \("
    )
    with pytest.raises(InputError, match=message):
        load_inputs(ModelConfig(source=str(path)), DataConfig(train=str(data)), ("train",))


def test_a_tokenizer_may_have_fewer_tokens_or_special_ones_that_no_text_gives(
    cases: Cases, tmp_path: Path
) -> None:
    model = cases.get("bert").model
    check_vocabulary("few", helpers.word_tokenizer(), model)
    path = checkpoint(cases, tmp_path, ["<|tool|>"], special=True)
    tokenizer = load_tokenizer(path)
    assert max(tokenizer.get_vocab().values()) == VOCABULARY
    check_vocabulary("special", tokenizer, model)
    with pytest.raises(InputError, match="input_ids has 40 in row 0"):
        forward(model, tokenizer(["<|tool|>"], return_tensors="pt"))
