"""How much of every head's attention goes to which category (arXiv 2403.03942, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pandas as pd
import torch

from mechcore.attention.labels import DEFAULT_THRESHOLDS, Thresholds
from mechcore.attention.reduction import BatchPatterns
from mechcore.attention.scores import HeadScores
from mechcore.attention.tokens import TokenInfo
from mechcore.components import ModelShape
from mechcore.models.encoded import as_encoded
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
    data: Any,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    **options: Any,
) -> pd.DataFrame:
    """Say of every attention head what it attends to.

    The label is the category with the largest mass among those that reach the thresholds, see
    `mechcore.attention.categorise` and `mechcore.attention.explain`. The options, and the errors
    raised, are those of `score_heads`.

    Returns:
        The table of `HeadScores.table` with three more columns after ``head``: ``category``, the
        label, ``"mixed"`` where no category reaches the thresholds; ``also``, the other
        categories that reach them; and ``stability``, the share of bootstrap resamples of the
        examples that give the same label.
    """
    return score_heads(model, data, **options).categorised(thresholds)


@plain_session()
def score_heads(
    model: Any,
    data: Any,
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
        data: examples of any form, see `mechcore.data.given`; encoded ones with ``words=True``.
        tokenizer: in place of that of the checkpoint that the model came from.
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
    causal = is_causal(model)
    scores = HeadScores(shape, causal, resamples, seed, ignore)
    data = as_encoded(model, data, tokenizer=tokenizer, labelled=False, words=True)
    clusters = data.examples.clusters
    for batch in data.batches(batch_size):
        tokens = TokenInfo.of(batch, causal=causal).to(device_of(model))
        patterns = BatchPatterns(tokens, shape.n_heads, scores.ignore, reach)
        hooks = [(name, partial(patterns.add, layer)) for layer, name in enumerate(names)]
        with torch.no_grad(), hooked(model, hooks):
            forward(model, batch)
        index = batch["index"]
        scores.count(patterns, index, None if clusters is None else clusters[index])
        if progress is not None:
            progress()
    return scores
