"""`mechcore reproduce cognitive` as users call it, bad input included."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from mechcore.cli import main
from mechcore.papers.cognitive.trials import generate

SHORT = "--steps 4 --warmup-steps 0 --evaluate-every 2 --batch-size 8 --fine-tuned-rates 1e-3"
FEW = "--sizes 8 --seeds 3 --test 40 --analysis 40 --dev 16 --projection pca --decoded-layers 1"


def call(command: str, *more: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *command.split(), *map(str, more)])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_a_study_from_the_command_line(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("mechcore.report.blocks.PNG_DPI", 20)
    assert call(f"cognitive --arms fine_tuned {SHORT} {FEW}", "--base", base, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "fine_tuned" in shown
    assert "inconclusive" in shown
    assert f"report: {out / 'report.html'}" in shown
    config = json.loads((out / "config.json").read_text())
    settings, origins = config["settings"], config["origins"]
    assert origins["arms"] == origins["fine_tuned.steps"] == origins["sizes"] == "command line"
    assert origins["scratch.learning_rates"] == "--base"
    assert not {"alpha", "threshold", "fine_tuned.epochs"} & set(origins)
    assert settings["arms"] == ["fine_tuned"]
    assert settings["fine_tuned"]["learning_rates"] == [0.001]
    assert settings["fine_tuned"]["warmup_steps"] == 0
    assert (settings["sizes"], settings["seeds"]) == ([8], [3])
    decoding = pd.read_csv(out / "tables" / "cognitive_decoding.csv")
    assert set(decoding["layer"]) == {1}
    training = pd.read_csv(out / "tables" / "cognitive_training.csv")
    assert training[["arm", "n", "seed"]].to_numpy().tolist() == [["fine_tuned", 8, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--sizes 400,100", "expected increasing whole numbers"),
        ("--scratch-rates 0", "learning_rate is 0.0; expected a number above 0"),
        ("--evaluate-every 0", "--evaluate-every is 0; expected a whole number from 1"),
    ],
)
def test_bad_options_get_one_line(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"cognitive {options}", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_trials_are_written(tmp_path: Path) -> None:
    out = tmp_path / "trials.jsonl"
    assert call("trials --n 24 --seed 5 --split test --random-order", "--out", out) == 0
    written, own = pd.read_json(out, lines=True), generate(24, 5, split="test", random_order=True)
    pd.testing.assert_frame_equal(written.drop(columns="spans"), own.frame, check_dtype=False)
    for row, places in zip(written["spans"], own.places.tolist(), strict=True):
        spans = [(span["name"], [span["start"], span["end"]]) for span in row]
        assert spans == list(zip(own.landmarks, places, strict=True))


def test_trials_go_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("trials", "--out", tmp_path / "trials.txt") == 2
    assert "expected a name that ends with .jsonl" in capsys.readouterr().err
    (tmp_path / "trials.jsonl").write_text("mine")
    assert call("trials", "--out", tmp_path / "trials.jsonl") == 2
    assert "already exists" in capsys.readouterr().err
