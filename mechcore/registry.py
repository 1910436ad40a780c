"""Registries by name: mechcore's own objects, those of installed packages, those added in code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Generic, TypeVar

from mechcore.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind by name, each imported on first use.

    Packages add to it by entry points in its ``group``, notebooks and scripts with `register`.
    ``own`` are mechcore's, as ``"module:attribute"`` by name; those of ``base`` are included.
    """

    def __init__(
        self,
        what: str,
        group: str,
        own: Mapping[str, str] | None = None,
        base: Registry[T] | None = None,
    ) -> None:
        self.what, self.group, self.base = what, group, base
        self._added: dict[str, T] = {}
        self._imported: dict[str, T] = {}
        self._points: dict[str, EntryPoint] | None = None
        self._own = {name: EntryPoint(name, at, group) for name, at in (own or {}).items()}

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated object; raises `InputError` if an installed one has the name."""

        def add(thing: T) -> T:
            if name in self and name not in self._added:
                raise InputError(
                    f"{self.what} {name!r}: is already registered; choose another name"
                )
            self._added[name] = thing
            return thing

        return add

    def names(self) -> list[str]:
        """All names: mechcore's own, then those of packages, then those added in code."""
        return [*(self.base or ()), *self._entries(), *self._added]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        """The object of that name; raises `InputError` if it is unknown or cannot be imported."""
        if name in self._added:
            return self._added[name]
        if self.base is not None and name in self.base:
            return self.base[name]
        if name not in self._entries():
            raise self._unknown(name)
        if name not in self._imported:
            place = self._entries()[name].value
            try:
                self._imported[name] = resolve_name(place)
            except (ImportError, AttributeError) as error:
                raise InputError(
                    f"{self.what} {name!r}: {place} cannot be imported ({error}); reinstall the "
                    "package that provides it, or remove it"
                ) from error
        return self._imported[name]

    def remove(self, name: str) -> None:
        """Remove an object that was added in code; raises `InputError` if there is none."""
        if name not in self._added:
            raise self._unknown(name)
        del self._added[name]

    def _entries(self) -> dict[str, EntryPoint]:
        if self._points is None:
            points = dict(self._own)
            for point in sorted(entry_points(group=self.group), key=lambda offered: offered.name):
                taken = points.setdefault(point.name, point)
                if taken.value != point.value:
                    raise InputError(
                        f"{self.what} {point.name!r}: {taken.value} and {point.value} have the "
                        "same name; uninstall one of the packages"
                    )
            self._points = points
        return self._points

    def _unknown(self, name: str) -> InputError:
        near = get_close_matches(str(name), self.names(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(self.names()) or "none"
        return InputError(
            f"{self.what} {name!r}: unknown{hint}; expected one of {known}, or one from the "
            f"entry point group {self.group}"
        )
