"""The state of torch and NumPy in which mechcore computes: that of a new process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch


class _Here(threading.local):
    plain = False


_here = _Here()
_lock = threading.Lock()
_threads_inside = 0
_to_restore = ExitStack()
"""Process-wide state is set by the first thread that enters and restored by the last."""


@contextmanager
def plain_numbers() -> Iterator[None]:
    """Compute in float32 on the processor unless asked otherwise, without autocast and TF32."""
    if _here.plain:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_shared())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.callback(setattr, _here, "plain", False)
        _here.plain = True
        yield


@contextmanager
def plain_session() -> Iterator[None]:
    """`plain_numbers`, with gradients enabled even if the user has switched them off."""
    with plain_numbers(), torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def _shared() -> Iterator[None]:
    global _threads_inside
    with _lock:
        if not _threads_inside:
            _set_plain(_to_restore)
        _threads_inside += 1
    try:
        yield
    finally:
        with _lock:
            _threads_inside -= 1
            if not _threads_inside:
                _to_restore.close()


def _set_plain(stack: ExitStack) -> None:
    if (dtype := torch.get_default_dtype()) != torch.float32:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
    # The precision of products has an older name for all backends and newer names per backend.
    places: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    before = [(place, getattr(place, "fp32_precision", None)) for place in places]
    try:
        name: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer names were used
        name = None
    if name != "highest" or any(old not in (None, "none", "ieee") for _, old in before):
        for place, old in before:
            if old is not None:
                stack.callback(setattr, place, "fp32_precision", old)
        if name is not None:
            stack.callback(torch.set_float32_matmul_precision, name)
        torch.set_float32_matmul_precision("highest")
