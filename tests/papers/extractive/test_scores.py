"""Extractive scores have the properties that their definitions imply, and agree with oracles."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from papers.extractive.plain_gpt2 import naive_scores
from papers.extractive.tiny import (
    Decoder,
    difference,
    facts,
    hooked_decoder,
    last_tokens,
    loaded,
    noise_of,
    other_decoder,
    padded,
    saved,
    scaled,
)
from torch import Tensor

from mechcore.errors import InputError, MechcoreError, NotFiniteError
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive import passes
from mechcore.papers.extractive.encoded import EncodedFacts
from mechcore.papers.extractive.results import KINDS, ExtractiveScores
from mechcore.papers.extractive.scores import extractive_scores
from mechcore.papers.extractive.weights import WeightDelta, linear_maps, trainable_names

OTHERS = [[1, 2], [0, 3, 4], [1], [0, 2], [3]]
"""Counterfactuals of the five facts, of other lengths and answers."""


def scores(case: Decoder, data: EncodedFacts, delta: WeightDelta, **options: Any) -> Any:
    return extractive_scores(
        case.model, data, delta, **{"counterfactuals": OTHERS, "check": False} | options
    )


@cache
def standard(case: Decoder, data: EncodedFacts, which: str = "of_all") -> ExtractiveScores:
    """`scores` for one of the changes of a decoder, computed once."""
    scored: ExtractiveScores = scores(case, data, getattr(case, which))
    return scored


def tensors(scored: ExtractiveScores) -> dict[str, Tensor]:
    parts = {
        f"{kind} {which}": getattr(getattr(scored, kind), which)
        for kind in KINDS
        for which in ("heads", "mlps")
    }
    return parts | {"other": scored.other, "before": scored.rewards_before}


def assert_same(scored: ExtractiveScores, expected: ExtractiveScores, tolerance: float) -> None:
    for name, values in tensors(scored).items():
        torch.testing.assert_close(
            values, tensors(expected)[name], rtol=tolerance, atol=tolerance, msg=name
        )


def only_part(case: Decoder, layer: int, part: str) -> WeightDelta:
    return case.of_matrices.only(
        [m.weight for m in linear_maps(case.model) if (m.layer, m.part) == (layer, part)]
    )


# -- what definitions imply -----------------------------------------------------------------------


def test_no_change_gives_zeros(tiny: Decoder, data: EncodedFacts) -> None:
    for delta in (WeightDelta({}), scaled(0.0, tiny.of_all)):
        scored = scores(tiny, data, delta, check=True)
        values = tensors(scored) | {"gradient": scored.gradient}
        assert values.pop("before").abs().min() > 1e-3
        assert not any(x.any() for x in values.values())
        assert torch.equal(scored.rewards_before, scored.rewards_after)


@pytest.mark.parametrize("which", ["of_matrices", "of_all"])
def test_informative_and_other_sum_to_the_gradient(
    tiny: Decoder, data: EncodedFacts, which: str
) -> None:
    sums = scores(tiny, data, getattr(tiny, which), check=True).sums()
    assert sums.gradient.abs().min() > 0.01
    total = (sums.informative + sums.other).tolist()
    expected = sums.gradient.tolist()
    assert total == pytest.approx(expected, rel=tiny.tolerance, abs=tiny.tolerance)
    assert (sums.other == 0).all() == (which == "of_matrices")


def test_a_small_change_does_what_the_gradient_says(tiny: Decoder, data: EncodedFacts) -> None:
    steps = (tiny.step, -tiny.step)
    up, down = (scores(tiny, data, scaled(step, tiny.of_all)).sums().actual for step in steps)
    slope = (up - down) / (2 * tiny.step)
    whole = standard(tiny, data).sums()
    expected = (whole.informative + whole.other).tolist()
    assert slope.tolist() == pytest.approx(expected, rel=1e-3 if tiny.exact else 2e-2, abs=1e-3)


def test_the_first_attention_has_no_downstream_score(tiny: Decoder, data: EncodedFacts) -> None:
    scored = standard(tiny, data, "of_matrices")
    assert not scored.downstream.heads[:, 0].any()
    assert scored.downstream.heads[:, 1].any()
    assert scored.downstream.mlps[:, 0].any()
    assert standard(tiny, data).downstream.heads[:, 0].any()


def test_a_prompt_as_its_own_counterfactual_has_no_upstream_score(
    tiny: Decoder, data: EncodedFacts
) -> None:
    alone, together = (
        scores(tiny, data, tiny.of_all, counterfactuals=[[row] for row in range(5)], batch_size=n)
        for n in (1, 5)
    )
    assert not alone.upstream.heads.any()
    assert not alone.upstream.mlps.any()
    scale = standard(tiny, data).upstream.heads.abs().max()
    assert scale > 0.01
    assert together.upstream.heads.abs().max() < tiny.tolerance * scale


def test_nothing_is_scored_after_the_last_token(tiny: Decoder, data: EncodedFacts) -> None:
    scored = standard(tiny, data)
    last = last_tokens(data)
    assert len(set(last)) > 1
    for name, values in tensors(scored).items():
        if values.ndim > 1:
            assert values.shape[-1] == max(last) + 1
            for row, end in enumerate(last):
                assert not values[row, ..., end + 1 :].any(), name
                assert values[row, ..., end].any(), name


def test_only_the_last_token_of_the_last_layer_matters(tiny: Decoder, data: EncodedFacts) -> None:
    """What its keys and values are made of, at their own tokens, does matter."""
    scored = standard(tiny, data)
    of_keys = scores(tiny, data, only_part(tiny, 1, "K") + only_part(tiny, 1, "V")).informative
    of_rest = scores(tiny, data, only_part(tiny, 1, "Q") + only_part(tiny, 1, "O")).informative
    for row, end in enumerate(last_tokens(data)):
        for kind in KINDS:
            mlp = getattr(scored, kind).mlps[row, 1]
            assert not mlp[:end].any()
            assert mlp[end] != 0
        for kind in ("upstream", "downstream"):
            assert not getattr(scored, kind).heads[row, 1, :, :end].any()
        assert not of_rest.heads[row, 1, :, :end].any()
        assert of_keys.heads[row, 1, :, :end].all()


# -- oracles --------------------------------------------------------------------------------------


def test_plain_hugging_face_gives_the_same(tiny_gpt2: Decoder, data: EncodedFacts) -> None:
    """Every score of every component at every token; one prompt and counterfactual at a time."""
    case, options = tiny_gpt2, data.option_ids.tolist()
    scored = standard(case, data)
    for row, prompt in enumerate(data.prompt_ids):
        expected = [
            naive_scores(
                case.reference,
                case.references_after["all"],
                prompt,
                data.prompt_ids[other],
                options,
                int(data.answers[row]),
            )
            for other in OTHERS[row]
        ]
        assert float(scored.rewards_before[row]) == pytest.approx(expected[0]["before"], abs=1e-9)
        assert float(scored.rewards_after[row]) == pytest.approx(expected[0]["after"], abs=1e-9)
        for name, values in tensors(scored).items():
            if values.ndim > 1:
                mean = torch.stack([single[name] for single in expected]).mean(0)
                torch.testing.assert_close(
                    values[row], padded(mean, values.shape[-1]), rtol=1e-7, atol=1e-10, msg=name
                )


def expanded(plain: Any) -> Any:
    """The same Llama with its own keys and values for every head."""
    config = hf.LlamaConfig(**plain.config.to_dict() | {"num_key_value_heads": 4})
    other = hf.LlamaForCausalLM(config).double().eval()
    state = plain.state_dict()
    for name in state:
        if "k_proj" in name or "v_proj" in name:
            state[name] = state[name].unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
    other.load_state_dict(state)
    return other


def test_grouped_heads_score_as_heads_with_keys_of_their_own(
    tiny_llama: Decoder, data: EncodedFacts, tmp_path: Path
) -> None:
    model, after = (
        loaded(saved(expanded(plain), tmp_path / name), "llama")
        for name, plain in (
            ("old", tiny_llama.reference),
            ("new", tiny_llama.references_after["all"]),
        )
    )
    assert model.cfg.n_key_value_heads in (None, 4)
    delta = difference(model, after)
    expected = extractive_scores(model, data, delta, counterfactuals=OTHERS, check=False)
    scored = standard(tiny_llama, data)
    assert scored.informative.heads.abs().max() > 0.1
    assert_same(scored, expected, 1e-5)


# -- how they are computed does not matter --------------------------------------------------------


def test_batches_do_not_matter(tiny: Decoder, data: EncodedFacts) -> None:
    scored = scores(tiny, data, tiny.of_all, batch_size=2)
    assert_same(scored, standard(tiny, data), 1e-9 if tiny.exact else 1e-4)


def test_counterfactuals_are_drawn_by_the_seed_or_all_or_none(
    tiny: Decoder, data: EncodedFacts
) -> None:
    """Rows 0 and 4 have the same answer. Without any, upstream scores are missing."""
    everyone = [[1, 2, 3], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [1, 2, 3]]
    expected, many, first, again, other, none = (
        scores(tiny, data, tiny.of_matrices, counterfactuals=which, seed=seed)
        for which, seed in ((everyone, 0), (10, 0), (1, 0), (1, 0), (1, 1), (0, 0))
    )
    assert_same(many, expected, 1e-9 if tiny.exact else 1e-4)
    assert torch.equal(first.upstream.mlps, again.upstream.mlps)
    assert not torch.equal(first.upstream.mlps, other.upstream.mlps)
    assert none.sums().upstream.isna().all()
    assert none.table().query("score == 'upstream'")["value"].isna().all()
    for kind in ("informative", "downstream"):
        for different in (other, none):
            one, two = getattr(first, kind), getattr(different, kind)
            assert torch.equal(one.heads, two.heads)
            assert torch.equal(one.mlps, two.mlps)


def test_half_precision_gives_scores_close_to_those_of_full(
    tiny_bridge: Decoder, data: EncodedFacts, tmp_path: Path
) -> None:
    """No tensor is summed in bfloat16, and a delta may be of another type."""
    model = loaded(saved(tiny_bridge.reference, tmp_path), "bridge", torch.bfloat16)
    delta = tiny_bridge.of_matrices
    half = extractive_scores(model, data, delta, counterfactuals=OTHERS)
    full = scores(tiny_bridge, data, delta, check=True)
    for kind in KINDS:
        ours, theirs = getattr(half, kind), getattr(full, kind)
        assert ours.heads.dtype == torch.float32
        for which in ("heads", "mlps"):
            error = (getattr(ours, which) - getattr(theirs, which)).abs().max()
            assert error < 0.1 * theirs.mlps.abs().max()
    sums = half.sums()
    error = (sums.informative + sums.other - sums.gradient).abs()
    assert error.max() < 0.03 * full.sums().gradient.abs().max()


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("Qwen3", {"head_dim": 8}),  # norms of queries and keys
        ("Phi3", {}),  # fused gate
        ("Olmo", {"clip_qkv": 0.5}),
        ("Mistral", {"sliding_window": 3, "head_dim": 8}),
    ],
)
def test_other_decoders_sum_to_the_gradient(
    architecture: str, sizes: dict[str, Any], data: EncodedFacts, tmp_path: Path
) -> None:
    model = other_decoder(architecture, tmp_path, **sizes)
    delta = noise_of(model, 0.05, trainable_names(model))
    sums = extractive_scores(model, data, delta, counterfactuals=1).sums()
    assert sums.informative.tolist() == pytest.approx(sums.gradient.tolist(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("architecture", "sizes", "message"),
    [
        ("Olmo2", {}, "(a norm after|_post)"),
        ("Gemma2", {"head_dim": 8}, "has ln1_post"),
        ("GPTJ", {"rotary_dim": 4}, "no hook_resid_mid"),  # parallel
        ("Granite", {"residual_multiplier": 0.5}, "scales what it adds"),
    ],
)
def test_layers_of_another_kind_are_refused(
    architecture: str, sizes: dict[str, Any], message: str, data: EncodedFacts, tmp_path: Path
) -> None:
    model = other_decoder(architecture, tmp_path, **sizes)
    with pytest.raises(InputError, match=f"{message}.*; extractive scores need layers of an"):
        extractive_scores(model, data, WeightDelta({}))


ROTARY = {"normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu", "rotary_dim": 4}
ROTARY |= {"positional_embedding_type": "rotary", "n_key_value_heads": 2}


@pytest.mark.hooked
@pytest.mark.parametrize(
    "changes",
    [
        {"normalization_type": "LNPre"},
        {"normalization_type": None},
        {"attn_only": True},
        {"act_fn": "solu_ln"},
        {"use_split_qkv_input": True, "use_attn_result": True, "use_hook_mlp_in": True},
        ROTARY,
        ROTARY | {"use_qk_norm": True},
        ROTARY | {"ungroup_grouped_query_attention": True},
    ],
)
def test_hooked_variants_sum_to_the_gradient(changes: dict[str, Any], data: EncodedFacts) -> None:
    model = hooked_decoder(**changes)
    scored = extractive_scores(model, data, noise_of(model, 0.1), counterfactuals=OTHERS)
    sums = scored.sums()
    assert (sums.informative + sums.other).tolist() == pytest.approx(
        sums.gradient.tolist(), rel=1e-4, abs=1e-5
    )
    if "attn_only" in changes:
        assert not scored.informative.mlps.any()
        assert set(scored.table()["kind"]) == {"head"}


@pytest.mark.hooked
def test_positions_added_to_queries_and_keys_are_refused(data: EncodedFacts) -> None:
    model = hooked_decoder(attn_only=True, positional_embedding_type="shortformer")
    with pytest.raises(InputError, match="adds positions to what queries and keys are made of"):
        extractive_scores(model, data, WeightDelta({}))


def test_a_prompt_without_a_counterfactual_is_named(tiny_bridge: Decoder) -> None:
    with pytest.raises(InputError, match="'the cat saw a' has no counterfactual"):
        extractive_scores(tiny_bridge.model, facts((0, 4)), tiny_bridge.of_matrices)


def test_scores_that_miss_the_gradient_are_an_error(
    tiny_gpt2: Decoder, data: EncodedFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = passes.informative

    def without_mlps(*arguments: Any, **options: Any) -> Any:
        scored = right(*arguments, **options)
        return replace(scored, mlps=torch.zeros_like(scored.mlps))

    monkeypatch.setattr("mechcore.papers.extractive.scores.informative", without_mlps)
    scores(tiny_gpt2, data, tiny_gpt2.of_matrices)  # nothing is checked
    scores(tiny_gpt2, data, tiny_gpt2.of_matrices, check=True, compat="paper")
    with pytest.raises(MechcoreError, match="a part that extractive scores do not know"):
        scores(tiny_gpt2, data, tiny_gpt2.of_matrices, check=True)


def test_rewards_that_are_not_finite_have_no_scores(tiny: Decoder, data: EncodedFacts) -> None:
    """A delta that breaks the words leaves the rewards before it as they were."""
    names = ("lm_head", "unembed.W_U", "ln_f.weight")  # the first that there is: some are tied
    name = next(n for part in names for n in named_weights(tiny.model) if part in n)
    change = torch.full_like(named_weights(tiny.model)[name], float("nan"))
    with pytest.raises(NotFiniteError, match=r"^logits: not finite .* numbers 0, 1; "):
        scores(tiny, data, WeightDelta({name: change}), batch_size=2, counterfactuals=[[1]] * 5)
