"""The run store: whole artefacts or none, whatever happens to process, disk and files."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study.processes import Other, needs_fork

from mechcore import files
from mechcore.errors import InputError, MechcoreWarning
from mechcore.study import store as module
from mechcore.study.store import MANIFEST, MARK, Damaged, Store, StoreError

CONTENT = {"a.bin": b"\x00\x01" * 100, "tables/b.csv": b"x,y\n1,2\n"}


def canonical(value: Any) -> str:
    """SHA-256 of canonical JSON, in our own words."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def key_of(n: Any) -> str:
    return canonical({"n": n})


def fill(folder: Path, content: Mapping[str, bytes] = CONTENT) -> None:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def keep_state(store: Store, key: str) -> None:
    store.partial(key).mkdir(parents=True)
    (store.partial(key) / "state").write_bytes(b"state")


def jobs(*numbers: Any, name: str = "job {}") -> list[Any]:
    """What a store knows of jobs."""
    return [SimpleNamespace(key=key_of(n), name=name.format(n)) for n in numbers]


def make(store: Store, n: Any = 1, content: Mapping[str, bytes] = CONTENT) -> str:
    key = key_of(n)
    with store.lock(key), store.making(key, "means", f"job {n}", {"n": n}) as folder:
        fill(folder, content)
    return key


def everything(folder: Path) -> set[str]:
    """All files below a folder."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def whole(*keys: str) -> set[str]:
    """The files of a store that was tidied."""
    names = [*CONTENT, MANIFEST]
    return {MARK} | {f"objects/{key[:2]}/{key}/{name}" for key in keys for name in names}


def again(store: Store) -> Store:
    """The same store, as another process sees it."""
    return Store(store.path)


def test_nothing_is_written_before_a_store_is_created(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    store = Store(tmp_path / "deep" / "store")
    assert store.hash_file(file) == hashlib.sha256(b"x").hexdigest()
    assert not store.has(key_of(1))
    assert store.all_keys() == store.leftovers() == store.unused() == []
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("name", "content", "place", "message"),
    [
        ("objects.zip", "mine", "", "not empty and not a store.*choose another --store"),
        ("file", "mine", "file", "found a file"),
        ("file", "mine", "file/store", "not a writable folder"),
        *(
            (MARK, mark, "", "this version reads 2; choose another")
            for mark in ('{"format": 1}', "[]", "{", "[" * 100_000)
        ),
    ],
)
def test_what_is_no_store_is_refused(
    tmp_path: Path, name: str, content: str, place: str, message: str
) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        Store(tmp_path / place)
    assert (tmp_path / name).read_text() == content


def test_a_store_whose_creation_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / f".abc.{MARK}").write_text("{")
    store = Store(tmp_path)
    store.create()
    store.leftovers(remove=True)
    key = make(store)
    assert everything(tmp_path) == whole(key)


def test_an_artefact_is_what_was_put_into_its_folder(store: Store) -> None:
    key = make(store)
    for opened in (store, again(store)):
        assert opened.has(key)
        manifest = opened.verify(key)
        assert (manifest.key, manifest.kind, manifest.name) == (key, "means", "job 1")
        assert manifest.recipe == {"n": 1}
        assert manifest.files == {n: hashlib.sha256(c).hexdigest() for n, c in CONTENT.items()}
        assert manifest.bytes == 208
        assert manifest.seconds >= 0
        assert manifest.machine["process"] == os.getpid()
    assert everything(store.path) == whole(key)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), InputError("x"), OSError("without a number")]
)
def test_an_error_leaves_nothing_and_stays_what_it_is(store: Store, error: BaseException) -> None:
    key = key_of(1)

    def fails() -> None:
        with store.lock(key), store.making(key, "means", "job", {"n": 1}) as folder:
            fill(folder)
            raise error

    with pytest.raises(type(error)) as caught:
        fails()
    assert caught.value is error
    assert not store.has(key)
    assert everything(store.path) == {MARK}
    make(store)
    assert everything(store.path) == whole(key)


def test_what_an_earlier_attempt_left_is_gone_when_a_new_one_begins(store: Store) -> None:
    key, other = key_of(1), key_of(2)
    parent = store.folder(key).parent
    for name in (f".abc.{key}/{key}/half", f".removed.{key}/half", f".abc.{other}/{other}/half"):
        (parent / name).parent.mkdir(parents=True)
        (parent / name).write_text("half")
    keep_state(store, key)
    (store.partial(key) / ".abc.state").write_text("half a state")
    with store.lock(key), store.making(key, "means", "job", {"n": 1}) as folder:
        mine = folder.parent.name
        assert {path.name for path in parent.iterdir()} == {mine, f".abc.{other}"}
        assert [path.name for path in store.partial(key).iterdir()] == ["state"]


def rewrite(folder: Path, changes: Mapping[str, Any], right: bool = False) -> None:
    """Edit a manifest, and give it the checksum that goes with the edit if asked."""
    content = json.loads((folder / MANIFEST).read_text()) | changes
    if right:
        del content["digest"]
        content["digest"] = canonical(content)
    (folder / MANIFEST).write_text(json.dumps(content))


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a byte changed": (lambda f: flip(f / "a.bin", 77), "checksum of a.bin differs"),
    "a file cut": (lambda f: os.truncate(f / "a.bin", 199), "checksum of a.bin differs"),
    "a file missing": (lambda f: (f / "a.bin").unlink(), "a.bin is missing"),
    "a file more": (lambda f: (f / "tables/c.csv").touch(), "tables/c.csv is missing, or was not"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "invalid manifest"),
    "manifest deep": (lambda f: (f / MANIFEST).write_text("[" * 99_999), "invalid manifest"),
    "manifest edited": (lambda f: rewrite(f, {"seconds": 1.5}), "its checksum differs"),
    "key of another": (lambda f: rewrite(f, {"key": key_of(2)}, True), "belongs to another job"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_found_said_and_removed(store: Store, what: str) -> None:
    key, other = make(store, 1), make(store, 2)
    damage, message = DAMAGES[what]
    damage(store.folder(key))
    looking = again(store)
    with pytest.raises(Damaged, match=message):
        looking.verify(key)
    with pytest.warns(MechcoreWarning, match=f"{message}.*; it was damaged .* repeating"):
        assert not looking.has(key)
    assert everything(store.path) == whole(other)
    assert looking.all_keys() == [other]
    make(looking)
    assert again(store).has(key)
    assert again(store).has(other)


@needs_fork()
def test_damage_is_not_removed_from_under_one_who_makes_it_again(store: Store) -> None:
    key = make(store)
    flip(store.folder(key) / "a.bin")
    other = holding(store, key)
    assert not again(store).has(key)
    assert store.folder(key).is_dir()
    other.tell()
    assert other.hear() == "letting go"
    other.end()


def test_what_was_made_again_meanwhile_is_not_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make(store)
    flip(store.folder(key) / "a.bin")
    looking = again(store)
    take = looking._if_free

    def late(key: str) -> Any:
        flip(store.folder(key) / "a.bin")  # as it was
        return take(key)

    monkeypatch.setattr(looking, "_if_free", late)
    assert looking.has(key)
    assert everything(store.path) == whole(key)


def hold(pipe: Connection, path: Path, key: str) -> None:
    with Store(path).lock(key):
        pipe.send("held")
        pipe.recv()
        pipe.send("letting go")


def holding(store: Store, key: str) -> Other:
    """A process that holds the lock of a job until told to continue."""
    other = Other(hold, store.path, key)
    assert other.hear() == "held"
    return other


@needs_fork()
def test_a_lock_excludes_other_processes(store: Store) -> None:
    key = key_of(1)
    other = holding(store, key)
    waits = []

    def waiting() -> None:
        waits.append(True)
        other.tell()

    with store.lock(key, waiting):
        assert other.hear() == "letting go"
    assert waits == [True]
    other.end()
    assert everything(store.path) == {MARK}


def begin(pipe: Connection, path: Path, n: int) -> None:
    """Make an artefact, with a stop when it is half there."""
    store, key = Store(path), key_of(n)
    with store.lock(key), store.making(key, "prune", f"job {n}", {"n": n}) as folder:
        (folder / "a.bin").write_bytes(CONTENT["a.bin"])
        keep_state(store, key)
        temporary = store.partial(key) / ".abc.state"
        temporary.write_bytes(b"sta")
        pipe.send("half done")
        pipe.recv()
        temporary.unlink()
        fill(folder)


def half_done(store: Store) -> Other:
    """A process that stopped there."""
    other = Other(begin, store.path, 1)
    assert other.hear() == "half done"
    return other


@needs_fork()
def test_what_a_killed_process_left_is_tidied_but_not_its_state(store: Store) -> None:
    half_done(store).kill()
    key = key_of(1)
    with store.lock(key, lambda: pytest.fail("nobody has it")):
        pass
    left = store.leftovers()
    assert len(left) == 2
    assert left[0].parent == store.folder(key).parent
    assert left[1] == store.partial(key) / ".abc.state"
    assert left == store.leftovers()
    store.leftovers(remove=True)
    assert store.leftovers() == []
    assert everything(store.path) == {MARK, f"partial/{key}/state"}
    make(store)
    assert everything(store.path) == whole(key)
    keep_state(store, key)
    assert store.leftovers() == [store.partial(key)]  # of no use any more


@needs_fork()
def test_what_a_living_process_works_on_is_left_alone(store: Store) -> None:
    other = half_done(store)
    before = everything(store.path)
    assert store.leftovers() == []
    store.leftovers(remove=True)
    assert not store.remove(key_of(1))
    assert everything(store.path) == before
    other.tell()
    other.end()
    assert everything(store.path) == whole(key_of(1))
    assert again(store).has(key_of(1))
    assert store.all_keys() == [key_of(1)]


def stop_while_writing(pipe: Connection, path: Path) -> None:
    share = files._open_to_others

    def slow(path: Path) -> None:
        pipe.send(path.name)
        pipe.recv()
        share(path)

    files._open_to_others = slow
    Store(path).remember(path.parent / "out", jobs(1))


@needs_fork()
def test_files_that_are_being_written_are_no_leftovers(store: Store) -> None:
    other = Other(stop_while_writing, store.path)
    temporary = other.hear()
    store.leftovers(remove=True)
    assert store.leftovers() == []
    assert [path.name for path in store.path.rglob(".*")] == [temporary]
    other.tell()
    other.end()
    assert list(store.path.rglob(".*")) == []


def hammer(pipe: Connection, path: Path, numbers: list[int], log: Path) -> None:
    """Make what is not there; every making is a line in the log."""
    store = Store(path)
    pipe.recv()
    store.create()
    store.leftovers(remove=True)
    store.remember(path.parent / f"out {os.getpid()}", jobs(*numbers))
    for n in numbers:
        key = key_of(n)
        with store.lock(key):
            if not store.has(key):
                with store.making(key, "means", f"job {n}", {"n": n}) as folder:
                    with log.open("a") as file:
                        file.write(f"{n}\n")
                    fill(folder)
        assert store.has(key)
        if n % 5 == 0:
            store.leftovers(remove=True)
            assert key in store.all_keys()
            again(store).verify(key)


@needs_fork()
def test_processes_that_hammer_one_store_make_all_whole_and_once(tmp_path: Path) -> None:
    path, log = tmp_path / "store", tmp_path / "log"
    shared = list(range(20))
    orders = [[*shared, 100, 101], [*shared[::-1], 200], [*shared[::2], *shared[1::2], 300]]
    others = [Other(hammer, path, numbers, log) for numbers in orders]
    for other in others:
        other.tell()
    for other in others:
        other.end()
    numbers = {n for order in orders for n in order}
    assert Counter(map(int, log.read_text().split())) == dict.fromkeys(numbers, 1)
    store = Store(path)
    keys = sorted(map(key_of, numbers))
    assert store.all_keys() == keys
    assert {store.verify(key).bytes for key in keys} == {208}
    assert store.leftovers() == []
    studies = {path.relative_to(store.path).as_posix() for path in store.path.glob("studies/*")}
    assert len(studies) == 3
    assert everything(path) == whole(*keys) | studies


def limited(pipe: Connection, path: Path) -> None:
    """Work where no file may be larger than 64 KiB, then where any may."""
    store = Store(path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    with pytest.raises(StoreError, match=r"File too large while writing job 2; finished.*run"):
        make(store, 2, {"big": bytes(2**16 + 1)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    for action in (
        lambda: store.remember(path.parent, []),
        lambda: Store(path.parent / "other").create(),
        lambda: make(store, 3),
    ):
        with pytest.raises(StoreError, match=r"while writing .*free space, then rerun the same"):
            action()
    file = path.parent / "file"
    assert Store(path).hash_file(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@needs_fork()
def test_a_file_that_cannot_grow_is_a_named_error_and_the_store_goes_on(store: Store) -> None:
    key = make(store)
    (store.path.parent / "file").write_text("content")
    Other(limited, store.path).end()
    assert everything(store.path) == whole(key)
    assert again(store).has(key)
    second = make(store, 2)
    assert store.all_keys() == sorted([key, second])


@pytest.fixture
def outs(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("first", "second")]
    for out in folders:
        out.mkdir()
    return folders


def test_unused_is_what_no_study_has_use_for(store: Store, outs: list[Path]) -> None:
    a, b, c = (make(store, n) for n in (1, 2, 3))
    assert store.unused() == sorted([a, b, c])
    store.remember(outs[0], jobs(1, 2))
    store.remember(outs[1], jobs(2, "not done yet"))
    assert again(store).unused() == [c]
    store.remember(outs[0], jobs(3))  # another plan for the same study
    assert again(store).unused() == [a]
    # What an unfinished job keeps is unused, too, where no study wants the job.
    begun = key_of("not done yet")
    keep_state(store, begun)
    assert again(store).unused() == [a]
    outs[1].rmdir()
    assert again(store).unused() == sorted([a, b, begun])
    assert store.leftovers() == []
    assert store.remove(begun)
    assert not store.partial(begun).exists()


def test_a_study_moved_together_with_its_store_keeps_its_artefacts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    store = Store(out / "store")
    store.create()
    kept, unused = make(store, 1), make(store, 2)
    store.remember(out, jobs(1))
    out.rename(tmp_path / "moved")
    moved = Store(tmp_path / "moved" / "store")
    assert moved.unused() == [unused]
    moved.remember(tmp_path / "moved", jobs(2))
    assert moved.unused() == [kept]


def test_what_a_study_last_had_is_known_until_it_is_removed(store: Store, outs: list[Path]) -> None:
    def last(out: Path, name: str) -> Any:
        return again(store).last_recipe(out, SimpleNamespace(name=name))  # type: ignore[arg-type]

    first = make(store, 1)
    store.remember(outs[0], jobs(1, name="job"))
    assert last(outs[0], "job") == {"n": 1}
    assert last(outs[0], "another") is last(outs[1], "job") is None
    store.remember(outs[0], jobs(2, name="job"))  # its settings changed, say
    assert last(outs[0], "job") == {"n": 1}
    store.remember(outs[0], [])  # it is not known yet
    assert last(outs[0], "job") == {"n": 1}
    make(store, 2)
    store.remember(outs[0], jobs(2, name="job"))
    assert last(outs[0], "job") == {"n": 2}
    assert store.unused() == [first]
    store.remove(key_of(2))
    assert last(outs[0], "job") is None
    for path in (store.path / "studies").iterdir():
        path.write_text("[")
    assert last(outs[0], "job") is None


def test_a_list_that_cannot_be_read_is_not_taken_for_an_empty_one(store: Store) -> None:
    (store.path / "studies").mkdir()
    for content in ("{", "{}", "[" * 99_999):
        (store.path / "studies" / "x.json").write_text(content)
        with pytest.raises(InputError, match=r"x\.json cannot be read .* rerun the studies"):
            store.unused()


def test_removing_that_was_killed_half_way_is_tidied(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make(store)

    def killed(path: Path) -> None:
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_discard", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(key)
    assert not again(store).has(key)
    assert [path.name for path in store.leftovers()] == [f".removed.{key}"]
    store.leftovers(remove=True)
    assert everything(store.path) == {MARK}
