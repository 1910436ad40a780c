"""Changes of a model's weights, by name, that can be applied and taken back exactly.

Weights are always restored by copying what was saved: subtracting what was added would leave the
rounding of both behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mechcore.errors import InputError, MismatchError
from mechcore.models.running import frozen, named_weights
from mechcore.papers.extractive.linear_maps import linear_maps


class WeightDelta(Mapping[str, Tensor]):
    """A change of some of a model's weights: tensors of the weights' shapes, by name.

    Names are those of `mechcore.models.running.named_weights`; other weights do not change.

    >>> delta = WeightDelta({"a": torch.tensor([1.0, 2.0])})
    >>> (delta + 2 * delta - delta)["a"].tolist()
    [2.0, 4.0]
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"WeightDelta({len(self)} tensors, norm {self.norm:.4g})"

    def __add__(self, other: WeightDelta) -> WeightDelta:
        found = dict(self._tensors)
        for name, tensor in other.items():
            found[name] = found[name] + tensor if name in found else tensor
        return WeightDelta(found)

    def __sub__(self, other: WeightDelta) -> WeightDelta:
        return self + -1 * other

    def __mul__(self, scale: float) -> WeightDelta:
        return WeightDelta({name: tensor * scale for name, tensor in self.items()})

    __rmul__ = __mul__

    @property
    def norm(self) -> float:
        """Euclidean norm over all tensors together."""
        return float(sum(each.double().square().sum() for each in self._tensors.values()) ** 0.5)

    def only(self, names: Iterable[str]) -> WeightDelta:
        """The change of these weights alone; names that it does not have are passed over."""
        kept = {*names}
        return WeightDelta({name: tensor for name, tensor in self.items() if name in kept})


def snapshot(model: Any, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Copies of a model's weights by name; of all of them, if no names are given.

    Raises:
        InputError: there is no such weight.
    """
    return {name: each.detach().clone() for name, each in _weights(model, names).items()}


def delta_from(model: Any, before: Mapping[str, Tensor]) -> WeightDelta:
    """What a model's weights are now, minus what they were in a `snapshot` of some of them.

    Raises:
        InputError: there is no such weight.
    """
    now = _weights(model, before)
    return WeightDelta({name: now[name].detach() - then for name, then in before.items()})


@contextmanager
def restored(model: Any, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
    """Yield these weights, and undo in the end, bit for bit, whatever happens to them in the block.

    Raises:
        InputError: there is no such weight.
    """
    saved = snapshot(model, names)
    try:
        yield saved
    finally:
        _write(model, saved)


@contextmanager
def applied(model: Any, delta: WeightDelta, scale: float = 1.0) -> Iterator[None]:
    """Run a block with ``scale * delta`` added to the model's weights.

    Raises:
        InputError: the model has no such weight.
        MismatchError: a weight is of another shape.
    """
    check_fits(model, delta)
    with restored(model, delta) as saved:
        _write(model, {name: old + scale * delta[name].to(old) for name, old in saved.items()})
        yield


@contextmanager
def differentiable(model: Any, names: Iterable[str]) -> Iterator[list[nn.Parameter]]:
    """Let gradients reach these weights, and no others, inside the block; yields them in order.

    Raises:
        InputError: there is no such weight.
    """
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
    """Make sure that a delta is of a model's weights.

    Raises:
        InputError: the model has no such weight.
        MismatchError: a weight is of another shape.
    """
    for name, weight in _weights(model, delta).items():
        if delta[name].shape != weight.shape:
            raise MismatchError(
                f"weight delta: {name} has shape {tuple(delta[name].shape)}, that of the model "
                f"{tuple(weight.shape)}: it is the delta of another model"
            )


def trainable_names(model: Any, layers: Iterable[int] | None = None) -> list[str]:
    """Names of the matrices of attention and MLP, of all layers or of these.

    No biases, normalisations and embeddings: what is trained in arXiv 2412.04614.

    Raises:
        InputError: the model has no such layer.
    """
    maps = linear_maps(model)
    known = {each.layer for each in maps}
    chosen = known if layers is None else {*layers}
    if unknown := sorted(chosen - known):
        raise InputError(f"layers: the model has no layer {unknown[0]}; expected 0 to {max(known)}")
    return [each.weight for each in maps if each.layer in chosen]


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
