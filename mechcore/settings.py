"""Settings, each written once: a field of a frozen dataclass, described by `setting`."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mechcore.errors import InputError, shown

S = TypeVar("S")

_LARGEST = {int: 2**31 - 1, float: 1e6}
"""Upper limits of numbers with a lower one only."""


@dataclass(frozen=True)
class Setting:
    """What describes a setting besides its name, type and default.

    Attributes:
        help: its description, for every place that shows it.
        option: its command-line option; ``{group}`` is the name of the settings that contain it.
            Settings with the same option are set together.
        least, above: minimum, also of each value of a list, or exclusive minimum.
        most, below: maximum, or exclusive maximum.
        distinct: a list with at least one value and no duplicates.
        place: the text names a file, folder or the like.
        all: None takes all, written 0 on the command line.
        example: a value in a file's notation, if the default shows too little.
        panel: the panel of the command's help, instead of that of its class.
        rare: the option is shown by ``--help-all`` alone.
    """

    help: str
    option: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    distinct: bool = False
    place: bool = False
    all: bool = False
    example: str = ""
    panel: str = ""
    rare: bool = False

    def limits(self, kind: type) -> list[tuple[str, float, Any]]:
        """Each limit of numbers: words, value and comparison; NaN meets none."""
        low = [("of at least", self.least, operator.ge), ("above", self.above, operator.gt)]
        high = [("at most", self.most, operator.le), ("below", self.below, operator.lt)]
        given = [(word, limit, meets) for word, limit, meets in (*low, *high) if limit is not None]
        if given and self.most is None and self.below is None:
            given.append(("at most", _LARGEST[kind], operator.le))
        return given

    def range(self, kind: type) -> str:
        """The range of numbers in words; empty if there is none."""
        words = " and ".join(f"{word} {limit:.10g}" for word, limit, _ in self.limits(kind))
        return re.sub("of at least (.*) and at most", r"from \1 to", words)


def setting(default: Any, help: str, option: str = "", **more: Any) -> Any:
    """A field of a class of settings, see `Setting`; required ones have `dataclasses.MISSING`."""
    metadata = {DESCRIBED: Setting(help, option, **more)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


DESCRIBED = "mechcore"

OF_STUDY = "mechcore-of-study"
"""Metadata key of a field that takes the study's value and is not a setting of its own."""


@dataclass(frozen=True)
class Presets(Generic[S]):
    """Named settings of one class; ``changed`` derives further changes from given ones."""

    what: str
    named: Mapping[str, S]
    default: str
    option: str
    preset_option: str = "--preset"
    changed: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda changes: changes)

    def make(self, preset: str | S, **changes: Any) -> S:
        """A preset, or other settings, with changes; raises `InputError` if they are invalid."""
        if isinstance(preset, str):
            if preset not in self.named:
                raise InputError(
                    f"{self.what}: unknown preset {preset!r}; expected {' or '.join(self.named)}"
                )
            preset = self.named[preset]
        known = entries(type(preset))
        if unknown := [name for name in changes if name not in known]:
            raise InputError(
                f"{self.what}: unknown setting {unknown[0]!r}; expected {', '.join(known)}"
            )
        return replace(preset, **self.changed(changes))  # type: ignore[type-var]

    def read(self, value: Any) -> S | None:
        """Settings from a file: a preset's name, or changes to a preset; None stays None."""
        if value is None or isinstance(value, type(self.named[self.default])):
            return value
        if isinstance(value, str):
            return self.make(value)
        if not isinstance(value, Mapping):
            raise InputError(f"found {value!r}; expected a preset's name, or settings by name")
        preset = value.get("preset", self.default)
        if not isinstance(preset, str):
            raise InputError(f"preset is {preset!r}; expected a name")
        return self.make(preset, **{k: v for k, v in value.items() if k != "preset"})


@dataclass(frozen=True)
class Entry:
    """A setting in its class; a default of `dataclasses.MISSING` means that it is required."""

    name: str
    type: Any
    default: Any
    setting: Setting

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """Its possible types, without None."""
        if get_origin(self.type) not in (Union, types.UnionType):
            return (self.type,)
        return tuple(kind for kind in get_args(self.type) if kind is not type(None))

    @cached_property
    def group(self) -> Any:
        """The class of the settings it contains; None for a single value."""
        return next((t for t in self.choices if is_dataclass(t)), None)

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return type(None) in get_args(self.type)

    def check(self, what: str, value: Any, none: str = "none") -> None:
        """Raise `InputError` for an invalid value of ``what``; ``none`` says how to write None."""
        if value is None and self.optional:
            return
        expected = [_problem(kind, value, self.setting) for kind in self.choices]
        if "" not in expected:
            said = " or ".join(dict.fromkeys(expected))
            said += f", or {none}" if self.optional and none else ""
            written = [*value] if isinstance(value, tuple) else value
            raise InputError(f"{what} is {shown(repr(written))}; expected {said}")


def _problem(kind: Any, value: Any, setting: Setting) -> str:
    """What was expected of an invalid value; empty for a valid one."""
    origin = get_origin(kind)
    if origin is Literal:
        choices = get_args(kind)
        return "" if value in choices else " or ".join(map(repr, choices))
    if kind is bool:
        return "" if isinstance(value, bool) else "True or False"
    if kind in (int, float):
        words = "a whole number" if kind is int else "a number"
        holds = isinstance(value, int if kind is int else (int, float))
        holds = holds and not isinstance(value, bool)
        holds = holds and all(meets(value, limit) for _, limit, meets in setting.limits(kind))
        return "" if holds else f"{words} {setting.range(kind)}".strip()
    if kind is str:
        holds = isinstance(value, str)
        if setting.place:
            holds = holds and value.strip() and all(ord(character) >= 32 for character in value)
        return "" if holds else "text" + " without control characters" * setting.place
    if origin is tuple:
        return _list_problem(get_args(kind)[0], value, setting)
    return ""


def _list_problem(kind: Any, value: Any, setting: Setting) -> str:
    if not isinstance(value, (tuple, list)):
        return "a list"
    repeats = setting.distinct and (not value or len(set(value)) < len(value))
    if not repeats and not any(_problem(kind, item, setting) for item in value):
        return ""
    if get_origin(kind) is Literal and setting.distinct:
        return f"some of {', '.join(get_args(kind))}, each once"
    listed = "different values, at least one" if setting.distinct else "a list of values"
    return f"{listed}, each {_problem(kind, None, setting)}"


def _entries(kind: Any) -> Mapping[str, Entry]:
    hints = get_type_hints(kind)
    known = {}
    for own in fields(kind):
        if OF_STUDY not in own.metadata:
            default = own.default if own.default_factory is MISSING else own.default_factory()
            described = own.metadata.get(DESCRIBED, Setting(""))
            known[own.name] = Entry(own.name, hints[own.name], default, described)
    return known


entries: Callable[[Any], Mapping[str, Entry]] = cache(_entries)
"""The settings of a class by name, in order."""


def check(settings: Any, what: str) -> None:
    """Raise `InputError` for an invalid value; ``what`` says what the settings describe."""
    for entry in entries(type(settings)).values():
        entry.check(f"{what}: {entry.name}", getattr(settings, entry.name))


def with_values(settings: S, values: Mapping[str, Any]) -> S:
    """The settings with changed values, by dotted name; raises `InputError` if one is invalid."""
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    presets: Presets[S] | None = getattr(settings, "presets", None)
    if presets is not None:
        changes |= values
        return presets.make(changes.pop("preset", settings), **changes)
    for name, value in values.items():
        first, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(first, {})[rest] = value
        else:
            changes[first] = value
    for name, further in inner.items():
        group = getattr(settings, name)
        if group is None:
            raise InputError(
                f"{name}: {next(iter(further))} is set, but {name} is left out ({name}: null); "
                "leave out both or neither"
            )
        changes[name] = with_values(group, further)
    return replace(settings, **changes) if changes else settings  # type: ignore[type-var]


def changed(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Dotted names of the settings in which two instances of a class differ."""
    for name, entry in entries(type(before)).items():
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if entry.group is not None and isinstance(old, entry.group) and type(old) is type(new):
            yield from changed(old, new, f"{place}{name}.")
        else:
            yield f"{place}{name}"


def origins(*stages: tuple[str, Any]) -> dict[str, str]:
    """Where each setting that is not a default came from.

    ``stages`` are successive settings of one class, each with the origin of its changes.
    """
    known: dict[str, str] = {}
    for (_, before), (origin, after) in pairwise(stages):
        for name in changed(before, after):
            known = {n: o for n, o in known.items() if not n.startswith(f"{name}.")}
            known[name] = origin
    return known
