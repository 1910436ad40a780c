"""Extractive scores have the properties that their definitions imply, and agree with oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from papers.extractive.plain_gpt2 import naive_scores
from papers.extractive.tiny import Decoder, difference, facts, last_tokens, loaded, padded, saved
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
    found: ExtractiveScores = scores(case, data, getattr(case, which))
    return found


def tensors(found: ExtractiveScores) -> dict[str, Tensor]:
    parts = {
        f"{kind} {which}": getattr(getattr(found, kind), which)
        for kind in KINDS
        for which in ("heads", "mlps")
    }
    return parts | {"other": found.other, "before": found.rewards_before}


def assert_same(found: ExtractiveScores, expected: ExtractiveScores, tolerance: float) -> None:
    for name, values in tensors(found).items():
        torch.testing.assert_close(
            values, tensors(expected)[name], rtol=tolerance, atol=tolerance, msg=name
        )


def only_part(case: Decoder, layer: int, part: str) -> WeightDelta:
    return case.of_matrices.only(
        [m.weight for m in linear_maps(case.model) if (m.layer, m.part) == (layer, part)]
    )


# -- what definitions imply -----------------------------------------------------------------------


def test_no_change_gives_zeros(tiny: Decoder, data: EncodedFacts) -> None:
    for delta in (WeightDelta({}), 0.0 * tiny.of_all):
        found = scores(tiny, data, delta, check=True)
        values = tensors(found)
        assert values.pop("before").abs().min() > 1e-3
        for name, each in values.items():
            assert not each.any(), name
        assert not found.gradient.any()
        assert torch.equal(found.rewards_before, found.rewards_after)


@pytest.mark.parametrize("which", ["of_matrices", "of_all"])
def test_informative_and_other_sum_to_the_gradient(
    tiny: Decoder, data: EncodedFacts, which: str
) -> None:
    sums = scores(tiny, data, getattr(tiny, which), check=True).sums()
    assert sums.gradient.abs().min() > 0.01
    found = sums.informative + sums.other
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(sums.gradient), rtol=tiny.tolerance, atol=tiny.tolerance
    )
    assert (sums.other == 0).all() == (which == "of_matrices")


def test_a_small_change_does_what_the_gradient_says(tiny: Decoder, data: EncodedFacts) -> None:
    steps = (tiny.step, -tiny.step)
    up, down = (scores(tiny, data, step * tiny.of_all).sums().actual for step in steps)
    slope = (up - down) / (2 * tiny.step)
    whole = standard(tiny, data).sums()
    expected = (whole.informative + whole.other).tolist()
    assert slope.tolist() == pytest.approx(expected, rel=1e-3 if tiny.exact else 2e-2, abs=1e-3)


def test_the_first_attention_has_no_downstream_score(tiny: Decoder, data: EncodedFacts) -> None:
    found = standard(tiny, data, "of_matrices")
    assert not found.downstream.heads[:, 0].any()
    assert found.downstream.heads[:, 1].any()
    assert found.downstream.mlps[:, 0].any()
    assert standard(tiny, data).downstream.heads[:, 0].any()


def test_a_prompt_as_its_own_counterfactual_has_no_upstream_score(
    tiny: Decoder, data: EncodedFacts
) -> None:
    alone = scores(
        tiny, data, tiny.of_all, counterfactuals=[[row] for row in range(5)], batch_size=1
    )
    assert not alone.upstream.heads.any()
    assert not alone.upstream.mlps.any()
    together = scores(tiny, data, tiny.of_all, counterfactuals=[[row] for row in range(5)])
    scale = standard(tiny, data).upstream.heads.abs().max()
    assert scale > 0.01
    assert together.upstream.heads.abs().max() < tiny.tolerance * scale


def test_nothing_is_scored_after_the_last_token(tiny: Decoder, data: EncodedFacts) -> None:
    found = standard(tiny, data)
    last = last_tokens(data)
    assert len(set(last)) > 1
    for name, values in tensors(found).items():
        if values.ndim > 1:
            assert values.shape[-1] == max(last) + 1
            for row, end in enumerate(last):
                assert not values[row, ..., end + 1 :].any(), name
                assert values[row, ..., end].any(), name


def test_only_the_last_token_of_the_last_layer_matters(tiny: Decoder, data: EncodedFacts) -> None:
    """What its keys and values are made of, at their own tokens, does matter."""
    found = standard(tiny, data)
    of_keys = scores(tiny, data, only_part(tiny, 1, "K") + only_part(tiny, 1, "V")).informative
    of_rest = scores(tiny, data, only_part(tiny, 1, "Q") + only_part(tiny, 1, "O")).informative
    for row, end in enumerate(last_tokens(data)):
        for kind in KINDS:
            mlp = getattr(found, kind).mlps[row, 1]
            assert not mlp[:end].any()
            assert mlp[end] != 0
        for kind in ("upstream", "downstream"):
            assert not getattr(found, kind).heads[row, 1, :, :end].any()
        assert not of_rest.heads[row, 1, :, :end].any()
        assert of_keys.heads[row, 1, :, :end].all()


# -- oracles --------------------------------------------------------------------------------------


def test_plain_hugging_face_gives_the_same(tiny_gpt2: Decoder, data: EncodedFacts) -> None:
    """Every score of every component at every token; one prompt and counterfactual at a time."""
    case, options = tiny_gpt2, data.option_ids.tolist()
    found = standard(case, data)
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
        assert float(found.rewards_before[row]) == pytest.approx(expected[0]["before"], abs=1e-9)
        assert float(found.rewards_after[row]) == pytest.approx(expected[0]["after"], abs=1e-9)
        for name, values in tensors(found).items():
            if values.ndim > 1:
                mean = torch.stack([each[name] for each in expected]).mean(0)
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
    decoders: Callable[[str], Decoder], data: EncodedFacts, tmp_path: Path
) -> None:
    case = decoders("llama")
    models = [
        loaded(saved(expanded(plain), tmp_path / name), "llama")
        for name, plain in (("old", case.reference), ("new", case.references_after["all"]))
    ]
    delta = difference(*models)
    assert models[0].cfg.n_key_value_heads in (None, 4)
    found = scores(case, data, case.of_all)
    expected = extractive_scores(models[0], data, delta, counterfactuals=OTHERS, check=False)
    assert found.informative.heads.abs().max() > 0.1
    assert_same(found, expected, 1e-5)


# -- how they are computed does not matter --------------------------------------------------------


def test_batches_do_not_matter(tiny: Decoder, data: EncodedFacts) -> None:
    found = scores(tiny, data, tiny.of_all, batch_size=2)
    assert_same(found, standard(tiny, data), 1e-9 if tiny.exact else 1e-4)


def test_all_others_are_drawn_where_fewer_are_there(tiny: Decoder, data: EncodedFacts) -> None:
    """Rows 0 and 4 have the same answer."""
    everyone = [[1, 2, 3], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [1, 2, 3]]
    expected = scores(tiny, data, tiny.of_matrices, counterfactuals=everyone)
    found = scores(tiny, data, tiny.of_matrices, counterfactuals=10)
    assert_same(found, expected, 1e-9 if tiny.exact else 1e-4)


def test_the_draw_follows_the_seed(tiny: Decoder, data: EncodedFacts) -> None:
    first, again, other = (
        scores(tiny, data, tiny.of_matrices, counterfactuals=1, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.upstream.mlps, again.upstream.mlps)
    assert not torch.equal(first.upstream.mlps, other.upstream.mlps)
    assert torch.equal(first.informative.mlps, other.informative.mlps)


def test_without_counterfactuals_upstream_scores_are_missing(
    tiny: Decoder, data: EncodedFacts
) -> None:
    found = scores(tiny, data, tiny.of_matrices, counterfactuals=0)
    assert found.sums().upstream.isna().all()
    assert found.table().query("score == 'upstream'")["value"].isna().all()
    expected = standard(tiny, data, "of_matrices")
    for kind in ("informative", "downstream"):
        assert torch.equal(getattr(found, kind).heads, getattr(expected, kind).heads)
        assert torch.equal(getattr(found, kind).mlps, getattr(expected, kind).mlps)


def test_half_precision_gives_scores_close_to_those_of_full(
    decoders: Callable[[str], Decoder], data: EncodedFacts, tmp_path: Path
) -> None:
    """No tensor is summed in bfloat16, and a delta may be of another type."""
    case = decoders("bridge")
    path = saved(case.reference, tmp_path)
    model = loaded(path, "bridge", torch.bfloat16)
    found = extractive_scores(model, data, case.of_matrices, counterfactuals=OTHERS)
    full = scores(case, data, case.of_matrices, check=True)
    for kind in KINDS:
        ours, theirs = getattr(found, kind), getattr(full, kind)
        assert ours.heads.dtype == torch.float32
        scale = theirs.mlps.abs().max()
        assert (ours.mlps - theirs.mlps).abs().max() < 0.1 * scale
        assert (ours.heads - theirs.heads).abs().max() < 0.1 * scale
    sums = found.sums()
    error = (sums.informative + sums.other - sums.gradient).abs()
    assert error.max() < 0.03 * full.sums().gradient.abs().max()


# -- other models ---------------------------------------------------------------------------------

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
NAMES = {"vocab_size": 40, "pad_token_id": 1, "bos_token_id": None, "eos_token_id": None}
POSITIONS = {"intermediate_size": 24, "max_position_embeddings": 48}
GROUPED = {"num_key_value_heads": 2}


def other_model(
    config: type[Any], model: type[Any], folder: Path, **sizes: Any
) -> tuple[Any, WeightDelta]:
    plain = model(config(**NAMES | {"attn_implementation": "eager"} | sizes))
    helpers.randomise(plain)
    found = loaded(saved(plain, folder), "bridge", torch.float32)
    generator = torch.Generator().manual_seed(0)
    weights = named_weights(found)
    names = trainable_names(found)
    delta = {n: 0.05 * torch.randn(weights[n].shape, generator=generator) for n in names}
    return found, WeightDelta(delta)


@pytest.mark.parametrize(
    ("config", "model", "sizes"),
    [
        (hf.Qwen3Config, hf.Qwen3ForCausalLM, SIZES | POSITIONS | GROUPED | {"head_dim": 8}),
        (hf.Phi3Config, hf.Phi3ForCausalLM, SIZES | POSITIONS | GROUPED),
        (hf.OlmoConfig, hf.OlmoForCausalLM, SIZES | POSITIONS | GROUPED | {"clip_qkv": 0.5}),
        (
            hf.MistralConfig,
            hf.MistralForCausalLM,
            SIZES | POSITIONS | GROUPED | {"sliding_window": 3, "head_dim": 8},
        ),
    ],
    ids=["norms of queries and keys", "fused gate", "clipped queries and keys", "window"],
)
def test_other_decoders_sum_to_the_gradient(
    config: Any, model: Any, sizes: dict[str, Any], data: EncodedFacts, tmp_path: Path
) -> None:
    found, delta = other_model(config, model, tmp_path, **sizes)
    sums = extractive_scores(found, data, delta, counterfactuals=1).sums()
    assert sums.informative.tolist() == pytest.approx(sums.gradient.tolist(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("config", "model", "sizes", "message"),
    [
        (hf.Olmo2Config, hf.Olmo2ForCausalLM, SIZES | POSITIONS | GROUPED, "(a norm after|_post)"),
        (
            hf.Gemma2Config,
            hf.Gemma2ForCausalLM,
            SIZES | POSITIONS | GROUPED | {"head_dim": 8},
            "has ln1_post",
        ),
        (
            hf.GPTJConfig,
            hf.GPTJForCausalLM,
            {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 48, "rotary_dim": 4},
            "no hook_resid_mid",
        ),
        (
            hf.GraniteConfig,
            hf.GraniteForCausalLM,
            SIZES | POSITIONS | GROUPED | {"residual_multiplier": 0.5},
            "scales what it adds",
        ),
    ],
    ids=["norms after", "norms before and after", "parallel", "scaled"],
)
def test_layers_of_another_kind_are_refused(
    config: Any, model: Any, sizes: dict[str, Any], message: str, data: EncodedFacts, tmp_path: Path
) -> None:
    found, delta = other_model(config, model, tmp_path, **sizes)
    with pytest.raises(InputError, match=f"{message}.*; extractive scores need layers of an"):
        extractive_scores(found, data, delta)


def hooked(**changes: Any) -> tuple[Any, WeightDelta]:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "d_mlp": 24, "d_vocab": 40}
    config = HookedTransformerConfig(
        **sizes
        | {"n_ctx": 48, "act_fn": "gelu", "normalization_type": "LN", "device": "cpu"}
        | changes
    )
    model = HookedTransformer(config)
    helpers.randomise(model)
    generator = torch.Generator().manual_seed(0)
    delta = {
        name: 0.1 * torch.randn(weight.shape, generator=generator)
        for name, weight in named_weights(model.eval()).items()
    }
    return model, WeightDelta(delta)


ROTARY = {
    "normalization_type": "RMS",
    "gated_mlp": True,
    "act_fn": "silu",
    "rotary_dim": 4,
    "positional_embedding_type": "rotary",
    "n_key_value_heads": 2,
}


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
    model, delta = hooked(**changes)
    found = extractive_scores(model, data, delta, counterfactuals=OTHERS)
    sums = found.sums()
    assert (sums.informative + sums.other).tolist() == pytest.approx(
        sums.gradient.tolist(), rel=1e-4, abs=1e-5
    )
    if "attn_only" in changes:
        assert not found.informative.mlps.any()
        assert set(found.table()["kind"]) == {"head"}


@pytest.mark.hooked
def test_positions_added_to_queries_and_keys_are_refused(data: EncodedFacts) -> None:
    model, delta = hooked(attn_only=True, positional_embedding_type="shortformer")
    with pytest.raises(InputError, match="adds positions to what queries and keys are made of"):
        extractive_scores(model, data, delta)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compat": "papers"}, "compat is 'papers'; expected \"paper\" or None"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"counterfactuals": -1}, "counterfactuals is -1; expected at least 0"),
        ({"counterfactuals": [[1], [], [0], [0], [0]]}, "not empty, of rows from 0 to 4"),
    ],
)
def test_bad_options(
    decoders: Callable[[str], Decoder], data: EncodedFacts, options: dict[str, Any], message: str
) -> None:
    case = decoders("bridge")
    with pytest.raises(InputError, match=message):
        scores(case, data, case.of_matrices, **options)


def test_a_prompt_without_counterfactual_is_named(
    decoders: Callable[[str], Decoder],
) -> None:
    case = decoders("bridge")
    with pytest.raises(InputError, match="'the cat saw a' has no counterfactual"):
        extractive_scores(case.model, facts((0, 4)), case.of_matrices)


def test_scores_that_miss_the_gradient_are_an_error(
    tiny_gpt2: Decoder, data: EncodedFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = passes.informative

    def without_mlps(*arguments: Any, **options: Any) -> Any:
        found = right(*arguments, **options)
        return replace(found, mlps=torch.zeros_like(found.mlps))

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
