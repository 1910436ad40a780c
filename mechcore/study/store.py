"""The run store: results of finished jobs, each under a key of everything it depends on.

A job's files lie in ``objects/KEY[:2]/KEY/`` beside a ``manifest.json`` with their checksums. They
are written to a hidden folder beside it, synced, and moved into place, so that an artefact is there
as a whole or not at all. Whoever does a job holds its lock, which the system drops when the process
dies.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mechcore.errors import InputError, MechcoreError, warn
from mechcore.files import appearing, check_can_write, locked, write_json
from mechcore.study.fingerprints import RememberedHashes, digest_of, hash_file
from mechcore.study.step import Job, Manifest, this_machine

MANIFEST = "manifest.json"
MARK = "mechcore-store.json"
STUDIES = "studies"
PARTIAL = "partial"
FORMAT = 2
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Those of writing."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file of JSON raises."""


class StoreError(MechcoreError):
    """The store cannot be written; what is finished in it is safe."""


class Damaged(MechcoreError):
    """An artefact is not what was written."""


class Store:
    """A folder of artefacts; nothing is written before `create`.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.hash_file = RememberedHashes()
        self._verified: set[str] = set()
        self._held: set[str] = set()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"store {self.path}: is a file; expected a folder (--store)")
        # Listed before it is looked for, as another process may be making it.
        listed = self.path.iterdir() if self.path.exists() else ()
        there = {path.name for path in listed if not path.name.startswith(".")}
        if not self.exists:
            if there - {"objects", PARTIAL, "locks", STUDIES}:
                raise InputError(
                    f"store {self.path}: the folder is not empty and is no store of mechcore; "
                    "choose another --store"
                )
            check_can_write(self.path)
            return
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            if json.loads((self.path / MARK).read_text())["format"] == FORMAT:
                return
        raise InputError(
            f"store {self.path}: is of another format; this version reads {FORMAT}; choose another "
            "--store"
        )

    @property
    def exists(self) -> bool:
        """Whether there is a folder yet."""
        return (self.path / MARK).is_file()

    def create(self) -> None:
        """Make the folder, if need be."""
        if not self.exists:
            # Locked so that no other process takes the temporary file for a leftover.
            with self.lock(_key_of(Path(MARK))), self.writing("the store"):
                write_json(self.path / MARK, {"format": FORMAT})

    # -- finding ----------------------------------------------------------------------------------

    def folder(self, key: str) -> Path:
        """Where the artefact of ``key`` is, or would be."""
        return self.path / "objects" / key[:2] / key

    def has(self, key: str) -> bool:
        """Whether the artefact is there and whole.

        A damaged one is removed, with a warning, so that it will be made again.
        """
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
                    f"store {self.path}: {error}; it was damaged after it was written, and is "
                    "done again"
                )
                self.remove(key)
                return False
        return True

    def whole(self, key: str) -> Path:
        """Folder of an artefact that is compared with its checksums, once in a process."""
        if key not in self._verified:
            self.verify(key)
        return self.folder(key)

    def verify(self, key: str) -> Manifest:
        """Its manifest; `Damaged` where a checksum differs, or a file is missing or not its own."""
        folder, manifest = self.folder(key), self.manifest(key)
        if manifest.key != key or digest_of(dict(manifest.recipe)) != key:
            raise Damaged(f"{manifest.name}: its manifest is that of another job")
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
        """The manifest of an artefact; `Damaged` if it cannot be read."""
        path = self.folder(key) / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            digest = content.pop("digest")
            if digest != digest_of(content):
                raise ValueError("its checksum differs")
            return Manifest(**content)
        except _UNREADABLE as error:
            raise Damaged(f"job {key[:12]}: its manifest cannot be used ({error})") from error

    def all_keys(self) -> list[str]:
        """Keys of all artefacts, whole or not."""
        return sorted(path.name for path in (self.path / "objects").glob("*/[!.]*"))

    def _states(self) -> Iterable[Path]:
        return (self.path / PARTIAL).glob("[!.]*")

    # -- making -----------------------------------------------------------------------------------

    @contextmanager
    def making(self, key: str, kind: str, name: str, recipe: Mapping[str, Any]) -> Iterator[Path]:
        """A folder to fill, which becomes the artefact at the end of the block, see `writing`.

        Only to be used under the `lock` of ``key``, where there is no artefact.
        """
        started = time.monotonic()
        # What is left of attempts to make it, or to remove it.
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

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn a full or failing disk into a `StoreError`, which says that nothing is lost."""
        try:
            yield
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            raise StoreError(
                f"store {self.path}: {error.strerror or error} while writing {what}; what was "
                "finished before is safe: make room, then rerun the same command to resume"
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
        """Hold the lock of ``key``, unless this store does, or say that another process has it."""
        return nullcontext(True) if key in self._held else self._acquired(key, 0)

    @contextmanager
    def _acquired(self, key: str, timeout: float) -> Iterator[bool]:
        """Hold the lock of ``key``, or say that it was not free within so many seconds."""
        with ExitStack() as stack:
            with self.writing("a lock"):
                lock = locked(self.path / "locks" / f"{key}.lock", timeout)
                free = stack.enter_context(lock)
            if not free:
                yield False
                return
            self._held.add(key)
            try:
                yield True
            finally:
                self._held.discard(key)

    def partial(self, key: str) -> Path:
        """The folder in which an unfinished job keeps what it needs to go on."""
        return self.path / PARTIAL / key

    def forget_partial(self, key: str) -> None:
        """Remove what an unfinished job kept."""
        _discard(self.partial(key))

    # -- studies ----------------------------------------------------------------------------------

    def remember(self, out: Path, jobs: Iterable[Job]) -> str:
        """Record the results that the study in ``out`` references; return its lock's name.

        Of a job that is not done, the result of before stays noted as long as it is there: what
        changed since can be told from it. A store inside ``out`` may be moved with it.
        """
        place = self._place(out)
        name = digest_of(place)
        with self.lock(name), self.writing("the list of studies"):
            keys = [(job.name, job.key) for job in jobs]
            # Also of jobs that are not known yet this time.
            last = self._last(name) | {name: key for name, key in keys if self.has(key)}
            content = {"out": place, "keys": sorted(key for _, key in keys), "last": last}
            write_json(self.path / STUDIES / f"{name}.json", content)
        return name

    def last_recipe(self, out: Path, job: Job) -> Mapping[str, Any] | None:
        """What the result depended on that the study in ``out`` last had of a job; None if gone."""
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

    def unused(self) -> list[str]:
        """Keys of artefacts, or of what was only begun, that no study has use for.

        Studies whose folder is gone have none.
        """
        used: set[str] = set()
        for path in (self.path / STUDIES).glob("[!.]*.json"):
            try:
                study = json.loads(path.read_text(encoding="utf-8"))
                if (self.path / study["out"]).exists():
                    used |= set(study["keys"])
            except _UNREADABLE as error:
                raise InputError(
                    f"store {self.path}: {path.name} cannot be read ({error}), so that it is "
                    "unknown what is still used; run the studies again, or remove the file"
                ) from error
        return sorted({*self.all_keys(), *(path.name for path in self._states())} - used)

    # -- removing ---------------------------------------------------------------------------------

    def remove(self, key: str) -> bool:
        """Remove an artefact, and the state of its making; False while another process has it."""
        with self._if_free(key) as free:
            if not free:
                return False
            self._verified.discard(key)
            folder = self.folder(key)
            if folder.exists():
                # Out of the way at once: one that is half removed is never taken for whole.
                grave = folder.with_name(f".removed.{key}")
                _discard(grave)
                folder.rename(grave)
                _discard(grave)
            self.forget_partial(key)
        return True

    def leftovers(self, *, remove: bool = False) -> list[Path]:
        """What processes left behind that died at work; nothing that is still being worked on.

        These are temporary files and folders, and states of what is finished.
        """
        patterns = ("objects/*/.*", f"{PARTIAL}/*/.*", f"{STUDIES}/.*", f".*.{MARK}")
        hidden = [path for pattern in patterns for path in self.path.glob(pattern)]
        ended = [path for path in self._states() if (self.folder(path.name) / MANIFEST).exists()]
        remains = [*(path for path in hidden if path.parent not in ended), *ended]
        locks, gone = [path.stem for path in (self.path / "locks").glob("*.lock")], list[Path]()
        for key in {*locks, *map(_key_of, remains)}:
            with self._if_free(key) as free:  # held, so that nothing new is begun meanwhile
                own = [path for path in remains if free and _key_of(path) == key]
                for path in own if remove else ():
                    _discard(path)
                gone += own
        return sorted(gone)


def _key_of(path: Path) -> str:
    """The key of a temporary file or folder, in its name or in that of its folder."""
    if path.parent.parent.name == PARTIAL:
        return path.parent.name
    return path.name.removesuffix(".json").rpartition(".")[2]


def _discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
