from __future__ import annotations

import helpers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.extractive.tiny import Decoder
from torch import Tensor

from mechcore.errors import InputError, MechcoreError
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import (
    EncodedFacts,
    all_option_logits,
    mean_rank,
    rank_interval,
    ranks,
    rewards,
)
from mechcore.papers.extractive.weights import restored


def answers_with(
    case: Decoder, data: EncodedFacts, logits: list[float]
) -> tuple[list[float], float]:
    """Ranks and the mean rank of a model that gives the options these logits everywhere.

    Its last normalisation gives 1 (Llama's gives 4) in the first place and 0 in all others.
    """
    weights, options = named_weights(case.model), data.option_ids
    with restored(case.model), torch.no_grad():
        for weight in weights.values():
            weight.zero_()
        given = torch.tensor(logits).to(next(iter(weights.values())))
        if case.kind == "llama":
            weights["model.embed_tokens.weight"][:, 0] = 1
            weights["model.norm.weight"].fill_(1)
            weights["lm_head.weight"][options, 0] = given / 4
        elif case.kind == "hooked":
            weights["ln_final.b"][0] = 1
            weights["unembed.W_U"][0, options] = given
        else:
            weights["transformer.ln_f.bias"][0] = 1
            weights["transformer.wte.weight"][options, 0] = given
        answered = all_option_logits(case.model, data)
        torch.testing.assert_close(answered, given.expand(len(data), -1), rtol=1e-5, atol=0)
        return ranks(case.model, data).tolist(), mean_rank(case.model, data)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([4.0, 3.0, 2.0, 1.0], [0, 1, 2, 3, 0]),
        ([-4.0, -3.0, -2.0, -1.0], [3, 2, 1, 0, 3]),
        ([1.0, 5.0, 1.0, 0.0], [1.5, 0, 1.5, 3, 1.5]),  # two tie for 1 and 2
        ([2.0, 2.0, 2.0, 0.0], [1, 1, 1, 3, 1]),
        ([0.0, 0.0, 0.0, 0.0], [1.5, 1.5, 1.5, 1.5, 1.5]),
    ],
)
def test_ranks_of_known_logits(
    tiny: Decoder, data: EncodedFacts, logits: list[float], expected: list[float]
) -> None:
    """The answers are options 0, 1, 2, 3 and 0."""
    ranked, mean = answers_with(tiny, data, logits)
    assert ranked == expected
    assert mean == pytest.approx(sum(expected) / 5)


def test_no_miss_among_a_few_prompts_is_not_never_a_miss() -> None:
    # 20 zeros and one 9.5: mean 9.5 / 21, standard deviation 9.5 / sqrt(21), t of 20 is 2.0860.
    interval = rank_interval(np.zeros(20), 20)
    assert (interval.mean, interval.low) == (0, 0)
    assert interval.high == pytest.approx(9.5 / 21 * (1 + 2.085963), abs=1e-6)
    alone = rank_interval(np.array([3.0]), 20)
    assert (alone.mean, np.isnan(alone.low), np.isnan(alone.high)) == (3, True, True)


@given(st.lists(st.integers(0, 19), min_size=2, max_size=30))
@settings(max_examples=50, deadline=None)
def test_intervals_of_ranks_hold_the_mean_and_stay_among_the_ranks(ranked: list[int]) -> None:
    interval = rank_interval(np.array(ranked, dtype=float), 20, n_resamples=50)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 19
    assert interval.high > interval.low


def by_hand(case: Decoder, data: EncodedFacts) -> Tensor:
    """Logits of the options from Hugging Face's model, one prompt at a time."""
    with torch.no_grad():
        rows = [
            case.reference(input_ids=torch.tensor([list(prompt)])).logits[0, -1]
            for prompt in data.prompt_ids
        ]
    return torch.stack([torch.stack([row[o] for o in data.option_ids.tolist()]) for row in rows])


def test_logits_ranks_and_rewards_are_those_of_hugging_face(
    tiny: Decoder, data: EncodedFacts
) -> None:
    tolerance, expected = 1e-9 if tiny.exact else 1e-5, by_hand(tiny, data)
    for batch_size in (1, 2, 16):
        logits = all_option_logits(tiny.model, data, batch_size)
        torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    rows = [*zip(expected.tolist(), data.answers.tolist(), strict=True)]
    above = [sum(other > row[answer] for other in row) for row, answer in rows]
    assert ranks(tiny.model, data).tolist() == above
    assert mean_rank(tiny.model, data) == sum(above) / 5
    ahead = [row[answer] - sum(row) / 4 for row, answer in rows]
    assert rewards(tiny.model, data).tolist() == pytest.approx(ahead, abs=tolerance)


def test_logits_that_are_not_finite_have_no_rank(tiny: Decoder, data: EncodedFacts) -> None:
    """No comparison with nan is true, which would be the best of ranks."""
    with pytest.raises(MechcoreError, match="logits after 'the cat saw a' are not finite"):
        answers_with(tiny, data, [0.0, float("nan"), 0.0, 0.0])


def test_other_models_are_refused(cases: helpers.Cases, data: EncodedFacts) -> None:
    for architecture in ("bert", "gpt2"):
        with pytest.raises(InputError, match="is a classifier; expected a causal language model"):
            ranks(cases.get(architecture).model, data)
