"""Packages whose names, the imports of their ``TYPE_CHECKING`` block, are imported on first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def attach(package: str) -> None:
    """Make the package being imported load its names and submodules on first access."""
    module: Any = sys.modules[package]
    homes = {
        name.name: statement.module
        for block in ast.parse(module.__loader__.get_source(package)).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    module._homes = {name: home for name, home in homes.items() if home != package}
    module.__all__ = sorted(homes)
    module.__class__ = _LazyPackage


class _LazyPackage(ModuleType):
    """A package with ``_homes``, the module of each name except its own submodules."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(import_module(self._homes[name]), name)
            setattr(self, name, value)
            return value
        submodule = f"{self.__name__}.{name}"
        try:
            if not name.startswith("_"):
                return import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name != submodule:
                raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets every imported submodule here, even over a function of the same name.
        if isinstance(value, ModuleType) and value.__name__ == self._homes.get(name):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})
