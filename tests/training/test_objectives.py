from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mechcore.data.examples import Examples
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.training import answering

ANSWERS = {"left": " left", "right": " right"}
PROMPTS = ["motion left 10 right", "context color . choice is", "is"]
LABELS = ["left", "right", "right"]
FRAME = pd.DataFrame({"text_a": PROMPTS, "text_b": "", "label": LABELS, "subset": "all"})


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tiny_tokenizer()), n_embd=16, n_layer=2, n_head=2, n_positions=12
    )
    return GPT2LMHeadModel(config).eval()


def negative_log_probabilities(model: Any) -> list[torch.Tensor]:
    """Of every token but the first of each text alone, without padding."""
    found = []
    for prompt, label in zip(PROMPTS, LABELS, strict=True):
        ids = tiny_tokenizer()(f"{prompt} {label}", return_tensors="pt")["input_ids"]
        logits = model(input_ids=ids).logits[0, :-1]
        found.append(-logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0])
    return found


def test_the_loss_is_on_the_answer(model: Any) -> None:
    own = torch.stack([each[-1] for each in negative_log_probabilities(model)])
    trained, examples = answering(model, tiny_tokenizer(), "{a}", ANSWERS), Examples("test", FRAME)
    batch = trained.encode(examples).rows([0, 1, 2])
    loss = trained.loss(model, batch, trained.targets(examples))
    torch.testing.assert_close(loss, own.mean())
