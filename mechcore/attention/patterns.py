"""How much of every head's attention goes to which category of tokens, and what to call it.

After arXiv 2403.03942, section 5 and Figure 9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pandas as pd
import torch

from mechcore.attention.inputs import HeadData, batches_of
from mechcore.attention.labels import DEFAULT_THRESHOLDS, Thresholds
from mechcore.attention.reduction import BatchPatterns
from mechcore.attention.scores import HeadScores
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.models.hooks import hooked
from mechcore.models.protocol import (
    check_hooks,
    device_of,
    forward,
    hook_pattern,
    is_causal,
    reach_of,
)
from mechcore.session import plain_session

RESAMPLES = 1000


def categorize_heads(
    model: Any,
    data: HeadData,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    **options: Any,
) -> pd.DataFrame:
    """Say of every attention head what it attends to.

    The label is the category with the largest mass among those that reach the thresholds, see
    `mechcore.attention.categorise` and `mechcore.attention.explain`.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: see `mechcore.attention.inputs.HeadData`.
        thresholds: minimum mass, and minimum ratio to uniform attention, for a label.
        options: those of `score_heads`: ``tokenizer``, ``batch_size``, ``resamples``, ``seed``,
            ``ignore`` and ``progress``.

    Returns:
        The table of `HeadScores.table` with three more columns after ``head``: ``category``, the
        label, ``"mixed"`` where no category reaches the thresholds; ``also``, the other
        categories that reach them; and ``stability``, the share of bootstrap resamples of the
        examples that give the same label.

    Raises:
        InputError: see `score_heads`.
    """
    return score_heads(model, data, **options).categorised(thresholds)


@plain_session()
def score_heads(
    model: Any,
    data: HeadData,
    *,
    tokenizer: Any = None,
    batch_size: int = 64,
    resamples: int = RESAMPLES,
    seed: int = 0,
    ignore: Collection[str] = (),
    progress: Callable[[], None] | None = None,
) -> HeadScores:
    """Attention of every head on every category of keys, see `HeadScores.table`.

    Queries and keys are real tokens; in causal models keys lie at or before the query, and in
    layers that attend to a window (ModernBERT, Mistral) within that. Which keys belong to a
    category is stated in `mechcore.attention.categories`.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: see `mechcore.attention.inputs.HeadData`.
        tokenizer: the model's, for texts and for plain batches.
        batch_size: examples per batch.
        resamples: of the bootstrap over examples; 0 leaves intervals and stability out.
        seed: of the bootstrap.
        ignore: names of categories whose keys are left out, so that the rest of a query's
            attention is scaled up to 1: what a head attends to beside the attention sink with
            ``("first",)``. A query that has no other key does not count.
        progress: called after every batch.

    Raises:
        InputError: the tokens of ``data`` are not known well enough, the batch size or the number
            of resamples is out of range, or the model gives no attention patterns.
    """
    shape = ModelShape.of(model)
    names = [hook_pattern(layer) for layer in range(shape.n_layers)]
    check_hooks(model, names)
    reach = [reach_of(model, layer) for layer in range(shape.n_layers)]
    scores = HeadScores(shape, is_causal(model), resamples, seed, ignore)
    for batch, tokens in batches_of(model, data, tokenizer, batch_size):
        there = tokens.to(device_of(model))
        patterns = BatchPatterns(there, shape.n_heads, scores.ignore, reach)
        hooks = [(name, partial(patterns.add, layer)) for layer, name in enumerate(names)]
        with torch.no_grad(), hooked(model, hooks):
            forward(model, batch)
        scores.count(patterns, batch["index"], batch.get("cluster"))
        if progress is not None:
            progress()
    if scores.n_examples == 0:
        raise InputError("attention scores: no batch; expected at least one")
    return scores
