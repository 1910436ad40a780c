"""Components from tables, and tables that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechcore.ablation.reading import read_components
from mechcore.errors import InputError


def write(path: Path, content: str | bytes) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return path


CORE = "component,layer,head,n_subnetworks\nL2.H5,2,5,6\nL0.H1,0,1,6\nL1.MLP,1,,6\n"


def test_components_of_a_core_table_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "tables").mkdir(parents=True)
    (tmp_path / "core").mkdir()
    for path in ("core.csv", "other-name.csv", "core/core.csv", "run/tables/core.csv"):
        write(tmp_path / path, CORE)
    for path in ("core.csv", "other-name.csv", "core", "run", "run/tables"):
        found = read_components(tmp_path / path)
        assert list(map(str, found)) == ["L2.H5", "L0.H1", "L1.MLP"]
    # Such as the table of head categories.
    table = "category,component\nprevious,1.0\n"
    assert list(map(str, read_components(write(tmp_path / "heads.csv", table)))) == ["L1.H0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("component,layer\n", "core.csv: the core is empty; name components instead"),
        ("set,layer\nL0.H1,0\n", "core.csv: no column component; found set, layer"),
        ("component\nhead3\n", "component 'head3'"),
        ("", "core.csv: cannot be read"),
        (b"component\n\xff\xfe\n", "core.csv: cannot be read"),
    ],
)
def test_what_is_no_core(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_components(write(tmp_path / "core.csv", content))


def test_a_core_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nosuch.csv", tmp_path):
        message = f"core table {path}: no such file; expected core.csv or a run's folder"
        with pytest.raises(InputError, match=message):
            read_components(path)


def test_a_core_table_with_an_unreadable_name_is_named(tmp_path: Path) -> None:
    path = tmp_path / "core.csv"
    path.write_text("component\nL1\n")
    with pytest.raises(InputError, match=rf"^core table {path}: component 'L1': not a component"):
        read_components(path)


def test_a_core_table_that_is_not_compressed_as_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "core.csv.gz"
    path.write_text("component\nL1.H0\n")
    with pytest.raises(InputError, match=rf"^core table {path}: cannot be read"):
        read_components(path)


def test_messages_stay_short(tmp_path: Path) -> None:
    path = tmp_path / "core.csv"
    path.write_text("x" * 100_000)
    with pytest.raises(InputError, match="no column") as caught:
        read_components(path)
    assert len(str(caught.value)) < 600
