"""A classifier whose heads work together in a way known beforehand, and games made by hand.

A GPT-2 whose normalisations do nothing: the variance of the stream vanishes beside their epsilon,
which their weight makes up for, and everything is written to pairs of dimensions with opposite
signs, so that means are 0. The planted heads each write 1 to the same pair of dimensions, and the
last MLP computes their OR, which the classifier reads as the logit of entailment. One
more head writes to that logit directly; all others write nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import torch
import transformers as hf
from ablation.few import of_margins
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mechcore.ablation import Ablations, Answers, ComponentSet
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.models import load_model

SIZE = 3.0
"""What the rule is worth, in nats."""
DIRECT, DIRECT_SIZE = "L0.H2", -0.5
"""The head that writes to the logit itself, and how much."""
PAIR = ("L0.H1", "L1.H3")

_SHIFT = 0.25
"""Keeps the kinks away from the sums that occur, so that gradients are not those of a kink."""
_OR = {0.0: 1.0, 1 + _SHIFT: -1 / (1 - _SHIFT)}
"""The rule as weights of relu(sum - threshold), by threshold."""
_TOKENS, _SUM, _LOGIT = 0, 2, 4
"""First of each pair of dimensions; the other one has the opposite sign."""
_EPSILON = 1e8


def planted(folder: Path) -> Any:
    """The model, saved to ``folder`` and loaded by the package."""
    width, heads = 8, 4
    model = _idle(n_layer=2)
    writers = dict.fromkeys(PAIR, (_SUM, 1.0))
    writers[DIRECT] = (_LOGIT, DIRECT_SIZE / SIZE)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        base = model.transformer
        for embedding in (base.wte.weight, base.wpe.weight):
            values = torch.randn(len(embedding), generator=generator)
            embedding[:, _TOKENS], embedding[:, _TOKENS + 1] = values, -values
        for name, (place, value) in writers.items():
            layer, head = int(name[1]), int(name[4])
            attention, z = base.h[layer].attn, head * width // heads
            attention.c_attn.bias[2 * width + z] = 1  # the value of every token, and so the output
            attention.c_proj.weight[z, place : place + 2] = torch.tensor([value, -value])
        for unit, (threshold, weight) in enumerate(_OR.items()):
            mlp = base.h[1].mlp
            mlp.c_fc.weight[_SUM, unit] = 1
            mlp.c_fc.bias[unit] = -threshold
            mlp.c_proj.weight[unit, _LOGIT : _LOGIT + 2] = torch.tensor([weight, -weight])
        model.score.weight[1, _LOGIT] = SIZE
    model.save_pretrained(folder)
    return load_model(folder)


def _idle(n_layer: int) -> Any:
    """A GPT-2 that writes nothing, and whose normalisations do nothing."""
    names = {"id2label": {0: "non-entailment", 1: "entailment"}}
    names |= {"label2id": {"non-entailment": 0, "entailment": 1}}
    sizes = {"vocab_size": helpers.VOCABULARY, "n_positions": 48, "n_embd": 8, "n_layer": n_layer}
    sizes |= {"n_head": 4, "n_inner": 4, "pad_token_id": helpers.PAD}
    norms = {"activation_function": "relu", "layer_norm_epsilon": _EPSILON}
    config = hf.GPT2Config(**names, **sizes, **norms, bos_token_id=None, eos_token_id=None)
    model = hf.GPT2ForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = ".ln_" in name and name.endswith("weight")
            parameter.fill_(_EPSILON**0.5 if is_norm else 0.0)
    return model


CARRIES, HEURISTIC, IDLE = "L0.H0", "L0.H1", "L0.H2"
"""Heads of `two_domains`."""
IDLE_SIZE = 2.0
"""What the idle head says for entailment in every out-of-domain text, in nats."""
_MEANINGS = {-2.0: "the", -1.0: "cat", 1.0: "dog", 2.0: "saw"}
_CLUES = {-1.0: "a", 1.0: "bird"}
_TWINS = {"the": "ran", "cat": "and", "dog": "who", "saw": "yes", "a": "no", "bird": "if"}
"""Out-of-domain words."""


def two_domains(folder: Path, n: int = 400) -> dict[str, pd.DataFrame]:
    """A classifier in ``folder`` with an idle head whose mean differs between the domains.

    Texts are a word with the meaning and a clue. One head says what the meaning is, one what the
    clue is, which is right in domain and mostly wrong out of domain, and one which domain it is:
    0 in every in-domain token, `IDLE_SIZE` in every other. Returns the data by split.
    """
    model, tokenizer = _idle(n_layer=1), Tokenizer(WordLevel(_vocabulary(), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    vocabulary = tokenizer.get_vocab()
    with torch.no_grad():
        base = model.transformer
        for place, values in enumerate((_MEANINGS, _CLUES, {1.0: None})):
            for value, word in values.items():
                for twin in (word, _TWINS[word]) if word else _TWINS.values():
                    base.wte.weight[vocabulary[twin], 2 * place : 2 * place + 2] = torch.tensor(
                        [value, -value]
                    )
            attention, z = base.h[0].attn, 2 * place
            attention.c_attn.weight[z, 16 + z] = 1  # the value of a token; all attend evenly
            size = (2.0, 3.0, IDLE_SIZE)[place]
            attention.c_proj.weight[z, 6:8] = torch.tensor([size, -size])
        model.score.weight[1, 6] = 1
    model.save_pretrained(folder)
    helpers.bert_like(tokenizer, segments=False).save_pretrained(folder)
    return {split: _texts(split, n, seed) for seed, split in enumerate(("train", "id", "ood"))}


def _vocabulary() -> dict[str, int]:
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    return {word: i for i, word in enumerate([*special, *helpers.WORDS])}


def _texts(split: str, n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sign = np.resize([-1, 1], n)
    meaning = sign * rng.choice([1, 2, -1], n, p=[0.45, 0.45, 0.1])
    clue = sign * rng.choice([1, -1], n, p=[0.95, 0.05] if split != "ood" else [0.3, 0.7])
    words = [[_MEANINGS[m], _CLUES[c]] for m, c in zip(meaning, clue, strict=True)]
    if split == "ood":
        words = [[_TWINS[word] for word in pair] for pair in words]
    label = np.where(sign > 0, "entailment", "non-entailment")
    return pd.DataFrame({"text": [" ".join(pair) for pair in words], "label": label})


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


def game(changes: Mapping[str, Any], *, start: Any = None, subsets: Any = None) -> Ablations:
    """Answers whose changes in margin are these by set, for every example or one number for all."""
    rows = {name: np.atleast_1d(np.asarray(row, dtype=float)) for name, row in changes.items()}
    n = max(map(len, rows.values()))
    margin = np.zeros(n) if start is None else np.asarray(start, dtype=float)
    full = of_margins(margin, subsets=subsets or "s")
    without = {
        ComponentSet.of(name.split("+")): Answers(margin + row > 0, margin + row, np.zeros(n))
        for name, row in rows.items()
    }
    return Ablations(full, without, "game", "ood")
