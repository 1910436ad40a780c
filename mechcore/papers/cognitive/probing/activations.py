"""Activations of any hook points at chosen tokens of every example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.data.batches import BATCH_SIZE, as_batches, batch_bar
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.models.encoded import as_data
from mechcore.models.hooks import hooked
from mechcore.models.protocol import Batch, forward, model_inputs
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
        positions: which token each of them is, counted from its row's first real token.
    """

    values: Mapping[str, Float[Tensor, "example position *unit"]]
    positions: Int[Tensor, "example position"]

    def sites(self) -> dict[tuple[str, int], Float[Tensor, "example unit"]]:
        """States to decode from, by hook and column of `positions`; heads side by side."""
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
        data: examples of any form, see `mechcore.data.given`; or batches, dicts of tokenizer
            outputs, whose rows are the examples in the order they come.
        hooks: names of hook points with [batch, pos, ...], for example `hook_resid_post`.
        positions: tokens of every example, counted from its first real token; negative ones count
            from the last, which is -1. None reads the last real token.
        batch_size: examples per forward, for encoded examples.

    Raises:
        InputError: a row has no such token, positions and data differ in their number of
            examples, a hook point is unknown, did not run, or has no axis of positions.
    """
    names = list(dict.fromkeys(hooks))
    _check_hooks(model, names)
    wanted = None if positions is None else _checked(positions)
    data = as_data(model, data, "id", labelled=False)
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    rows: list[Tensor] = []
    places: list[Tensor] = []
    reporting = batch_bar("activations", data, batch_size)
    with torch.no_grad(), reporting as advance:
        for batch in as_batches(data, batch_size):
            real = model_inputs(model, batch)["attention_mask"].cpu() != 0
            start = sum(map(len, rows))
            in_order = torch.arange(start, start + len(real))
            rows.append(batch["index"] if isinstance(data, EncodedExamples) else in_order)
            places.append(_from_first(wanted, real.sum(1), rows[-1]))
            for name, taken in _read(model, batch, names, real, places[-1]).items():
                parts[name].append(taken)
            advance()
    if not rows:
        raise InputError("activations: no batch; expected at least one")
    order = torch.cat(rows).argsort()
    if wanted is not None and len(wanted) != len(order):
        raise _other_length(len(wanted), str(len(order)))
    values = {name: torch.cat(parts.pop(name))[order] for name in names}
    return Activations(values, torch.cat(places)[order])


def _read(
    model: Any, batch: Batch, names: Sequence[str], real: Tensor, places: Tensor
) -> dict[str, Tensor]:
    """The activations of one batch at some of its real tokens, counted from the first."""
    columns = (~real).to(torch.int8).argsort(dim=1, stable=True)  # of the real tokens first
    columns, rows = columns.gather(1, places), torch.arange(len(real))[:, None]
    taken: dict[str, Tensor] = {}

    def take(name: str, activation: Any, hook: Any) -> None:
        shape = tuple(activation.shape) if torch.is_tensor(activation) else None
        if shape is None or len(shape) < 3 or shape[:2] != real.shape:
            raise InputError(
                f"activations: {name} is {shape or type(activation).__name__} for a batch of "
                f"{tuple(real.shape)}; expected [batch, pos, ...]: choose another hook point"
            )
        device = activation.device
        values = activation[rows.to(device), columns.to(device)].float().cpu()
        if name in taken and not torch.equal(taken[name], values):
            raise InputError(
                f"activations: {name} ran more than once in one forward, with different "
                "values; expected once: choose another hook point"
            )
        taken[name] = values

    with hooked(model, [(name, partial(take, name)) for name in names]):
        forward(model, batch)
    for name in names:
        if name not in taken:
            raise InputError(
                f"activations: the forward ran without {name}; expected an activation of "
                "every hook point: choose another one"
            )
    return taken


def _check_hooks(model: Any, names: Sequence[str]) -> None:
    for name in names:
        if name not in model.hook_dict:
            near = get_close_matches(name, model.hook_dict, n=3)
            raise InputError(
                f"activations: {type(model).__name__} has no hook point {name!r}; "
                + (f"near it: {', '.join(near)}" if near else "model.hook_dict has all names")
            )
        if name.endswith(("hook_pattern", "hook_attn_scores")):
            raise InputError(
                f"activations: {name} has [batch, head, query, key]; expected [batch, pos, ...]: "
                "mechcore.attention reads patterns"
            )


def _checked(positions: Any) -> Int[Tensor, "example position"]:
    positions = torch.as_tensor(positions).cpu()
    whole = not (positions.is_floating_point() or positions.dtype == torch.bool)
    if positions.ndim != 2 or 0 in positions.shape or not whole:
        raise InputError(
            f"activations: positions are {positions.dtype} of shape {tuple(positions.shape)}; "
            "expected whole numbers [example, position], not empty"
        )
    return positions.long()


def _from_first(
    wanted: Int[Tensor, "example position"] | None,
    lengths: Int[Tensor, " row"],
    rows: Int[Tensor, " row"],
) -> Int[Tensor, "row position"]:
    """Positions in these rows, counted from the first real token."""
    if wanted is None:
        return lengths[:, None] - 1
    if int(rows.max()) >= len(wanted):
        raise _other_length(len(wanted), f"{int(rows.max()) + 1} or more")
    asked = wanted[rows]
    places = torch.where(asked < 0, asked + lengths[:, None], asked)
    outside = ((places < 0) | (places >= lengths[:, None])).nonzero()
    if len(outside):
        at, column = outside[0].tolist()
        n = int(lengths[at])
        raise InputError(
            f"activations: row {int(rows[at])}: position {int(asked[at, column])} was asked for, "
            f"but the row has {n} real token{'s' * (n > 1)}; expected {-n} to {n - 1}"
        )
    return places


def _other_length(n_positions: int, n_examples: str) -> InputError:
    return InputError(
        f"activations: positions of {n_positions} examples, but data of {n_examples}; expected one "
        "row of positions for each example"
    )
