"""How much of every head's attention goes to which category of tokens.

Attention probabilities are reduced batch by batch to a few sums per head, so memory does not grow
with the number of examples (arXiv 2403.03942, section 5 and Figure 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.attention.categories import OTHER, TokenInfo, categories, partition
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.models.running import check_hooks, device_of, forward, hook_pattern, is_causal
from mechcore.tasks.encoding import EncodedExamples


def attention_scores(
    model: Any,
    data: EncodedExamples,
    *,
    batch_size: int = 64,
    progress: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """Attention mass of every head on every category of keys.

    Queries and keys are real tokens; in causal models keys lie at or before the query. Which key
    belongs to which category, and which category wins where several claim it, is stated in
    `mechcore.attention.categories`. A category is *defined* for a query that has at least one
    such key: a query whose word is not repeated does not count for ``repeated``.

    Args:
        model: any TransformerLens model that computes attention patterns.
        data: examples encoded with ``words=True``.
        batch_size: examples per batch.
        progress: called after every batch.

    Returns:
        One row per head, by layer. Masses are shares of a query's attention, from 0 to 1:

        - ``component`` (``L0.H1``), ``layer``, ``head``;
        - ``n_examples``, and ``n_queries``, the number of real tokens;
        - ``entropy``: of the attention of a query, in nats, mean over queries;
        - ``mass_<category>``: mean over the queries for which the category is defined;
        - ``uniform_<category>``: the same under uniform attention over the query's keys;
        - ``ratio_<category>``: mass / uniform; these three are NaN where no query counts;
        - ``share_<category>``: mean over all queries; sums to 1 over the categories.

        ``share / mass`` is the share of queries for which the category is defined.

    Raises:
        InputError: the words of ``data`` are not known, the batch size is not positive, or the
            model gives no attention patterns.
    """
    if not isinstance(data, EncodedExamples) or data.words is None:
        found = "without words" if isinstance(data, EncodedExamples) else type(data).__name__
        raise InputError(
            f"attention scores: found examples {found}; expected EncodedExamples whose words are "
            "known: encode them with encode(..., words=True)"
        )
    shape, causal = ModelShape.of(model), is_causal(model)
    names = [hook_pattern(layer) for layer in range(shape.n_layers)]
    check_hooks(model, names)
    sums = _Sums(shape, causal)
    hooks = [(name, sums.adder(layer)) for layer, name in enumerate(names)]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        for batch in data.batches(batch_size):
            sums.begin(TokenInfo.of(batch, causal=causal).to(device_of(model)))
            forward(model, batch)
            sums.check_complete(model)
            if progress is not None:
                progress()
    return sums.table()


def score_patterns(
    patterns: Float[Tensor, "layer batch head query key"], tokens: TokenInfo
) -> pd.DataFrame:
    """The table of `attention_scores` from attention probabilities at hand, of one batch.

    Args:
        patterns: attention probabilities; whatever stands at padding is ignored.
        tokens: what is known about the batch's tokens.

    Raises:
        InputError: the shape of ``patterns`` is not that of the tokens.
    """
    if patterns.ndim != 5:
        raise InputError(
            f"patterns: shape {tuple(patterns.shape)}; expected [layer, batch, head, query, key]"
        )
    sums = _Sums(ModelShape(patterns.shape[0], patterns.shape[2]), tokens.causal)
    sums.begin(tokens)
    for layer, pattern in enumerate(patterns):
        sums.add(layer, pattern)
    return sums.table()


class _Sums:
    """Running float64 sums over the queries of all batches, filled by the hooks of a forward."""

    def __init__(self, shape: ModelShape, causal: bool) -> None:
        self.shape = shape
        self.names = [*(category.name for category in categories(causal)), OTHER]
        size, kinds = (shape.n_layers, shape.n_heads), len(self.names)
        self.n_examples = self.n_queries = 0
        self.mass = torch.zeros(*size, kinds, dtype=torch.float64)
        self.entropy = torch.zeros(*size, dtype=torch.float64)
        self.defined = torch.zeros(kinds, dtype=torch.float64)
        self.uniform = torch.zeros(kinds, dtype=torch.float64)
        self.seen: set[int] = set()

    def begin(self, tokens: TokenInfo) -> None:
        """Prepare for the patterns of one batch."""
        parts = partition(tokens)
        self.members = torch.stack([parts[name] for name in self.names], dim=-1)
        self.allowed = tokens.allowed
        self.seen = set()
        self.n_examples += len(tokens.real)
        self.n_queries += int(tokens.real.sum())
        keys = self.members.sum(2).cpu().double()
        self.defined += (keys > 0).sum((0, 1))
        self.uniform += (keys / keys.sum(-1, keepdim=True).clamp(min=1)).sum((0, 1))

    def adder(self, layer: int) -> Any:
        def add(pattern: Tensor, hook: Any) -> None:
            self.add(layer, pattern)

        return add

    def add(self, layer: int, pattern: Float[Tensor, "batch head query key"]) -> None:
        """Count the pattern of one layer of the batch begun."""
        batch, pos = self.allowed.shape[:2]
        expected = (batch, self.shape.n_heads, pos, pos)
        if pattern.shape != expected:
            raise InputError(
                f"attention pattern of layer {layer}: shape {tuple(pattern.shape)}; expected "
                f"{expected}, [batch, head, query, key]"
            )
        allowed = self.allowed.to(pattern.device)
        precise = torch.promote_types(pattern.dtype, torch.float32)
        # Filling, not multiplying: rows of padding may hold NaN.
        pattern = pattern.detach().to(precise).masked_fill(~allowed[:, None], 0.0)
        members = self.members.to(pattern.device, precise)
        mass = torch.einsum("bhqk,bqkc->bhqc", pattern, members)
        self.mass[layer] += mass.cpu().double().sum((0, 2))
        entropy = torch.special.entr(pattern).sum(-1)
        self.entropy[layer] += entropy.cpu().double().sum((0, 2))
        self.seen.add(layer)

    def check_complete(self, model: Any) -> None:
        """Make sure that every layer's pattern came."""
        missing = sorted(set(range(self.shape.n_layers)) - self.seen)
        if missing:
            raise InputError(
                f"model: {type(model).__name__} ran without computing {hook_pattern(missing[0])}; "
                "expected eager attention: load the checkpoint with mechcore.load_model"
            )

    def table(self) -> pd.DataFrame:
        heads = self.shape.heads
        columns: dict[str, Any] = {
            "component": [str(head) for head in heads],
            "layer": [head.layer for head in heads],
            "head": [head.head for head in heads],
            "n_examples": self.n_examples,
            "n_queries": self.n_queries,
            "entropy": (self.entropy / self.n_queries).flatten().numpy(),
        }
        mass = (self.mass / self.defined).flatten(0, 1).numpy()
        uniform = (self.uniform / self.defined).expand_as(self.mass).flatten(0, 1).numpy()
        share = (self.mass / self.n_queries).flatten(0, 1).numpy()
        measures = {"mass": mass, "uniform": uniform, "ratio": mass / uniform, "share": share}
        for measure, values in measures.items():
            for i, name in enumerate(self.names):
                columns[f"{measure}_{name}"] = values[:, i]
        return pd.DataFrame(columns)
