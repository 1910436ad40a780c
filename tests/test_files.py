"""Atomic writing: whole files or the old ones."""

import csv
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from mechcore.components import Mask
from mechcore.files import (
    appearing,
    read_csv,
    unguarded,
    write_atomically,
    write_csv,
    write_json,
    write_safetensors,
    write_text,
)
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.partial import Partial
from mechcore.pruning import Subnetwork


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_into_new_folders_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_text(path, "Grüße\n")
    assert path.read_bytes() == "Grüße\n".encode()
    assert names(path.parent) == ["file.txt"]


def test_replaces_an_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("a long old content")
    write_text(str(path), "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_leaves_the_old_file_and_no_part_of_the_new(
    tmp_path: Path, error: type[BaseException], old: str | None
) -> None:
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(error):
        write_atomically(path, write)
    assert names(tmp_path) == ([] if old is None else ["file.txt"])
    assert old is None or path.read_text() == old


def test_the_new_file_is_not_seen_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"

    def write(temporary: Path) -> None:
        assert temporary.parent == path.parent  # moving within a folder is atomic
        temporary.write_text("half")
        assert not path.exists()

    write_atomically(path, write)
    assert path.read_text() == "half"


def test_permissions_are_those_of_an_ordinary_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "x")
        assert os.umask(0o027) == 0o027  # and the process's mask is left as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_formats_read_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "b": "ü"}
    write_json(tmp_path / "x.json", content)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == content

    frame = pd.DataFrame({"n": [1, 2], "text": ["a,b", 'c "d"\ne']})
    write_csv(tmp_path / "x.csv", frame)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "x.csv"), frame)

    tensors = {"t": torch.arange(6.0).reshape(2, 3), "empty": torch.zeros(0, 2)}
    write_safetensors(tmp_path / "x.safetensors", tensors, {"fact": "1"})
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert file.metadata()["fact"] == "1"
        assert torch.equal(file.get_tensor("t"), tensors["t"])
        assert file.get_tensor("empty").shape == (0, 2)


# -- spreadsheets ---------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1", "-2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "=", "-"]
MARKED = ["'=1", "''-2", "'''@"]
PLAIN = ["a=1", "L0.H1+L2.H0", "'quoted'", "'", "", " =1", "é", "1-2"]


def cells(path: Path) -> list[list[str]]:
    """A file's cells as Python's own reader sees them."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_equal_tensors_and_metadata_give_equal_bytes(tmp_path: Path) -> None:
    facts = {f"fact {i}": f'\x00\x1f\x7f\b\f\n\r\t\\"/\u2028é😀{i}' for i in range(8)}
    tensors = {"b": torch.arange(6).reshape(2, 3), "a": torch.tensor(0.5), "none": torch.ones(0, 2)}
    path, found = tmp_path / "a.safetensors", set()
    for order in range(8):
        names = [*list(facts)[order:], *list(facts)[:order]]
        write_safetensors(path, dict(reversed(tensors.items())), {n: facts[n] for n in names})
        found.add(path.read_bytes())
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == facts
            assert all(torch.equal(file.get_tensor(name), t) for name, t in tensors.items())
    assert len(found) == 1


def test_masks_subnetworks_means_and_partial_results_have_equal_bytes(tmp_path: Path) -> None:
    identity = ModelIdentity(1, 2, 2, 4, "float32", "a" * 64)
    mask = Mask(torch.tensor([[1.0, 0.0, 1.0]]), identity=identity)
    partial = Partial(tmp_path, "sweep", seed=1)
    assert partial.path is not None
    empty = [torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 4)]
    means = MeanActivations(
        torch.ones(1, 2, 2), torch.ones(1, 4), torch.tensor(3.0), *empty, identity, "b" * 64
    )
    found: dict[str, set[bytes]] = {}
    for _ in range(12):
        mask.save(tmp_path / "mask.safetensors", {"a": "1", "b": "2"})
        Subnetwork(mask, 0.5, 1, mask.values.clone()).save(tmp_path / "subnetwork")
        means.save(tmp_path / "means")
        partial.save({"x": torch.ones(2), "y": torch.zeros(1)}, {"done": [1]})
        for each in tmp_path.iterdir():
            found.setdefault(each.name, set()).add(each.read_bytes())
    assert {name: len(contents) for name, contents in found.items()} == dict.fromkeys(
        ("mask.safetensors", "subnetwork", "means", partial.path.name), 1
    )


def test_no_text_begins_a_formula(tmp_path: Path) -> None:
    texts = [*FORMULAS, *MARKED, *PLAIN]
    write_csv(tmp_path / "t.csv", pd.DataFrame({"=name": texts, "n": -1, "x": -0.5}))
    header, *rows = cells(tmp_path / "t.csv")
    assert header == ["'=name", "n", "x"]
    assert [row[0] for row in rows] == [f"'{text}" for text in [*FORMULAS, *MARKED]] + PLAIN
    assert {(row[1], row[2]) for row in rows} == {("-1", "-0.5")}  # numbers stay numbers
    read = read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert read["=name"].tolist() == texts
    assert read["n"].sum() == -len(texts)


UNWRITABLE = "\0" if sys.version_info < (3, 11) else ""
"""What Python's own module cannot write."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters=UNWRITABLE)),
            st.text(st.sampled_from("'=-+@\t\r\n,\"a"), max_size=5),
        ),
        min_size=1,
    )
)
def test_every_text_reads_back(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    frame = pd.DataFrame(rows, columns=pd.Index(["-first", "'=second"]))
    write_csv(tmp_path / "t.csv", frame)
    read = read_csv(tmp_path / "t.csv", dtype=str, keep_default_na=False)
    assert read.columns.tolist() == ["-first", "'=second"]
    assert list(read.itertuples(index=False, name=None)) == rows


def test_cells_of_every_kind_read_back(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "mixed": ["-1", None, -2],
            "kind": pd.Categorical(["@a", "b", "@a"]),
            "maybe": pd.array([1, None, -3], dtype="Int64"),
            "flag": [True, False, True],
            "x": [0.1, float("nan"), -2e-9],
        }
    )
    before = frame.copy()
    write_csv(tmp_path / "t.csv", frame)
    pd.testing.assert_frame_equal(frame, before)
    assert cells(tmp_path / "t.csv")[1:] == [
        ["'-1", "'@a", "1", "True", "0.1"],
        ["", "b", "", "False", ""],
        ["-2", "'@a", "-3", "True", "-2e-09"],
    ]
    read = read_csv(tmp_path / "t.csv")
    assert read["mixed"].tolist()[::2] == ["-1", "-2"]
    assert read["kind"].tolist() == ["@a", "b", "@a"]
    pd.testing.assert_series_equal(read["x"], frame["x"])


def test_tables_without_rows_and_with_a_name_twice(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", pd.DataFrame(columns=pd.Index(["=a", "b"])))
    assert read_csv(tmp_path / "t.csv").columns.tolist() == ["=a", "b"]
    twice = pd.DataFrame([["'=1", "'=2"]], columns=pd.Index(["a", "a"]))
    assert unguarded(twice).to_numpy().tolist() == [["=1", "=2"]]


# -- a full disk ----------------------------------------------------------------------------------

_FILL = """
import sys
from pathlib import Path
import pandas as pd, torch
from mechcore.files import write_csv, write_safetensors, write_text
folder, size = Path(sys.argv[1]), int(sys.argv[2])
if len(sys.argv) > 3:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing past the limit is an error instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
writers = {
    "a.safetensors": lambda path: write_safetensors(path, {"t": torch.ones(size // 4)}, {}),
    "a.csv": lambda path: write_csv(path, pd.DataFrame({"a": ["x" * 99] * (size // 100)})),
    "a.json": lambda path: write_text(path, "x" * size),
}
for name in writers:
    (folder / name).write_text("old")
for name, write in writers.items():
    try:
        write(folder / name)
        print("wrote", name)
    except OSError as error:
        print(f"{error.errno} {error.filename} {error}")
print(sorted(path.name for path in folder.iterdir()))
print({(folder / name).read_text() for name in writers})
"""


def lines(*command: Any) -> list[str]:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_refused(found: list[str], folder: Path, number: int) -> None:
    """Every writer said so, naming the file, and left what was there."""
    assert found == [
        *(
            f"{number} {folder / name} [Errno {number}] {os.strerror(number)}: '{folder / name}'"
            for name in ("a.safetensors", "a.csv", "a.json")
        ),
        "['a.csv', 'a.json', 'a.safetensors']",
        "{'old'}",
    ]


@pytest.mark.skipif(os.name != "posix", reason="needs limits of file sizes")
def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    found = lines(sys.executable, "-c", _FILL, tmp_path, 400_000, 100_000)
    check_refused(found, tmp_path, errno.EFBIG)


def cannot_mount(folder: Path) -> str | None:
    """Why no file system can be mounted; None if one can."""
    if shutil.which("unshare") is None:
        return "needs unshare"
    trial = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(trial, capture_output=True, check=False)
    return "file systems cannot be mounted here" if done.returncode else None


def test_a_full_disk(tmp_path: Path) -> None:
    if reason := cannot_mount(tmp_path):
        pytest.skip(reason)
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1" 4000000'
    found = lines("unshare", "-rm", "sh", "-c", script, "sh", tmp_path, sys.executable, _FILL)
    check_refused(found, tmp_path, errno.ENOSPC)


def test_other_errors_of_safetensors_stay(tmp_path: Path) -> None:
    shared = torch.ones(4)
    with pytest.raises(RuntimeError, match="share memory"):
        write_safetensors(tmp_path / "t", {"a": shared, "b": shared[:2]}, {})
    assert names(tmp_path) == []


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(NotADirectoryError) as caught:
        write_text(tmp_path / "a" / "b.txt", "x")
    assert caught.value.filename == str(tmp_path / "a" / "b.txt")


# -- a crash of the machine -----------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files brought to the disk, by the names they had then, in order."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs the names of open files")
    found: list[Path] = []
    fsync = os.fsync

    def remember(handle: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    return found


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, synced: list[Path]) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "x")
    (content,) = synced
    assert content.parent == path.parent
    assert content != path


def test_the_files_of_a_folder_that_appears_are_on_the_disk(
    tmp_path: Path, synced: list[Path]
) -> None:
    with appearing(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("x")
    assert [path.name for path in synced] == ["a"]
    assert not synced[0].is_relative_to(tmp_path / "out")
