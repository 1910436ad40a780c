"""Files to begin with: every setting of every kind of study, with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers import every_setting
from pydantic import TypeAdapter

from mechcore.study.kinds import DEFAULT, STUDIES, in_yaml, read_study, template
from mechcore.study.step import plain
from mechcore.yaml_file import parse_yaml

KINDS = ("heuristic-core", "cognitive", "extractive")
pytestmark = pytest.mark.parametrize("kind", KINDS)


def written(folder: Path, kind: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(template(path, kind))
    return path


def test_a_template_is_the_default_study(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    assert read_study(path) == (kind, STUDIES[kind].settings())
    text = path.read_text()
    assert "mechcore run study.yaml" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_template_shows_every_default(tmp_path: Path, kind: str) -> None:
    content = parse_yaml(written(tmp_path, kind).read_text())
    assert content.pop("kind", DEFAULT) == kind
    wanted = plain(STUDIES[kind].settings())
    if "prune" in wanted:  # a preset stands for them
        assert content.pop("prune") == {"preset": "fast"}
        del wanted["prune"]
    assert content == wanted


def test_what_a_template_comments_out_can_be_used(tmp_path: Path, kind: str) -> None:
    text = written(tmp_path, kind).read_text()
    commented = re.findall(r"(?m)^  # (\w+): ", text)
    prune = plain(STUDIES[kind].settings()).get("prune", {})
    assert commented == list(prune)
    path = tmp_path / "changed.yaml"
    path.write_text(
        re.sub(r"(?m)^  # (\w+): ", r"  \1: ", text).replace("steps: 400", "steps: 401")
    )
    _, config = read_study(path)
    assert (getattr(config, "prune", None) and config.prune.steps) == (401 if prune else None)


def test_examples_are_values_of_their_settings(kind: str) -> None:
    for name, entry in every_setting(STUDIES[kind].settings):
        if entry.setting.example:
            value = parse_yaml(f"x: {entry.setting.example}")["x"]
            assert value != plain(entry.default), name
            if "preset" in entry.setting.example:
                assert entry.group.presets.read(value) is not None
            else:
                TypeAdapter(entry.type).validate_python(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -1.5e-05, "encoder", "a b", "no", "3", "null", "", " x", "a, b", "{a}"),
        *("x: y", "#5", "'", "ä"),
        *([], [1, "2", None], {}, {"0": "a", "b c": [1.0, "d: e"], "null": {"x": "~"}}),
    ],
)
def test_values_are_read_back(kind: str, value: Any) -> None:
    assert parse_yaml(f"x: {in_yaml(value)}") == {"x": value}
