"""A GPT-2 checkpoint as a HookedTransformer (TransformerLens 3)."""

from __future__ import annotations

from typing import Any

import torch

from mechcore.errors import InputError


def hooked_transformer(
    name: str, architecture: str, hf_model: Any, device: str | torch.device, dtype: torch.dtype
) -> Any:
    """The same language model, with its weights as they are.

    Raises:
        InputError: TransformerLens has no HookedTransformer, or the model is no GPT-2.
    """
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights
    except ImportError as error:
        raise InputError(
            'backend "hooked": this TransformerLens has no HookedTransformer (4.x removed it); '
            'install transformer-lens<4, or use backend "bridge"'
        ) from error
    if architecture != "GPT2LMHeadModel":
        raise InputError(
            f'backend "hooked": found {architecture}; local checkpoints can be read as '
            'GPT2LMHeadModel only: use backend "bridge", or pass a HookedTransformer built with '
            "TransformerLens"
        )
    config = hf_model.config
    cfg = HookedTransformerConfig(
        n_layers=config.n_layer,
        n_heads=config.n_head,
        d_model=config.n_embd,
        d_head=config.n_embd // config.n_head,
        d_mlp=config.n_inner or 4 * config.n_embd,
        d_vocab=config.vocab_size,
        n_ctx=config.n_positions,
        eps=config.layer_norm_epsilon,
        act_fn=config.activation_function,
        normalization_type="LN",
        scale_attn_by_inverse_layer_idx=config.scale_attn_by_inverse_layer_idx,
        use_attn_scale=config.scale_attn_weights,
        original_architecture=architecture,
        model_name=name,
        device=str(device),
        dtype=dtype,
        init_weights=False,
    )
    model = HookedTransformer(cfg, move_to_device=False).to(device, print_details=False)
    model.load_and_process_state_dict(
        convert_gpt2_weights(hf_model, cfg),
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
    )
    return model.eval()
