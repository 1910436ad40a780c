"""A classifier whose heads work together in a way known beforehand, and games made by hand.

A GPT-2 whose normalisations do nothing: the variance of the stream vanishes beside their epsilon,
which their weight makes up for, and everything is written to pairs of dimensions with opposite
signs, so that means are 0. The planted heads each write 1 to the same pair of dimensions, and the
last MLP computes a function of the sum, which the classifier reads as the logit of entailment. One
more head writes to that logit directly; all others write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import helpers
import numpy as np
import pandas as pd
import torch
import transformers as hf

from mechcore.ablation import Ablations, Answers, ComponentSet
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.evaluation.evaluate import Evaluation
from mechcore.models import load_model

Rule = Literal["or", "and", "or of three"]

SIZE = 3.0
"""What the rule is worth, in nats."""
DIRECT, DIRECT_SIZE = "L0.H2", -0.5
"""The head that writes to the logit itself, and how much."""
PAIR = ("L0.H1", "L1.H3")
TRIPLE = ("L0.H0", *PAIR)
MLP = "L1.MLP"

_SHIFT = 0.25
"""Keeps the kinks away from the sums that occur, so that gradients are not those of a kink."""
_SLOPE = 1 / (1 - _SHIFT)
_RULES: Mapping[Rule, Mapping[float, float]] = {
    "or": {0.0: 1.0, 1 + _SHIFT: -_SLOPE},
    "and": {1 + _SHIFT: _SLOPE},
    "or of three": {0.0: 1.0, 1.0: -1.0},
}
"""Functions of the sum as weights of relu(sum - threshold), by threshold."""
_TOKENS, _SUM, _LOGIT = 0, 2, 4
"""First of each pair of dimensions; the other one has the opposite sign."""
_EPSILON = 1e8


def planted(folder: Path, rule: Rule, activation: str = "relu") -> Any:
    """The model, saved to ``folder`` and loaded by the package; its MLP has this activation."""
    width, heads, classes = 8, 4, ("non-entailment", "entailment")
    config = hf.GPT2Config(
        vocab_size=helpers.VOCABULARY,
        n_positions=48,
        n_embd=width,
        n_layer=2,
        n_head=heads,
        n_inner=4,
        activation_function=activation,
        layer_norm_epsilon=_EPSILON,
        pad_token_id=helpers.PAD,
        bos_token_id=None,
        eos_token_id=None,
        id2label=dict(enumerate(classes)),
        label2id={name: i for i, name in enumerate(classes)},
    )
    model = hf.GPT2ForSequenceClassification(config)
    writers = dict.fromkeys(TRIPLE if rule == "or of three" else PAIR, (_SUM, 1.0))
    writers[DIRECT] = (_LOGIT, DIRECT_SIZE / SIZE)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = ".ln_" in name and name.endswith("weight")
            parameter.fill_(_EPSILON**0.5 if is_norm else 0.0)
        base = model.transformer
        for embedding in (base.wte.weight, base.wpe.weight):
            values = torch.randn(len(embedding), generator=generator)
            embedding[:, _TOKENS], embedding[:, _TOKENS + 1] = values, -values
        for name, (place, value) in writers.items():
            layer, head = int(name[1]), int(name[4])
            attention, z = base.h[layer].attn, head * width // heads
            attention.c_attn.bias[2 * width + z] = 1  # the value of every token, and so the output
            attention.c_proj.weight[z, place : place + 2] = torch.tensor([value, -value])
        for unit, (threshold, weight) in enumerate(_RULES[rule].items()):
            mlp = base.h[1].mlp
            mlp.c_fc.weight[_SUM, unit] = 1
            mlp.c_fc.bias[unit] = -threshold
            mlp.c_proj.weight[unit, _LOGIT : _LOGIT + 2] = torch.tensor([weight, -weight])
        model.score.weight[1, _LOGIT] = SIZE
    model.save_pretrained(folder)
    return load_model(folder)


def examples(n: int = 12) -> EncodedExamples:
    """Pairs of different texts of several lengths, all entailed, in two subsets."""
    words = helpers.WORDS
    frame = pd.DataFrame(
        {
            "text_a": [" ".join(words[i % 7 : i % 7 + 2 + i % 5]) for i in range(n)],
            "text_b": [words[i % len(words)] for i in range(n)],
            "label": "entailment",
            "subset": [("u", "v")[i % 3 == 0] for i in range(n)],
        }
    )
    tokenizer = helpers.word_tokenizer(segments=False)
    return encode(Examples("planted", frame), tokenizer, max_length=48)


def game(
    drops: Mapping[str, Any], *, start: Any = None, subsets: list[str] | None = None
) -> Ablations:
    """Answers whose drops in margin are these by set, for every example or one number for all."""
    rows = {name: np.atleast_1d(np.asarray(row, dtype=float)) for name, row in drops.items()}
    n = max(map(len, rows.values()))
    margin = np.zeros(n) if start is None else np.asarray(start, dtype=float)
    logits = torch.tensor(np.stack([margin, np.zeros(n)], axis=1))
    names = np.array(subsets or ["s"] * n, dtype=object)
    full = Evaluation(logits, torch.tensor([[True, False]]).repeat(n, 1), names, "")
    without = {
        ComponentSet.of(name.split("+")): Answers(margin > row, margin - row, np.zeros(n))
        for name, row in rows.items()
    }
    return Ablations(full, without, "game", "ood")
