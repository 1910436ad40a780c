"""Options of the command line, made from classes of settings; only given ones have a value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import typer

from mechcore.errors import InputError
from mechcore.settings import Entry, Presets, Setting, entries, with_values

S = TypeVar("S")

_ALL = "help_all"
_PRESET, _MORE = "preset", "*"
"""For settings with presets: names of the preset and of changes without their own options."""


@dataclass(frozen=True)
class From:
    """The options of a command, by dotted names of settings or of their groups; by default all.

    Those named, and those of the group ``every``, have options even if their class gives none.
    """

    kind: Any
    names: Sequence[str] = ()
    without: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    every: str | None = None

    def options(self) -> list[_Option]:
        """The options, with the settings that each one sets."""
        options: dict[str, _Option] = {}
        base = None if hasattr(self.kind, "presets") else self.kind()
        of_class = getattr(self.kind, "panel", None)
        for name, entry, value, panel in _settings(self.kind, base, of_class):
            place, _, last = name.rpartition(".")
            flags = entry.setting.option.format(group=place.rpartition(".")[2].replace("_", "-"))
            alone = name in self.names and entry.group is None
            if not flags and (alone or place == self.every):
                flags = f"--{last.replace('_', '-')}"
            if not flags or not self._wanted(name):
                continue
            default = self.defaults.get(name, value)
            known = options.setdefault(flags, _Option((), flags.split(), entry, default, panel))
            options[flags] = replace(known, names=(*known.names, name))
        return list(options.values())

    def _wanted(self, name: str) -> bool:
        def within(places: Sequence[str]) -> bool:
            return any(name == place or name.startswith(f"{place}.") for place in places)

        return (not self.names or within(self.names)) and not within(self.without)


def _settings(
    kind: Any, of: Any, panel: str | None, place: str = ""
) -> Iterator[tuple[str, Entry, Any, str | None]]:
    """Settings by dotted name, with values in ``of`` and panels; presets and changes first."""
    presets: Presets[Any] | None = getattr(kind, "presets", None)
    if presets is not None:
        of, named = None, Literal.__getitem__(tuple(presets.named))
        first = Setting(f"Preset of {presets.what}.", presets.preset_option)
        first_entry = Entry(_PRESET, named, presets.default, first)
        yield f"{place}{_PRESET}", first_entry, presets.default, panel
        more = Setting(
            f"Further settings of {presets.what}: comma-separated NAME=VALUE.", presets.option
        )
        yield f"{place}{_MORE}", Entry(_MORE, Mapping[str, str], {}, more), None, panel
    for name, entry in entries(kind).items():
        value = getattr(of, name, None)
        own = entry.setting.panel or getattr(entry.group, "panel", panel)
        yield f"{place}{name}", entry, value, own
        if entry.group is not None:
            yield from _settings(entry.group, value, own, f"{place}{name}.")


@dataclass(frozen=True)
class _Option:
    names: tuple[str, ...]
    flags: Sequence[str]
    entry: Entry
    default: Any
    panel: str | None

    @property
    def type(self) -> Any:
        """The type to which typer converts the text."""
        simple = (bool, int, float, Path)
        kinds = self.entry.choices
        return next((k for k in kinds if k in simple or get_origin(k) is Literal), str)

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter of a typer command."""
        flags = self.flags
        if self.type is bool:
            flags = [f"{flag}/--no-{flag[2:]}" for flag in flags]
        option = typer.Option(
            *flags,
            help=self._help(),
            show_default=False,
            metavar=self._metavar(),
            hidden=self.entry.setting.rare,
            rich_help_panel=self.panel,
        )
        return _parameter(name, None, self.type | None, option)

    def _metavar(self) -> str | None:
        """The notation of lists; typer provides that of single values."""
        if self.type is not str or str in self.entry.choices:
            return None
        origins = [get_origin(kind) for kind in self.entry.choices]
        return "A,B,..." if tuple in origins else "NAME=VALUE,..."

    def _help(self) -> str:
        default, text = self.default, self.entry.setting.help
        if self.entry.setting.all:
            text = f"{text.removesuffix('.')}; 0: all."
            default = default or 0
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        shown = not isinstance(default, (bool, Mapping)) and default not in (None, "")
        return rf"{text} \[default: {default}]" if shown else text

    def value(self, given: Any) -> Any:
        """The setting's value from typer's; raises `InputError` if it is invalid."""
        option, entry = self.flags[0], self.entry
        if self.type is str and str not in entry.choices:
            given = _from_text(entry, option, given)
        if entry.setting.all and given == 0:
            return None
        entry.check(option, given, none="0 for all" if entry.setting.all else "")
        return given


def _from_text(entry: Entry, option: str, text: str) -> Any:
    kind = next((kind for kind in entry.choices if get_origin(kind) is tuple), None)
    if kind is None:
        return _pairs(option, text) or (None if entry.optional else {})
    item = get_args(kind)[0]
    if item not in (int, float):
        return tuple(split(text)) or (None if entry.optional else ())
    try:
        return tuple(map(item, split(text)))
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected numbers separated by commas") from error


def _pairs(option: str, text: str) -> dict[str, str]:
    """NAME=VALUE pairs of a comma-separated option; a space before a value is part of it."""
    pairs: dict[str, str] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            raise InputError(f"{option} {text!r}: expected NAME=VALUE pairs separated by commas")
        if name in pairs:
            raise InputError(f"{option} {text!r}: {name} occurs twice; leave one of them out")
        pairs[name] = value
    return pairs


@dataclass(frozen=True)
class Given(Generic[S]):
    """The settings of a class given on the command line, by dotted name."""

    made: From
    values: Mapping[str, Any]

    def over(self, base: S) -> S:
        """``base`` with the settings of the command line; `InputError` if they contradict."""
        return with_values(base, self.values)

    @property
    def settings(self) -> S:
        """The command's defaults with the settings of the command line, see `over`."""
        presets: Presets[S] | None = getattr(self.made.kind, "presets", None)
        if presets is not None:
            return self.over(presets.named[presets.default])
        return self.over(with_values(self.made.kind(), self.made.defaults))


def _given(made: From, texts: Sequence[tuple[_Option, Any]]) -> Given[Any]:
    given = [(option, option.value(text)) for option, text in texts if text is not None]
    values: dict[str, Any] = {name: value for option, value in given for name in option.names}
    for place in [name.removesuffix(_MORE) for name in values if name.endswith(_MORE)]:
        for name, text in values.pop(f"{place}{_MORE}").items():
            if f"{place}{name}" in values:
                flags = next(o.flags for o, _ in given if f"{place}{_MORE}" in o.names)
                raise InputError(
                    f"{flags[0]}: {name} also has its own option here; leave one of them out"
                )
            values[f"{place}{name}"] = _plain(text)
    return Given(made, values)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        context.get_help()
        raise typer.Exit()


def _parameter(name: str, default: Any, kind: Any, option: Any) -> inspect.Parameter:
    hint = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a typer command so that parameters of settings, or `From`, become options."""
    groups: dict[str, tuple[From, bool, dict[str, _Option]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        hint = parameter.annotation
        made = next((note for note in get_args(hint)[1:] if isinstance(note, From)), None)
        if made is None and not is_dataclass(hint):
            parameters.append(parameter)
            continue
        known = made or From(hint, every="")
        options = {f"{name}_{n}": option for n, option in enumerate(known.options())}
        parameters += [option.parameter(key) for key, option in options.items()]
        groups[name] = (known, made is None, options)
    if any(getattr(note, "hidden", False) for p in parameters for note in get_args(p.annotation)):
        text = "Show all options, including rarely used ones, and exit."
        shown = typer.Option("--help-all", callback=_show_all, is_eager=True, help=text)
        parameters.append(_parameter(_ALL, False, bool, shown))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        values.pop(_ALL, None)  # if given, the command has already ended
        for name, (made, whole, options) in groups.items():
            texts = [(option, values.pop(key)) for key, option in options.items()]
            given = _given(made, texts)
            values[name] = given.settings if whole else given
        command(**values)

    as_options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(as_options)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in as_options}
    return run


def split(text: str | None) -> list[str]:
    """Parts of a comma-separated option."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _plain(text: str) -> int | float | str | bool | None:
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    for read in (int, float, words.__getitem__):
        with suppress(ValueError, KeyError):
            return read(text.strip().lower())
    return text.strip()
