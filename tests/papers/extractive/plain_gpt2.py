"""Extractive scores of a plain Hugging Face GPT-2: no TransformerLens, none of the package's code.

Everything is computed anew for one prompt and one counterfactual prompt, as slowly as it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Seen = dict[tuple[str, int], Tensor]
"""By name and layer, without the axis of rows."""


INPUTS = {"pre": "ln_1", "mid": "ln_2", "z": "attn.c_proj", "post": "mlp.c_proj"}
OUTPUTS = {"x1": "ln_1", "x2": "ln_2", "qkv": "attn.c_attn", "attn": "attn.c_proj"}
OUTPUTS |= {"up": "mlp.c_fc", "mlp": "mlp.c_proj"}


@contextmanager
def watched(model: Any, seen: Seen, inputs: Seen | None = None) -> Iterator[None]:
    """Keep what modules read and put out; put in ``inputs`` as what normalisations read."""
    handles = []

    def out(place: tuple[str, int]) -> Callable[..., None]:
        return lambda module, args, output: seen.__setitem__(place, output)

    def into(place: tuple[str, int]) -> Callable[..., Any]:
        def hook(module: Any, args: tuple[Tensor, ...]) -> Any:
            seen[place] = args[0]
            return None if inputs is None or place not in inputs else (inputs[place],)

        return hook

    for layer, block in enumerate(model.transformer.h):
        for name, path in INPUTS.items():
            module = block.get_submodule(path)
            handles.append(module.register_forward_pre_hook(into((name, layer))))
        for name, path in OUTPUTS.items():
            module = block.get_submodule(path)
            handles.append(module.register_forward_hook(out((name, layer))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(
    model: Any, ids: Sequence[int], options: Sequence[int], right: int, inputs: Seen | None = None
) -> tuple[float, Seen, Seen]:
    """R, activations, and derivatives of R with respect to them."""
    seen: Seen = {}
    with watched(model, seen, inputs), torch.enable_grad():
        logits = model(input_ids=torch.tensor([list(ids)])).logits[0, -1]
    chosen = torch.stack([logits[option] for option in options])
    reward = chosen[right] - chosen.mean()
    if inputs is not None:
        return float(reward.detach()), {key: value.detach() for key, value in seen.items()}, {}
    places = list(seen)
    gradients = torch.autograd.grad(reward, [seen[key] for key in places])
    return (
        float(reward.detach()),
        {key: seen[key].detach() for key in places},
        dict(zip(places, gradients, strict=True)),
    )


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def aligned(prompt: Sequence[int], other: Sequence[int]) -> list[int]:
    """The middles are right-aligned; the first token of the shorter is repeated."""
    prefix = shared(prompt, other)
    suffix = shared(prompt[prefix:][::-1], other[prefix:][::-1])
    middle = list(range(prefix, len(other) - suffix)) or [prefix]
    wanted = len(prompt) - suffix - prefix
    middle = [middle[0]] * wanted + middle
    end = range(len(other) - suffix, len(other))
    return [*range(prefix), *middle[len(middle) - wanted :], *end]


def naive_scores(
    before: Any,
    after: Any,
    ids: Sequence[int],
    other: Sequence[int],
    options: Sequence[int],
    right: int,
) -> dict[str, Any]:
    """Scores of one prompt against one other: heads [layer, head, pos], MLPs [layer, pos]."""
    n_layers, n_heads = before.config.n_layer, before.config.n_head
    width = before.config.n_embd
    size = width // n_heads
    before, after = before.requires_grad_(True), after.requires_grad_(True)
    old_reward, old, old_grad = run(before, ids, options, right)
    new_reward, new, new_grad = run(after, ids, options, right)
    streams = {key: stream for key, stream in new.items() if key[0] in ("pre", "mid")}
    _, moved, _ = run(before, ids, options, right, streams)
    _, counter, _ = run(before, other, options, right)
    at = aligned(ids, other)
    scores: dict[str, Any] = {"before": old_reward, "after": new_reward}
    for kind in ("informative", "downstream", "upstream"):
        scores[f"{kind} heads"] = torch.zeros(n_layers, n_heads, len(ids), dtype=torch.float64)
        scores[f"{kind} mlps"] = torch.zeros(n_layers, len(ids), dtype=torch.float64)
    for layer in range(n_layers):
        for name, which in (("mlp", "mlps"), ("z", "heads")):
            place = (name, layer)
            down = (moved[place] - old[place])[0] * old_grad[place][0]
            up = (new_grad[place] - old_grad[place])[0] * (old[place][0] - counter[place][0, at])
            for kind, product in (("downstream", down), ("upstream", up)):
                if which == "heads":
                    by_head = product.view(len(ids), n_heads, size).sum(-1).T
                    scores[f"{kind} heads"][layer] = by_head
                else:
                    scores[f"{kind} mlps"][layer] = product.sum(-1)
        old_block, new_block = before.transformer.h[layer], after.transformer.h[layer]
        scores["informative heads"][layer] = _heads(
            old_block.attn, new_block.attn, layer, n_heads, old, old_grad
        )
        scores["informative mlps"][layer] = _mlp(old_block.mlp, new_block.mlp, layer, old, old_grad)
    return scores


def _change(after: Any, before: Any) -> tuple[Tensor, Tensor]:
    return (after.weight - before.weight).detach(), (after.bias - before.bias).detach()


def _heads(before: Any, after: Any, layer: int, n_heads: int, old: Seen, grad: Seen) -> Tensor:
    x, z = old["x1", layer][0], old["z", layer][0]
    weight, bias = _change(after.c_attn, before.c_attn)
    out, _ = _change(after.c_proj, before.c_proj)
    size = z.shape[1] // n_heads
    scores = torch.zeros(n_heads, len(x), dtype=torch.float64)
    for head in range(n_heads):
        own = slice(head * size, (head + 1) * size)
        for pos in range(len(x)):
            total = z[pos, own] @ out[own] @ grad["attn", layer][0, pos]
            for part in range(3):
                columns = slice(part * z.shape[1] + own.start, part * z.shape[1] + own.stop)
                y = x[pos] @ weight[:, columns] + bias[columns]
                total = total + y @ grad["qkv", layer][0, pos, columns]
            scores[head, pos] = total
    return scores


def _mlp(before: Any, after: Any, layer: int, old: Seen, grad: Seen) -> Tensor:
    up, up_bias = _change(after.c_fc, before.c_fc)
    down, down_bias = _change(after.c_proj, before.c_proj)
    into = old["x2", layer][0] @ up + up_bias
    out = old["post", layer][0] @ down + down_bias
    return (into * grad["up", layer][0]).sum(-1) + (out * grad["mlp", layer][0]).sum(-1)
