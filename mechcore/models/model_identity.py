"""Which model something was found on: an identity computed from the model itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from mechcore.components import ANY_MODEL, Mask, ModelShape
from mechcore.errors import MismatchError
from mechcore.files import tensors_digest
from mechcore.identity import Identity
from mechcore.models.running import weights_of


@dataclass(frozen=True)
class ModelIdentity(Identity):
    """What tells one model from another, computed from the model itself."""

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Compute the identity.

        Every weight is read, once per model as long as a sample of each weight stays as it is.
        """
        sample = _sample_of_weights(model)
        known = _identities.get(model)
        if known is None or known[0] != sample:
            known = _identities[model] = (sample, cls._compute(model))
        return known[1]

    @classmethod
    def _compute(cls, model: Any) -> ModelIdentity:
        shape, cfg = ModelShape.of(model), model.cfg
        state = {
            name.replace("_original_component.", ""): tensor
            for name, tensor in weights_of(model).state_dict().items()
        }
        dtype = str(next(weights_of(model).parameters()).dtype).removeprefix("torch.")
        return cls(
            shape.n_layers, shape.n_heads, cfg.d_head, cfg.d_model, dtype, tensors_digest(state)
        )


def check_masks(masks: Iterable[Mask], model: Any) -> None:
    """Make sure that masks fit ``model`` and, as far as they know their model, are its own.

    Raises:
        MismatchError: layers, heads or MLPs differ, or a mask was found on another model; the
            message says which.
    """
    identities = set()
    for mask in masks:
        mask.check(model)
        if mask.identity is not None:
            identities.add(mask.identity)
    for identity in identities:
        if differences := identity.differences(ModelIdentity.of(model)):
            raise MismatchError(
                "mask: found on another model; in the mask and in the model differ: "
                f"{'; '.join(differences)}: use a mask of this model, or, to use this one all the "
                f"same, {ANY_MODEL}"
            )


def _sample_of_weights(model: Any) -> list[Any]:
    """Versions and sums over up to 1024 places of every weight: notices edits through ``.data``."""
    parameters = list(weights_of(model).parameters())
    sums = [p.detach().flatten()[:: p.numel() // 1024 + 1].double().sum() for p in parameters]
    together = torch.stack([each.to(sums[0].device) for each in sums])
    return [together.tolist(), [(p._version, p.dtype) for p in parameters]]


_identities: weakref.WeakKeyDictionary[Any, tuple[Any, ModelIdentity]]
_identities = weakref.WeakKeyDictionary()
