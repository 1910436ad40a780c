"""Device and precision of the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from mechcore.errors import InputError, shown

DtypeName: TypeAlias = Literal["float32", "bfloat16", "float16"]
DeviceMap: TypeAlias = str | Mapping[str, str | int | torch.device]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}
"""Precisions of weights by name."""

DEVICE_MAPS = ("auto", "balanced", "cpu")
"""Device maps by name."""


def sent(values: Tensor | Sequence[int], device: torch.device) -> Tensor:
    """Small host values on a device, without waiting for its queue."""
    values = values if torch.is_tensor(values) else torch.as_tensor(values)
    return values.to(device, non_blocking=device.type != "mps")  # mps has a race


def chosen(x: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    """Selected indices of an axis; a list as an index would wait for the device."""
    if list(places) == list(range(x.shape[axis])):
        return x
    return x.index_select(axis, sent(places, x.device))


def as_dtype(dtype: Any) -> torch.dtype:
    """A precision by name or as a torch dtype; raises `InputError` for others."""
    known = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(known, torch.dtype):
        raise InputError(
            f"dtype: found {shown(dtype)}; expected {', '.join(DTYPES)} or a dtype of torch"
        )
    return known


def check_placing(
    source: Any, backend: str, device: str | torch.device | None, device_map: DeviceMap | None
) -> None:
    """Raise `InputError` if the device options of `load_model` are unusable."""
    if device_map is None:
        check_device(device or "cpu")
        return
    if device is not None:
        raise InputError(
            f"device_map and device ({device}) exclude each other; name one of the two"
        )
    if backend == "hooked":
        raise InputError(
            'device_map: needs backend "bridge"; a HookedTransformer is on one device, set by '
            "device"
        )
    if not isinstance(source, (str, Path)):
        raise InputError(
            f"device_map: the model is already built ({type(source).__name__}); expected a "
            "checkpoint: place a model's weights when building it"
        )
    if isinstance(device_map, str) and device_map not in DEVICE_MAPS:
        raise InputError(
            f"device_map: found {shown(device_map)}; expected {', '.join(DEVICE_MAPS)}, or the "
            "device of every module by name"
        )


def check_in_memory(name: str, weights: nn.Module) -> None:
    """Raise `InputError` for offloaded weights, which a bridge cannot always read."""
    away = [key for key, weight in weights.named_parameters() if weight.is_meta]
    if away:
        raise InputError(
            f"{name}: {len(away)} of its weights are offloaded, {away[0]} among them; expected all "
            "of them in memory: load it in a smaller dtype (bfloat16), on the processor "
            '(device_map="cpu"), or on more devices'
        )


def check_device(device: torch.device | str) -> None:
    """Raise `InputError` unless this machine has the device."""
    device = torch.device(device)
    backends: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if device.type not in backends:
        return
    if not backends[device.type].is_available():
        raise InputError(
            f"device {device}: torch {torch.__version__} finds no such device on this machine; "
            "choose cpu"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {device}: this machine has {torch.cuda.device_count()}, counted from 0"
        )
