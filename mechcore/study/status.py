"""What of a study is done, what it takes up, and what could go."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pandas as pd

from mechcore.study.plan import make_plan
from mechcore.study.results import opened
from mechcore.study.store import Damaged, Store
from mechcore.study.work import missing_in


def unit_table(folder: Path) -> tuple[pd.DataFrame, Store]:
    """The units of the study in a folder, from its settings and its files as they are now.

    Returns:
        One row per unit: key, kind, name, state (``done``, ``begun`` for a pruning that was
        interrupted, or is at work, ``to do``), seconds and bytes (0 if not done); and the store.

    Raises:
        InputError: there is no study, or a file that it works on is gone.
    """
    config, store = opened(folder)
    plan = make_plan(config, store.hash_file)
    known = store.table().set_index("key")
    rows = []
    for key, unit in plan.units.items():
        if key in known.index:
            state, seconds, size = "done", known.at[key, "seconds"], known.at[key, "bytes"]
        else:
            state, seconds, size = "begun" if store.partial(key).exists() else "to do", 0.0, 0
        rows.append((key, unit.kind, unit.name, state, seconds, size))
    columns = ["key", "kind", "name", "state", "seconds", "bytes"]
    return pd.DataFrame(rows, columns=columns), store


def status_table(units: pd.DataFrame) -> pd.DataFrame:
    """One row per kind: done, units, seconds of work done, MiB."""
    table = units.assign(done=units["state"] == "done", mib=units["bytes"] / 2**20)
    return table.groupby("kind", sort=False, as_index=False).agg(
        done=("done", "sum"), units=("done", "size"), seconds=("seconds", "sum"), MiB=("mib", "sum")
    )


def missing_masks(units: pd.DataFrame, store: Store) -> list[str]:
    """Masks that the finished units of a study lack, and why, a line each."""
    found = units[(units["kind"] == "masks") & (units["state"] == "done")]
    lines = []
    for key, name in zip(found["key"], found["name"], strict=True):
        with suppress(OSError, ValueError):  # damaged, which is for `damaged` to say
            missing = missing_in([store.folder(key)])
            lines += [f"{name}: {row.subnetwork}: {row.reason}" for row in missing.itertuples()]
    return lines


def damaged(store: Store) -> list[str]:
    """What is wrong with results in the store, a line each."""
    found = []
    for key in store.all_keys():
        try:
            store.verify(key)
        except Damaged as error:
            found.append(str(error))
    return found


def removable(store: Store, everything: bool) -> tuple[list[str], list[Path], int]:
    """Keys that no study has use for (or all), what killed processes left, and bytes of both."""
    keys = store.keys() if everything else store.unused()
    leftovers = store.leftovers()
    own = [path for key in keys for path in (store.folder(key), store.partial(key))]
    return keys, leftovers, sum(_size(path) for path in {*own, *leftovers})


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else 0
