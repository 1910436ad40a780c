"""What commands print of their tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mechcore.cli.shared import run_table, show, show_part
from mechcore.files import write_csv


def shown(
    frame: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int = 80,
) -> list[str]:
    """The lines of a table on a terminal of that width, without what pads them."""
    monkeypatch.setenv("COLUMNS", str(width))
    show(frame)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_whole_numbers_of_a_run_are_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = pd.array([0, 12, None], dtype="Int64")
    frame = pd.DataFrame(
        {
            "arm": ["base", "scratch", "mean"],
            "seed": seeds,
            "n": [6400, 100, 100],
            "accuracy": [1.0, 0.0, None],
            "matched": [True, False, True],
        }
    )
    (tmp_path / "tables").mkdir()
    write_csv(tmp_path / "tables" / "models.csv", frame)
    assert shown(run_table(tmp_path, "models"), capsys, monkeypatch) == [
        "arm      seed     n  accuracy  matched",
        "──────────────────────────────────────",
        "base        0  6400     1.000  True",
        "scratch    12   100     0.000  False",
        "mean            100            True",
    ]


def test_a_dash_stands_for_an_interval_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = float("nan")
    frame = pd.DataFrame(
        {"subset": ["a", "b"], "seed": [nan, 1.0], "low": [nan, 0.25], "change_high": [nan, 0.5]}
    )
    dash = "\u2013"
    lines = [line.split() for line in shown(frame, capsys, monkeypatch)]
    assert lines[1] == ["subset", "seed", "low", "high"]
    assert lines[3:] == [["a", dash, dash], ["b", "1.000", "0.250", "0.500"]]
    (tmp_path / "tables").mkdir()
    write_csv(tmp_path / "tables" / "t.csv", frame)
    assert (tmp_path / "tables" / "t.csv").read_text().splitlines()[1] == "a,,,"
    found = shown(run_table(tmp_path, "t"), capsys, monkeypatch)
    assert found[3].split() == ["a", dash, dash]


def test_only_texts_go_on_in_the_next_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame(
        {"what it is": ["a long sentence"], "accuracy_change": [-0.25], "n": [1600]}
    )
    assert shown(frame, capsys, monkeypatch, width=28) == [
        "              accuracy",
        "what it is      change     n",
        "────────────────────────────",
        "a long          -0.250  1600",
        "sentence",
    ]


def test_names_are_shown_letter_by_letter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"set": ["[red]L1.H0", ":smile:"]})
    assert shown(frame, capsys, monkeypatch)[2:] == ["[red]L1.H0", ":smile:"]


def test_of_a_large_table_there_is_as_much_as_there_is_room_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show_part(["one", "two", "three"], [["a" * 8, "b" * 9, "c"]] * 17)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["one", "two"]  # 9 and 10 characters; there is one left
    assert lines[2:] == [f"{'a' * 8}  {'b' * 9}"] * 15 + ["and 2 more rows in the report"]
