"""Which analyses a study consists of, each with its settings."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from mechcore.analyses import ANALYSES
from mechcore.settings import check, setting


def _fields() -> list[tuple[str, Any, Any]]:
    """The analyses that can be left out, with their defaults."""
    kinds = {name: ANALYSES[name] for name in ANALYSES}
    fields = [
        (name, kind | None, setting(None if kind.asked else kind(), _about(kind)))
        for name, kind in kinds.items()
        if not kind.always
    ]
    fill = setting(
        "mean",
        "What replaces an ablated output: mean, zero, resample, counterfactual (the output on an "
        "example of another label) or a registered fill.",
        "--fill",
    )
    return [*fields, ("fill", str, fill)]


def _about(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _check(settings: Any) -> None:
    check(settings, "analyses")


if TYPE_CHECKING:

    @dataclass(frozen=True, init=False)
    class Analyses:
        """The settings of each analysis by its name; None leaves it out."""

        fill: str

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    Analyses = make_dataclass(
        "Analyses",
        _fields(),
        frozen=True,
        namespace={
            "__doc__": "The settings of each analysis by its name; None leaves it out.",
            "__module__": __name__,
            "__post_init__": _check,
            "__pydantic_config__": ConfigDict(extra="forbid"),
            "panel": "Analyses",
        },
    )
