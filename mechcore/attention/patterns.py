"""How much of every head's attention goes to which category of tokens, and what to call it.

After arXiv 2403.03942, section 5 and Figure 9.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.attention.inputs import HeadData, batches_of
from mechcore.attention.labels import DEFAULT_THRESHOLDS, Thresholds
from mechcore.attention.reduction import BatchPatterns
from mechcore.attention.scores import HeadScores
from mechcore.attention.tokens import TokenInfo
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
    tokenizer: Any = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    batch_size: int = 64,
    resamples: int = RESAMPLES,
    seed: int = 0,
    ignore: Collection[str] = (),
    progress: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Say of every attention head what it attends to.

    The label is the category with the largest mass among those that reach the thresholds, see
    `mechcore.attention.categorise` and `mechcore.attention.explain`.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: see `mechcore.attention.inputs.HeadData`.
        thresholds: minimum mass, and minimum ratio to uniform attention, for a label.
        tokenizer: see `score_heads`.
        batch_size: see `score_heads`.
        resamples: of the bootstrap over examples; 0 leaves intervals and stability out.
        seed: see `score_heads`.
        ignore: see `score_heads`.
        progress: see `score_heads`.

    Returns:
        The table of `attention_scores` with three more columns after ``head``: ``category``, the
        label, ``"mixed"`` where no category reaches the thresholds; ``also``, the other
        categories that reach them; and ``stability``, the share of bootstrap resamples of the
        examples that give the same label.

    Raises:
        InputError: see `attention_scores`.
    """
    scores = score_heads(
        model,
        data,
        tokenizer=tokenizer,
        batch_size=batch_size,
        resamples=resamples,
        seed=seed,
        ignore=ignore,
        progress=progress,
    )
    return scores.categorised(thresholds)


@plain_session()
def attention_scores(model: Any, data: HeadData, **options: Any) -> pd.DataFrame:
    """Attention mass of every head on every category of keys.

    Queries and keys are real tokens; in causal models keys lie at or before the query, and in
    layers that attend to a window (ModernBERT, Mistral) within that. Which keys
    belong to a category is stated in `mechcore.attention.categories`. A category is *defined* for
    a query that has at least one such key: a query whose word is not repeated does not count for
    ``repeated``, nor the first token for ``previous``.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: see `mechcore.attention.inputs.HeadData`.
        options: those of `score_heads`.

    Returns:
        One row per head, by layer. Masses are shares of a query's attention, from 0 to 1:

        - ``component`` (``L0.H1``), ``layer``, ``head``;
        - ``n_examples``, and ``n_queries``, the number of real tokens;
        - ``entropy``: of the attention of a query, in nats, mean over queries;
        - ``distance``: between query and key in tokens, mean over queries and their attention;
        - ``left_out``, where categories are ignored: the attention on their keys, mean over
            queries;
        - ``mass_<category>``: mean over the queries for which the category is defined;
        - ``low_<category>``, ``high_<category>``: 95 % interval of the mass, from examples: at each
            end the wider of a bootstrap and of Student's t, of clusters where examples go together
            in these; NaN where fewer than ten examples, or eight clusters, define the category;
        - ``uniform_<category>``: the mass under uniform attention over the query's keys;
        - ``ratio_<category>``: mass / uniform; NaN, as mass and uniform, where no query counts;
        - ``sd_<category>``: standard deviation over examples of the examples' own mean masses;
        - ``share_<category>``: of all attention, where a key that belongs to several categories
            counts for the first only; sums to 1 over the categories;
        - ``examples_<category>``: examples for which the category is defined.

    Raises:
        InputError: the tokens of ``data`` are not known well enough, the batch size or the number
            of resamples is out of range, or the model gives no attention patterns.
    """
    return score_heads(model, data, **options).table()


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
    """What `categorize_heads` and `attention_scores` make their tables of.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: see `mechcore.attention.inputs.HeadData`.
        tokenizer: the model's, for texts and for plain batches.
        batch_size: examples per batch.
        resamples: of the bootstrap over examples; 0: no intervals.
        seed: of the bootstrap.
        ignore: names of categories whose keys are left out, so that the rest of a query's
            attention is scaled up to 1: what a head attends to beside the attention sink with
            ``("first",)``. A query that has no other key does not count.
        progress: called after every batch.

    Raises:
        InputError: see `attention_scores`.
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


def score_patterns(
    patterns: Float[Tensor, "layer batch head query key"],
    tokens: TokenInfo,
    *,
    resamples: int = 0,
    seed: int = 0,
    ignore: Collection[str] = (),
) -> pd.DataFrame:
    """The table of `attention_scores` from attention probabilities at hand, of one batch.

    Args:
        patterns: attention probabilities; whatever stands at padding is ignored.
        tokens: what is known about the batch's tokens.
        resamples: of the bootstrap over examples; 0: no intervals.
        seed: of the bootstrap.
        ignore: see `score_heads`.

    Raises:
        InputError: the shape of ``patterns`` is not that of the tokens.
    """
    if patterns.ndim != 5:
        raise InputError(
            f"patterns: shape {tuple(patterns.shape)}; expected [layer, batch, head, query, key]"
        )
    shape = ModelShape(patterns.shape[0], patterns.shape[2])
    scores = HeadScores(shape, tokens.causal, resamples, seed, ignore)
    batch = BatchPatterns(tokens, shape.n_heads, scores.ignore)
    for layer, pattern in enumerate(patterns):
        batch.add(layer, pattern)
    scores.count(batch, range(len(tokens.real)))
    return scores.table()
