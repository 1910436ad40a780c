"""The attention of chosen heads on single examples, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.attention.categories import MIXED
from mechcore.components import Component, ComponentLike, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, NotFiniteError, shown
from mechcore.models.encoded import as_encoded, tokenizer_of
from mechcore.models.finite import not_finite_advice
from mechcore.models.hooks import hooked
from mechcore.models.protocol import check_hooks, check_patterns, forward, hook_pattern, is_causal
from mechcore.session import plain_session
from mechcore.showing import Shown

ATTENTION_FILE = "attention_examples.json"
"""What the file with such examples is called in the folder of a run."""

FLIPS_ATTENTION_FILE = "flips_attention.json"
"""The file with heads on the examples that flip without them, a list for each rank of these."""


@dataclass(frozen=True, repr=False)
class AttentionExample(Shown):
    """One head's attention on one input: a list over queries of lists over keys.

    ``tokens`` are readable, a special token as its name; ``segments`` are 0 and 1 for tokens of the
    first and second text, -1 elsewhere; ``category`` is the label, or empty.
    """

    component: str
    category: str
    tokens: list[str]
    segments: list[int]
    pattern: list[list[float]]
    causal: bool = False

    def _summary(self) -> str:
        category = f" ({self.category})" if self.category else ""
        return f"{self.component}{category}, {shown(' '.join(self.tokens), 60)!r}"


@plain_session()
def attention_examples(
    model: Any,
    data: Any,
    tokenizer: Any,
    heads: Sequence[ComponentLike],
    *,
    row: int = 0,
    categories: pd.DataFrame | None = None,
) -> list[AttentionExample]:
    """Attention of heads on one example, number ``row`` of ``data``.

    ``data`` are as in `mechcore.categorize_heads`, whose table gives the labels if passed as
    ``categories``. The tokenizer is the model's; None takes that of its checkpoint.

    Raises:
        InputError: there is no such example or head, or segments are not known.
    """
    tokenizer = tokenizer or tokenizer_of(model)
    data = as_encoded(model, data, tokenizer=tokenizer, labelled=False, words=True)
    if data.segments is None:
        raise InputError(
            "attention examples: found examples without segments; encode them with words=True"
        )
    if not 0 <= row < len(data):
        raise InputError(f"attention examples: row {row}; expected 0 to {len(data) - 1}")
    shape, wanted = ModelShape.of(model), [Component.parse(head) for head in heads]
    unknown = [str(head) for head in wanted if head not in shape.heads]
    if unknown:
        raise InputError(
            f"attention examples: {unknown[0]} is no head of the model, which has {shape.n_layers} "
            f"layers of {shape.n_heads} heads"
        )
    patterns = _patterns(model, data, row, {head.layer for head in wanted})
    labels: dict[str, str] = {}
    if categories is not None:
        labels = dict(zip(categories["component"], categories["category"], strict=True))
    tokens = readable_tokens(tokenizer, data.input_ids[row])
    return [
        AttentionExample(
            component=str(head),
            category=labels.get(str(head), ""),
            tokens=tokens,
            segments=list(data.segments[row]),
            pattern=patterns[head.layer][head.head].tolist(),
            causal=is_causal(model),
        )
        for head in wanted
    ]


def _patterns(
    model: Any, data: EncodedExamples, row: int, layers: set[int]
) -> dict[int, Float[np.ndarray, "head query key"]]:
    patterns: dict[int, np.ndarray] = {}

    def keep(layer: int, pattern: Tensor, hook: Any) -> None:
        values = pattern[0].detach().float().cpu().double().numpy()
        if not np.isfinite(values).all():
            dtype = str(pattern.dtype).removeprefix("torch.")
            raise NotFiniteError(
                f"attention of layer {layer}: not finite ({dtype}); {not_finite_advice(dtype)}"
            )
        patterns[layer] = np.round(values, 4)

    hooks = [(hook_pattern(layer), partial(keep, layer)) for layer in sorted(layers)]
    check_hooks(model, [name for name, _ in hooks])
    with torch.no_grad(), hooked(model, hooks):
        forward(model, data.rows([row]))
    check_patterns(layers, patterns)
    return patterns


def readable_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader knows them: text in place of byte-level marks, white space shown."""
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    special = set(tokenizer.all_special_tokens)
    return [
        piece if piece in special or piece.startswith("##") else _text(tokenizer, piece)
        for piece in pieces
    ]


def _text(tokenizer: Any, piece: str) -> str:
    text = tokenizer.convert_tokens_to_string([piece])
    if "\ufffd" in text:  # a part of a character
        return piece
    visible = text.strip()
    return (
        visible
        or text.replace("\n", "\u23ce").replace("\t", "\u21e5").replace(" ", "\u2423")
        or piece
    )


def clearest_heads(categories: pd.DataFrame, n: int = 3) -> dict[str, list[str]]:
    """The ``n`` heads with the largest mass on what they are called after, by label.

    Labels are in the order of the table's columns, those without a head left out, ``mixed`` last
    (the heads whose attention is spread most: largest entropy).
    """
    labels = [c.removeprefix("mass_") for c in categories.columns if c.startswith("mass_")]
    clearest = {}
    for label in [*labels, MIXED]:
        heads = categories[categories["category"] == label]
        key = "entropy" if label == MIXED else f"mass_{label}"
        if len(heads):
            clearest[label] = heads.nlargest(n, key)["component"].tolist()
    return clearest


def telling_example(data: EncodedExamples) -> int:
    """Number of a short example with much to see: the most repeated words.

    Of the first 500 that have 16 tokens at most, unless all are longer.
    """
    rows = range(min(500, len(data)))
    shortest = min(len(data.input_ids[i]) for i in rows)
    fitting = [i for i in rows if len(data.input_ids[i]) <= max(16, shortest)]
    return max(fitting, key=lambda i: (_repetitions(data, i), -i))


def _repetitions(data: EncodedExamples, row: int) -> int:
    """Words that both segments have, or that the only one has twice."""
    assert data.words is not None
    assert data.segments is not None
    segments = data.segments[row]
    places = segments
    if 1 not in segments:  # then a word's places are its spans
        places = range(len(segments)) if data.spans is None else data.spans[row]
    words: dict[int, set[int]] = {}
    for word, place in zip(data.words[row], places, strict=True):
        if word >= 0:
            words.setdefault(word, set()).add(place)
    return sum(len(spots) > 1 for spots in words.values())
