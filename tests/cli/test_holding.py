"""Two commands do not write to one output at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from mechcore.cli import main
from mechcore.cli.holding import hold, holding
from mechcore.files import locked

MEANS = ("means", "--max-train", "4", "--out")


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_an_output_that_another_command_writes_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with FileLock(tmp_path / ".out.lock"):
        assert call(*MEANS, out) == 2
        assert capsys.readouterr().err == (
            f"mechcore: error: {out}: another mechcore command is writing to it; wait until it "
            "ends, or choose another --out\n"
        )
        assert not out.exists()
        assert call(*MEANS, tmp_path / "other") == 0
    assert call(*MEANS, out) == 0


def test_nothing_stays_beside_an_output(tmp_path: Path) -> None:
    assert call(*MEANS, tmp_path / "out") == 0
    assert call(*MEANS, tmp_path / "out") == 2  # exists by now
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_folders_that_were_made_for_nothing_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "out"
    assert call("means", "--model", tmp_path / "nosuch", "--train", "x.csv", "--out", place) == 2
    assert not list(tmp_path.iterdir())
    assert call(*MEANS, place) == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"out"}


def test_an_output_is_held_until_the_command_ends(tmp_path: Path) -> None:
    def is_free() -> bool:
        with locked(tmp_path / ".out.lock") as free:
            return free

    with holding():
        hold(tmp_path / "out")
        hold(tmp_path / "out")
        assert not is_free()
    assert is_free()
