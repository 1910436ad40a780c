"""Figures are saved as asked for, the same every time; what a page carries ends no element."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mechcore.errors import InputError
from mechcore.report.blocks import JSON, Drawing, Gallery, data_uri, download, script_json

BEGINNINGS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def line() -> Drawing:
    figure = Figure(figsize=(2, 1), layout="constrained")
    figure.subplots().plot([1, 2], [3, 4])
    return Drawing(figure, "line", "caption", "alt")


@pytest.mark.parametrize("formats", [(), ("pdf",), ("png", "svg", "pdf"), ("svg", "svg")])
def test_formats(tmp_path: Path, formats: tuple[str, ...]) -> None:
    picture = Gallery(tmp_path, formats).add(line())
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(files) == {f"line.{end}" for end in formats}
    for name, content in files.items():
        assert content.startswith(BEGINNINGS[name[-3:]])
        assert content == _again(tmp_path / "again", name)
    assert picture.svg == ("figures/line.svg" if "svg" in formats else "")
    assert (picture.width, picture.height) == (192, 96)


def _again(folder: Path, name: str) -> bytes:
    Gallery(folder, (name[-3:],)).add(line())
    return (folder / "figures" / name).read_bytes()


def test_other_formats_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown format 'gif'; expected some of png, svg, pdf"):
        Gallery(tmp_path, ("svg", "gif"))
    assert list(tmp_path.iterdir()) == []


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_json_in_a_script_means_the_same_and_ends_nothing(content: object) -> None:
    text = script_json(content)
    assert json.loads(text) == content
    assert not set("<>&") & set(text)
    assert text.isascii()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_know_are_errors(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([value])


def test_a_file_is_carried_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    (tmp_path / "a.json").write_bytes(content)
    carried = download(tmp_path / "a.json", JSON)
    assert (carried["name"], carried["size"]) == ("a.json", 768)
    head, _, body = carried["uri"].partition(",")
    assert head == "data:application/json;base64"
    assert base64.b64decode(body) == content
    assert data_uri(content, JSON) == carried["uri"]


def test_names_that_are_no_plain_text_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\u202eb.csv"
    path.write_text("x")
    assert download(path)["name"] == "a\\u202eb.csv"
