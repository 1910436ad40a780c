"""Sums over examples: intervals, spread, stability and agreement, against slow plain oracles."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from attention.planted import (
    ENCODER,
    chosen,
    interval_ends,
    one_hot,
    random_patterns,
    score_patterns,
    stacked,
    tokens_of,
)
from scipy import stats
from torch import Tensor

from mechcore.attention import (
    HeadScores,
    Thresholds,
    TokenInfo,
    categorise,
    claims,
    label_agreement,
    partition,
)
from mechcore.attention.reduction import BatchPatterns
from mechcore.components import ModelShape
from mechcore.errors import InputError


def weights(n: int, resamples: int, seed: int = 0) -> np.ndarray:
    """How often each resample draws each example, [example, resample]."""
    return np.stack(
        [
            np.random.Generator(np.random.Philox(key=[seed, row])).poisson(1.0, resamples)
            for row in range(n)
        ]
    )


def sums(
    patterns: Tensor, tokens: TokenInfo, layer: int, head: int, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every example: mass, mass under uniform attention and queries that count, loop by loop."""
    pairs = {**claims(tokens), "other": partition(tokens)["other"]}[name]
    mass, uniform, count = [], [], []
    for row in range(len(tokens.real)):
        totals = [0.0, 0.0, 0]
        for query in range(tokens.ids.shape[1]):
            keys = pairs[row, query].nonzero().flatten().tolist()
            if keys:
                totals[0] += sum(float(patterns[layer, row, head, query, key]) for key in keys)
                totals[1] += len(keys) / int(tokens.allowed[row, query].sum())
                totals[2] += 1
        for values, value in zip((mass, uniform, count), totals, strict=True):
            values.append(value)
    return np.array(mass), np.array(uniform), np.array(count)


def twelve_rows() -> TokenInfo:
    """Rows of different lengths; only the first has a separator, two repeat a word."""
    layouts = ["^aba|", "^abc", "^ab", "^abcdef", "^abcab", "^a", "^abcd", "^abcde"]
    layouts += ["^cb", "^dabc", "^edcba", "^ba"]
    return stacked(
        *[
            tokens_of(ids, re.sub(r"\w", "0", ids.replace("|", "-").replace("^", "-")))
            for ids in layouts
        ]
    )


def head_scores(patterns: Tensor, tokens: TokenInfo, resamples: int, seed: int = 0) -> HeadScores:
    scores = HeadScores(
        ModelShape(len(patterns), patterns.shape[2]), tokens.causal, resamples, seed
    )
    counted(scores, patterns, tokens, range(len(tokens.real)))
    return scores


def counted(scores: HeadScores, patterns: Tensor, tokens: TokenInfo, rows: Sequence[int]) -> None:
    """Count these rows as one batch."""
    batch = BatchPatterns(chosen(tokens, rows), patterns.shape[2])
    for layer, pattern in enumerate(patterns):
        batch.add(layer, pattern[list(rows)])
    scores.count(batch, rows)


@pytest.mark.parametrize("seed", [0, 7])
def test_intervals_are_those_of_poisson_resamples_or_of_students_t(seed: int) -> None:
    tokens = twelve_rows()
    patterns = random_patterns(tokens, spread=2.0)
    table = score_patterns(patterns, tokens, resamples=100, seed=seed)
    drawn = weights(12, 100, seed)
    for _, row in table.iterrows():
        for name in ENCODER:
            mass, _, count = sums(patterns, tokens, row["layer"], row["head"], name)
            assert row[f"mass_{name}"] == pytest.approx(mass.sum() / count.sum())
            assert row[f"examples_{name}"] == (count > 0).sum()
            if (count > 0).sum() < 10:
                assert name in ("separator", "repeated")
                assert math.isnan(row[f"low_{name}"])
                assert math.isnan(row[f"high_{name}"])
                continue
            with np.errstate(invalid="ignore"):  # nobody of the resample defines it
                resampled = (mass @ drawn) / (count @ drawn)
            low, high = interval_ends(mass[count > 0], count[count > 0], resampled)
            assert row[f"low_{name}"] == pytest.approx(low, abs=1e-12)
            assert row[f"high_{name}"] == pytest.approx(high, abs=1e-12)
            assert low < row[f"mass_{name}"] < high


def test_intervals_of_clusters_draw_whole_clusters() -> None:
    """Each of twelve rows twice: the mass is theirs, and so are the resamples."""
    tokens = twelve_rows()
    patterns = random_patterns(tokens, spread=2.0)
    scores = HeadScores(ModelShape(2, 2), tokens.causal, 100)
    for again in (0, 12):
        batch = BatchPatterns(tokens, 2)
        for layer, pattern in enumerate(patterns):
            batch.add(layer, pattern)
        scores.count(batch, range(again, again + 12), clusters=range(12))
    drawn = weights(12, 100, 0)
    for _, row in scores.table().iterrows():
        mass, _, count = sums(patterns, tokens, row["layer"], row["head"], "self")
        assert row["mass_self"] == pytest.approx(mass.sum() / count.sum())
        resampled = (mass @ drawn) / (count @ drawn)
        reach = stats.t.ppf(0.975, 11) * resampled.std() * math.sqrt(12 / 11)
        low, high = np.quantile(resampled, [0.025, 0.975])
        assert row["low_self"] == pytest.approx(min(low, row["mass_self"] - reach))
        assert row["high_self"] == pytest.approx(max(high, row["mass_self"] + reach))
        assert math.isnan(row["low_repeated"])  # 4 rows, each twice: fewer than 8 clusters


def giving_back(own: Sequence[Sequence[float]], tokens: TokenInfo) -> Tensor:
    """Heads that give this much to the previous token, [example][head], the rest to themselves."""
    pos = tokens.ids.shape[1]
    behind, itself = one_hot([0, *range(pos - 1)])[0, 0, 0], torch.eye(pos, dtype=torch.float64)
    share = torch.tensor(own, dtype=torch.float64)[:, :, None, None]
    return (share * behind + (1 - share) * itself)[None]


def test_an_interval_by_hand() -> None:
    """Student's t with 9 degrees of freedom; a single resample adds nothing to it."""
    short, long = (tokens_of(ids, "0" * len(ids), causal=True) for ids in ("ab", "abcd"))
    tokens = stacked(*[short] * 5, *[long] * 5)
    table = score_patterns(giving_back([[0.2]] * 5 + [[0.4]] * 5, tokens), tokens, resamples=1)
    # 5 queries give 0.2, 15 give 0.4: 0.35. Residuals: 1 * 0.2 - 0.35, and 3 * (0.4 - 0.35).
    assert table["mass_previous"].item() == pytest.approx(0.35)
    reach = 2.262157 * math.sqrt(10 * (10 * 0.15**2 / 9)) / 20
    assert reach == pytest.approx(0.056554, rel=1e-5)
    assert table["low_previous"].item() == pytest.approx(0.35 - reach, rel=1e-5)
    assert table["high_previous"].item() == pytest.approx(0.35 + reach, rel=1e-5)


def test_few_examples_have_no_interval() -> None:
    tokens = stacked(*[tokens_of("ab", "00", causal=True)] * 9, tokens_of("a.", "0-", causal=True))
    table = score_patterns(random_patterns(tokens), tokens, resamples=20)
    assert (table["examples_previous"] == 9).all()
    assert table[["low_previous", "high_previous"]].isna().all(axis=None)
    assert (table["examples_self"] == 10).all()
    assert table[["low_self", "high_self"]].notna().all(axis=None)


def test_intervals_of_few_examples_hold_the_truth_nearly_as_often_as_they_say() -> None:
    tokens = stacked(*[tokens_of("ab", "00", causal=True)] * 10)
    own = np.random.default_rng(0).beta(2, 6, (10, 1000))  # mean 0.25
    scores = head_scores(giving_back(own.tolist(), tokens), tokens, 400)
    table = scores.table()
    held = (table["low_previous"] <= 0.25) & (table["high_previous"] >= 0.25)
    assert 0.925 <= held.mean() <= 0.965
    # The bootstrap alone does not.
    ends = np.quantile(scores.resamples.means()[0][:, 0, :, 3], [0.025, 0.975], axis=0)
    assert np.mean((ends[0] <= 0.25) & (ends[1] >= 0.25)) < 0.915


def test_no_resamples_give_no_interval() -> None:
    tokens = twelve_rows()
    patterns = random_patterns(tokens)
    without = score_patterns(patterns, tokens, resamples=0)
    assert without.filter(regex="^(low|high)_").isna().all(axis=None)
    assert list(without.columns) == list(score_patterns(patterns, tokens, resamples=3).columns)
    labelled = head_scores(patterns, tokens, 0).categorised()
    assert labelled["stability"].isna().all()
    assert labelled["category"].tolist() == categorise(without)["category"].tolist()


@pytest.mark.parametrize("resamples", [-1, -1000, 2.5])
def test_resamples_and_seeds_are_whole_numbers(resamples: float) -> None:
    with pytest.raises(InputError, match=f"resamples is {resamples}; expected a whole number"):
        HeadScores(ModelShape(1, 1), False, resamples)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"seed is {resamples}; expected a whole number"):
        HeadScores(ModelShape(1, 1), False, 10, resamples)  # type: ignore[arg-type]
    tokens = tokens_of("ab", "00")
    with pytest.raises(InputError, match=f"resamples is {resamples}"):
        score_patterns(random_patterns(tokens), tokens, resamples=resamples)


def wavering(previous: Sequence[float]) -> tuple[Tensor, TokenInfo]:
    """A head that gives this much to the previous token in each example, the rest to itself."""
    tokens = stacked(*[tokens_of("abcdefghijkl", "0" * 12)] * len(previous))
    share = torch.tensor(previous)[:, None, None]
    behind = one_hot([0, *range(11)])[0, 0]
    after = one_hot([*range(1, 12), 0])[0, 0]  # the last one attends to the first
    pattern = share * behind + (1 - share) * (0.2 * after + 0.8 / 12)
    return pattern[None, :, None], tokens


def test_stability_is_the_share_of_resamples_with_the_same_label() -> None:
    previous = [0.0, 0.45, 0.1, 0.5, 0.2, 0.3, 0.0, 0.35, 0.4, 0.1, 0.55, 0.15]
    patterns, tokens = wavering(previous)
    thresholds = Thresholds(mass=0.3, ratio=3)
    table = head_scores(patterns, tokens, 300).categorised(thresholds)
    assert table["category"].item() == "previous"

    drawn = weights(12, 300)
    masses = {}
    for name in ENCODER[:-1]:
        mass, uniform, count = sums(patterns, tokens, 0, 0, name)
        if count.any():
            masses[name] = (mass @ drawn / (count @ drawn), mass @ drawn / (uniform @ drawn))
    labels = []
    for i in range(300):
        reached = [
            (mass[i], name)
            for name, (mass, ratio) in masses.items()
            if mass[i] >= 0.3 and ratio[i] >= 3
        ]
        labels.append(max(reached)[1] if reached else "mixed")
    assert set(labels) == {"previous", "mixed"}
    assert table["stability"].item() == pytest.approx(np.mean([x == "previous" for x in labels]))
    assert 0.5 < table["stability"].item() < 0.95
    # Below the threshold the head is mixed in all other resamples.
    mixed = head_scores(patterns, tokens, 300).categorised(Thresholds(mass=0.45))
    assert mixed["category"].item() == "mixed"
    assert 0 < mixed["stability"].item() <= 1


def test_agreement_is_that_of_even_and_odd_examples() -> None:
    # Even examples attend back, odd ones forth; another head does the same in both.
    tokens = stacked(*[tokens_of("abcdefghijkl", "0" * 12)] * 6)
    back, forth = one_hot([0, *range(11)])[0, 0, 0], one_hot([*range(1, 12), 0])[0, 0, 0]
    turning = torch.stack([back, forth] * 3)
    patterns = torch.stack([turning, back.expand(6, 12, 12), forth.expand(6, 12, 12)], 1)[None]
    alike = head_scores(patterns, tokens, 0).agreement()
    assert alike == label_agreement(["previous", "previous", "next"], ["next", "previous", "next"])
    assert (alike.n, alike.share) == (3, 2 / 3)


def test_agreement_of_one_example_is_an_error() -> None:
    patterns, tokens = wavering([0.9])
    with pytest.raises(InputError, match=r"found one example; expected two halves"):
        head_scores(patterns, tokens, 0).agreement()
