"""The run store: results of finished jobs, each under a key of everything it depends on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mechcore.errors import InputError, MechcoreError, warn
from mechcore.files import appearing, check_can_write, write_json
from mechcore.study.step import Job, Manifest, digest_of, hash_file, this_machine

MANIFEST = "manifest.json"
MARK = "mechcore-store.json"
STUDIES = "studies"
PARTIAL = "partial"
FORMAT = 2
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


_SETTLED = 2.0
"""Seconds after a file's last change before its digest is cached: clocks may be coarse."""


class StoreError(MechcoreError):
    """The store cannot be written; finished results in it are safe."""


class Damaged(MechcoreError):
    """An artefact differs from what was written."""


class Store:
    """A folder of artefacts, written from `create` on; raises `InputError` if it holds others."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.hash_file = RememberedHashes()
        self._verified: set[str] = set()
        self._held: set[str] = set()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"store {self.path}: found a file; expected a folder (--store)")
        # Listed before it is looked for, since another process may be creating it.
        listed = self.path.iterdir() if self.path.exists() else ()
        there = {path.name for path in listed if not path.name.startswith(".")}
        if not (self.path / MARK).is_file():
            if there - {"objects", PARTIAL, "locks", STUDIES}:
                raise InputError(
                    f"store {self.path}: the folder is not empty and not a store of mechcore; "
                    "choose another --store"
                )
            check_can_write(self.path)
            return
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            if json.loads((self.path / MARK).read_text())["format"] == FORMAT:
                return
        raise InputError(
            f"store {self.path}: has another format; this version reads {FORMAT}; choose another "
            "--store"
        )

    def create(self) -> None:
        """Create the folder if necessary."""
        if not (self.path / MARK).is_file():
            # Locked so that no other process takes the temporary file for a leftover.
            with self.lock(_key_of(Path(MARK))), self.writing("the store"):
                write_json(self.path / MARK, {"format": FORMAT})

    def folder(self, key: str) -> Path:
        """The folder of the artefact of ``key``, existing or not."""
        return self.path / "objects" / key[:2] / key

    def has(self, key: str) -> bool:
        """Whether the artefact exists; a damaged one is removed, with a warning."""
        if key in self._verified and (self.folder(key) / MANIFEST).is_file():
            return True
        if not self.folder(key).exists():
            return False
        with suppress(Damaged):
            self.verify(key)
            return True
        with self._if_free(key) as free:
            if not free:  # another process is making it again
                return False
            try:
                self.verify(key)  # or it just did
            except Damaged as error:
                warn(
                    f"store {self.path}: {error}; it was damaged after it was written; repeating "
                    "the job"
                )
                self.remove(key)
                return False
        return True

    def whole(self, key: str) -> Path:
        """Folder of an artefact, verified against its checksums once per process."""
        if key not in self._verified:
            self.verify(key)
        return self.folder(key)

    def verify(self, key: str) -> Manifest:
        """Its manifest; raises `Damaged` if a checksum differs, or a file is missing or foreign."""
        folder, manifest = self.folder(key), self.manifest(key)
        if manifest.key != key or digest_of(dict(manifest.recipe)) != key:
            raise Damaged(f"{manifest.name}: its manifest belongs to another job")
        paths = (path for path in folder.rglob("*") if not path.is_dir())
        files = {path.relative_to(folder).as_posix() for path in paths} - {MANIFEST}
        if odd := sorted(files ^ set(manifest.files)):
            raise Damaged(f"{manifest.name}: {odd[0]} is missing, or was not written by mechcore")
        for name, digest in manifest.files.items():
            if hash_file(folder / name) != digest:
                raise Damaged(f"{manifest.name}: the checksum of {name} differs")
        self._verified.add(key)
        return manifest

    def manifest(self, key: str) -> Manifest:
        """The manifest of an artefact; raises `Damaged` if it cannot be read."""
        path = self.folder(key) / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            digest = content.pop("digest")
            if digest != digest_of(content):
                raise ValueError("its checksum differs")
            return Manifest(**content)
        except _UNREADABLE as error:
            raise Damaged(f"job {key[:12]}: invalid manifest ({error})") from error

    def all_keys(self) -> list[str]:
        """Keys of all artefacts, intact or not."""
        return sorted(path.name for path in (self.path / "objects").glob("*/[!.]*"))

    def _states(self) -> Iterable[Path]:
        return (self.path / PARTIAL).glob("[!.]*")

    @contextmanager
    def making(self, key: str, kind: str, name: str, recipe: Mapping[str, Any]) -> Iterator[Path]:
        """A folder to fill, which becomes the artefact; use only under the `lock` of ``key``."""
        started = time.monotonic()
        # Leftovers of attempts to make or remove it.
        for path in (*self.folder(key).parent.glob(f".*.{key}"), *self.partial(key).glob(".*")):
            _discard(path)
        with self.writing(name), appearing(self.folder(key)) as folder:
            yield folder
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            digests = {path.relative_to(folder).as_posix(): hash_file(path) for path in files}
            size, seconds = sum(path.stat().st_size for path in files), time.monotonic() - started
            how = (size, round(seconds, 3), time.strftime("%Y-%m-%dT%H:%M:%S%z"), this_machine())
            content = asdict(Manifest(key, kind, name, recipe, digests, *how))
            write_json(folder / MANIFEST, content | {"digest": digest_of(content)})
        self._verified.add(key)
        _discard(self.partial(key))

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn errors of a full or failing disk into a `StoreError`; finished results are safe."""
        try:
            yield
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            raise StoreError(
                f"store {self.path}: {error.strerror or error} while writing {what}; finished "
                "results are safe: free space, then rerun the same command to resume"
            ) from error

    @contextmanager
    def lock(self, key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of ``key``; ``waiting`` is called once if another process has it."""
        with self._acquired(key, 0) as free:
            if free:
                yield
                return
        waiting()
        with self._acquired(key, -1):
            yield

    def _if_free(self, key: str) -> AbstractContextManager[bool]:
        """Hold the lock of ``key`` unless this store does; yields False if another process does."""
        return nullcontext(True) if key in self._held else self._acquired(key, 0)

    @contextmanager
    def _acquired(self, key: str, timeout: float) -> Iterator[bool]:
        """Hold the lock of ``key``; yields False if it was not free within ``timeout`` seconds."""
        from filelock import FileLock, Timeout

        path = self.path / "locks" / f"{key}.lock"
        lock = FileLock(path)
        with self.writing("a lock"), suppress(Timeout):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout)
        if not lock.is_locked:
            yield False
            return
        self._held.add(key)
        try:
            yield True
        finally:
            self._held.discard(key)
            # While it is held: a process that has opened the file, and then gets its lock, sees
            # that the name is gone and starts over (filelock since 3.24).
            path.unlink(missing_ok=True)
            lock.release()

    def partial(self, key: str) -> Path:
        """The folder in which an unfinished job saves what it needs to resume."""
        return self.path / PARTIAL / key

    def remember(self, out: Path, jobs: Iterable[Job]) -> str:
        """Record the results that the study in ``out`` references; return its lock's name."""
        place = self._place(out)
        name = digest_of(place)
        with self.lock(name), self.writing("the list of studies"):
            keys = [(job.name, job.key) for job in jobs]
            # Includes jobs that are not known yet this time.
            last = self._last(name) | {name: key for name, key in keys if self.has(key)}
            content = {"out": place, "keys": sorted(key for _, key in keys), "last": last}
            write_json(self.path / STUDIES / f"{name}.json", content)
        return name

    def last_recipe(self, out: Path, job: Job) -> Mapping[str, Any] | None:
        """The recipe of the last result of a job in the study in ``out``; None if gone."""
        key = self._last(digest_of(self._place(out))).get(job.name)
        try:
            return self.manifest(key).recipe if key else None
        except Damaged:
            return None

    def _place(self, out: Path) -> str:
        out, own = out.resolve(), self.path.resolve()
        return os.path.relpath(out, own) if own.is_relative_to(out) else str(out)

    def _last(self, name: str) -> dict[str, str]:
        with suppress(*_UNREADABLE):
            text = (self.path / STUDIES / f"{name}.json").read_text(encoding="utf-8")
            return dict(json.loads(text)["last"])
        return {}

    def damaged(self) -> list[str]:
        """One line per damaged result."""
        problems = []
        for key in self.all_keys():
            try:
                self.verify(key)
            except Damaged as error:
                problems.append(str(error))
        return problems

    def unused(self) -> list[str]:
        """Keys of artefacts, finished or not, that no study whose folder exists uses."""
        used: set[str] = set()
        for path in (self.path / STUDIES).glob("[!.]*.json"):
            try:
                study = json.loads(path.read_text(encoding="utf-8"))
                if (self.path / study["out"]).exists():
                    used |= set(study["keys"])
            except _UNREADABLE as error:
                raise InputError(
                    f"store {self.path}: {path.name} cannot be read ({error}), so it is unknown "
                    "which results are still used; rerun the studies, or remove the file"
                ) from error
        return sorted({*self.all_keys(), *(path.name for path in self._states())} - used)

    def removable(self) -> tuple[list[str], list[Path], int]:
        """Keys that no study uses, leftovers of killed processes, and the size of both in bytes."""
        keys, leftovers = self.unused(), self.leftovers()
        own = [path for key in keys for path in (self.folder(key), self.partial(key))]
        files = {file for path in (*own, *leftovers) for file in (path, *path.rglob("*"))}
        return keys, leftovers, sum(file.stat().st_size for file in files if file.is_file())

    def remove(self, key: str) -> bool:
        """Remove an artefact and its partial results; False if another process holds its lock."""
        with self._if_free(key) as free:
            if not free:
                return False
            self._verified.discard(key)
            folder = self.folder(key)
            if folder.exists():
                # Renamed first: a partly removed artefact is never taken for an intact one.
                grave = folder.with_name(f".removed.{key}")
                _discard(grave)
                folder.rename(grave)
                _discard(grave)
            _discard(self.partial(key))
        return True

    def leftovers(self, *, remove: bool = False) -> list[Path]:
        """Temporary files of killed processes, and partial results of finished jobs."""
        patterns = ("objects/*/.*", f"{PARTIAL}/*/.*", f"{STUDIES}/.*", f".*.{MARK}")
        hidden = [path for pattern in patterns for path in self.path.glob(pattern)]
        ended = [path for path in self._states() if (self.folder(path.name) / MANIFEST).exists()]
        remains = [*(path for path in hidden if path.parent not in ended), *ended]
        locks, gone = [path.stem for path in (self.path / "locks").glob("*.lock")], list[Path]()
        for key in {*locks, *map(_key_of, remains)}:
            with self._if_free(key) as free:  # held, so that no process starts on it meanwhile
                own = [path for path in remains if free and _key_of(path) == key]
                for path in own if remove else ():
                    _discard(path)
                gone += own
        return sorted(gone)


class RememberedHashes:
    """`hash_file`, cached for as long as a file does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], str] = {}

    def __call__(self, path: Path) -> str:
        """SHA-256 of a file, hexadecimal."""
        now, stat = time.time(), path.stat()
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        state = (path.resolve(), stat.st_size, *times, stat.st_ino, stat.st_dev)
        if state in self._known:
            return self._known[state]
        digest = hash_file(path)
        if now - max(times) / 1e9 > _SETTLED:
            self._known[state] = digest
        return digest


def _key_of(path: Path) -> str:
    """The key in the name of a temporary file or folder, or of its parent."""
    if path.parent.parent.name == PARTIAL:
        return path.parent.name
    return path.name.removesuffix(".json").rpartition(".")[2]


def _discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
