"""Atomic writing: whole files or the old ones."""

import errno
import json
import os
import stat
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from mechcore.components import Mask
from mechcore.files import (
    appearing,
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


def test_masks_subnetworks_means_and_partial_results_have_equal_bytes(tmp_path: Path) -> None:
    identity = ModelIdentity(1, 2, 2, 4, "float32", "a" * 64)
    mask = Mask(torch.tensor([[1.0, 0.0, 1.0]]), identity=identity)
    partial = Partial(tmp_path, "sweep", seed=1)
    assert partial.path is not None
    empty = [torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 4)]
    means = MeanActivations(
        torch.ones(1, 2, 2), torch.ones(1, 4), torch.tensor(3.0), *empty, identity, "b" * 64
    )
    written: dict[str, set[bytes]] = {}
    for _ in range(12):
        mask.save(tmp_path / "mask.safetensors")
        Subnetwork(mask, 0.5, 1, mask.values.clone()).save(tmp_path / "subnetwork")
        means.save(tmp_path / "means")
        partial.save({"x": torch.ones(2), "y": torch.zeros(1)}, {"done": [1]})
        for path in tmp_path.iterdir():
            written.setdefault(path.name, set()).add(path.read_bytes())
    assert {name: len(contents) for name, contents in written.items()} == dict.fromkeys(
        ("mask.safetensors", "subnetwork", "means", partial.path.name), 1
    )


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
    frame = pd.DataFrame(rows, columns=pd.Index(["-first", "=second"]))
    write_csv(tmp_path / "t.csv", frame)
    read = pd.read_csv(tmp_path / "t.csv", dtype=str, keep_default_na=False)
    assert read.columns.tolist() == ["-first", "=second"]
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
    write_csv(tmp_path / "t.csv", frame)
    assert (tmp_path / "t.csv").read_text().splitlines()[1:] == [
        "-1,@a,1,True,0.1",
        ",b,,False,",
        "-2,@a,-3,True,-2e-09",
    ]


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    def write(temporary: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))

    with pytest.raises(OSError, match=r"No space left on device: '.*/a\.csv'") as caught:
        write_atomically(tmp_path / "a.csv", write)
    assert caught.value.filename == str(tmp_path / "a.csv")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"), appearing(tmp_path / "out") as folder:
        (folder / "gone" / "a").write_text("x")
    assert names(tmp_path) == []
    with appearing(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "inner" / "a").read_text() == "x"
    assert names(tmp_path) == ["out"]
