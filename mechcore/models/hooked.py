"""A GPT-2 checkpoint as a HookedTransformer (TransformerLens 3)."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from mechcore.errors import InputError, reason

_GPT2 = "GPT2LMHeadModel"


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens has HookedTransformer (4.x removed it)."""
    return importlib.util.find_spec("transformer_lens.HookedTransformer") is not None


def can_be_hooked(architecture: str) -> bool:
    """Whether checkpoints of a Hugging Face class can be loaded as a HookedTransformer."""
    return architecture == _GPT2 and has_hooked_transformer()


def hooked_transformer(
    name: str, architecture: str, hf_model: Any, device: str | torch.device, dtype: torch.dtype
) -> Any:
    """The same GPT-2, with unprocessed weights; raises `InputError` for other models."""
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights
    except ImportError as error:
        raise InputError(
            'backend "hooked": this TransformerLens has no HookedTransformer (4.x removed it); '
            'install transformer-lens<4, or use backend "bridge"'
        ) from error
    if architecture != _GPT2:
        raise InputError(
            f'backend "hooked": found {architecture}; local checkpoints can be read as '
            f'{_GPT2} only: use backend "bridge", or pass a HookedTransformer built with '
            "TransformerLens"
        )
    try:
        cfg = HookedTransformerConfig(**_sizes(hf_model.config), device=str(device), dtype=dtype)
        cfg.original_architecture, cfg.model_name = architecture, name
        model = HookedTransformer(cfg, move_to_device=False).to(device, print_details=False)
        model.config = hf_model.config  # has the padding token that batches are checked for
        model.load_and_process_state_dict(
            convert_gpt2_weights(hf_model, cfg),
            fold_ln=False,
            center_writing_weights=False,
            center_unembed=False,
            fold_value_biases=False,
        )
    except Exception as error:  # a configuration can cause any kind of error
        raise InputError(
            f"checkpoint {name}: TransformerLens cannot make a HookedTransformer of it: "
            f'{reason(error)}; use backend "bridge"'
        ) from error
    return model.eval()


def _sizes(config: Any) -> dict[str, Any]:
    """A GPT-2 configuration in TransformerLens's format."""
    return {
        "n_layers": config.n_layer,
        "n_heads": config.n_head,
        "d_model": config.n_embd,
        "d_head": config.n_embd // config.n_head,
        "d_mlp": config.n_inner or 4 * config.n_embd,
        "d_vocab": config.vocab_size,
        "n_ctx": config.n_positions,
        "eps": config.layer_norm_epsilon,
        "act_fn": config.activation_function,
        "normalization_type": "LN",
        "scale_attn_by_inverse_layer_idx": config.scale_attn_by_inverse_layer_idx,
        "use_attn_scale": config.scale_attn_weights,
        "init_weights": False,
    }
