"""All cases of known truth by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from mechcore.bench.case import Case
from mechcore.bench.planted import CATALOGUE
from mechcore.bench.trained import TRAINED, trained_case, trained_truth
from mechcore.errors import InputError

_TRAINED = "trained-"


def case_names(wanted: Iterable[str] = ("planted", "trained")) -> list[str]:
    """Names of known cases, given by name, or ``"planted"`` or ``"trained"`` for all of these."""
    groups = {"planted": list(CATALOGUE), "trained": [f"{_TRAINED}{name}" for name in TRAINED]}
    known = [name for names in groups.values() for name in names]
    names = [
        name for name_or_group in wanted for name in groups.get(name_or_group, [name_or_group])
    ]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"{unknown[0]!r} is none" if unknown else "found none"
        raise InputError(f"cases: {what}; expected planted, trained, or some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def load_case(name: str, folder: str | Path, *, seed: int = 0, device: str = "cpu") -> Case:
    """One of `case_names`; the checkpoint of a planted one goes to ``folder``."""
    (name,) = case_names([name])
    if name in CATALOGUE:
        return CATALOGUE[name].case(name, folder, seed=seed, device=device)
    case = trained_case(name.removeprefix(_TRAINED), seed=seed, device=device)
    return replace(case, name=name)


@cache
def interacts(name: str) -> bool:
    """Whether some pair of a case interacts."""
    if name in CATALOGUE:
        return bool(CATALOGUE[name].truth().interactions)
    return bool(trained_truth(name.removeprefix(_TRAINED)).interactions)
