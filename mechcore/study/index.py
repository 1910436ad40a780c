"""The index of a store: what is in it, at a glance, and digests of files that did not change."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from mechcore.errors import MechcoreWarning
from mechcore.study.fingerprints import hash_file

T = TypeVar("T")

COLUMNS = ("key", "kind", "name", "seconds", "bytes", "made", "host")
_TABLES = """
create table if not exists artefacts (
    key text primary key, kind text, name text, seconds real, bytes integer, made text, host text
);
create table if not exists files (path text primary key, state text, sha256 text);
"""
_PATIENCE = 60.0
"""Seconds to wait for another process that writes."""


class Index:
    """The index in a file, which can be removed at any time: it is made anew.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            return self._attempt(action)
        except sqlite3.OperationalError as error:  # locked, full, read-only
            raise OSError(None, str(error), str(self.path)) from error
        except sqlite3.DatabaseError as error:
            self.path.unlink(missing_ok=True)
            warnings.warn(
                f"index {self.path}: is damaged ({error}); it is made anew",
                MechcoreWarning,
                stacklevel=3,
            )
            return self._attempt(action)

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with closing(sqlite3.connect(self.path, timeout=_PATIENCE)) as connection:
            connection.executescript(_TABLES)
            with connection:
                return action(connection)

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Enter artefacts, each with the values of `COLUMNS`."""
        marks = ", ".join("?" for _ in COLUMNS)
        self._run(
            lambda c: c.executemany(f"insert or replace into artefacts values ({marks})", rows)
        )

    def forget(self, keys: Iterable[str]) -> None:
        """Drop artefacts."""
        found = [(key,) for key in keys]
        self._run(lambda c: c.executemany("delete from artefacts where key = ?", found))

    def table(self) -> pd.DataFrame:
        """One row per artefact with the columns `COLUMNS`, the oldest first."""
        rows = self._run(
            lambda c: c.execute("select * from artefacts order by made, name").fetchall()
        )
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def hash_file(self, path: Path) -> str:
        """SHA-256 of a file; read again only if its size, times or place on disk changed."""
        name, stat = str(path.resolve()), path.stat()
        state = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev}"
        query = "select sha256 from files where path = ? and state = ?"
        known = self._run(lambda c: c.execute(query, (name, state)).fetchone())
        if known is not None:
            return str(known[0])
        digest = hash_file(path)
        row = (name, state, digest)
        self._run(lambda c: c.execute("insert or replace into files values (?, ?, ?)", row))
        return digest
