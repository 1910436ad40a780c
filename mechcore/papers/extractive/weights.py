"""The matrices of a decoder's layers, their exact changes, and fine-tuning them on facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from mechcore.errors import InputError, MechcoreError, MismatchError
from mechcore.models.protocol import frozen, is_causal, kind_of, named_weights
from mechcore.papers.extractive.encoded import (
    EncodedFacts,
    EncodedOrdering,
    full,
    next_token_logits,
    prompt_batch,
)
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.session import plain_session

Part: TypeAlias = Literal["Q", "K", "V", "O", "in", "gate", "out"]
Layout: TypeAlias = Literal["heads", "in out", "out in"]
_Stored: TypeAlias = tuple[nn.Parameter, nn.Parameter | None, int, Layout]
"""A matrix, its bias, its heads and its layout."""

PARTS: tuple[Part, ...] = get_args(Part)
ATTENTION: tuple[Part, ...] = ("Q", "K", "V", "O")
MLP: tuple[Part, ...] = ("in", "gate", "out")


@dataclass(frozen=True)
class LinearMap:
    """One matrix of one layer, ``y = x M + b``.

    Attributes:
        layer: from 0.
        part: which matrix.
        weight, bias: names among `mechcore.models.protocol.named_weights`; some have no bias.
        hook: the hook point of y. W_O's is the sum over heads.
        bias_hook: the hook point of what the bias is added to: y, but in HookedTransformer's gated
            MLPs the product with the gate.
        n_heads: heads whose matrices it holds: key-value heads for K and V, 1 for those of MLPs.
        layout: of the weight: ``"heads"`` for [head, in, out], else the order of its axes.
    """

    layer: int
    part: Part
    weight: str
    bias: str | None
    hook: str
    bias_hook: str
    n_heads: int
    layout: Layout

    def by_head(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "head d_in d_out"]:
        """A tensor of the weight's shape (the weight, a change of it, its gradient) by heads."""
        if self.layout == "heads":
            return tensor if tensor.ndim == 3 else tensor[None]
        tensor = tensor if self.layout == "in out" else tensor.T
        if self.part == "O":
            return tensor.unflatten(0, (self.n_heads, -1))
        return tensor.unflatten(1, (self.n_heads, -1)).transpose(0, 1)

    def bias_by_head(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "head d_out"]:
        """A tensor of the bias's shape by heads; W_O's is of no head, and has one row."""
        return tensor.reshape(1 if self.part == "O" else self.n_heads, -1)


def linear_maps(model: Any) -> tuple[LinearMap, ...]:
    """The matrices of all layers; raises `InputError` for an encoder or where one is lacking."""
    if not is_causal(model):
        raise InputError(
            f"model: {type(model).__name__} is an encoder; expected a causal language model"
        )
    names = {id(parameter): name for name, parameter in named_weights(model).items()}
    hooked = kind_of(model) == "hooked-transformer"
    maps = []
    for layer, block in enumerate(model.blocks):
        mlp = getattr(block, "mlp", None)
        gated = block.attn.cfg.gated_mlp if hooked else hasattr(mlp, "gate")
        for part in PARTS:
            owner = block.attn if part in ATTENTION else mlp
            if owner is None or (part == "gate" and not gated):
                continue
            weight, bias, n_heads, layout = (_hooked if hooked else _bridged)(owner, part)
            hook = f"blocks.{layer}.{_hook(part, gated)}"
            late = hooked and gated and part == "in"
            maps.append(
                LinearMap(
                    layer,
                    part,
                    names[id(weight)],
                    None if bias is None else names[id(bias)],
                    hook,
                    f"blocks.{layer}.mlp.hook_post" if late else hook,
                    n_heads,
                    layout,
                )
            )
    return tuple(maps)


def _hook(part: Part, gated: bool) -> str:
    if part in ("Q", "K", "V"):
        return f"attn.hook_{part.lower()}"
    names = {"O": "hook_attn_out", "gate": "mlp.hook_pre", "out": "hook_mlp_out"}
    return names.get(part, "mlp.hook_pre_linear" if gated else "mlp.hook_pre")


def _hooked(owner: Any, part: Part) -> _Stored:
    mark = "_" if hasattr(owner, f"_W_{part}") else ""  # of grouped queries
    weight, bias = (getattr(owner, f"{mark}{kind}_{part}", None) for kind in "Wb")
    if not isinstance(weight, nn.Parameter):
        raise _unknown(owner, f"W_{part}")
    return weight, bias, len(weight) if part in ATTENTION else 1, "heads"


def _bridged(owner: Any, part: Part) -> _Stored:
    name = part.lower()
    module = getattr(getattr(owner, name, None), "original_component", None)
    if not isinstance(module, (nn.Linear, Conv1D)):
        raise _unknown(owner, name)
    layout: Layout = "in out" if isinstance(module, Conv1D) else "out in"
    n_heads = 1
    if part in ATTENTION:
        of_heads = int((layout == "in out") != (part == "O"))
        n_heads = module.weight.shape[of_heads] // int(owner.config.d_head)
    weight, bias = cast(nn.Parameter, module.weight), cast("nn.Parameter | None", module.bias)
    return weight, bias, n_heads, layout


def _unknown(owner: Any, name: str) -> InputError:
    return InputError(
        f"model: {type(owner).__name__} has no matrix {name}; expected layers with W_Q, W_K, W_V "
        "and W_O, and W_in, W_out and perhaps W_gate of an MLP, as those of GPT-2 and Llama"
    )


class WeightDelta(dict[str, Tensor]):
    """A change of some of a model's weights, by their names in `named_weights`.

    >>> delta = WeightDelta({"a": torch.tensor([1.0, 2.0])})
    >>> (delta + delta)["a"].tolist()
    [2.0, 4.0]
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__({name: tensor.detach() for name, tensor in tensors.items()})

    def __repr__(self) -> str:
        norm = sum(float(tensor.double().square().sum()) for tensor in self.values()) ** 0.5
        return f"WeightDelta({len(self)} tensors, norm {norm:.4g})"

    def __add__(self, other: WeightDelta) -> WeightDelta:
        total = dict(self)
        for name, tensor in other.items():
            total[name] = total[name] + tensor if name in total else tensor
        return WeightDelta(total)

    def only(self, names: Iterable[str]) -> WeightDelta:
        """The change of these weights alone; names that it does not have are passed over."""
        kept = {*names}
        return WeightDelta({name: tensor for name, tensor in self.items() if name in kept})


def snapshot(model: Any, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Copies of a model's weights by name; of all of them, if no names are given."""
    return {name: w.detach().clone() for name, w in _weights(model, names).items()}


def delta_from(model: Any, before: Mapping[str, Tensor]) -> WeightDelta:
    """What a model's weights are now, minus what they were in a `snapshot` of some of them."""
    now = _weights(model, before)
    return WeightDelta({name: now[name].detach() - then for name, then in before.items()})


@contextmanager
def restored(model: Any, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
    """Yield copies of these weights, and put them back at the end of the block, bit for bit."""
    saved = snapshot(model, names)
    try:
        yield saved
    finally:
        _write(model, saved)


@contextmanager
def applied(model: Any, delta: WeightDelta, scale: float = 1.0) -> Iterator[None]:
    """Run a block with ``scale * delta`` added to the model's weights."""
    check_fits(model, delta)
    with restored(model, delta) as saved:
        _write(model, {name: old + scale * delta[name].to(old) for name, old in saved.items()})
        yield


@contextmanager
def differentiable(model: Any, names: Iterable[str]) -> Iterator[list[nn.Parameter]]:
    """Let gradients reach these weights, and no others, inside the block; yields them in order."""
    weights = list(_weights(model, names).values())
    wanted = [weight.requires_grad for weight in weights]
    with frozen(model):
        try:
            for weight in weights:
                weight.requires_grad_(True)
            yield weights
        finally:
            for weight, before in zip(weights, wanted, strict=True):
                weight.grad = None
                weight.requires_grad_(before)


def check_fits(model: Any, delta: WeightDelta) -> None:
    """Make sure that the model has the weights of a delta, in the same shapes."""
    for name, weight in _weights(model, delta).items():
        if delta[name].shape != weight.shape:
            raise MismatchError(
                f"weight delta: {name} has shape {tuple(delta[name].shape)}, that of the model "
                f"{tuple(weight.shape)}: it is the delta of another model"
            )


def trainable_names(model: Any, layers: Iterable[int] | None = None) -> list[str]:
    """Names of the matrices of attention and MLP, of all layers or of these."""
    maps = linear_maps(model)
    known = {m.layer for m in maps}
    chosen = known if layers is None else {*layers}
    if unknown := sorted(chosen - known):
        raise InputError(f"layers: the model has no layer {unknown[0]}; expected 0 to {max(known)}")
    return [m.weight for m in maps if m.layer in chosen]


def _weights(model: Any, names: Iterable[str] | None) -> dict[str, nn.Parameter]:
    """The weights of these names, in their order; all if none are given."""
    weights = named_weights(model)
    chosen = list(weights) if names is None else list(names)
    for name in chosen:
        if name not in weights:
            raise InputError(
                f"weights: the model has no {name}; expected names as {next(iter(weights))}"
            )
    return {name: weights[name] for name in chosen}


@torch.no_grad()
def _write(model: Any, values: Mapping[str, Tensor]) -> None:
    for name, weight in _weights(model, values).items():
        weight.copy_(values[name])


_IGNORED = -100


@plain_session()
def tune(
    model: Any,
    data: EncodedFacts | Sequence[EncodedFacts],
    settings: TuneSettings,
    *,
    layers: Iterable[int] | None = None,
    replay: EncodedFacts | None = None,
) -> pd.DataFrame:
    """Fine-tune a causal language model of TransformerLens on facts, in place, in evaluation mode.

    As in arXiv 2412.04614: Adam at a constant rate, the loss on the completion's tokens alone. Sets
    of facts are shuffled together. The matrices of ``layers`` are trained, by default of all. Every
    step gets ``settings.replay`` rows of ``replay``, other data, drawn at random.

    Returns:
        One row per epoch: epoch, loss (mean over its steps of the mean over target tokens, nats).

    Raises:
        InputError: there is no such layer, or none at all.
        MechcoreError: the loss is no longer finite.
    """
    sets = [data] if isinstance(data, EncodedFacts) else list(data)
    rows = [row for facts in sets for row in _rows(facts)]
    spare = _rows(replay) if replay is not None else []
    generator = torch.Generator().manual_seed(settings.seed)
    history = []
    names = trainable_names(model, layers)
    if not names:
        raise InputError(
            "fine-tuning: layers names no layer; expected at least one, or None for all"
        )
    with differentiable(model, names) as weights:
        adam = torch.optim.Adam(weights, lr=settings.learning_rate)
        for epoch in range(1, settings.epochs + 1):
            losses = []
            order = torch.randperm(len(rows), generator=generator)
            for chosen in order.split(settings.batch_size):
                drawn = torch.randint(max(1, len(spare)), (settings.replay,), generator=generator)
                step = [*(rows[i] for i in chosen.tolist()), *(spare[i] for i in drawn.tolist())]
                loss = completion_loss(model, step)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise MechcoreError(
                        f"fine-tuning: the loss is {losses[-1]} in epoch {epoch}; use a learning "
                        f"rate lower than {settings.learning_rate:g}"
                    )
                adam.zero_grad()
                loss.backward()
                adam.step()
            history.append({"epoch": epoch, "loss": sum(losses) / len(losses)})
    return pd.DataFrame(history)


def tuned(model: Any, data: EncodedFacts, settings: TuneSettings) -> WeightDelta:
    """The change of weights that `tune` makes; the model itself stays as it is."""
    with restored(model, trainable_names(model)) as before:
        tune(model, data, settings)
        return delta_from(model, before)


def facts_then_implications(
    model: Any, task: EncodedOrdering, settings: TuneSettings
) -> tuple[WeightDelta, WeightDelta]:
    """What training the facts, then the implications changes; the model itself stays as it is."""
    facts = tuned(model, task.facts, settings)
    with applied(model, facts):
        return facts, tuned(model, task.implications, settings)


Row = tuple[tuple[int, ...], tuple[int, ...]]


def completion_loss(model: Any, rows: Sequence[Row]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the completions' tokens, nats."""
    batch = prompt_batch([[*prompt, *completion] for prompt, completion in rows])
    targets = torch.full_like(batch["input_ids"], _IGNORED)
    for row, (prompt, completion) in enumerate(rows):
        places = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        targets[row, places] = torch.tensor(completion)
    logits = next_token_logits(model, batch).flatten(0, 1)
    targets = targets.flatten().to(logits.device)
    return F.cross_entropy(full(logits), targets, ignore_index=_IGNORED)


def _rows(data: EncodedFacts) -> list[Row]:
    return list(zip(data.prompt_ids, data.completion_ids, strict=True))
