"""The size of a study's results, and what can be removed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mechcore.study.store import Damaged, Store


def status_table(jobs: pd.DataFrame) -> pd.DataFrame:
    """One row per kind of `mechcore.study.run.job_table`: done, jobs, seconds of work, MiB."""
    table = jobs.assign(done=jobs["state"] == "done", mib=jobs["bytes"] / 2**20)
    return table.groupby("kind", sort=False, as_index=False).agg(
        done=("done", "sum"), jobs=("done", "size"), seconds=("seconds", "sum"), MiB=("mib", "sum")
    )


def damaged(store: Store) -> list[str]:
    """One line per damaged result in the store."""
    problems = []
    for key in store.all_keys():
        try:
            store.verify(key)
        except Damaged as error:
            problems.append(str(error))
    return problems


def removable(store: Store) -> tuple[list[str], list[Path], int]:
    """Keys that no study uses, leftovers of killed processes, and the size of both in bytes."""
    keys, leftovers = store.unused(), store.leftovers()
    own = [path for key in keys for path in (store.folder(key), store.partial(key))]
    files = {file for path in (*own, *leftovers) for file in (path, *path.rglob("*"))}
    return keys, leftovers, sum(file.stat().st_size for file in files if file.is_file())
