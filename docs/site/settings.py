"""The reference of settings, from the classes that declare them."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from mechcore.settings import Entry, entries
from mechcore.study.kinds import STUDIES
from mechcore.study.template import in_yaml
from mechcore.training.settings import TrainSettings

PLACE = "<!-- settings -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of all settings in their place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """One section per kind of study, with a table for each group of settings."""
    sections = []
    for kind in STUDIES.names():
        settings = STUDIES[kind].settings
        sections.append(f"## {kind}\n\n" + "\n".join(_tables(settings, "")))
    described = "## Training\n\nSettings of `mechcore train`, and of `training` in a study.\n"
    return "\n".join([*sections, described, _table(TrainSettings)])


def _tables(kind: Any, place: str) -> Iterator[str]:
    yield _table(kind)
    for entry in entries(kind).values():
        if entry.group not in (None, TrainSettings) and "prune" not in place + entry.name[:0]:
            yield f"### {place}{entry.name}\n\n{entry.setting.help}\n"
            yield from _tables(entry.group, f"{place}{entry.name}.")


def _table(kind: Any) -> str:
    lines = ["| setting | type | default | option | meaning |", "|---|---|---|---|---|"]
    group = getattr(kind, "__name__", "")
    assert group
    for entry in entries(kind).values():
        cells = [f"`{entry.name}`", _type(entry.type), _default(entry), _option(entry)]
        lines.append(f"| {' | '.join([*cells, _meaning(entry)])} |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    if get_origin(hint) is not None and hasattr(get_origin(hint), "keys"):
        return f"{_type(get_args(hint)[1])} by name"
    if get_args(hint):
        return " or ".join(_type(each) for each in get_args(hint) if each is not NoneType)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(hint) or ("anything" if hint is Any else "settings")


def _default(entry: Entry) -> str:
    if entry.group is not None and entry.default is not None:
        return "see below"
    return f"`{in_yaml(entry.default)}`"


def _option(entry: Entry) -> str:
    options = entry.setting.option.replace("{group}", "GROUP").split()
    return ", ".join(f"`{each}`" for each in options)


def _meaning(entry: Entry) -> str:
    example = f" Such as `{entry.setting.example}`." if entry.setting.example else ""
    numbers = [kind for kind in entry.choices if kind in (int, float)]
    limits = f" {entry.setting.range(numbers[0])}." if numbers and entry.setting.limited else ""
    return (entry.setting.help + limits.capitalize() + example).replace("|", "\\|")
