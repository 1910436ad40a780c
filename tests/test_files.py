"""Atomic writing: whole files or the old ones."""

import json
import os
import stat
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import safe_open

from mechcore.files import write_atomically, write_csv, write_json, write_safetensors, write_text


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
