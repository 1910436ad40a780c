"""What commands print of their tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from mechcore.cli.execution import run_table, show, show_part
from mechcore.files import write_csv

Shown = Callable[..., list[str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The lines of a table on a terminal of some width, without what pads them."""

    def lines(frame: pd.DataFrame, width: int = 80) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        show(frame)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return lines


def written(folder: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """A table as it comes back from a run."""
    (folder / "tables").mkdir()
    write_csv(folder / "tables" / "t.csv", frame)
    return run_table(folder, "t")


def test_whole_numbers_of_a_run_are_shown_as_such(tmp_path: Path, shown: Shown) -> None:
    frame = pd.DataFrame(
        {
            "arm": ["base", "scratch", "mean"],
            "seed": pd.array([0, 12, None], dtype="Int64"),
            "n": [6400, 100, 100],
            "accuracy": [1.0, 0.0, None],
            "matched": [True, False, True],
        }
    )
    assert shown(written(tmp_path, frame)) == [
        "arm      seed     n  accuracy  matched",
        "──────────────────────────────────────",
        "base        0  6400     1.000  True",
        "scratch    12   100     0.000  False",
        "mean            100            True",
    ]


def test_a_dash_stands_for_an_interval_that_is_not_known(tmp_path: Path, shown: Shown) -> None:
    nan, dash = float("nan"), "\u2013"
    frame = pd.DataFrame(
        {"subset": ["a", "b"], "seed": [nan, 1.0], "low": [nan, 0.25], "change_high": [nan, 0.5]}
    )
    lines = [line.split() for line in shown(frame)]
    assert lines[1] == ["subset", "seed", "low", "high"]
    assert lines[3:] == [["a", dash, dash], ["b", "1.000", "0.250", "0.500"]]
    assert shown(written(tmp_path, frame))[3].split() == ["a", dash, dash]
    assert (tmp_path / "tables" / "t.csv").read_text().splitlines()[1] == "a,,,"


def test_only_texts_go_on_in_the_next_line(shown: Shown) -> None:
    frame = pd.DataFrame(
        {"what it is": ["a long sentence"], "accuracy_change": [-0.25], "n": [1600]}
    )
    assert shown(frame, width=28) == [
        "              accuracy",
        "what it is      change     n",
        "────────────────────────────",
        "a long          -0.250  1600",
        "sentence",
    ]
    # Names are shown letter by letter.
    names = ["[red]L1.H0", ":smile:"]
    assert shown(pd.DataFrame({"set": names}))[2:] == names


def test_of_a_large_table_there_is_as_much_as_there_is_room_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show_part(["one", "two", "three"], [["a" * 8, "b" * 9, "c"]] * 17)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["one", "two"]  # 9 and 10 characters; there is one left
    assert lines[2:17] == [f"{'a' * 8}  {'b' * 9}"] * 15
    assert lines[17] == "and 2 more rows in the report"
    assert lines[18:] == ["columns that this terminal is too narrow for: three"]
