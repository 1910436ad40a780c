"""The reference of settings, from the classes that declare them."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from mechcore.settings import Entry, entries
from mechcore.study.kinds import STUDIES, in_yaml

PLACE = "*Pages built by `mkdocs serve` list the settings here.*"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of all settings in their place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One section per kind of study, with a table for each group of settings."""
    sections = []
    for kind in STUDIES.names():
        tables = "\n".join(_tables(STUDIES[kind].settings(), "", {}))
        sections.append(f"## {kind}\n\n{tables}")
    return "\n".join(sections)


def _tables(settings: Any, place: str, shown: dict[Any, str]) -> Iterator[str]:
    """The table of a class of settings, and those of its groups, each class once."""
    kind = settings if isinstance(settings, type) else type(settings)
    shown[kind] = place
    yield _table(settings, kind, place.startswith("analyses.") and place != "analyses.")
    for name, entry in entries(kind).items():
        if entry.group is None:
            continue
        yield f"### {place}{name}\n\n{entry.setting.help}\n"
        value = None if settings is kind else getattr(settings, name)
        if entry.group in shown:
            yield f"The same settings as of `{shown[entry.group].rstrip('.')}`.\n"
        else:
            yield from _tables(value or entry.group, f"{place}{name}.", shown)


def _table(settings: Any, kind: Any, of_analysis: bool) -> str:
    lines = ["| setting | type | default | option | meaning |", "|---|---|---|---|---|"]
    for name, entry in entries(kind).items():
        value = entry.default if settings is kind else getattr(settings, name)
        default = "see below" if entry.group and value is not None else f"`{in_yaml(value)}`"
        option = _option(entry, of_analysis)
        cells = [f"`{name}`", _type(entry.type), default, option, _meaning(entry)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    if get_origin(hint) is not None and hasattr(get_origin(hint), "keys"):
        return f"{_type(get_args(hint)[1])} by name"
    if get_args(hint):
        return " or ".join(_type(kind) for kind in get_args(hint) if kind is not NoneType)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(hint) or ("anything" if hint is Any else "settings")


def _option(entry: Entry, of_analysis: bool) -> str:
    """Its options; the commands of analyses have one for each of their settings."""
    own = f"--{entry.name.replace('_', '-')}" if of_analysis else ""
    options = (entry.setting.option or own).replace("{group}", "GROUP").split()
    return ", ".join(f"`{option}`" for option in options)


def _meaning(entry: Entry) -> str:
    example = f" Such as `{entry.setting.example}`." if entry.setting.example else ""
    numbers = [kind for kind in entry.choices if kind in (int, float)]
    limits = ""
    if numbers and entry.setting.range(numbers[0]):
        limits = f" Expected {entry.setting.range(numbers[0])}."
    return (entry.setting.help + limits + example).replace("|", "\\|")
