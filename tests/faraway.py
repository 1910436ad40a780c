"""A device that this machine does not have, played by the processor.

Tensors of `FAR` compute on the processor, but say that they are on another device, and every time
that a program would have to wait for such a device is noted: values read by Python, copies to the
host, copies to the device that are not asynchronous, operations whose result has a size that
depends on values, and tensors of both devices in one operation.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import mechcore

FAR = torch.device("meta")
"""The one device besides the processor's that every build of torch knows."""

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim")
"""Operations that make the host wait for the device."""

OWN = "mechcore/"
"""Beginning of the places of mechcore's lines."""

_PACKAGE, _TORCH = (Path(module.__file__).parent for module in (mechcore, torch))


class FarTensor(Tensor):
    """A tensor on `FAR`, whose values are in ``near``."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        made: FarTensor = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        made.near = near
        return made

    def __init__(self, near: Tensor) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:
        return f"far {self.near!r}"

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if function is Tensor.tolist:  # torch has it for its own tensors alone
                return args[0].cpu().tolist()
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _done(function, args, kwargs or {}, Counter())


class Faraway(TorchDispatchMode):
    """Has everything asked for on `FAR` be there.

    Attributes:
        waits: how often what made the host wait, by operation and line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _done(function, args, kwargs or {}, self.waits)


class _MadeOfNumbers(TorchFunctionMode):
    """Has tensors made of Python's numbers go to `FAR` by a copy, as they do to other devices.

    Attention runs as one kernel, as it does there.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            function, args = torch.tensor, args[1:]
        if function in (Tensor.__getitem__, Tensor.__setitem__) and is_far(args[0]):
            args = (args[0], _without_lists(args[1]), *args[2:])
        if function is F.scaled_dot_product_attention and is_far(args[0]):
            near = tree_map_only(FarTensor, lambda tensor: tensor.near, (args, kwargs))
            return far(function(*near[0], **near[1]))
        device = kwargs.get("device")
        makes = function in (torch.tensor, torch.as_tensor)
        if makes and not isinstance(args[0], Tensor) and device is not None:
            return function(*args, **{**kwargs, "device": "cpu"}).to(device)
        return function(*args, **kwargs)


def _without_lists(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index)
    return tuple(map(_without_lists, index)) if isinstance(index, tuple) else index


def is_far(value: Any) -> bool:
    return isinstance(value, FarTensor)


def far(tensor: Tensor) -> Tensor:
    """The tensor on `FAR`, as if it had been made there."""
    return tensor if isinstance(tensor, FarTensor) else FarTensor(tensor)


def _done(function: Any, args: Any, kwargs: Any, waits: Counter[str]) -> Any:
    name = function._schema.name.removeprefix("aten::")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    comes_far = any(map(is_far, tensors))
    goes_far = comes_far
    kwargs = dict(kwargs)
    if kwargs.get("device") is not None:
        goes_far = kwargs["device"].type == FAR.type
        kwargs["device"] = torch.device("cpu")
    if comes_far or goes_far:
        for why in _reasons_to_wait(name, args, kwargs, tensors, goes_far):
            waits[f"{why} at {_line()}"] += 1
    near = tree_map_only(FarTensor, lambda tensor: tensor.near, (args, kwargs))
    result = function(*near[0], **near[1])
    if name.endswith("_") and comes_far:
        return args[0]
    return tree_map_only(Tensor, far, result) if goes_far else result


def _reasons_to_wait(
    name: str, args: Any, kwargs: Any, tensors: list[Tensor], goes_far: bool
) -> Iterator[str]:
    if name in WAITING:
        yield name
    crosses = name == "_to_copy" and is_far(args[0]) != goes_far
    if crosses and not (goes_far and kwargs.get("non_blocking")):
        yield "copy to the device" if goes_far else "copy to the host"
    if name == "index" and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    ):
        yield "index by truth values"
    mixed = {is_far(tensor) for tensor in tensors if tensor.ndim or name == "copy_"}
    if len(mixed) == 2 and not (name == "copy_" and is_far(args[0]) and args[2:]):
        yield f"tensors of both devices in {name}"


def _line() -> str:
    """The innermost line that is being run outside of torch: of mechcore, or of a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE):
            return f"{OWN}{file.relative_to(_PACKAGE)}:{frame.f_lineno}"
        if file != Path(__file__) and not file.is_relative_to(_TORCH):
            return f"{file.parent.name}/{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "nowhere"


def own(waits: Counter[str]) -> Counter[str]:
    """What mechcore itself waits for, without what the model's own forward does."""
    return Counter({why: n for why, n in waits.items() if f" {OWN}" in why})


def send_away(model: Any) -> Any:
    """Put a model's weights and buffers on `FAR`, those of tied ones once."""
    known: dict[int, Tensor] = {}
    modules = {*model.modules(), *getattr(model, "original_model", model).modules()}
    for module in modules:
        for name, weight in module._parameters.items():
            if weight is not None and not isinstance(weight, FarTensor):
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(far(weight.data), weight.requires_grad)
                module._parameters[name] = known[id(weight)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = known.setdefault(id(buffer), far(buffer))
    return model


@contextmanager
def faraway() -> Iterator[Counter[str]]:
    """A block in which `FAR` is there; what the host waited for in it."""
    with _MadeOfNumbers(), Faraway() as mode:
        yield mode.waits
