"""Digests of source code: an edit of code changes them, one of its documentation does not."""

from __future__ import annotations

import functools
import importlib
import itertools
import linecache
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mechcore.errors import InputError
from mechcore.source_code import code_digests

CODE = '''
"""About the module."""

import math

LIMIT = 3
"""Most of them."""


class Sum:
    """Adds."""

    first: int = 1
    """What it begins with."""

    def of(self, values):
        """Of these.

        Returns: the sum.
        """
        return self.first + sum(values[:LIMIT])
'''
"""A module."""

_numbers = itertools.count()


class Package:
    """An installed package, whose files tests write and edit."""

    def __init__(self, folder: Path) -> None:
        self.name = f"pack{next(_numbers)}"
        self.folder = folder / self.name

    def write(self, name: str, text: str) -> None:
        """Write a file; ``PACK`` in its text is the package's name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("PACK", self.name))
        # Two edits within the same tick of a coarse clock, of the same size, are no case of ours.
        state = path.stat()
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + next(_numbers) * 10**9))

    def module(self, name: str) -> ModuleType:
        """Import a module."""
        importlib.invalidate_caches()
        return importlib.import_module(f"{self.name}.{name}")

    def digests(self, thing: object) -> dict[str, str]:
        """Digests, by names within the package."""
        by_name = code_digests([thing])
        return {name.removeprefix(f"{self.name}."): digest for name, digest in by_name.items()}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Package(tmp_path)
    made.write("__init__.py", "")
    yield made
    for name in [key for key in sys.modules if key.partition(".")[0] == made.name]:
        del sys.modules[name]


EDITS: dict[str, tuple[str, str, bool]] = {
    "docstring of the module": ("About the module.", "Of sums.\n\nMore.", False),
    "docstring of the class": ("Adds.", "Adds numbers.", False),
    "docstring of a value": ("Most of them.", "No more are added.", False),
    "a comment": ("import math", "# A note.\nimport math  # used", False),
    "layout": ("self.first + ", "(\n self.first\n)\\\n +", False),
    "a number": ("LIMIT = 3", "LIMIT = 4", True),
    "an operator": ("self.first +", "self.first -", True),
    "a default": ("first: int = 1", "first: int = 0", True),
    "a string that is returned": ("return ", "return 'x' and ", True),
}


@pytest.mark.parametrize("edit", EDITS)
def test_code_counts_and_documentation_and_layout_do_not(package: Package, edit: str) -> None:
    package.write("sums.py", CODE)
    thing = package.module("sums").Sum()
    before = package.digests(thing)
    assert list(before) == ["sums"]
    old, new, counts = EDITS[edit]
    assert old in CODE
    package.write("sums.py", CODE.replace(old, new))
    assert (package.digests(thing) != before) is counts
    package.write("sums.py", CODE)
    assert package.digests(thing) == before


IMPORTS = {
    "at the top": ("from PACK.inner import value", "def step(): return value()"),
    "of the module": ("import PACK.inner", "def step(): return PACK.inner.value()"),
    "from its package": ("from PACK import inner", "def step(): return inner.value()"),
    "relative": ("from .inner import value", "def step(): return value()"),
    "everything": ("from PACK.inner import *", "def step(): return value()"),
    "in a function": ("", "def step():\n    from PACK.inner import value\n    return value()"),
    "in a branch": ("", "def step():\n  if True:\n    import PACK.inner\n  return 1"),
    "unless for types": (
        "from typing import TYPE_CHECKING",
        "if TYPE_CHECKING:\n  pass\nelse:\n  from PACK.inner import value\ndef step(): value()",
    ),
}


@pytest.mark.parametrize("how", IMPORTS)
def test_what_is_imported_counts_too(package: Package, how: str) -> None:
    package.write("outer.py", "\n".join(IMPORTS[how]))
    package.write("inner.py", "from PACK.innermost import N\ndef value(): return N")
    package.write("innermost.py", "N = 1")
    package.write("other.py", "N = 1")
    step = package.module("outer").step
    before = package.digests(step)
    assert set(before) - {"pack"} >= {"outer", "inner", "innermost"}
    assert "other" not in before
    package.write("innermost.py", "N = 2")
    after = package.digests(step)
    assert {name for name in after if after[name] != before[name]} == {"innermost"}
    package.write("other.py", "N = 2")
    assert package.digests(step) == after


@pytest.mark.parametrize(
    "guard",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:",
        "import typing\nif typing.TYPE_CHECKING:",
    ],
)
def test_imports_for_types_and_of_other_packages_do_not_count(
    package: Package, tmp_path: Path, guard: str
) -> None:
    """A package's version may, see `mechcore.study.step.Step.packages`."""
    other = Package(tmp_path)
    other.write("__init__.py", "N = 1")
    package.write("inner.py", "class Value: pass")
    body = f"    from PACK.inner import Value\nimport json, {other.name}\ndef step(): return 1"
    package.write("outer.py", f"{guard}\n{body}")
    assert list(package.digests(package.module("outer").step)) == ["outer"]


LAZY = """
from typing import TYPE_CHECKING
from mechcore._lazy import attach

if TYPE_CHECKING:
    from PACK.lazy.inner import value
    from PACK.lazy.unused import other
attach(__name__)
"""


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("from PACK.lazy import value\ndef step(): return value()", False),
        ("def step():\n    from .lazy import value\n    return value()", False),
        ("from PACK import lazy\ndef step(): return lazy.value()", True),
        ("import PACK.lazy as lazy\ndef step(): return lazy.value()", True),
    ],
)
def test_behind_a_lazy_package(package: Package, text: str, whole: bool) -> None:
    """A package that is used by its own name may be asked for anything that it has."""
    package.write("outer.py", text)
    package.write("lazy/__init__.py", LAZY)
    package.write("lazy/inner.py", "def value(): return 1")
    package.write("lazy/unused.py", "def other(): return 1")
    step = package.module("outer").step
    assert step() == 1
    before = package.digests(step)
    more = {"lazy", "lazy.unused"} if whole else set()
    own = {name for name in before if not name.startswith("mechcore.")}
    assert own == {"outer", "lazy.inner", *more}
    package.write("lazy/inner.py", "def value(): return 2")
    assert package.digests(step)["lazy.inner"] != before["lazy.inner"]


@pytest.mark.parametrize(
    "text",
    [
        "from mechcore.masking.means import MeanActivations",
        "from mechcore import MeanActivations",
        "import mechcore as mc",
        "def inner():\n    from mechcore import MeanActivations",
    ],
)
def test_what_a_package_uses_of_mechcore_counts(package: Package, text: str) -> None:
    package.write("outer.py", f"{text}\ndef step(): return 1")
    digests = package.digests(package.module("outer").step)
    assert {"outer", "mechcore.masking.means", "mechcore.components.mask"} <= set(digests)
    assert not {name for name in digests if name.startswith(("mechcore.study", "mechcore.errors"))}


def test_the_main_study_does_not_depend_on_how_it_is_reported() -> None:
    """But on the columns of tables, as it reads them with their types."""
    from mechcore.analyses import ANALYSES
    from mechcore.steps.masks import Means

    for step in (Means, *(ANALYSES[name] for name in ANALYSES)):
        modules = set(code_digests([step]))
        assert {"mechcore.tables", "mechcore.steps.base"} <= modules
        assert not {name for name in modules if name.startswith("mechcore.report")}, step


SHOWN = """
import PACK.page

_CAPTION = "How many"
_LIMIT = 3

class Few:
    def compute(self): return _few()
    @classmethod
    def blocks(cls): return _line(_CAPTION), PACK.page

def _few(): return _LIMIT
def _line(text): return f"{text}: {_few()}"
"""


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ('"How many"', '"How few"', False),
        ('f"{text}:', 'f"{text} -', False),
        ("return _line(_CAPTION)", "import PACK.other; return 0", False),
        ("_LIMIT = 3", "_LIMIT = 4", True),
        ("return _few()", "return _few() + 1", True),
        ("    @classmethod\n", "", True),
    ],
)
def test_what_only_shows_a_result_does_not_count(
    package: Package, before: str, after: str, counts: bool
) -> None:
    package.write("few.py", SHOWN)
    for name in ("other.py", "page.py"):
        package.write(name, "")
    kind = package.module("few").Few
    digests = package.digests(kind)
    assert before in SHOWN
    package.write("page.py", "A = 1")
    package.write("few.py", SHOWN.replace(before, after))
    assert (package.digests(kind) != digests) is counts


def in_main(text: str) -> dict[str, Any]:
    """Run text as a notebook does: its names are those of ``__main__``, its source is kept."""
    name = f"<cell {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), scope)
    return scope


FUNCTION = 'def step(x):\n    """Says."""\n    return x + 1\n'


def test_a_function_of_a_notebook_is_known_by_its_own_source() -> None:
    (name,) = before = code_digests([in_main(FUNCTION)["step"]])
    assert name == "__main__.step"
    said = FUNCTION.replace("Says.", "Says more.  # and")
    assert code_digests([in_main(said)["step"]]) == before
    moved = "import json\n\n\n" + FUNCTION + "\nstep(2)\n"
    assert code_digests([in_main(moved)["step"]]) == before
    other = FUNCTION.replace("+ 1", "+ 2")
    assert code_digests([in_main(other)["step"]]) != before


CLASS = """
from dataclasses import dataclass
from mechcore.steps.base import MainStep

@dataclass(frozen=True)
class Step(MainStep):
    size: int = 1

    def run(self, work):
        return self.size

class Other:
    def run(self, work):
        return 7
"""


def test_a_class_of_a_notebook_is_known_by_its_own_source_and_its_bases() -> None:
    before = code_digests([in_main(CLASS)["Step"]()])
    assert {"__main__.Step", "mechcore.steps.base", "mechcore.masking.means"} <= set(before)
    assert not any("Other" in name for name in before)
    changed = set()
    for old, new in (("self.size", "self.size + 1"), ("int = 1", "int = 2"), ("frozen=True", "")):
        (after,) = [code_digests([in_main(CLASS.replace(old, new))["Step"]()])]
        assert {name for name in after if after[name] != before[name]} == {"__main__.Step"}
        changed.add(after["__main__.Step"])
    assert len(changed) == 3
    elsewhere = "import json\n" + CLASS.replace("return 7", "return 8")
    assert code_digests([in_main(elsewhere)["Step"]()]) == before


def test_a_base_class_of_another_module_counts(package: Package) -> None:
    """Also one that reaches a class without an import in its module."""
    package.write("base.py", "class Base: pass")
    scope = in_main("class Step:\n    def run(self): return 1\n")
    base = package.module("base").Base
    step = type("Step", (scope["Step"], base), {"__module__": base.__module__})
    assert {"__main__.Step", "base"} <= set(package.digests(step))


@pytest.mark.parametrize("text", ["def step(x): return x", "class step: pass"])
def test_what_has_no_source_is_refused(text: str) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(text, scope)
    with pytest.raises(InputError, match=r"step.*source cannot be read.*notebook cell"):
        code_digests([scope["step"]])
    with pytest.raises(InputError, match=r"join.*source cannot be read"):
        code_digests(["x".join])


@pytest.mark.parametrize("thing", [torch.zeros_like, torch.relu, np.mean, np.add, len])
def test_packages_whose_version_counts_are_not_read(thing: object) -> None:
    assert code_digests([thing]) == {}


def test_a_function_with_arguments_is_that_function_and_they(package: Package) -> None:
    package.write("sums.py", "def add(x, y): return x + y")
    add = package.module("sums").add
    one, two = (package.digests(functools.partial(add, y=y)) for y in (1, 2))
    assert package.digests(functools.partial(add, y=1)) == one
    assert one != two
    assert one["sums"] == two["sums"] == package.digests(add)["sums"]
