"""Short training runs of the tiny encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2LMHeadModel

from mechcore.data.examples import Examples
from mechcore.training import TrainSettings, classification, train
from mechcore.worlds import tiny_world
from mechcore.worlds.small_gpt2 import small_gpt2

SETTINGS = TrainSettings(
    steps=5,
    learning_rate=1e-3,
    batch_size=8,
    warmup_steps=1,
    evaluate_every=2,
    checkpoint_every=4,
    checkpoint_dtype="float16",
)


def encoder(dropout: float = 0.0) -> BertForSequenceClassification:
    """Two untrained layers, with dropout after the MLPs."""
    config = BertConfig(
        vocab_size=len(tiny_world.encoder_tokenizer()),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=48,
        initializer_range=0.08,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(tiny_world.LABELS)),
        label2id={name: index for index, name in enumerate(tiny_world.LABELS)},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config)
    for layer in model.bert.encoder.layer:
        layer.output.dropout.p = dropout
    return model


def decoder() -> GPT2LMHeadModel:
    tokenizer = tiny_world.decoder_tokenizer()
    return small_gpt2(tokenizer, 0, width=32, n_heads=2, end=tokenizer.sep_token_id)


def pairs(n: int = 40) -> Examples:
    return tiny_world.generate("train", n, seed=0)


def evaluations() -> dict[str, Examples]:
    hard = tiny_world.generate("ood", 48, seed=0).labelled("non-entailment")
    return {"id": tiny_world.generate("id", 24, seed=0), "ood": hard}


def train_classifier(
    model: Any,
    tokenizer: Any,
    data: Examples,
    held_out: dict[str, Examples],
    out: Path,
    settings: TrainSettings,
    **options: Any,
) -> pd.DataFrame:
    objective = classification(model, tokenizer, settings.max_length)
    return train(model, objective, data, held_out, out, settings, progress=False, **options)


def train_encoder(
    out: Path,
    settings: TrainSettings = SETTINGS,
    model: Any = None,
    data: Examples | None = None,
    held_out: dict[str, Examples] | None = None,
) -> pd.DataFrame:
    model = encoder() if model is None else model
    data = pairs() if data is None else data
    held_out = evaluations() if held_out is None else held_out
    tokenizer = tiny_world.encoder_tokenizer()
    return train_classifier(model, tokenizer, data, held_out, out, settings)
