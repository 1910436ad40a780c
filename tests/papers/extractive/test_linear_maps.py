"""Every matrix gives, from what it reads, what its hook point shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from papers.extractive.tiny import Decoder, hooked_decoder, other_decoder
from torch import Tensor

from mechcore.errors import InputError
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.weights import ATTENTION, LinearMap, linear_maps

IDS = torch.tensor([[2, 5, 9, 7, 11], [2, 6, 6, 8, 12]])


def seen(model: Any) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, name: str) -> None:
        values[name] = value

    ends = ("hook_resid_pre", "hook_resid_mid", "hook_z", "hook_post")
    maps = linear_maps(model)
    names = {n for n in model.hook_dict if n.startswith("blocks.") and n.endswith(ends)}
    names |= {a_map.hook for a_map in maps}
    hooks = [(n, lambda value, hook, n=n: keep(value, hook, n)) for n in names]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        model(IDS, return_type="logits")
    return values


def read_by(model: Any, a_map: LinearMap, values: dict[str, Tensor]) -> Tensor:
    """[row, pos, head or 1, d_in]"""
    block, layer = model.blocks[a_map.layer], f"blocks.{a_map.layer}."
    if a_map.part == "O":
        return values[layer + "attn.hook_z"]
    if a_map.part == "out":
        return values[layer + "mlp.hook_post"][:, :, None]
    norm, stream = (
        (block.ln1, "hook_resid_pre") if a_map.part in ATTENTION else (block.ln2, "hook_resid_mid")
    )
    with torch.no_grad():
        return norm(values[layer + stream])[:, :, None]


def test_a_map_gives_what_its_hook_point_shows(tiny: Decoder) -> None:
    model = tiny.model
    values, weights = seen(model), named_weights(model)
    for a_map in linear_maps(model):
        x = read_by(model, a_map, values)
        y = torch.einsum(
            "bphi,hio->bpho",
            x.expand(-1, -1, a_map.n_heads, -1),
            a_map.by_head(weights[a_map.weight].detach()),
        )
        y = y.sum(2, keepdim=True) if a_map.part == "O" else y
        if a_map.bias is not None and a_map.bias_hook == a_map.hook:
            y = y + a_map.bias_by_head(weights[a_map.bias].detach())
        torch.testing.assert_close(
            y.flatten(2), values[a_map.hook].flatten(2), rtol=1e-5, atol=1e-6, msg=str(a_map)
        )


@pytest.mark.hooked
def test_the_bias_before_a_gated_product_is_read_after_it() -> None:
    """HookedTransformer adds b_in to the product with the gate, not to x W_in."""
    model = hooked_decoder(act_fn="silu", gated_mlp=True, normalization_type="RMS")
    into = next(a_map for a_map in linear_maps(model) if a_map.part == "in")
    weights, values = named_weights(model), seen(model)
    act = torch.nn.functional.silu(values["blocks.0.mlp.hook_pre"])
    product = act * values["blocks.0.mlp.hook_pre_linear"]
    assert into.bias is not None
    torch.testing.assert_close(product + weights[into.bias], values[into.bias_hook])


def test_bridged_encoders_are_refused(cases: helpers.Cases) -> None:
    with pytest.raises(InputError, match="is an encoder; expected a causal language model"):
        linear_maps(cases.get("bert").model)


def test_a_layer_without_the_matrices_is_named(tmp_path: Path) -> None:
    model = other_decoder("Mixtral", tmp_path, num_local_experts=2)
    with pytest.raises(InputError, match="has no matrix in; expected layers with W_Q"):
        linear_maps(model)
