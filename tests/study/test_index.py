"""The index: made anew when damaged, and digests that notice every change."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from study.processes import Other, needs_fork

from mechcore.errors import MechcoreWarning
from mechcore.study import index as module
from mechcore.study.index import COLUMNS, Index, IndexFailure

pytestmark = pytest.mark.once

Row = tuple[Any, ...]


def row(n: int, made: str = "2026-01-01") -> Row:
    return (f"key {n}", "means", f"unit {n}", 1.5 * n, 10 * n, made, "host")


def rows(index: Index) -> list[Row]:
    return list(index.table().itertuples(index=False, name=None))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index.sqlite")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- artefacts ------------------------------------------------------------------------------------


def test_rows_come_back_the_oldest_first(index: Index) -> None:
    assert list(index.table().columns) == list(COLUMNS)
    assert rows(index) == []
    index.add(row(n, made) for n, made in ((1, "2026-03"), (2, "2026-01"), (3, "2026-02")))
    assert [each[0] for each in rows(index)] == ["key 2", "key 3", "key 1"]
    index.add([row(1, "2025-01")])  # in place of the one before
    assert rows(index) == [row(1, "2025-01"), row(2, "2026-01"), row(3, "2026-02")]
    index.forget(["key 2", "never there"])
    assert rows(Index(index.path)) == [row(1, "2025-01"), row(3, "2026-02")]


def test_hostile_texts_are_but_texts(index: Index) -> None:
    hostile = "'); drop table artefacts; --"
    index.add([(hostile, hostile, "\n\t\U0001f600", 1.0, 1, "now", None)])
    assert rows(index)[0][:3] == (hostile, hostile, "\n\t\U0001f600")
    index.forget([hostile])
    assert rows(index) == []


def test_an_index_that_is_no_database_is_made_anew(index: Index) -> None:
    index.add([row(1)])
    index.path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.warns(MechcoreWarning, match=r"index\.sqlite: is damaged .* made anew"):
        index.add([row(2)])
    assert rows(index) == [row(2)]
    assert [path.name for path in index.path.parent.iterdir()] == ["index.sqlite"]


@pytest.mark.parametrize(
    "script",
    [
        "drop table artefacts; create table artefacts (other text)",
        "drop table artefacts; create view artefacts as select 1",
        "drop table files; create table files (path text)",
    ],
)
def test_an_index_with_other_tables_is_made_anew(index: Index, script: str) -> None:
    index.add([row(1)])
    connection = sqlite3.connect(index.path)
    connection.executescript(script)
    connection.close()
    (index.path.parent / "file").write_text("x")

    def use() -> None:
        index.add([row(2)])
        assert index.hash_file(index.path.parent / "file") == sha("x")

    with pytest.warns(MechcoreWarning, match="is damaged"):
        use()
    index.add([row(2)])
    assert rows(index) == [row(2)]


def test_whatever_is_cut_off_or_changed_the_index_goes_on(index: Index) -> None:
    index.add(row(n) for n in range(50))
    intact, chosen = index.path.read_bytes(), random.Random(0)
    damages = [intact[: chosen.randrange(len(intact))] for _ in range(20)]
    for _ in range(80):
        changed = bytearray(intact)
        for _ in range(chosen.choice((1, 20))):
            # The header and the schema, half of the time.
            end = chosen.choice((100, len(changed)))
            changed[chosen.randrange(end)] = chosen.randrange(256)
        damages.append(bytes(changed))
    made_anew = 0
    for damage in damages:
        index.path.write_bytes(damage)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            index.table()
            index.add([row(1000)])
            index.forget(["key 1000"])
            index.add([row(1000)])
            table = index.table()
        made_anew += bool(caught)
        assert all("made anew" in str(each.message) for each in caught)
        assert len(table) >= 1
        assert not index.path.with_suffix(".lock").exists()
    assert made_anew > 30


def test_a_folder_that_cannot_be_written_is_a_failure_not_damage(tmp_path: Path) -> None:
    index = Index(tmp_path / "missing" / "index.sqlite")
    with pytest.raises(IndexFailure, match="unable to open"):
        index.table()
    (tmp_path / "index.sqlite").mkdir()
    with pytest.raises(IndexFailure, match="unable to open"):
        Index(tmp_path / "index.sqlite").add([row(1)])


def test_an_index_in_use_is_a_failure_not_damage(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add([row(1)])
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    connection = sqlite3.connect(index.path)
    connection.execute("begin exclusive")
    file = index.path.parent / "file"
    file.write_text("x")
    with pytest.raises(IndexFailure, match="locked"):
        index.add([row(2)])
    assert index.hash_file(file) == sha("x")  # it can do without
    connection.close()
    assert rows(index) == [row(1)]


def add_many(pipe: Connection, path: Path, start: int) -> None:
    index = Index(path)
    file = path.parent / "file"
    pipe.recv()
    for n in range(start, start + 20):
        index.add([row(n)])
        index.add([row(n + 1000)])
        assert index.hash_file(file) == sha("content")
        index.forget([f"key {n + 1000}"])


@needs_fork()
@pytest.mark.parametrize("damaged", [False, True])
def test_processes_write_at_the_same_time(
    index: Index, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLED", -1.0)
    (index.path.parent / "file").write_text("content")
    if damaged:
        index.path.write_bytes(b"no database" * 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MechcoreWarning)
        others = [Other(add_many, index.path, start) for start in (0, 100, 200)]
        for other in others:
            other.tell()
        for other in others:
            other.end()
    wanted = {f"key {start + n}" for start in (0, 100, 200) for n in range(20)}
    assert {each[0] for each in rows(index)} == wanted
    assert {p.name for p in index.path.parent.iterdir()} == {"file", "index.sqlite"}


# -- digests of files -----------------------------------------------------------------------------


class Reads:
    """Counts how often files are really read, and says how old they look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        self.now = 0.0
        monkeypatch.setattr(module, "hash_file", self)
        monkeypatch.setattr(module, "time", self)

    def __call__(self, path: Path) -> str:
        self.files.append(path.name)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def time(self) -> float:
        return self.now

    def later(self, path: Path, seconds: float) -> None:
        """So long after the last change of a file."""
        self.now = max(path.stat().st_mtime, path.stat().st_ctime) + seconds


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_a_file_is_read_once(index: Index, tmp_path: Path, reads: Reads) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    reads.later(file, 10)
    for each in (index, index, Index(index.path)):
        assert each.hash_file(file) == sha("one")
    assert reads.files == ["file"]
    (tmp_path / "x").mkdir()
    assert index.hash_file(tmp_path / "x" / ".." / "file") == sha("one")
    (tmp_path / "link").symlink_to(file)
    assert index.hash_file(tmp_path / "link") == sha("one")
    assert reads.files == ["file"]


def test_an_edit_that_keeps_size_and_times_is_noticed(
    index: Index, tmp_path: Path, reads: Reads
) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    reads.later(file, 10)
    before = file.stat()
    assert index.hash_file(file) == sha("one")
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # clocks of file systems tick slowly
        file.write_text("two")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_size == before.st_size
    assert index.hash_file(file) == sha("two")


def test_a_file_put_in_place_of_another_is_noticed(
    index: Index, tmp_path: Path, reads: Reads
) -> None:
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text("one")
    new.write_text("two")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    reads.later(new, 10)
    assert index.hash_file(file) == sha("one")
    new.replace(file)
    assert index.hash_file(file) == sha("two")


def test_a_file_that_was_just_written_is_read_again(
    index: Index, tmp_path: Path, reads: Reads
) -> None:
    """Another change within the same tick of the clock would leave no trace in its times."""
    file = tmp_path / "file"
    file.write_text("one")
    for seconds in (0, 1.9, 10, 11):
        reads.later(file, seconds)
        assert index.hash_file(file) == sha("one")
    assert reads.files == ["file"] * 3
    reads.later(file, -100)  # a clock that went wrong
    (tmp_path / "other").write_text("two")
    for _ in range(2):
        assert index.hash_file(tmp_path / "other") == sha("two")
    assert reads.files == ["file"] * 3 + ["other"] * 2


def test_names_that_are_no_text_are_hashed(index: Index, tmp_path: Path, reads: Reads) -> None:
    try:
        file = tmp_path / os.fsdecode(b"\xff.csv")
        file.write_text("one")
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    reads.later(file, 10)
    for _ in range(2):
        assert index.hash_file(file) == sha("one")
    assert len(reads.files) == 1


def test_a_missing_file_is_an_error_that_names_it(index: Index, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        index.hash_file(tmp_path / "missing")
