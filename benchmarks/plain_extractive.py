"""Upstream, downstream and informative scores of a Hugging Face GPT-2 with plain torch hooks.

Like the published code of arXiv 2412.04614, everything is recomputed for every pair of a prompt and
a counterfactual prompt: five forwards, each with its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Seen = dict[tuple[str, int], Tensor]


@contextmanager
def changed(model: Any, delta: Mapping[str, Tensor]) -> Iterator[None]:
    """Add a change to weights inside the block, then restore the old ones."""
    weights = dict(model.named_parameters())
    saved = {name: weights[name].detach().clone() for name in delta}
    with torch.no_grad():
        for name, change in delta.items():
            weights[name].add_(change)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, old in saved.items():
                weights[name].copy_(old)


def run(
    model: Any, ids: Sequence[int], options: Tensor, right: int, put_in: Seen | None = None
) -> tuple[Seen, Seen]:
    """Activations by module and layer, and derivatives of R with respect to them."""
    seen: Seen = {}
    handles = []

    def read(name: str, layer: int) -> Callable[..., Any]:
        def hook(module: Any, args: tuple[Tensor, ...]) -> Any:
            seen[name, layer] = args[0]
            replaced = (put_in or {}).get((name, layer))
            return None if replaced is None else (replaced,)

        return hook

    def keep(name: str, layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Tensor) -> None:
            seen[name, layer] = output

        return hook

    for layer, block in enumerate(model.transformer.h):
        inputs = {"pre": block.ln_1, "mid": block.ln_2, "x": block.attn.c_attn}
        inputs |= {"z": block.attn.c_proj, "x_mlp": block.mlp.c_fc, "post": block.mlp.c_proj}
        outputs = {"qkv": block.attn.c_attn, "attn": block.attn.c_proj}
        outputs |= {"up": block.mlp.c_fc, "mlp": block.mlp.c_proj}
        handles += [m.register_forward_pre_hook(read(n, layer)) for n, m in inputs.items()]
        handles += [m.register_forward_hook(keep(n, layer)) for n, m in outputs.items()]
    try:
        chosen = model(input_ids=torch.tensor([list(ids)])).logits[0, -1, options]
    finally:
        for handle in handles:
            handle.remove()
    places = [place for place in seen if place[0] in ("z", "qkv", "attn", "up", "mlp")]
    reward = chosen[right] - chosen.mean()
    slopes = torch.autograd.grad(reward, [seen[p] for p in places], allow_unused=True)
    return {place: value.detach()[0] for place, value in seen.items()}, {
        place: slope[0] for place, slope in zip(places, slopes, strict=True) if slope is not None
    }


def plain_scores(
    model: Any,
    delta: Mapping[str, Tensor],
    ids: Sequence[int],
    other: Sequence[int],
    options: Tensor,
    right: int,
) -> dict[str, Tensor]:
    """Scores of one prompt against one other of the same length, token by token.

    Heads are [layer, head, pos], MLPs [layer, pos].
    """
    old, old_gradients = run(model, ids, options, right)
    with changed(model, delta):
        new, new_gradients = run(model, ids, options, right)
    streams = {place: stream[None] for place, stream in new.items() if place[0] in ("pre", "mid")}
    moved, _ = run(model, ids, options, right, streams)
    counter, _ = run(model, other, options, right)
    again, gradients = run(model, ids, options, right)
    n_heads, n_layers = model.config.n_head, model.config.n_layer

    def heads(product: Tensor) -> Tensor:
        return product.unflatten(-1, (n_heads, -1)).sum(-1).T

    scores: dict[str, list[Tensor]] = {}

    def add(name: str, values: Tensor) -> None:
        scores.setdefault(name, []).append(values)

    for layer in range(n_layers):
        for name, score in (("z", "heads"), ("mlp", "mlps")):
            place = (name, layer)
            total: Callable[[Tensor], Tensor] = heads if name == "z" else _sum
            turned = new_gradients[place] - old_gradients[place]
            add(f"upstream {score}", total(turned * (old[place] - counter[place])))
            add(f"downstream {score}", total((moved[place] - old[place]) * old_gradients[place]))
        block = f"transformer.h.{layer}."
        change = {name: delta[f"{block}{name}.weight"] for name in _MATRICES}
        qkv = (again["x", layer] @ change["attn.c_attn"]) * gradients["qkv", layer]
        into = again["z", layer] * (gradients["attn", layer] @ change["attn.c_proj"].T)
        add("informative heads", sum((heads(part) for part in qkv.chunk(3, -1)), heads(into)))
        up = (again["x_mlp", layer] @ change["mlp.c_fc"]) * gradients["up", layer]
        down = (again["post", layer] @ change["mlp.c_proj"]) * gradients["mlp", layer]
        add("informative mlps", up.sum(-1) + down.sum(-1))
    return {name: torch.stack(values) for name, values in scores.items()}


_MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def _sum(product: Tensor) -> Tensor:
    return product.sum(-1)


def matrices(model: Any) -> list[str]:
    """Names of the matrices of all layers, fused as GPT-2 has them."""
    return [
        f"transformer.h.{layer}.{name}.weight"
        for layer in range(model.config.n_layer)
        for name in _MATRICES
    ]
