"""Where a warning points."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mechcore.errors import MechcoreWarning, warn


def caller_in(module: str) -> Any:
    """A function of a module of that name, which calls what it is given."""
    scope: dict[str, Any] = {"__name__": module}
    exec("def caller(function):\n    return function()", scope)
    return scope["caller"]


@pytest.mark.parametrize(
    ("modules", "file"),
    [
        ([], __file__),
        (["mechcore.steps.masks", "mechcore", "mechcore.files"], __file__),
        (["mechcore.steps.masks", "contextlib"], __file__),
        (["mechcore.steps", "users.own"], "<string>"),
        (["users.own", "mechcore.steps"], "<string>"),
    ],
)
def test_a_warning_points_at_the_users_own_code(modules: list[str], file: str) -> None:
    """``modules`` call each other, the last one first."""
    call: Any = partial(warn, "odd")
    for module in modules:
        call = partial(caller_in(module), call)
    with pytest.warns(MechcoreWarning, match="^odd$") as seen:
        call()
    assert seen[0].filename == file
