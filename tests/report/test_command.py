"""The command ``mechcore report``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mechcore.cli import main


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory, new_run: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("command") / "run"
    return new_run(folder, n_layers=1, n_heads=2, core=(), seeds=(0,), subsets=("a",))


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in ("report", *arguments)])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(("options", "ends"), [((), {".svg", ".png"}), (("--figures", ""), set())])
def test_what_is_written(
    run: Path, options: tuple[str, ...], ends: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(run.iterdir())
    assert call(run, *options) == 0
    assert {path.name for path in set(run.iterdir()) - before} - {"figures"} == {"report.html"}
    assert {path.suffix for path in (run / "figures").glob("*")} == ends
    assert capsys.readouterr().out.split() == ["report:", str(run / "report.html")]


def test_an_unknown_format_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.rglob("*"))
    assert call(run, "--figures", "jpg") == 2
    error = capsys.readouterr().err
    assert "unknown format 'jpg'; expected some of png, svg, pdf" in error
    assert error.count("\n") == 1
    assert sorted(run.rglob("*")) == before


def test_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path) == 2
    assert "config.json: not found" in capsys.readouterr().err
