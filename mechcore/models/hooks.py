"""The state in which a model is measured, and hooks limited to its own runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any, TypeAlias

from mechcore.errors import MechcoreError

Hook: TypeAlias = Callable[..., Any]

_SLOW_BRIDGES = version("transformer-lens").startswith("3.")
"""Whether ``hooks`` of a bridge lists all hook points again for each name, 2 ms for 6 layers."""


@contextmanager
def evaluating(model: Any, *, training: bool = False) -> Iterator[None]:
    """Run a block in evaluation mode (or ``training``), then restore the mode of every module."""
    parts = (model, getattr(model, "original_model", model))  # a bridge does not list what it wraps
    others = [m for part in parts for m in part.modules() if m.training != training]
    for module in others:
        module.training = training
    try:
        yield
    finally:
        for module in others:
            module.training = not training


@contextmanager
def hooked(
    model: Any, hooks: Sequence[tuple[str, Hook]], elsewhere: str | None = None
) -> Iterator[None]:
    """Add forward hooks that apply only to runs of this model in this thread.

    A deep copy of the model keeps its hooks, and other threads run the same hook points: in these
    runs the hooks do nothing, or raise an error with the message ``elsewhere``.
    """
    points = model.hook_dict
    own = [(name, *_own(points[name], hook, elsewhere)) for name, hook in hooks]
    level = id(own)
    with ExitStack() as stack:
        for name, note, _ in own:
            stack.callback(points[name].register_forward_pre_hook(note).remove)
        if _SLOW_BRIDGES and hasattr(model, "original_model"):
            for name, _, at in own:
                model.check_hooks_to_add(name)
                stack.callback(points[name].remove_hooks, level=level)
                points[name].add_hook(at, level=level)
        else:
            stack.enter_context(model.hooks(fwd_hooks=[(name, at) for name, _, at in own]))
        yield


def _own(point: Any, act: Hook, elsewhere: str | None) -> tuple[Hook, Hook]:
    """A hook before a hook point that notes the running module, and one that checks it."""
    thread, running = threading.get_ident(), threading.local()

    def note(module: Any, _: Any) -> None:
        running.module = module  # in a copy, TransformerLens passes hooks the original point

    def at(value: Any, hook: Any) -> Any:
        if running.module is not point:
            return None
        if threading.get_ident() != thread:
            if elsewhere is not None:
                raise MechcoreError(elsewhere)
            return None
        return act(value, hook=hook)

    return note, at
