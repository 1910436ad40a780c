"""Masks over all components of a model, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore.components.names import Component, ComponentLike, ModelShape, parse_components
from mechcore.errors import InputError, MismatchError, reason
from mechcore.files import write_safetensors
from mechcore.identity import Identity
from mechcore.showing import Shown

if TYPE_CHECKING:
    import pandas as pd

ANY_MODEL = "load it with any_model=True"
"""How to use a mask on a model other than its own, for messages."""


class Mask(Shown):
    """One value in [0, 1] per component of a model, with an optional leading axis of masks.

    Values have heads in the columns 0 to n_heads - 1 and the MLP in the last one, absent without
    ``has_mlps``. They are copied, unless they require grad: then changes of the tensor, such as an
    optimiser's, reach the mask. Without the ``identity`` of the model that it was made for, as by
    hand, a mask fits every model of its shape.

    Raises:
        InputError: the shape or a value is invalid.

    >>> mask = Mask.full(ModelShape(2, 2)).without("L1.H0")
    >>> mask, round(mask.sparsity, 3)
    (Mask(2 layers x 2 heads with MLPs, 5/6 kept, without L1.H0), 0.167)
    """

    def __init__(
        self,
        values: Float[Tensor, "*masks layer component"],
        *,
        has_mlps: bool = True,
        identity: Identity | None = None,
    ) -> None:
        if not torch.is_tensor(values) or values.ndim not in (2, 3) or 0 in values.shape:
            given = tuple(values.shape) if torch.is_tensor(values) else type(values).__name__
            raise InputError(
                f"mask: found {given}; expected a non-empty tensor of shape [layers, heads + 1] "
                "or [masks, layers, heads + 1]"
            )
        if values.shape[-1] <= has_mlps:
            raise InputError(f"mask: shape {tuple(values.shape)} leaves no column for heads")
        values = values if values.is_floating_point() else values.float()
        with torch.inference_mode(False):  # the mask may be used outside of it, too
            self.values = values if values.requires_grad else values.clone()
        self.identity = identity
        self.shape = ModelShape(values.shape[-2], values.shape[-1] - has_mlps, has_mlps)
        inside = (self.values >= 0) & (self.values <= 1)  # False for NaN, too
        if not bool(inside.all()):
            bad = values[~inside][0].item()
            raise InputError(f"mask: found the value {bad}; expected values from 0 to 1")

    # -- construction ---------------------------------------------------------------------------

    @classmethod
    def full(cls, model: Any) -> Mask:
        """Keep every component of ``model`` (a TransformerLens model or a `ModelShape`)."""
        shape = ModelShape.of(model)
        ones = torch.ones(shape.n_layers, shape.columns, dtype=torch.float32, device="cpu")
        return cls(ones, has_mlps=shape.has_mlps)

    def without(self, *components: ComponentLike | Iterable[ComponentLike]) -> Mask:
        """This mask with ``components`` ablated."""
        values = self.values.clone()
        for component in parse_components(*components):
            layer, column = self.shape.index(component)
            values[..., layer, column] = 0.0
        return self._like(values)

    def only(self, *components: ComponentLike | Iterable[ComponentLike]) -> Mask:
        """This mask with everything but ``components`` ablated, MLPs included."""
        size, device = (self.shape.n_layers, self.shape.columns), self.values.device
        keep = torch.zeros(size, dtype=torch.bool, device=device)
        for component in parse_components(*components):
            keep[self.shape.index(component)] = True
        return self._like(self.values * keep)

    @classmethod
    def stack(cls, masks: Sequence[Mask]) -> Mask:
        """Several masks of one shape as one batched mask; raises as `same_model`."""
        identity = same_model(masks)
        parts = [mask.values if mask.is_batched else mask.values[None] for mask in masks]
        return cls(torch.cat(parts), has_mlps=masks[0].shape.has_mlps, identity=identity)

    def with_identity(self, identity: Identity | None) -> Mask:
        """This mask as one made for the model ``identity``; None allows any model."""
        return Mask(self.values, has_mlps=self.shape.has_mlps, identity=identity)

    def _like(self, values: Tensor) -> Mask:
        return Mask(values, has_mlps=self.shape.has_mlps, identity=self.identity)

    # -- reading --------------------------------------------------------------------------------

    @property
    def is_batched(self) -> bool:
        """Whether there is a leading axis of masks."""
        return self.values.ndim == 3

    def __len__(self) -> int:
        if not self.is_batched:
            raise TypeError("a single mask has no length; only a batched one has")
        return len(self.values)

    def __getitem__(self, index: int | slice) -> Mask:
        if not self.is_batched:
            raise TypeError("a single mask cannot be indexed; only a batched one can")
        return self._like(self.values[index])

    def __iter__(self) -> Iterator[Mask]:
        return (self[i] for i in range(len(self)))

    @property
    def heads(self) -> Float[Tensor, "*masks layer head"]:
        """The values of the heads."""
        return self.values[..., : self.shape.n_heads]

    @property
    def mlps(self) -> Float[Tensor, "*masks layer"]:
        """The values of the MLP layers (ones where the model has none)."""
        if not self.shape.has_mlps:
            return torch.ones_like(self.values[..., 0])
        return self.values[..., -1]

    @property
    def is_discrete(self) -> bool:
        """Whether every value is exactly 0 or 1."""
        values = self.values.detach()
        return bool(((values == 0) | (values == 1)).all())

    @property
    def kept(self) -> list[Component]:
        """Components with value 1 of a single discrete mask."""
        return self._where(lambda values: values == 1)

    @property
    def ablated(self) -> list[Component]:
        """Components with value 0 of a single discrete mask."""
        return self._where(lambda values: values == 0)

    def _where(self, test: Callable[[Tensor], Bool[Tensor, "layer component"]]) -> list[Component]:
        if self.is_batched or not self.is_discrete:
            raise InputError(
                f"{self!r}: kept and ablated sets are those of a single mask of zeros and ones; "
                "index the batch, or discretise the mask first"
            )
        flags = test(self.values.detach()).flatten().tolist()
        return [c for c, flag in zip(self.shape.components, flags, strict=True) if flag]

    @property
    def sparsity(self) -> float | Float[Tensor, " masks"]:
        """Share of components pruned, 1 - mean value; heads and MLPs count equally."""
        return _plain(1 - self.values.double().mean((-2, -1)))

    @property
    def head_sparsity(self) -> float | Float[Tensor, " masks"]:
        """Share of heads pruned."""
        return _plain(1 - self.heads.double().mean((-2, -1)))

    # -- set algebra on what is kept ----------------------------------------------------------

    def __and__(self, other: Mask) -> Mask:
        """Keep the components that both keep (the smaller value)."""
        return self._joined(other, torch.minimum)

    def __or__(self, other: Mask) -> Mask:
        """Keep the components that either keeps (the larger value)."""
        return self._joined(other, torch.maximum)

    def _joined(self, other: Mask, join: Callable[[Tensor, Tensor], Tensor]) -> Mask:
        identity = same_model([self, other])
        values = join(self.values, other.values)
        return Mask(values, has_mlps=self.shape.has_mlps, identity=identity)

    def __sub__(self, other: Mask) -> Mask:
        """Keep the components that this mask keeps and the other ablates."""
        return self & ~other

    def __invert__(self) -> Mask:
        """Keep the components that this mask ablates."""
        return self._like(1 - self.values)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same values, whatever models they were made for."""
        return (
            isinstance(other, Mask)
            and self.shape == other.shape
            and self.values.shape == other.values.shape
            and bool((self.values.detach().cpu() == other.values.detach().cpu()).all())
        )

    __hash__ = None  # type: ignore[assignment]  # holds a tensor

    def _summary(self) -> str:
        if self.is_batched:
            return f"{len(self)} masks, {self.shape}, {_range(self.sparsity)} sparsity"
        if not self.is_discrete:
            return f"{self.shape}, continuous, sparsity {self.sparsity:.3f}"
        kept, ablated = self.kept, self.ablated
        text = f"{self.shape}, {len(kept)}/{len(kept) + len(ablated)} kept"
        if ablated and len(ablated) <= len(kept):
            text += f", without {_shortlist(ablated)}"
        elif ablated:
            text += f", only {_shortlist(kept)}" if kept else ", nothing kept"
        return text

    def _rows(self) -> pd.DataFrame | None:
        import pandas as pd

        if self.is_batched:
            return None
        columns = [f"H{head}" for head in range(self.shape.n_heads)]
        columns += ["MLP"] if self.shape.has_mlps else []
        frame = pd.DataFrame(self.values.detach().cpu().numpy(), columns=columns)
        frame.insert(0, "layer", range(self.shape.n_layers))
        return frame

    def check(self, model: Any) -> None:
        """Check shape and values against ``model``: `MismatchError` and `InputError`."""
        shape = ModelShape.of(model)
        now = self._like(self.values).shape  # they may have been changed, or others be given
        if not self.shape == now == shape:
            raise MismatchError(
                f"mask and model do not fit: the mask has {now}, the model has {shape}"
            )

    # -- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, atomically; an `InputError` for another suffix."""
        path = Path(path)
        if path.suffix != ".safetensors":
            raise InputError(f"mask file {path}: expected the suffix .safetensors")
        write_safetensors(path, {"mask": self.values.detach().cpu().contiguous()}, self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """The metadata of a mask in a safetensors file."""
        facts = {"has_mlps": json.dumps(self.shape.has_mlps)}
        if self.identity is not None:
            facts["identity"] = json.dumps(asdict(self.identity))
        return facts

    @classmethod
    def load(cls, path: str | Path, *, any_model: bool = False) -> Mask:
        """Read a mask written by `save`; `InputError` for another file.

        ``any_model`` allows every model of its shape, such as another checkpoint of a training run.
        """
        path = Path(path)
        if path.is_dir():
            raise InputError(f"mask file {path}: found a folder; name one of the mask files in it")
        if not path.is_file():
            raise InputError(f"mask file {path}: no such file")
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                has_mlps = json.loads(facts["has_mlps"])
                if not isinstance(has_mlps, bool):
                    raise ValueError(f"has_mlps is {has_mlps!r}, expected true or false")
                mask = cls(file.get_tensor("mask"), has_mlps=has_mlps)
            fields = json.loads(facts.get("identity", "null"))
            identity = None if fields is None else Identity.from_fields(fields)
        except (KeyError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            raise InputError(
                f"mask file {path}: not a mask written by mechcore ({reason(error)})"
            ) from error
        return mask.with_identity(None if any_model else identity)


def same_model(masks: Sequence[Mask]) -> Identity | None:
    """The model of masks, if known; `InputError` for none, `MismatchError` for several."""
    if not masks:
        raise InputError("masks: no mask; expected at least one")
    known: tuple[int, Identity] | None = None
    for number, mask in enumerate(masks, start=1):
        if mask.shape != masks[0].shape:
            raise MismatchError(
                f"masks of different models: {masks[0].shape} in mask 1, {mask.shape} in mask "
                f"{number}"
            )
        if mask.identity is None:
            continue
        if known is not None and (differences := known[1].differences(mask.identity)):
            raise MismatchError(
                f"masks of different models: mask {known[0]} and mask {number} were made for "
                f"models that differ in {'; '.join(differences)}; use masks of one model or, to "
                f"combine them anyway, {ANY_MODEL}"
            )
        known = known or (number, mask.identity)
    return None if known is None else known[1]


def _plain(values: Tensor) -> Any:
    return values.item() if values.ndim == 0 and not values.requires_grad else values


def _range(values: Any) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3f}" if low == high else f"{low:.3f}-{high:.3f}"


def _shortlist(components: Sequence[Component]) -> str:
    shown, more = " ".join(map(str, components[:8])), len(components) - 8
    return shown if more <= 0 else f"{shown} and {more} more"
