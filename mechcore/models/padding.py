"""Padded batches: where their real tokens are, and one layout for those of encoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

is_arranged: ContextVar[bool] = ContextVar("is_arranged", default=False)
"""Whether the batches that run are known to have their padding where the model wants it."""


@contextmanager
def arranged() -> Iterator[None]:
    """Run batches that need not be looked through again, which a device would have to wait for."""
    token = is_arranged.set(True)
    try:
        yield
    finally:
        is_arranged.reset(token)


def real_tokens_first(
    tensors: Mapping[str, Tensor], attention_mask: Tensor
) -> tuple[dict[str, Tensor], bool]:
    """Move every row's padding to its right end, keeping the order of the real tokens.

    An encoder's classification head reads position 0 and its positions count from there, so a
    left-padded row means something else to it than the same text unpadded.

    Args:
        tensors: any tensors [batch, pos], the attention mask among them.
        attention_mask: [batch, pos], 0 at padding.

    Returns:
        The rearranged tensors, and whether anything moved.
    """
    real = attention_mask != 0
    order = torch.argsort((~real).to(torch.int8), dim=1, stable=True)
    places = torch.arange(real.shape[1], device=order.device).expand_as(order)
    if torch.equal(order, places):
        return dict(tensors), False
    return {name: tensor.gather(1, order) for name, tensor in tensors.items()}, True


def real_positions(mask: Tensor) -> Tensor:
    """Position of every token counted from its row's first real token, [batch, pos]."""
    return ((mask != 0).long().cumsum(1) - 1).clamp(min=0)
