"""All cases of known truth by name, and the benchmark of methods on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore import progress
from mechcore.bench.case import Case
from mechcore.bench.planted import CATALOGUE, planted_case
from mechcore.bench.recovery import NODES, PAIRS, recovered_nodes, recovered_pairs
from mechcore.bench.trained import TRAINED, trained_case, trained_truth
from mechcore.errors import InputError
from mechcore.files import write_json
from mechcore.models.placing import check_device
from mechcore.tables import Schema, write_tables

_TRAINED = "trained-"
_OPTIONS = "benchmark.json"


def case_names(wanted: Iterable[str] = ("planted", "trained")) -> list[str]:
    """Names of cases, with those of groups in the place of the group.

    Args:
        wanted: cases, or ``"planted"`` and ``"trained"`` for all of these.

    Raises:
        InputError: one is unknown.
    """
    groups = {"planted": list(CATALOGUE), "trained": [f"{_TRAINED}{name}" for name in TRAINED]}
    known = [name for names in groups.values() for name in names]
    found = [name for each in wanted for name in groups.get(each, [each])]
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        what = f"{unknown[0]!r} is none" if unknown else "found none"
        raise InputError(f"cases: {what}; expected planted, trained, or some of {', '.join(known)}")
    return list(dict.fromkeys(found))


def load_case(name: str, folder: str | Path, *, seed: int = 0, device: str = "cpu") -> Case:
    """A case by name.

    Args:
        name: one of `case_names`.
        folder: for the checkpoint of a planted one.
        seed: of its texts.
        device: where its model goes.

    Raises:
        InputError: there is no such case, or no such device.
    """
    (name,) = case_names([name])
    if name in CATALOGUE:
        return planted_case(name, folder, seed=seed, device=device)
    case = trained_case(name.removeprefix(_TRAINED), seed=seed, device=device)
    return replace(case, name=name)


def run_benchmark(
    out: Path,
    cases: Sequence[str],
    methods: Sequence[str],
    interaction_methods: Sequence[str],
    seeds: Sequence[int] = (0,),
    code: Mapping[str, str] | None = None,
    device: str = "cpu",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``nodes`` and ``pairs`` of every method on every case, each kept once it is there.

    Args:
        out: folder for the results; those that are there already are not made again.
        cases: see `case_names`.
        methods: that rank components, see `recovered_nodes`.
        interaction_methods: see `recovered_pairs`.
        seeds: of texts and of what methods draw, each a repetition.
        code: digests of the code that makes the results, by module; results of other code are not
            taken over.
        device: where models are put.

    Raises:
        InputError: a case or method is unknown, the folder holds another benchmark, or a result in
            it is damaged.
    """
    check_device(device)
    names = case_names(cases)
    options: dict[str, Any] = {
        "methods": list(dict.fromkeys(methods)),
        "interaction_methods": list(dict.fromkeys(interaction_methods)),
        "code": dict(code or {}),
    }
    known, seeds = out / _OPTIONS, list(dict.fromkeys(seeds))
    if known.exists() and (other := _differing(known, options)):
        raise InputError(
            f"{out}: holds a benchmark with other {', '.join(other)}; choose another folder"
        )
    write_json(known, options)
    parts: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    with progress.bar("cases", len(names) * len(seeds)) as advance:
        for seed in seeds:
            for name in names:
                with progress.shown_on(None):
                    parts.append(
                        _one(out / "cases" / f"{name}-{seed}", name, seed, options, device)
                    )
                advance()
    nodes, pairs = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    return nodes, pairs


def _differing(file: Path, options: Mapping[str, Any]) -> list[str]:
    """The options that are others in a file."""
    try:
        found = json.loads(file.read_text())
        return [name.replace("_", " ") for name, value in options.items() if found[name] != value]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: damaged; remove the folder, or choose another") from error


def _one(
    folder: Path, name: str, seed: int, options: Mapping[str, Any], device: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of one case."""

    def kept(
        schema: Schema, methods: Sequence[str], make: Callable[[], pd.DataFrame]
    ) -> pd.DataFrame:
        file = folder / f"{schema.name}.csv"
        if not file.exists():
            write_tables(folder, {schema.name: make()}, [schema])
        table = schema.read(file)
        if table["method"].tolist() != list(methods):
            raise InputError(f"{file}: some methods are missing; remove it, and run this again")
        return table

    @cache
    def case() -> Case:
        return load_case(name, folder / "checkpoint", seed=seed, device=device)

    ranked, paired = options["methods"], options["interaction_methods"]
    nodes = kept(NODES, ranked, lambda: recovered_nodes(case(), ranked, seed=seed))
    if not _interacts(name):
        return nodes, pd.DataFrame(columns=PAIRS.names)
    return nodes, kept(PAIRS, paired, lambda: recovered_pairs(case(), paired, seed=seed))


@cache
def _interacts(name: str) -> bool:
    """Whether some pair of a case interacts."""
    if name in CATALOGUE:
        return bool(CATALOGUE[name].truth().interactions)
    return bool(trained_truth(name.removeprefix(_TRAINED)).interactions)
