"""Stacks of models with unusual settings against the models themselves, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import Case, Cases, padded, texts
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.models.running import (
    forward,
    is_causal,
    is_classifier,
    last_real_position,
    model_inputs,
    weights_of,
)
from mechcore.models.architectures.layers import stack_of


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@torch.no_grad()
def stack_logits(model: Any, batch: Any, stack: Any = None) -> Tensor:
    """Logits of a model's stack at the position that the head reads."""
    stack = stack_of(model) if stack is None else stack
    inputs, heads = model_inputs(model, batch), list(range(stack.n_heads))
    read = torch.zeros(len(inputs["input_ids"]), dtype=torch.long)
    if is_causal(model):
        read = last_real_position(inputs["attention_mask"])
    context, x = stack.context(inputs, read), stack.embed(inputs)
    for layer, weights in enumerate(stack.layers):
        z = stack.z(layer, x, context, heads)
        x = stack.kept_positions(layer, x, context) + stack.project(layer, z, heads, bias=True)
        x = stack.after_attention(layer, x)
        if weights.up is not None:
            x = stack.after_mlp(layer, x + stack.mlp(layer, x))
    return stack.out(stack.head(x[:, 0]))


@torch.no_grad()
def model_logits(model: Any, batch: Any) -> Tensor:
    """The model's own logits at the position that the head reads."""
    logits = forward(model, batch)
    if is_classifier(model):
        return logits
    inputs = model_inputs(model, batch)
    read = torch.zeros(len(logits), dtype=torch.long)
    if is_causal(model):
        read = last_real_position(inputs["attention_mask"])
    return logits[torch.arange(len(logits)), read]


def refusal(model: Any) -> str:
    """The one-line message with which a model is refused."""
    with pytest.raises(InputError) as caught:
        stack_of(model)
    message = str(caught.value)
    assert "\n" not in message
    return message


def refused(found: str) -> str:
    return (
        f"prefix-sharing engine: found {found}; expected a TransformerBridge of bert, roberta, "
        "xlm-roberta, camembert, electra, distilbert, gpt2, llama, mistral, qwen2 with its usual "
        "settings, or a HookedTransformer, on one device; engine='restart' runs any model whose "
        "layers can be called again"
    )


# -- bridges --------------------------------------------------------------------------------------


def bridge(hf_model: Any, folder: Path) -> Any:
    """Randomise a Hugging Face model, and load its checkpoint."""
    helpers.randomise(hf_model)
    hf_model.save_pretrained(folder)
    return load_model(folder)


def classifier(architecture: str, **changes: Any) -> Any:
    """A tiny classifier with other settings."""
    plain = helpers.hf_classifier(architecture)
    settings = {**plain.config.to_dict(), **changes}
    config = type(plain.config)(**settings, attn_implementation="eager")
    return type(plain)(config).eval()


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"hidden_act": "silu"}),
        ("bert", {"layer_norm_eps": 0.1}),
        ("roberta", {"hidden_act": "gelu_pytorch_tanh"}),
        ("gpt2", {"activation_function": "gelu"}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rms_norm_eps": 0.1}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 48}),
        ("qwen2", {"num_key_value_heads": 1}),
    ],
    ids=str,
)
def test_settings_of_bridges_are_read(
    tmp_path: Path, cases: Cases, architecture: str, changes: dict[str, Any]
) -> None:
    hf_model = classifier(architecture, **changes)
    model = bridge(hf_model, tmp_path)
    expected = helpers.reference_logits(hf_model, texts())
    for side in ("right", "left"):
        close(stack_logits(model, padded(texts(), side, extra=1, noise=2)), expected)
    plain = helpers.reference_logits(cases.get(architecture).reference, texts())
    assert changes.get("sliding_window", 1) != 1 or (expected - plain).abs().max() > 2e-5


@pytest.mark.parametrize("by_layer", [False, True])
def test_scores_without_a_scale(by_layer: bool, tmp_path: Path) -> None:
    """TransformerLens scales them all the same, and such a bridge is refused by `load_model`."""
    settings = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": by_layer}
    hf_model = classifier("gpt2", **settings)
    with pytest.raises(InputError, match=r"its logits are not those of Hugging Face"):
        bridge(hf_model, tmp_path)
    expected = helpers.reference_logits(hf_model, texts())
    model = build_bridge_from_module(
        hf_model, "GPT2ForSequenceClassification", hf_config=hf_model.config
    )
    close(stack_logits(model, padded(texts(), extra=1, noise=2)), expected)


def test_a_stack_is_a_copy(case: Case) -> None:
    model, batch = load_model(case.path), padded(texts())
    stack = stack_of(model)
    expected = stack_logits(model, batch, stack)
    helpers.randomise(model.original_model, seed=1)
    assert torch.equal(stack_logits(model, batch, stack), expected)
    assert (model_logits(model, batch) - expected).abs().max() > 1e-2
    close(stack_logits(model, batch), model_logits(model, batch))


def test_reading_weights_changes_nothing(case: Case) -> None:
    batch = padded(texts())
    counts = helpers.hook_counts(case.model)
    with torch.no_grad():
        before = forward(case.model, batch)
        stack = stack_of(case.model)
        assert torch.equal(forward(case.model, batch), before)
    assert helpers.hook_counts(case.model) == counts
    weights = [stack.out.weight, stack.layers[0].qkv.weight, stack.layers[1].o.weight]
    assert not any(weight.requires_grad for weight in weights)


def test_precision_is_the_models(case64: Case) -> None:
    stack = stack_of(case64.model)
    assert stack.layers[0].qkv.weight.dtype == stack.out.weight.dtype == torch.float64
    found = stack_logits(case64.model, padded(texts()))
    assert found.dtype == torch.float64
    close(found, helpers.reference_logits(case64.reference, texts()), 1e-6)


def test_decoders_of_the_bert_family_are_refused(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for architecture in helpers.ENCODERS:
        model = cases.get(architecture).model
        monkeypatch.setattr(model.original_model.config, "is_decoder", True)
        assert refusal(model) == refused(f"a {architecture} with is_decoder=True")


def test_sliding_windows_are_refused(tmp_path: Path) -> None:
    model = bridge(classifier("mistral", sliding_window=4), tmp_path / "mistral")
    assert refusal(model) == refused("a mistral with a sliding window of 4 positions")
    settings = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = bridge(classifier("qwen2", **settings, layer_types=None), tmp_path / "qwen2")
    assert "sliding_attention" in model.original_model.config.layer_types
    assert refusal(model) == refused("a qwen2 with a sliding window of 8 positions")


def test_other_architectures_are_refused() -> None:
    config = hf.GPTNeoXConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        vocab_size=40, max_position_embeddings=16,
    )  # fmt: skip
    model = built(hf.GPTNeoXForCausalLM(config))
    assert refusal(model) == refused("a bridge of GPTNeoXForCausalLM")


def test_masked_language_models_are_refused(cases: Cases) -> None:
    config = hf.AutoConfig.from_pretrained(cases.path("bert"))
    model = built(hf.BertForMaskedLM(config))
    assert refusal(model) == refused("a bridge of BertForMaskedLM")


def built(hf_model: Any) -> Any:
    """A bridge of a model that `load_model` may refuse."""
    name = type(hf_model).__name__
    return build_bridge_from_module(
        hf_model.eval(), name, hf_config=hf_model.config, model_name="tiny"
    )


def test_what_is_no_model_is_refused(case: Case) -> None:
    assert "expected a HookedTransformer, HookedEncoder or" in refusal(case.reference)


# -- HookedTransformer ----------------------------------------------------------------------------


def hooked(seed: int = 0, **changes: Any) -> Any:
    """A tiny random HookedTransformer with other settings (TransformerLens 3)."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    settings: dict[str, Any] = {
        "n_layers": 2,
        "n_heads": 4,
        "d_model": 16,
        "d_head": 4,
        "d_mlp": 24,
        "d_vocab": helpers.VOCABULARY,
        "n_ctx": 48,
        "act_fn": "gelu",
        "normalization_type": "LN",
        "device": "cpu",
    }
    model = HookedTransformer(HookedTransformerConfig(**{**settings, **changes}))
    helpers.randomise(model, seed)
    if model.cfg.gated_mlp:
        with torch.no_grad():
            for block in model.blocks:
                block.mlp.b_in.zero_()
    return model.eval()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "attention only": {"attn_only": True},
    "attention only without norms": {"attn_only": True, "normalization_type": None},
    "without norms": {"normalization_type": None},
    "folded layer norms": {"normalization_type": "LNPre"},
    "root mean square": {"normalization_type": "RMS"},
    "folded root mean square": {"normalization_type": "RMSPre"},
    "rotary": {"positional_embedding_type": "rotary"},
    "rotary in a part": {"positional_embedding_type": "rotary", "rotary_dim": 2},
    "another rotary base": {"positional_embedding_type": "rotary", "rotary_base": 20},
    "gated": {"gated_mlp": True, "act_fn": "silu"},
    "llama-like": {
        "gated_mlp": True,
        "act_fn": "silu",
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "n_key_value_heads": 2,
    },
    "one key for all heads": {"n_key_value_heads": 1},
    "no attention scale": {"use_attn_scale": False},
    "another attention scale": {"attn_scale": 5.0},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "scaled by layer alone": {"scale_attn_by_inverse_layer_idx": True, "use_attn_scale": False},
    "wide heads": {"d_head": 8},
    "relu": {"act_fn": "relu"},
    "tanh gelu": {"act_fn": "gelu_new"},
    "fast gelu": {"act_fn": "gelu_fast"},
    "large epsilon": {"eps": 0.1},
    "split inputs": {"use_split_qkv_input": True, "use_attn_result": True, "use_hook_mlp_in": True},
    "another output vocabulary": {"d_vocab_out": 7},
    "bidirectional": {"attention_dir": "bidirectional"},
}


@pytest.mark.hooked
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_hooked_transformers(variant: str) -> None:
    changes = VARIANTS[variant]
    model, whole = hooked(**changes), padded(texts((6, 6)))
    batches = [whole]
    if variant != "bidirectional":  # there a HookedTransformer attends to padding
        batches += [padded(texts(), side, extra=2, noise=1) for side in ("right", "left")]
    for batch in batches:
        expected = model_logits(model, batch)
        close(stack_logits(model, batch), expected, 1e-5 * float(expected.abs().max()))
    assert stack_of(model).causal == (variant != "bidirectional")
    if variant not in ("plain", "split inputs", "another output vocabulary"):
        assert (model_logits(hooked(), whole) - model_logits(model, whole)).abs().max() > 3e-5


@pytest.mark.hooked
def test_a_hooked_transformers_stack_is_a_copy() -> None:
    for changes in ({}, VARIANTS["llama-like"], VARIANTS["attention only without norms"]):
        model, batch = hooked(**changes), padded(texts())
        stack = stack_of(model)
        expected = stack_logits(model, batch, stack)
        with torch.no_grad():
            for parameter in weights_of(model).parameters():
                parameter.mul_(1.5)
        assert torch.equal(stack_logits(model, batch, stack), expected)
        assert (model_logits(model, batch) - expected).abs().max() > 1e-2


@pytest.mark.hooked
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"parallel_attn_mlp": True}, "parallel_attn_mlp=True"),
        ({"final_rms": True}, "final_rms=True"),
        ({"use_qk_norm": True}, "use_qk_norm=True"),
        ({"post_embedding_ln": True}, "post_embedding_ln=True"),
        ({"clip_qkv": 0.5}, "clip_qkv=0.5"),
        ({"use_logn_attn": True}, "use_logn_attn=True"),
        ({"use_attention_sinks": True}, "use_attention_sinks=True"),
        (
            {"normalization_type": "RMS", "use_normalization_before_and_after": True},
            "use_normalization_before_and_after=True",
        ),
        (
            {"use_local_attn": True, "window_size": 4, "attn_types": ["global", "local"]},
            "attn_types=['global', 'local']",
        ),
        ({"num_experts": 2, "experts_per_token": 1}, "num_experts=2"),
        ({"attn_scores_soft_cap": 20.0}, "attn_scores_soft_cap=20.0"),
        ({"output_logits_soft_cap": 30.0}, "output_logits_soft_cap=30.0"),
        ({"positional_embedding_type": "alibi"}, "alibi positions and LN norms"),
        ({"positional_embedding_type": "shortformer"}, "shortformer positions and LN norms"),
        (
            {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": True},
            "rotary_adjacent_pairs=True",
        ),
        ({"act_fn": "solu_ln"}, "the activation solu_ln"),
    ],
    ids=str,
)
def test_hooked_transformers_that_are_not_plain_are_refused(
    changes: dict[str, Any], found: str
) -> None:
    assert refusal(hooked(**changes)) == refused(f"a HookedTransformer with {found}")


@pytest.mark.hooked
def test_biases_of_gated_mlps_are_refused() -> None:
    model = hooked(gated_mlp=True, act_fn="silu")
    stack_of(model)
    with torch.no_grad():
        model.blocks[1].mlp.b_in[3] = 0.5
    assert refusal(model) == refused("a HookedTransformer with a gated MLP and biases")


@pytest.mark.hooked
def test_a_hooked_encoder_is_refused() -> None:
    assert refusal(helpers.hooked_encoder()) == refused("a HookedEncoder")
