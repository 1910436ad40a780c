"""Sets of components from files of every kind, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechcore.ablation import ComponentSet
from mechcore.ablation.reading import read_components, read_sets
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError


def write(path: Path, content: str | bytes) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return path


def listed(sets: list[ComponentSet]) -> list[tuple[str, str | None]]:
    """Components and name of every set."""
    return [("+".join(map(str, each.components)), each.name) for each in sets]


# -- every format ---------------------------------------------------------------------------------


def test_sets_of_a_text_file(tmp_path: Path) -> None:
    text = """# sets to ablate
L0.H1 L2.MLP
  2.3+0.1   # the pair of the paper

first layer: 0.0, 0.2,L0.MLP
a: b : L1.H1
L1.H0
"""
    for name in ("sets.txt", "sets", "sets.list"):
        assert listed(read_sets(write(tmp_path / name, text))) == [
            ("L0.H1+L2.MLP", None),
            ("L0.H1+L2.H3", None),
            ("L0.H0+L0.H2+L0.MLP", "first layer"),
            ("L1.H1", "a: b"),
            ("L1.H0", None),
        ]
    assert str(read_sets(tmp_path / "sets.txt")[2]) == "first layer"


def test_sets_of_a_table(tmp_path: Path) -> None:
    # Such as the table of interactions, which has a set in many rows.
    sets = ["L0.H1+L2.MLP", "L0.H1+L2.MLP", "L1.H0", "L0.H1+L2.MLP"]
    path = tmp_path / "interactions.csv"
    pd.DataFrame({"size": [2, 2, 1, 2], "set": sets}).to_csv(path, index=False)
    assert listed(read_sets(path)) == [("L0.H1+L2.MLP", None), ("L1.H0", None)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            [["L0.H1", "2.mlp"], ["1.0"], "L0.H0+L0.H1"],
            [("L0.H1+L2.MLP", None), ("L1.H0", None), ("L0.H0+L0.H1", None)],
        ),
        (
            {"copying": ["0.1", "0.2"], "other one": ["L1.MLP"], "text": "1.0 1.1"},
            [("L0.H1+L0.H2", "copying"), ("L1.MLP", "other one"), ("L1.H0+L1.H1", "text")],
        ),
    ],
)
def test_sets_of_a_json_file(tmp_path: Path, content: Any, expected: Any) -> None:
    assert listed(read_sets(write(tmp_path / "sets.json", json.dumps(content)))) == expected


@pytest.mark.parametrize("name", ["sets.txt", "sets.json", "sets.csv"])
def test_a_byte_order_mark_is_no_part_of_a_set(tmp_path: Path, name: str) -> None:
    texts = {"sets.txt": "L0.H1", "sets.json": '[["L0.H1"]]', "sets.csv": "set\nL0.H1\n"}
    (tmp_path / name).write_text(texts[name], encoding="utf-8-sig")
    assert listed(read_sets(tmp_path / name)) == [("L0.H1", None)]


def test_the_set_of_a_mask_is_what_it_ablates(tmp_path: Path) -> None:
    full = Mask.full(ModelShape(2, 3))
    one, other = full.without("0.1", "1.mlp"), full.without("1.2")
    one.save(tmp_path / "one.safetensors")
    Mask.stack([one, other]).save(tmp_path / "both.safetensors")
    assert listed(read_sets(str(tmp_path / "one.safetensors"))) == [("L0.H1+L1.MLP", None)]
    both = listed(read_sets(tmp_path / "both.safetensors"))
    assert both == [("L0.H1+L1.MLP", None), ("L1.H2", None)]


# -- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.txt", "# one\nL0.H1\n\nL0.H1 head3\n", r"s\.txt, line 4: component 'head3'"),
        ("s.txt", "good: L0.H1\nbad: L0.H1 L0\n", r"s\.txt, line 2: component 'L0'"),
        ("s.txt", "", r"s\.txt: holds no set"),
        ("s.txt", "# only a comment\n\n", r"s\.txt: holds no set"),
        ("s.txt", b"L0.H1\n\xff\xfe\n", r"s\.txt: cannot be read"),
        ("s.csv", "set,n\nL0.H1,1\nL0.H1,2\nx,3\n", r"s\.csv, row 3: component 'x'"),
        ("s.csv", "component\nL0.H1\n", r"s\.csv: cannot be read \(no column 'set'; found comp"),
        ("s.csv", "set\n", r"s\.csv: holds no set"),
        ("s.csv", "", r"s\.csv: cannot be read"),
        ("s.json", "[[", r"s\.json: cannot be read"),
        ("s.json", "7", r"s\.json: cannot be read \(found int, expected a list or an object\)"),
        ("s.json", "[]", r"s\.json: holds no set"),
        ("s.json", '{"a": ["L0.H0"], "a": ["L0.H1"]}', r"s\.json: .* key occurs twice among .*a"),
        ("s.json", '[["L0.H1"], [3]]', r"s\.json, set 2: "),
        ("s.json", '[["L0.H1"], 3]', r"s\.json, set 2: "),
        ("s.json", "[null]", r"s\.json, set 1: "),
        (
            "s.json",
            '{"a": ["L0.H0"], "b": 5}',
            r"s\.json, b: component 5: found int; expected a name such as L4.H0 .* a list of names",
        ),
        ("s.json", '{"a": ["L0.H0", null]}', r"s\.json, a: component None: found NoneType; expect"),
        ("s.json", '{"a": []}', r"s\.json, a: names no component"),
        ("s.txt", "L0.H1\n+\n", r"s\.txt, line 2: names no component; expected some"),
        ("s.txt", "mine:\n", r"s\.txt, line 1: names no component"),
        ("s.json", '{"mine": ["L0.H1", "L0"]}', r"s\.json, mine: component 'L0'"),
        ("s.safetensors", "text", r"s\.safetensors: not a mask written by mechcore"),
    ],
)
def test_what_is_no_set(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_sets(write(tmp_path / name, content))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nosuch.txt", tmp_path / "nosuch.safetensors", tmp_path):
        with pytest.raises(InputError, match=f"sets file {path}: no such file"):
            read_sets(path)


# -- components -----------------------------------------------------------------------------------

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


def test_deeply_nested_sets(tmp_path: Path) -> None:
    path = tmp_path / "sets.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=rf"^sets file {path}: cannot be read"):
        read_sets(path)


def test_messages_stay_short(tmp_path: Path) -> None:
    path = tmp_path / "core.csv"
    path.write_text("x" * 100_000)
    for read in (read_components, read_sets):
        with pytest.raises(InputError, match="no column") as caught:
            read(path)
        assert len(str(caught.value)) < 600
