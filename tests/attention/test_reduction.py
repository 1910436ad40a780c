"""Attention patterns of one batch, reduced to sums."""

from typing import Any

import pandas as pd
import pytest
import torch
from attention.planted import (
    chosen,
    one_hot,
    random_patterns,
    score_patterns,
    stacked,
    token_infos,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mechcore.attention import (
    TokenInfo,
    categorise,
    claims,
    partition,
    reduction,
)
from mechcore.attention.reduction import BatchPatterns
from mechcore.errors import InputError, MechcoreError

PAIR = tokens_of("^ab|a|", "-00-1-")


def filled(tokens: TokenInfo, patterns: torch.Tensor) -> BatchPatterns:
    batch = BatchPatterns(tokens, patterns.shape[2])
    for layer, pattern in enumerate(patterns):
        batch.add(layer, pattern)
    return batch


@given(token_infos(), st.integers(0, 100))
@settings(max_examples=20)
def test_sums_have_the_order_they_say(tokens: TokenInfo, seed: int) -> None:
    patterns = random_patterns(tokens, seed)
    sums = filled(tokens, patterns).sums(2)
    assert sums.dtype == torch.float64
    clean = patterns.nan_to_num(0)
    parts = partition(tokens)
    positions = torch.arange(tokens.ids.shape[1], dtype=torch.float64)
    distance = (positions[:, None] - positions[None]).abs()
    logs = clean.clamp(min=1e-300).log()
    expected = [
        *(
            torch.einsum("lbhqk,bqk->blh", clean, pairs.double())
            for pairs in claims(tokens).values()
        ),
        torch.einsum("lbhqk,bqk->blh", clean, parts["other"].double()),
        *(torch.einsum("lbhqk,bqk->blh", clean, pairs.double()) for pairs in parts.values()),
        torch.einsum("lbhqk,bqk->blh", clean, tokens.allowed.double()),
        torch.einsum("lbhqk,qk->blh", clean, distance),
        -(clean * logs).sum((-1, -2)).transpose(0, 1),
    ]
    torch.testing.assert_close(sums, torch.stack(expected, -1))


def test_layers_and_shapes_are_checked() -> None:
    batch = BatchPatterns(PAIR, 2)
    batch.add(0, random_patterns(PAIR)[0])
    with pytest.raises(InputError, match=r"pattern of layer 1; expected eager attention"):
        batch.sums(3)
    with pytest.raises(InputError, match=r"layer 0: shape \(1, 1, 5, 5\); expected \(1, 1, 6, 6\)"):
        score_patterns(torch.zeros(1, 1, 1, 5, 5), PAIR)
    with pytest.raises(InputError, match=r"layer 4: shape \(1, 2, 6, 6\); expected \(1, 3, 6, 6\)"):
        BatchPatterns(PAIR, 3).add(4, random_patterns(PAIR)[0])


@pytest.mark.parametrize("chunk", [1, 80, 81, 200])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    rows = ["^abc|abc|", "^ab|a|", "^a|", "^abcd|", "^ab|ba|"]
    tokens = stacked(*[tokens_of(ids, "-" + "0" * (len(ids) - 2) + "-") for ids in rows])
    patterns = random_patterns(tokens)
    expected = score_patterns(patterns, tokens, resamples=20)
    calls: list[int] = []
    reduce = BatchPatterns._reduce

    def counting(self: BatchPatterns, pattern: torch.Tensor, rows: slice, of: Any) -> torch.Tensor:
        calls.append(len(pattern))
        return reduce(self, pattern, rows, of)

    monkeypatch.setattr(BatchPatterns, "_reduce", counting)
    monkeypatch.setattr(reduction, "_CHUNK", chunk)
    pd.testing.assert_frame_equal(score_patterns(patterns, tokens, resamples=20), expected)
    # Rows have 9 * 9 pairs: one fits where fewer do, and two into 200.
    assert calls == ([2, 2, 1] if chunk == 200 else [1] * 5) * 2


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e30, 0.7])
def test_whatever_stands_at_padding_is_ignored(junk: float) -> None:
    alone = tokens_of("^ab|", "-00-")
    patterns = random_patterns(alone)
    expected = score_patterns(patterns, alone)
    more = stacked(alone, tokens_of("^abcde|", "-00000-"))
    wide = torch.full((2, 1, 2, 7, 7), junk, dtype=torch.float64)
    wide[..., :4, :4] = patterns
    table = score_patterns(wide, chosen(more, [0]))
    pd.testing.assert_frame_equal(table, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single_precision(dtype: torch.dtype) -> None:
    ids = "".join(chr(0x4E00 + i) for i in range(300))
    tokens = tokens_of(ids, "0" * 300, causal=True)
    pattern = torch.full((1, 1, 1, 300, 300), 1 / 256, dtype=dtype)
    row = score_patterns(pattern, tokens).iloc[0]
    expected = score_patterns(pattern.double(), tokens).iloc[0]
    assert row["share_other"] == expected["share_other"] > 0.5
    for measure in ("entropy", "distance"):
        assert row[measure] == pytest.approx(expected[measure], rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_attention_that_is_not_finite_is_an_error(bad: float) -> None:
    patterns = random_patterns(PAIR, layers=2)
    patterns[1, 0, 1, 2, 1] = bad
    with pytest.raises(MechcoreError, match=r"attention of L1\.H1: not finite.*float32"):
        filled(PAIR, patterns).sums(2)


@given(token_infos(), st.integers(0, 1000), st.sampled_from([(), ("first",), ("self", "next")]))
def test_ignored_keys_are_as_if_the_softmax_had_not_seen_them(
    tokens: TokenInfo, seed: int, ignore: tuple[str, ...]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = (1, len(tokens.real), 2, *tokens.allowed.shape[1:])
    logits = torch.randn(size, generator=generator, dtype=torch.float64)
    claimed = claims(tokens)
    kept = tokens.allowed
    for name in ignore:
        kept = kept & ~claimed[name]
    whole = logits.masked_fill(~tokens.allowed[None, :, None], -torch.inf).softmax(-1)
    rest = logits.masked_fill(~kept[None, :, None], -torch.inf).softmax(-1).nan_to_num(0)
    batch = BatchPatterns(tokens, 2, ignore)
    batch.add(0, whole[0])
    sums = batch.sums(1)[:, 0]
    names = [name for name in claimed if name not in ignore]
    for i, name in enumerate(names):
        pairs = (claimed[name] & kept)[:, None]
        torch.testing.assert_close(sums[..., i], (rest[0] * pairs).sum((2, 3)))
    shares = sums[..., len(names) + 1 : 2 * len(names) + 2].sum(-1)
    queries = (kept.sum(2) > 0).sum(1)
    torch.testing.assert_close(shares, queries[:, None].double().expand_as(shares))
    assert batch.n_queries == int(queries.sum())
    kept_attention = (whole[0].nan_to_num(0) * kept[:, None]).sum((2, 3))
    torch.testing.assert_close(sums[..., -3], kept_attention)
    torch.testing.assert_close(
        sums[..., -1], torch.special.entr(rest[0]).sum((2, 3)), check_dtype=False
    )


def test_the_sink_hides_a_head_until_it_is_ignored() -> None:
    tokens = tokens_of("^abcd|", "-0000-")
    previous = one_hot([0, 0, 1, 2, 3, 4])
    sink = one_hot([0, 0, 0, 0, 0, 0])
    patterns = 0.9 * sink + 0.1 * previous
    seen = categorise(score_patterns(patterns, tokens))
    beside = categorise(score_patterns(patterns, tokens, ignore=("first",)))
    assert seen["category"].item() == "first"
    assert seen["mass_first"].item() == pytest.approx((0.9 * 4 + 1 + 1) / 6)
    assert beside["category"].item() == "previous"
    assert beside["mass_previous"].item() == pytest.approx(1)
    assert beside["n_queries"].item() == 6
    assert "mass_first" not in beside
    assert beside["left_out"].item() == pytest.approx(seen["mass_first"].item())
    assert "left_out" not in seen
    with pytest.raises(InputError, match="no category 'firs' to ignore; expected one of first, "):
        score_patterns(patterns, tokens, ignore=("firs",))
