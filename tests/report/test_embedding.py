"""What a page carries: the same content, in a form that ends no element."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.report.blocks import JSON, data_uri, download, script_json


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
    assert (carried.name, carried.size) == ("a.json", 768)
    head, _, body = carried.uri.partition(",")
    assert head == "data:application/json;base64"
    assert base64.b64decode(body) == content
    assert data_uri(content, JSON) == carried.uri


def test_names_that_are_no_plain_text_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\u202eb.csv"
    path.write_text("x")
    assert download(path).name == "a\\u202eb.csv"
