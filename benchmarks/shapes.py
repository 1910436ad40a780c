"""Random models of MiniLM's shape and random examples with the lengths of MNLI pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.models import load_model
from mechcore.models.checkpoint_files import without_bars

VOCABULARY = 30522
CLASSES = ("entailment", "neutral", "contradiction")

MNLI_LENGTHS = (5, 15, 18, 21, 23, 25, 27, 29, 31, 33, 36, 38, 40, 42, 45, 48, 51, 55, 61, 71, 128)
"""Tokens of MNLI pairs in BERT's vocabulary at every twentieth of 8000 training pairs."""


def save_minilm_shaped(folder: str | Path, n_layers: int = 6) -> None:
    """A checkpoint with random weights."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=n_layers,
        num_attention_heads=12,
        intermediate_size=1536,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: i for i, name in enumerate(CLASSES)},
    )
    with without_bars():
        BertForSequenceClassification(config).save_pretrained(folder)


def save_qwen3_shaped(folder: str | Path, n_layers: int) -> None:
    """A classifier with random weights, with layers of Qwen3-0.6B's shape."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=n_layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        pad_token_id=0,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: i for i, name in enumerate(CLASSES)},
    )
    with without_bars():
        Qwen3ForSequenceClassification(config).save_pretrained(folder)


def minilm_shaped(device: str) -> Any:
    """Random weights; the adapter needs a directory."""
    with tempfile.TemporaryDirectory() as folder:
        save_minilm_shaped(folder)
        return load_model(folder, device=device)


def examples(
    n: int, labels: Sequence[str] = CLASSES, vocabulary: int = VOCABULARY
) -> EncodedExamples:
    """Random tokens with MNLI's lengths and alternating labels."""
    rng = np.random.default_rng(0)
    places = np.linspace(0, 1, len(MNLI_LENGTHS))
    lengths = np.interp(rng.random(n), places, MNLI_LENGTHS).astype(int)
    return of_lengths(lengths.tolist(), rng, labels, vocabulary)


def of_lengths(
    lengths: Sequence[int],
    rng: np.random.Generator,
    labels: Sequence[str] = CLASSES,
    vocabulary: int = VOCABULARY,
) -> EncodedExamples:
    """Random tokens in texts of these lengths, with alternating labels."""
    ids = [rng.integers(1000, vocabulary, k).tolist() for k in lengths]
    label = [labels[i % len(labels)] for i in range(len(lengths))]
    frame = pd.DataFrame({"text_a": "", "text_b": "", "label": label, "subset": "all"})
    types = [[0] * (k // 2) + [1] * (k - k // 2) for k in lengths]
    return EncodedExamples(Examples("lengths of MNLI", frame), ids, types, None, None, None, 0)
