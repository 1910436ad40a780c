"""The index of a store: what is in it, at a glance, and digests of files that did not change."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from filelock import FileLock

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

_SETTLED = 2.0
"""Seconds since a file's last change after which its digest is remembered: one more change could
leave its times as they are, where clocks are coarse."""

_FAILURES = ("locked", "full", "disk i/o", "unable to open", "readonly")
"""How SQLite words what is wrong with the disk, or with another process, but not with the file."""


class IndexFailure(OSError):
    """The index cannot be read or written."""


class Index:
    """The index in a file, which can be removed at any time: it is made anew.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction; ``action`` is called again if the index had to be made anew.

        Raises:
            IndexFailure: the file cannot be written.
        """
        try:
            with suppress(_Damaged):
                return self._attempt(action)
            lock = FileLock(self.path.with_suffix(".lock"))
            with lock:
                try:
                    return self._anew(action)
                finally:
                    Path(lock.lock_file).unlink(missing_ok=True)  # while held, as in the store
        except sqlite3.OperationalError as error:
            raise IndexFailure(None, str(error), str(self.path)) from error

    def _anew(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """The same on a new index, unless another process has just made one."""
        try:
            return self._attempt(action)
        except _Damaged as error:
            self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            # Emptied, not removed: one who still had the old file open would take the journal of
            # the new one for its own, and undo it.
            os.truncate(self.path, 0)
            warnings.warn(
                f"index {self.path}: is damaged ({error}); it is made anew",
                MechcoreWarning,
                stacklevel=4,
            )
        return self._attempt(action)

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE)) as connection:
                connection.executescript(_TABLES)
                with connection:
                    return action(connection)
        except UnicodeDecodeError as error:  # from the text of an error
            raise _Damaged(str(error)) from error
        except sqlite3.DatabaseError as error:
            if self._is_failure(error):
                raise
            raise _Damaged(str(error)) from error

    def _is_failure(self, error: sqlite3.DatabaseError) -> bool:
        """Whether it is the disk's, or another process's; else the file is damaged."""
        message = str(error).lower()
        if "readonly" in message:  # so are files that say so, or that another process replaced
            there = self.path if self.path.exists() else self.path.parent
            return not (os.access(there, os.W_OK) and os.access(self.path.parent, os.W_OK))
        return isinstance(error, sqlite3.OperationalError) and any(
            each in message for each in _FAILURES
        )

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Enter artefacts, each with the values of `COLUMNS`."""
        marks, rows = ", ".join("?" for _ in COLUMNS), list(rows)
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
        now, stat = time.time(), path.stat()
        name = str(path.resolve()).encode("utf-8", "backslashreplace").decode()
        state = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev}"
        query = "select sha256 from files where path = ? and state = ?"
        with suppress(IndexFailure):  # it only saves time
            known = self._run(lambda c: c.execute(query, (name, state)).fetchone())
            if known is not None:
                return str(known[0])
        digest = hash_file(path)
        if now - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
            row = (name, state, digest)
            with suppress(IndexFailure):
                self._run(lambda c: c.execute("insert or replace into files values (?, ?, ?)", row))
        return digest


class _Damaged(Exception):
    """The file is no index."""
