import math
from importlib.metadata import EntryPoint

import pytest

from mechcore import registry
from mechcore.errors import InputError
from mechcore.registry import Registry

GROUP = "mechcore.colours"


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == GROUP else [])
    return points


def colours() -> Registry[object]:
    return Registry("colour", GROUP, {"red": "math:pi"})


def test_own_offered_and_added_things_are_found_in_this_order(offered: list[EntryPoint]) -> None:
    offered.append(EntryPoint("blue", "math:e", GROUP))
    known = colours()
    known.register("green")(7)
    assert known.names() == list(known) == ["red", "blue", "green"]
    assert [known[name] for name in known] == [math.pi, math.e, 7]
    assert "blue" in known
    assert "pink" not in known


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as error:
        colours()["redd"]
    assert str(error.value) == (
        "colour 'redd': unknown (did you mean 'red'?); expected one of red, or one from the "
        "entry point group mechcore.colours"
    )


@pytest.mark.parametrize("name", ["red", "blue"])
def test_names_of_mechcore_and_of_packages_stay(name: str, offered: list[EntryPoint]) -> None:
    offered.append(EntryPoint("blue", "math:e", GROUP))
    known = colours()
    with pytest.raises(InputError, match=f"colour '{name}': is already registered"):
        known.register(name)(8)


def test_two_packages_with_one_name_are_refused(offered: list[EntryPoint]) -> None:
    offered += [EntryPoint("blue", "math:e", GROUP), EntryPoint("blue", "math:pi", GROUP)]
    with pytest.raises(InputError, match="math:e and math:pi have the same name"):
        colours().names()


@pytest.mark.parametrize("at", ["no_such_module_here:x", "math:no_such_thing"])
def test_a_broken_package_is_named(at: str, offered: list[EntryPoint]) -> None:
    offered.append(EntryPoint("blue", at, GROUP))
    known = colours()
    assert known["red"] == math.pi
    with pytest.raises(InputError, match=f"colour 'blue': {at} cannot be imported"):
        known["blue"]


def test_what_was_added_is_replaced_when_run_again_and_can_be_taken_back() -> None:
    known = colours()
    known.register("green")(7)
    known.register("green")(8)
    assert known["green"] == 8
    assert known.names() == ["red", "green"]
    known.remove("green")
    assert "green" not in known
    with pytest.raises(InputError, match="unknown"):
        known.remove("red")
