"""How often the attention that a head acts by is identified, on planted models.

A text is three words and a cue; the second text is three words, some of them the same. In layer 0 a
head attends from each of these to the same word of the first text or, without one, to [CLS].

- ``by attention``: it writes whether there was one, and a head of layer 1 sums this for the answer.
- ``elsewhere``: it attends to repeated words as sharply, but its output there is not read. Its
  effect on the answer is through [CLS], which attends to the cue.

    python benchmarks/knockouts.py --draws 100
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mechcore.ablation import ComponentSet, ablate
from mechcore.ablation.effects.knockouts import knockout_table, to_control, with_controls
from mechcore.attention.knockouts import knockout, masses, other_keys
from mechcore.bench import planting
from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model

CAUSES = ("by attention", "elsewhere")
CATEGORIES = ("first", "separator", "self", "previous", "next", "repeated")
HEAD, SHARP, CONTROLS = "L0.H0", 20.0, 20
WORDS, CUES = tuple("abcdefgh"), {"yes": 1.0, "no": -1.0}
SPECIALS = ("[PAD]", "[CLS]", "[SEP]")
PLACES = ("cls", *["text"] * 3, "cue", "separator", *["pair"] * 3, "separator")
"""The kind of token at every position."""


def texts(n: int, cause: str, seed: int) -> Examples:
    """Texts whose label is the model's answer in nine of ten cases."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        words, same, cue = rng.permutation(WORDS), int(rng.integers(4)), str(rng.choice([*CUES]))
        pair = rng.permutation([*words[:same], *words[3 : 6 - same]])
        plus = same > 1 if cause == CAUSES[0] else CUES[cue] > 0
        label = planting.CLASSES[int(plus ^ bool(rng.random() < 0.1))]
        first, second = " ".join([*words[:3], cue]), " ".join(pair)
        rows.append({"text_a": first, "text_b": second, "label": label, "subset": "planted"})
    return Examples("planted", pd.DataFrame(rows))


def tokenizer() -> Any:
    """Of pairs, as BERT's."""
    ids = {word: i for i, word in enumerate((*SPECIALS, *CUES, *WORDS))}
    model = Tokenizer(WordLevel(ids))
    model.pre_tokenizer = WhitespaceSplit()
    special = [(name, ids[name]) for name in SPECIALS[1:]]
    model.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = {"pad_token": SPECIALS[0], "cls_token": SPECIALS[1], "sep_token": SPECIALS[2]}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=model, model_input_names=inputs, **names)


def plant(folder: Path, cause: str, seed: int) -> None:
    """Write the model, with its features in a random basis."""
    form = planting.Form("encoder", norms=False, n_layers=2, d_model=48, seed=seed)
    names = ("one", "value", "found", "idle", "answer", *sorted({*PLACES}), *WORDS)
    generator = torch.Generator().manual_seed(seed)
    of = dict(zip(names, planting._basis(form.d_model, generator), strict=False))
    shape = (form.n_layers, form.n_heads, form.d_model, form.d_head)
    q, k, v = (torch.zeros(shape) for _ in range(3))
    o, inner = torch.zeros(shape).transpose(2, 3).contiguous(), torch.zeros(2, form.d_model, 16)
    q[0, 0, :, :8] = k[0, 0, :, :8] = torch.stack([of[word] for word in WORDS], 1)
    # Targets of each kind of query, besides the same word: only from the pair to the text.
    asked = [
        ("one", 0.5 * of["cls"] + 0.25 * of["separator"] - 2 * of["pair"]),
        ("text", 2 * of["cls"]),
        ("cls", 2.5 * of["cue"]),
    ]
    for i, (query, keys) in enumerate(asked, start=8):
        q[0, 0, :, i], k[0, 0, :, i] = of[query], keys
    q[0, 0] *= SHARP * form.d_head**0.5
    v[0, 0, :, 0], v[0, 0, :, 1] = of["text"], of["value"]
    q[1, 0, :, 0], k[1, 0, :, 0] = SHARP * form.d_head**0.5 * of["one"], of["pair"]
    v[1, 0, :, 0], o[1, 0, 0] = of["found"], 6 * of["answer"]
    by_attention = cause == CAUSES[0]
    o[0, 0, 0] = of["found" if by_attention else "idle"]
    o[0, 0, 1] = (0 if by_attention else 3) * of["answer"]
    units = (torch.zeros(2, 16), inner.transpose(1, 2).contiguous(), torch.zeros(2, form.d_model))
    weights = planting._Weights(q, k, v, o, inner, *units)
    ids = tokenizer().get_vocab()
    tokens = torch.zeros(len(ids), form.d_model)
    for word, i in ids.items():
        value = CUES.get(word, 0.0) * of["value"]
        tokens[i] = of[word] if word in WORDS else value
    places = torch.stack([of[place] + of["one"] for place in PLACES])
    places[0] -= 3 * by_attention * of["answer"]
    model = planting._encoder(form, weights, tokens, places, of["answer"])
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            torch.nn.init.constant_(parameter, planting.EPSILON**0.5)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def judged(cause: str, seed: int, n: int = 200) -> pd.DataFrame:
    """The table of a planted model, for the one head with an effect."""
    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder), cause, seed)
        model = load_model(folder)
    of = {"tokenizer": tokenizer(), "max_length": len(PLACES), "words": True}
    data, trained = (encode(texts(n, cause, s), **of) for s in (2 * seed, 2 * seed + 1))
    means = MeanActivations.compute(model, trained)
    sets = [ComponentSet.of([f"L{layer}.H{head}"]) for layer in range(2) for head in range(4)]
    plain = ablate(model, sets, data, means, split="ood")
    hidden = {
        c: ablate(model, sets, data, means, fill=knockout(c), split="ood") for c in CATEGORIES
    }
    table = knockout_table(plain, hidden, masses(model, data), n_resamples=20)
    controls = {}
    copies = data.part(np.tile(np.arange(n), CONTROLS).tolist())
    for row, (head, category) in to_control(table)[["component", "category"]].iterrows():
        one = ComponentSet.of([head])
        drawn = ablate(model, [one], copies, means, fill=other_keys(category), split="ood")
        others = drawn.changes(one, "margin").reshape(CONTROLS, -1).mean(1)
        whole = plain.changes(one, "margin").mean()
        own = hidden[category].changes(one, "margin").mean()
        controls[row] = own / whole, others / whole
    return with_controls(table, controls)


def causes(table: pd.DataFrame) -> list[str]:
    """Categories reported to carry the effect of the planted head."""
    carried = (table["carried"] == "supported") & (table["subset"] == "all")
    return table[carried & (table["component"] == HEAD)]["category"].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--texts", type=int, default=200)
    arguments = parser.parse_args()
    for cause in CAUSES:
        counts = Counter[str]()
        for seed in range(arguments.draws):
            table = judged(cause, seed, arguments.texts)
            counts[", ".join(causes(table)) or "none"] += 1
        print(f"{cause}: {dict(counts)}")


if __name__ == "__main__":
    main()
