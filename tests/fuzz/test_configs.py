"""Hostile study configurations."""

import json
from pathlib import Path

import pytest
from fuzz.configs import VALID, write_config
from fuzz.harness import check_all

from mechcore.main_study.config_file import read_config
from mechcore.main_study.study import STUDY
from mechcore.study.step import plain


def test_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def read(path: Path) -> None:
        config = read_config(path)
        kept = json.loads(json.dumps(plain(config), allow_nan=False))
        assert STUDY.read(kept, "kept") == config  # what a study keeps is read again

    check_all(tmp_path / "work", 600, write_config, read)
    assert list((tmp_path / "here").iterdir()) == []


def test_the_configuration_that_is_changed_is_valid() -> None:
    assert STUDY.read(VALID, "valid").seeds == (1, 2, 3)
