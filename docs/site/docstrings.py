"""Docstrings as the reference shows them: names become links, examples become code.

`mechcore.x.y` in single backticks has to exist, or the strict build fails; a name alone is taken
where the docstring's own module knows it. Both become links where the reference has what they name.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import griffe

from mechcore.settings import DESCRIBED, entries

_NAME = re.compile(r"(?<![`\w\]])`(?P<name>[A-Za-z_]\w*(?:\.\w+)*)`(?![`\]])")


_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)
_DOCTEST_OPTION = re.compile(r" *# doctest: .*")


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit every object of the package."""
        self._visit(pkg)

    def _visit(self, member: griffe.Object) -> None:
        if member.docstring is not None:
            if isinstance(member, griffe.Class) and "dataclass" in member.labels:
                member.docstring.value = with_settings(member.docstring.value, member.path)
            member.docstring.value = fenced(linked(member.docstring.value, member))
        for part in member.members.values():
            if isinstance(part, griffe.Object):
                self._visit(part)


def with_settings(text: str, path: str) -> str:
    """The docstring of a class with what the fields of its settings say, as its attributes."""
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name, None)
    if not is_dataclass(kind) or not any(DESCRIBED in field.metadata for field in fields(kind)):
        return text
    lines = [f"    {name}: {entry.setting.help}" for name, entry in entries(kind).items()]
    return "\n".join([text, "", "Attributes:", *lines])


def fenced(text: str) -> str:
    """A docstring whose examples (``>>>`` up to an empty line) are blocks of code."""

    def replace(match: re.Match[str]) -> str:
        code = _DOCTEST_OPTION.sub("", match[0])
        return f"{match['indent']}```pycon\n{code}\n{match['indent']}```"

    return _EXAMPLE.sub(replace, text)


def linked(text: str, scope: griffe.Object) -> str:
    """A docstring with links for names in single backticks."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name.startswith("mechcore."):
            if not _exists(name, scope):
                return f"[`{name}`][{name}]"  # leads nowhere, which the strict build says
            path: str | None = name
        else:
            path = _resolve(name, scope)
        if path is None or not path.startswith("mechcore."):
            return match[0]
        return f'<autoref identifier="{path}" optional><code>{name}</code></autoref>'

    return _NAME.sub(replace, text)


def _exists(path: str, scope: griffe.Object) -> bool:
    try:
        scope.modules_collection[path]
    except KeyError:
        return False
    return True


def _resolve(name: str, scope: griffe.Object) -> str | None:
    first, *rest = name.split(".")
    try:
        return ".".join([scope.resolve(first), *rest])
    except griffe.NameResolutionError:
        member = scope.members.get(first)
        return None if member is None else ".".join([member.path, *rest])
