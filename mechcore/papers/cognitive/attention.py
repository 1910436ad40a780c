"""How much the heads of a model of the cognitive task attend to the numbers of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.attention import TokenInfo, register_category, score_heads, unregister_category
from mechcore.attention.scores import QUANTILES, HeadScores
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.models.protocol import longest_input
from mechcore.papers.cognitive.trials import Trials, encode_trials, number_tokens
from mechcore.tables import PART, Column, Schema, estimate

ATTENTION = Schema(
    "cognitive_attention",
    "Attention of every head to the tokens of numbers.",
    (
        *PART,
        *estimate(
            "mass",
            "share",
            "attention to number tokens, mean over queries that see one",
            over="bootstrap over trials",
            header="attention",
            unit="%",
            shown="bare",
        ),
        Column("uniform", "share", "what uniform attention would give", "%", shown="bare"),
        *estimate(
            "ratio",
            "number",
            "mass / uniform",
            low="low_ratio",
            high="high_ratio",
            over="bootstrap over trials",
            optional_ends=True,
        ),
    ),
)
ATTENTION_CHANGE = Schema(
    "cognitive_attention_change",
    "Whether the heads that matter attend to numbers, by fill.",
    (
        Column("fill", "text", "of the ablation", header="ablation"),
        Column("n_heads", "whole", "heads", header="heads"),
        Column("rho", "number", "Spearman's, of ratio and change, over heads", signed=True),
        Column("p", "number", "its p-value", shown="small"),
        Column("first_layer_ratio", "number", "mean ratio in layer 0", header="first layer"),
        Column("other_ratio", "number", "in the other layers", header="other layers"),
        Column("top_ratio", "number", "weighted by what is lost", header="weighted by loss"),
    ),
)

NUMBER = "cognitive_number"
_BATCH = 64


def attention_tables(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    trials: Trials,
    ablation: pd.DataFrame,
    *,
    resamples: int = 200,
) -> dict[str, pd.DataFrame]:
    """The columns of `ATTENTION`, a row per head; and of `ATTENTION_CHANGE`, a row per fill.

    All tokens of a number count, its sign and point included. ``ablation`` is
    ``cognitive_ablation`` of the same model. Heads of one layer are not independent: take p as a
    description.
    """
    by_head = ablation.pivot(index="component", columns="fill", values="change")
    by_head = by_head.loc[list(map(str, ModelShape.of(model).heads)), ablation["fill"].unique()]
    data = encode_trials(trials, tokenizer, max_length=longest_input(model), words=True)
    with _number_category(data, number_tokens(trials, tokenizer).any(1)):
        scores = score_heads(model, data, batch_size=_BATCH, resamples=resamples, seed=0)
        scored = scores.table()
    low_ratio, high_ratio = _ratio_interval(scores)
    columns = {name: f"{name}_{NUMBER}" for name in ("mass", "low", "high", "uniform", "ratio")}
    table = pd.DataFrame(
        {
            **scored[["component", "layer", "head"]],
            **{name: scored[column] for name, column in columns.items()},
            "low_ratio": low_ratio,
            "high_ratio": high_ratio,
        }
    )
    related = [{"fill": f, **_relation(table, by_head[f].to_numpy(float))} for f in by_head]
    return {"cognitive_attention": table, "cognitive_attention_change": pd.DataFrame(related)}


@contextmanager
def _number_category(data: EncodedExamples, numbers: Bool[Tensor, "trial pos"]) -> Iterator[None]:
    # Batches come sorted by length and do not say which trials they hold. Their token ids do.
    places = {tuple(ids): row for ids, row in zip(data.input_ids, numbers, strict=True)}

    def are_numbers(tokens: TokenInfo) -> Bool[Tensor, "batch query key"]:
        texts = zip(tokens.ids.tolist(), tokens.real.sum(1).tolist(), strict=True)
        which = torch.stack([places[tuple(ids[:length])] for ids, length in texts])
        return tokens.key_is(which[:, : tokens.ids.shape[1]].to(tokens.ids.device))

    register_category(NUMBER, are_numbers, description="the numbers")
    try:
        yield
    finally:
        unregister_category(NUMBER)


def _ratio_interval(scores: HeadScores) -> tuple[np.ndarray, np.ndarray]:
    """Of the ratio for numbers, by head; missing for one trial and without resamples."""
    category = scores.names.index(NUMBER)
    drawn = (scores.resamples.defined[..., category] > 0).all(1).numpy()
    ratios = scores.resamples.means()[1][drawn, ..., category].reshape(-1, len(scores.shape.heads))
    if scores.n_examples < 2 or not len(ratios):
        return (np.full(ratios.shape[1], np.nan),) * 2
    low, high = np.quantile(ratios, QUANTILES, axis=0)
    return low, high


def _relation(table: pd.DataFrame, change: np.ndarray) -> dict[str, float]:
    """A row of ``cognitive_attention_change`` without fill."""
    ratio, first = table["ratio"].to_numpy(), table["layer"].to_numpy() == 0
    rho = p = np.nan
    if len(change) > 2 and np.ptp(ratio) > 0 and np.ptp(change) > 0:
        rho, p = spearmanr(ratio, change)
    weights = np.maximum(-change, 0)
    return {
        "n_heads": len(change),
        "rho": float(rho),
        "p": float(p),
        "first_layer_ratio": ratio[first].mean(),
        "other_ratio": np.nan if first.all() else ratio[~first].mean(),
        "top_ratio": np.average(ratio, weights=weights) if weights.any() else np.nan,
    }
