"""Figures are saved in the formats asked for, the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from mechcore.errors import InputError
from mechcore.report.blocks import Drawing, Gallery

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
