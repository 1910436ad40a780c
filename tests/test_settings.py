"""Settings: what a field says is what is checked, shown and changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal

import pytest

from mechcore.errors import InputError
from mechcore.settings import (
    Presets,
    changed,
    check,
    entries,
    origins,
    setting,
    with_values,
)


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "A rate.", above=0, below=1)
    steps: int | None = setting(None, "Some steps.", least=1)

    presets: ClassVar[Presets[Inner]]

    def __post_init__(self) -> None:
        check(self, "inner")


Inner.presets = Presets("inner", {"slow": Inner(0.1), "quick": Inner(0.9, 3)}, "slow", "--more")


@dataclass(frozen=True)
class Plain:
    size: int = setting(2, "A size.", "--size", least=0, most=9)


@dataclass(frozen=True)
class Outer:
    name: str = setting(MISSING, "A name.", place=True)
    kind: Literal["a", "b"] | None = setting("a", "A kind.")
    flags: tuple[Literal["x", "y"], ...] = setting(("x",), "Flags.", distinct=True)
    seeds: tuple[int, ...] = setting((1, 2), "Seeds.", least=0, distinct=True)
    pair: tuple[float, ...] = setting((0.0, 1.0), "A pair.", least=0)
    loose: float = setting(0.0, "Any number.")
    on: bool = setting(False, "Whether.")
    names: Mapping[str, str] = setting({}, "Names.")
    inner: Inner = setting(Inner(), "With presets.")
    plain: Plain | None = setting(Plain(), "Or left out.")

    def __post_init__(self) -> None:
        check(self, "outer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "outer: name is ''; expected text without control characters"),
        ({"name": "a\0"}, "without control characters"),
        ({"name": 3}, "outer: name is 3; expected text"),
        ({"kind": "c"}, "kind is 'c'; expected 'a' or 'b', or none"),
        ({"flags": ()}, r"flags is \[\]; expected some of x, y, each once"),
        ({"flags": ("x", "x")}, "expected some of x, y, each once"),
        ({"seeds": (1, 1)}, "expected different values, at least one, each a whole number from 0"),
        ({"seeds": (1, -1)}, r"seeds is \[1, -1\]; expected different values"),
        ({"seeds": (1, True)}, r"seeds is \[1, True\]"),
        ({"seeds": 1}, "seeds is 1; expected a list"),
        ({"pair": (0.0, -1.0)}, "each a number from 0 to 1000000"),
        ({"loose": "1"}, "loose is '1'; expected a number$"),
        ({"on": 1}, "on is 1; expected True or False"),
    ],
)
def test_values_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Outer(**{"name": "n", **changes})


@pytest.mark.parametrize("value", [0, 1, 1.5, -1, math.nan, math.inf, True, "0.5", None])
def test_open_ends_are_outside(value: Any) -> None:
    with pytest.raises(InputError, match=r"rate is .*; expected a number above 0 and below 1$"):
        Inner(value)


@pytest.mark.parametrize("value", [0, 2**31, 1.0, True])
def test_counts_are_whole_and_not_too_large(value: Any) -> None:
    with pytest.raises(InputError, match=r"expected a whole number from 1 to 2147483647, or none$"):
        Inner(steps=value)
    assert Inner(steps=2**31 - 1).steps == 2**31 - 1


def test_what_the_fields_say() -> None:
    fields = entries(Outer)
    assert [*fields] == [
        *("name", "kind", "flags", "seeds", "pair", "loose", "on", "names", "inner", "plain")
    ]
    assert fields["name"].default is MISSING
    assert (fields["kind"].optional, fields["on"].optional) == (True, False)
    groups = [fields[name].group for name in ("inner", "plain", "names")]
    assert groups == [Inner, Plain, None]
    assert entries(Plain)["size"].setting.option == "--size"
    assert Outer("a").names is not Outer("b").names


def test_values_by_their_names() -> None:
    first = Outer("n")
    second = with_values(first, {"kind": None, "inner.rate": 0.2, "plain.size": 4})
    assert second == Outer("n", None, inner=Inner(0.2), plain=Plain(4))
    preset = with_values(first, {"inner.preset": "quick", "inner.rate": 0.2})
    assert preset.inner == Inner(0.2, 3)
    assert with_values(first, {}) is first
    with pytest.raises(InputError, match="inner: unknown setting 'size'; expected rate, steps"):
        with_values(first, {"inner.size": 1})
    with pytest.raises(InputError, match=r"plain: size is set, but plain is left out"):
        with_values(Outer("n", plain=None), {"plain.size": 1})


def test_presets_are_read_by_name_or_with_changes() -> None:
    read = Inner.presets.read
    assert read(None) is None
    assert read("quick") == Inner(0.9, 3)
    assert read({"steps": 7}) == Inner(0.1, 7)
    assert read({"preset": "quick", "rate": 0.2}) == Inner(0.2, 3)
    for value, message in ((5, "found 5; expected a preset's name"), ("x", "unknown preset 'x'")):
        with pytest.raises(InputError, match=message):
            read(value)


def test_where_settings_came_from() -> None:
    default, file = Outer("n"), Outer("n", "b", plain=None, inner=Inner(0.2, 5))
    used = Outer("n", "a", plain=Plain(3), inner=Inner(0.2, 6))
    assert [*changed(default, file)] == ["kind", "inner.rate", "inner.steps", "plain"]
    assert origins(("", default), ("file", file), ("options", used)) == {
        "kind": "options",
        "inner.rate": "file",
        "inner.steps": "options",
        "plain": "options",
    }
