"""Short training runs of the tiny encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from transformers import BertForSequenceClassification

from mechcore.data.examples import Examples
from mechcore.training import TrainSettings, train_classifier
from mechcore.worlds import tiny_encoder, tiny_world

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
    """Two layers of the tiny encoder, untrained, with dropout after the MLPs."""
    model = tiny_encoder.tiny_encoder_model(seed=0)
    model.config.num_hidden_layers = 2
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    for layer in model.bert.encoder.layer:
        layer.output.dropout.p = dropout
    return model


def pairs(n: int = 40) -> Examples:
    return tiny_world.generate("train", n, seed=0)


def evaluations() -> dict[str, Examples]:
    hard = tiny_world.generate("ood", 48, seed=0).labelled("non-entailment")
    return {"id": tiny_world.generate("id", 24, seed=0), "ood": hard}


def train_encoder(
    out: Path, settings: TrainSettings = SETTINGS, model: Any = None, data: Examples | None = None
) -> pd.DataFrame:
    model = encoder() if model is None else model
    tokenizer = tiny_world.encoder_tokenizer()
    data = pairs() if data is None else data
    return train_classifier(model, tokenizer, data, evaluations(), out, settings, False)
