"""Batches of token ids: checks before a run, and the place of padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from mechcore.errors import InputError

UNREAD = {
    "inputs_embeds": "",
    "head_mask": " (mechcore.masked ablates heads)",
    "past_key_values": "",
    "position_ids": ", and put texts packed in one row into separate rows",
    "cu_seq_lens_q": "",
    "seq_idx": "",
}
"""Entries that change the answers of Hugging Face's models but that mechcore does not read."""

is_arranged: ContextVar[bool] = ContextVar("is_arranged", default=False)
"""Whether the running batches are known to have their padding on the right side."""


@contextmanager
def arranged() -> Iterator[None]:
    """Run batches without checking their padding again, which would synchronise the device."""
    token = is_arranged.set(True)
    try:
        yield
    finally:
        is_arranged.reset(token)


# -- padding --------------------------------------------------------------------------------------


def real_positions(mask: Tensor) -> Tensor:
    """Position of every token counted from its row's first real token, [batch, pos]."""
    return ((mask != 0).long().cumsum(1) - 1).clamp(min=0)


def real_tokens_first(
    tensors: Mapping[str, Tensor], attention_mask: Tensor
) -> tuple[dict[str, Tensor], bool]:
    """Tensors with padding moved to the right, in the same order, and whether anything moved."""
    real = attention_mask != 0
    order = torch.argsort((~real).to(torch.int8), dim=1, stable=True)
    places = torch.arange(real.shape[1], device=order.device).expand_as(order)
    if torch.equal(order, places):
        return dict(tensors), False
    return {name: tensor.gather(1, order) for name, tensor in tensors.items()}, True


def real_tokens(
    ids: Tensor, mask: Tensor | None, pad_id: int | None, *, in_texts: bool = False
) -> Tensor:
    """The attention mask of a batch, 1 at real tokens and 0 at padding, [batch, pos].

    ``mask`` is None if there is none, and so no padding; with ``in_texts``, texts may also begin or
    end with ``pad_id``. Raises as `mechcore.models.protocol.forward`.
    """
    is_pad = torch.zeros_like(ids, dtype=torch.bool) if pad_id is None else ids == pad_id
    if mask is None:
        if len(rows := _at_an_end(is_pad, 1 + in_texts).nonzero()):
            raise InputError(
                f"batch: no attention_mask, and row {int(rows[0])} begins or ends with the "
                f"padding token ({pad_id}); expected the mask that the tokenizer returns, or one "
                "of ones if this token is part of the text"
            )
        return torch.ones_like(ids)
    low, high = mask.aminmax()
    if low < 0 or high > 1:
        raise _bad_value("attention_mask", mask, ((mask < 0) | (mask > 1)).nonzero())
    real = mask != 0
    if low == 0 and len(rows := (~real.any(1)).nonzero()):
        raise InputError(
            f"batch: a row has no real token: its attention_mask is 0 throughout (row "
            f"{int(rows[0])}); expected 1 at real tokens and 0 at padding"
        )
    attended = real & is_pad
    if bool(attended.any()):
        # Fillers other than the padding token are all equal; tokens of texts differ.
        lost = len(ids[~real & ~is_pad].unique()) > 1
        padding_alone = (attended | ~real).all(1)
        wrong = padding_alone & (lost or not in_texts)
        wrong |= _at_an_end(attended, 1 + in_texts) & lost
        if len(rows := wrong.nonzero()):
            raise InputError(
                f"batch: attention_mask is 1 at the padding token ({pad_id}) of row "
                f"{int(rows[0])}, and not at its real tokens; expected 1 at real tokens and 0 at "
                "padding: is it inverted, or from other rows or another padding side?"
            )
    return mask


def _at_an_end(where: Tensor, n: int) -> Tensor:
    """Whether each row begins or ends with ``n`` such tokens, [batch]."""
    ends = where[:, :n], where[:, -n:]
    return (ends[0].all(1) | ends[1].all(1)) & (where.shape[1] >= n)


# -- other entries --------------------------------------------------------------------------------


def as_tensor(name: str, values: Any) -> Tensor:
    """An entry of a batch as a tensor on the host, where reading it needs no device."""
    try:
        return torch.as_tensor(values).cpu()
    except (ValueError, TypeError) as error:
        raise InputError(
            f"batch: {name} cannot be converted to a tensor ({error}); expected rows of equal "
            "length: pad them, and pass the attention_mask"
        ) from error


def whole_numbers(name: str, values: Tensor) -> Tensor:
    """An entry of a batch as type long; raises for fractions and possibly rounded token ids."""
    if name == "input_ids" and (values.is_floating_point() or values.dtype == torch.bool):
        raise InputError(f"batch: input_ids are {values.dtype}; expected token ids, torch.long")
    whole = values.long()
    if values.is_floating_point() and len(places := (whole != values).nonzero()):
        raise _bad_value(name, values, places)
    return whole


def check_unread(name: str, value: Any) -> None:
    """Raise `InputError` if an entry of `UNREAD` would make a difference."""
    if value is not None and not (torch.is_tensor(value) and bool((value == 1).all())):
        raise InputError(
            f"batch: {name} is not read, but would change the answers; expected input_ids, "
            f"attention_mask and token_type_ids: leave it out{UNREAD[name]}"
        )


def check_vocabulary_size(ids: Tensor, n_tokens: int, name: str) -> None:
    """Raise `InputError` for token ids [batch, pos], also of padding, without an embedding row."""
    low, high = ids.aminmax()
    if low < 0 or high >= n_tokens:
        row, position = ((ids < 0) | (ids >= n_tokens)).nonzero().tolist()[0]
        raise InputError(
            f"batch: input_ids has {int(ids[row, position])} in row {row} at position {position}; "
            f"expected 0 to {n_tokens - 1}, the rows of the embedding of {name}: tokenize with "
            "the tokenizer of the model's own checkpoint"
        )


def known_types(types: Tensor, real: Tensor, n_types: int) -> Tensor:
    """Token types, with unknown ones of padding replaced by 0; raises for those of real tokens."""
    unknown = (types < 0) | (types >= n_types)
    if places := (unknown & real).nonzero().tolist():
        row, position = places[0]
        expected = "0 alone" if n_types == 1 else f"0 to {n_types - 1}"
        raise InputError(
            f"batch: token_type_ids has {int(types[row, position])} in row {row} at position "
            f"{position}; expected {expected}, the token types of the model: leave token_type_ids "
            "out, which a tokenizer does with tokenizer.model_input_names = "
            '["input_ids", "attention_mask"]'
        )
    return types.masked_fill(unknown, 0)


def _bad_value(name: str, values: Tensor, places: Tensor) -> InputError:
    row, position = places[0].tolist()
    value, expected, remedy = values[row, position].item(), "whole numbers", ""
    if name == "attention_mask":
        expected = "1 at real tokens and 0 at padding"
        if value < 0:
            remedy = ": convert an additive mask by (attention_mask == 0).long()"
        elif value > 1:
            remedy = ": put texts packed in one row into separate rows"
    return InputError(
        f"batch: {name} has {value} in row {row} at position {position}; expected "
        f"{expected}{remedy}"
    )
