"""The model that something was found on: an identity computed from the model itself."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from mechcore.components import ANY_MODEL, Mask, ModelShape
from mechcore.errors import InputError, MismatchError
from mechcore.files import tensors_digest
from mechcore.identity import Identity
from mechcore.models.protocol import dtype_of, weights_of


@dataclass(frozen=True)
class ModelIdentity(Identity):
    """What distinguishes one model from another, computed from the model itself."""

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Compute the identity; the digest of all weights is renewed only if their sums change."""
        sums = _sums_of_weights(model)
        known = _identities.get(model)
        if known is not None and known[0] == sums:
            return known[1]
        shape, cfg = ModelShape.of(model), model.cfg
        state = {
            name.replace("_original_component.", ""): tensor
            for name, tensor in weights_of(model).state_dict().items()
        }
        dtype = str(dtype_of(model)).removeprefix("torch.")
        sizes = shape.n_layers, shape.n_heads, cfg.d_head, cfg.d_model
        identity = cls(*sizes, dtype, tensors_digest(state))
        _identities[model] = (sums, identity)
        return identity


def check_is_mask(mask: Any) -> None:
    """Raise `InputError` unless it is a mask."""
    if not isinstance(mask, Mask):
        raise InputError(
            f"mask: found {type(mask).__name__}; expected a Mask, such as "
            'Mask.full(model).without("L0.H1"), or Mask.stack(masks) for several'
        )


def check_masks(masks: Iterable[Mask], model: Any) -> None:
    """Raise `MismatchError` unless masks fit a model and, if they record one, are its own."""
    identities = set()
    for mask in masks:
        check_is_mask(mask)
        mask.check(model)
        if mask.identity is not None:
            identities.add(mask.identity)
    for identity in identities:
        if differences := identity.differences(ModelIdentity.of(model)):
            raise MismatchError(
                "mask: made for another model, which differs in "
                f"{'; '.join(differences)}; use a mask of this model, or, to use this one anyway, "
                f"{ANY_MODEL}"
            )


def _sums_of_weights(model: Any) -> str:
    """A digest of exact sums over rows of the bits of weights; any bit or order changes it."""
    digest, row = hashlib.sha256(), 8 * _COLUMNS
    for name, tensor in weights_of(model).state_dict().items():
        raw = tensor.detach().contiguous().flatten().view(torch.uint8)
        if raw.data_ptr() % 8:
            raw = raw.clone()
        whole = len(raw) // row * row
        columns = raw[:whole].view(torch.int64).view(-1, _COLUMNS).sum(0)
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(columns.cpu().numpy().data)
        digest.update(raw[whole:].cpu().numpy().data)
    return digest.hexdigest()


_COLUMNS = 1021  # a prime, so no shift by whole heads or neurons is a shift by whole rows
_identities: weakref.WeakKeyDictionary[Any, tuple[Any, ModelIdentity]]
_identities = weakref.WeakKeyDictionary()
