"""Activations of any hook points at chosen tokens of every example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.data.encoding import BATCH_SIZE, batch_bar
from mechcore.errors import InputError
from mechcore.models.encoded import as_encoded
from mechcore.models.hooks import hooked
from mechcore.models.protocol import Batch, forward
from mechcore.session import plain_session
from mechcore.showing import Shown


def hook_resid_post(layer: int) -> str:
    """Residual stream after a layer, [batch, pos, d_model]."""
    return f"blocks.{layer}.hook_resid_post"


@dataclass(frozen=True, eq=False, repr=False)
class Activations(Shown):
    """Activations at some tokens of every example, in the order of the data.

    Attributes:
        values: by hook name, float32 on the CPU; heads keep an axis of their own.
    """

    values: Mapping[str, Float[Tensor, "example position *unit"]]

    def sites(self) -> dict[tuple[str, int], Float[Tensor, "example unit"]]:
        """States to decode from, by hook and column of the positions; heads side by side."""
        return {
            (hook, column): states.flatten(1)
            for hook, values in self.values.items()
            for column, states in enumerate(values.unbind(1))
        }


@plain_session()
def activations_at(
    model: Any,
    data: Any,
    hooks: Sequence[str],
    positions: Int[Tensor, "example position"] | None = None,
    *,
    batch_size: int = BATCH_SIZE,
) -> Activations:
    """Read hook points at chosen tokens of every example.

    All of them stay in memory: 4 bytes times hooks, examples, positions and units.

    In a model of low precision, what a token has not read yet still reaches its activations as
    rounding that differs with the shape of the batch: run models in float32 where that matters.

    Args:
        model: any TransformerLens model.
        data: examples of any form, see `mechcore.data.given`.
        hooks: names of hook points with [batch, pos, ...], for example `hook_resid_post`.
        positions: tokens of every example, counted from its first; negative ones count from the
            last, which is -1. None reads the last token.
        batch_size: examples per forward.

    Raises:
        InputError: an example has no such token, positions and data differ in their number of
            examples, a hook point is unknown, did not run, or has no axis of positions.
    """
    names = list(dict.fromkeys(hooks))
    for name in names:
        if name not in model.hook_dict or name.endswith(("hook_pattern", "hook_attn_scores")):
            raise InputError(
                f"activations: {type(model).__name__} has no hook point {name!r} of [batch, pos, "
                "...]; expected some of model.hook_dict (mechcore.attention reads patterns)"
            )
    examples = as_encoded(model, data, labelled=False)
    lengths = torch.tensor([len(ids) for ids in examples.input_ids])
    places = torch.full((len(lengths), 1), -1) if positions is None else positions
    _check(places, lengths)
    places = torch.where(places < 0, places + lengths[:, None], places)
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    rows: list[Tensor] = []
    with torch.no_grad(), batch_bar("activations", examples, batch_size) as advance:
        for batch in examples.batches(batch_size):
            rows.append(batch["index"])
            for name, values in _read(model, batch, names, places[rows[-1]]).items():
                parts[name].append(values)
            advance()
    order = torch.cat(rows).argsort()
    return Activations({name: torch.cat(parts.pop(name))[order] for name in names})


def _check(positions: Tensor, lengths: Int[Tensor, " example"]) -> None:
    if positions.ndim != 2 or positions.dtype != torch.long or len(positions) != len(lengths):
        raise InputError(
            f"activations: positions are {positions.dtype} of shape {tuple(positions.shape)}; "
            f"expected whole numbers [example, position] for {len(lengths)} examples"
        )
    outside = ((positions < -lengths[:, None]) | (positions >= lengths[:, None])).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        n = int(lengths[row])
        raise InputError(
            f"activations: row {row}: position {int(positions[row, column])} was asked for, but "
            f"the row has {n} tokens; expected {-n} to {n - 1}"
        )


def _read(
    model: Any, batch: Batch, names: Sequence[str], places: Int[Tensor, "row position"]
) -> dict[str, Tensor]:
    """The activations of one batch at some of its tokens."""
    rows = torch.arange(len(places))[:, None]
    taken: dict[str, Tensor] = {}

    def take(name: str, activation: Any, hook: Any) -> None:
        shape = tuple(activation.shape) if torch.is_tensor(activation) else None
        wanted = tuple(batch["attention_mask"].shape)
        if shape is None or len(shape) < 3 or shape[:2] != wanted:
            raise InputError(
                f"activations: {name} is {shape or type(activation).__name__} for a batch of "
                f"{wanted}; expected [batch, pos, ...]: choose another hook point"
            )
        device = activation.device
        values = activation[rows.to(device), places.to(device)].float().cpu()
        if name in taken and not torch.equal(taken[name], values):
            raise InputError(
                f"activations: {name} ran more than once in one forward, with different "
                "values; expected once: choose another hook point"
            )
        taken[name] = values

    with hooked(model, [(name, partial(take, name)) for name in names]):
        forward(model, batch)
    if unread := [name for name in names if name not in taken]:
        raise InputError(
            f"activations: the forward ran without {unread[0]}; expected an activation of every "
            "hook point: choose another one"
        )
    return taken
