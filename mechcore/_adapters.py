"""TransformerLens has mechcore's adapters once both are imported, in either order.

It looks an architecture up in a table of its own before it asks what other packages offer, and
would otherwise read a classifier as a language model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_LENS, _ADAPTERS = "transformer_lens", "mechcore.models.architectures.adapters"


def register_with_lens() -> None:
    """Register the adapters with TransformerLens, now or when it is imported."""
    if _LENS in sys.modules:
        import_module(_ADAPTERS)
    else:
        sys.meta_path.insert(0, _Lens())


class _Lens:
    """Finds TransformerLens as others do, so as to be told when its import is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _LENS:
            return None
        others = [each for each in sys.meta_path if each is not self]
        spec = next(filter(None, (each.find_spec(fullname, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                import_module(_ADAPTERS)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
