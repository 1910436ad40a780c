"""Tokens written as letters, attention patterns with known answers, and random ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.nn.functional import pad

from mechcore.attention import HeadScores, TokenInfo, score_heads
from mechcore.attention.reduction import BatchPatterns
from mechcore.components import ModelShape

ENCODER = ("first", "separator", "self", "previous", "next", "repeated", "other")
CAUSAL = (*ENCODER[:-1], "induction", "other")

# -- tokens ---------------------------------------------------------------------------------------


def tokens_of(ids: str, segments: str, words: str | None = None, causal: bool = False) -> TokenInfo:
    """One row: a letter per token, ``.`` for padding; segments ``0``, ``1`` or ``-``.

    Equal letters are equal words unless ``words`` says otherwise (``-`` for no word); a token
    written ``|`` is a separator.
    """
    names = words or "".join("-" if s == "-" else i for i, s in zip(ids, segments, strict=True))
    return TokenInfo(
        ids=torch.tensor([[ord(i) for i in ids]]),
        real=torch.tensor([[i != "." for i in ids]]),
        segments=torch.tensor([[-1 if s == "-" else int(s) for s in segments]]),
        words=torch.tensor([[-1 if w == "-" else ord(w) for w in names]]),
        separators=torch.tensor([[i == "|" for i in ids]]),
        causal=causal,
    )


def wider(tokens: TokenInfo, more: int) -> TokenInfo:
    """The same with more padding."""
    real = pad(tokens.real, (0, more), value=False)
    return TokenInfo(
        ids=pad(tokens.ids, (0, more)).where(real, 5),
        real=real,
        segments=pad(tokens.segments, (0, more), value=-1),
        words=pad(tokens.words, (0, more), value=-1),
        separators=pad(tokens.separators, (0, more), value=False),
        causal=tokens.causal,
    )


def stacked(*rows: TokenInfo) -> TokenInfo:
    """One batch of rows of any lengths."""
    width = max(row.ids.shape[1] for row in rows)
    same = [wider(row, width - row.ids.shape[1]) for row in rows]
    names = ("ids", "real", "segments", "words", "separators")
    fields = {name: torch.cat([getattr(row, name) for row in same]) for name in names}
    return TokenInfo(**fields, causal=rows[0].causal)


def chosen(tokens: TokenInfo, rows: Sequence[int]) -> TokenInfo:
    """Some rows of a batch."""
    names = ("ids", "real", "segments", "words", "separators")
    fields = {name: getattr(tokens, name)[list(rows)] for name in names}
    return TokenInfo(**fields, causal=tokens.causal)


# -- patterns, [layer, batch, head, query, key] ---------------------------------------------------


def one_hot(keys: Sequence[int]) -> Tensor:
    """A head that attends from query i to ``keys[i]`` alone."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys)).double()[None, None, None]


def random_patterns(
    tokens: TokenInfo, seed: int = 0, spread: float = 1.0, layers: int = 2, heads: int = 2
) -> Tensor:
    """Random attention; rows of padding are NaN."""
    generator = torch.Generator().manual_seed(seed)
    size = (layers, len(tokens.real), heads, *tokens.allowed.shape[1:])
    logits = spread * torch.randn(size, generator=generator, dtype=torch.float64)
    return logits.masked_fill(~tokens.allowed[None, :, None], -torch.inf).softmax(-1)


@st.composite
def token_infos(draw: st.DrawFn) -> TokenInfo:
    """Batches of up to three rows with any layout of segments, separators and padding."""
    pos = draw(st.integers(1, 9))
    batch = draw(st.integers(1, 3))

    def grid(low: int, high: int) -> Tensor:
        row = st.lists(st.integers(low, high), min_size=pos, max_size=pos)
        return torch.tensor(draw(st.lists(row, min_size=batch, max_size=batch)))

    lengths = draw(st.lists(st.integers(1, pos), min_size=batch, max_size=batch))
    real = torch.arange(pos)[None] < torch.tensor(lengths)[:, None]
    segments = grid(-1, draw(st.integers(0, 1)))
    words = grid(-1, 3).where(segments >= 0, torch.tensor(-1))
    separators = (grid(0, 3) == 0) & (segments < 0)
    return TokenInfo(
        ids=(2 * words + grid(0, 1)).where(real, 99),
        real=real,
        segments=segments.where(real, -1),
        words=words.where(real, -1),
        separators=separators & real,
        causal=draw(st.booleans()),
    )


def score_patterns(
    patterns: Tensor,
    tokens: TokenInfo,
    *,
    resamples: int = 0,
    seed: int = 0,
    ignore: Collection[str] = (),
) -> pd.DataFrame:
    """The table of scores of patterns at hand, of one batch."""
    shape = ModelShape(patterns.shape[0], patterns.shape[2])
    scores = HeadScores(shape, tokens.causal, resamples, seed, ignore)
    batch = BatchPatterns(tokens, shape.n_heads, scores.ignore)
    for layer, pattern in enumerate(patterns):
        batch.add(layer, pattern)
    scores.count(batch, range(len(tokens.real)))
    return scores.table()


def attention_scores(model: Any, data: Any, **options: Any) -> pd.DataFrame:
    """The table of scores of a model's heads."""
    return score_heads(model, data, **options).table()


# -- intervals ------------------------------------------------------------------------------------


def interval_ends(
    mass: Sequence[float], count: Sequence[int], resampled: Sequence[float]
) -> tuple[float, float]:
    """At each end the wider of a bootstrap and of Student's t, clipped to [0, 1].

    The latter goes over the residuals of the examples, which all have a query that counts.
    """
    n, mean = len(mass), sum(mass) / sum(count)
    residuals = [m - mean * c for m, c in zip(mass, count, strict=True)]
    variance = sum(residual**2 for residual in residuals) / (n - 1)
    reach = float(stats.t(n - 1).ppf(0.975)) * (n * variance) ** 0.5 / sum(count)
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return min(low, max(mean - reach, 0)), max(high, min(mean + reach, 1))


# -- tables ---------------------------------------------------------------------------------------


def figures(row: pd.Series, measure: str, names: Sequence[str]) -> list[float]:
    """One measure of one head for these categories."""
    return [float(row[f"{measure}_{name}"]) for name in names]
