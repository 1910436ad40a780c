"""Weights that are NaN, infinite or huge: right numbers, or one clear line and no table."""

from __future__ import annotations

import importlib
import random
import shutil
from pathlib import Path

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from fuzz.harness import TIMES
from helpers import CLASSES, Cases
from safetensors.torch import load_file, save_file

from mechcore.cli import main

VALUES = (float("nan"), float("inf"), -float("inf"), 3e38)
WEIGHTS = "model.safetensors"
PRUNE = "--seeds 3 --target-sparsities 0.5 --prune-steps 3 --prune-settings tolerance=1"
COMMANDS = (
    "heads",
    "ablation --components L0.H1,L1.MLP --resamples 5",
    "ablation --components L0.H1,L1.MLP --fill zero --resamples 5",
    "ablation --components L0.H1,L1.MLP --fill zero --resamples 5 --dtype float16",
    f"accuracy {PRUNE}",
    f"accuracy {PRUNE} --prune-method attribution",
)
N_CASES = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data files for the tiny classifiers."""
    folder, words = tmp_path_factory.mktemp("files"), helpers.WORDS
    rows = [
        (" ".join(words[i : i + 4]), " ".join(words[2 * i % 9 :][:3]), CLASSES[i % 3])
        for i in range(12)
    ]
    for split in ("train", "id", "ood"):
        frame = pd.DataFrame(rows, columns=["text_a", "text_b", "label"])
        frame.to_csv(folder / f"{split}.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("mechcore.study.run")
    monkeypatch.setattr(module, "build_report", lambda out: out / "report.html")


def with_weights(original: Path, copy: Path, changes: dict[str, tuple[int, float]]) -> Path:
    """A copy of a checkpoint with one value of each of these tensors changed."""
    shutil.copytree(original, copy)
    tensors = load_file(copy / WEIGHTS)
    for name, (place, value) in changes.items():
        tensors[name].view(-1)[place] = value
    save_file(tensors, copy / WEIGHTS, {"format": "pt"})
    return copy


def code_of(command: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert isinstance(stop.value.code, int)
    return stop.value.code


def data(files: Path, command: str) -> str:
    splits = ("train",) if command == "heads" else ("train", "id", "ood")
    return " ".join(f"--{split} {files}/{split}.csv" for split in splits)


def tables(out: Path) -> list[Path]:
    return [path for path in out.rglob("*.csv") if "store" not in path.parts]


def is_refused_in_one_line(error: str) -> bool:
    lines = [line for line in error.splitlines() if line.startswith("mechcore: error:")]
    told = len(lines) == 1 and "not finite" in lines[0] and "float" in lines[0]
    return told and not any(word in lines[0] for word in ("lr", "schedule", "engine="))


def test_weights_that_are_not_numbers(
    cases: Cases, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = cases.path("bert")
    tensors = load_file(original / WEIGHTS)
    tally = {"done": 0, "refused": 0}
    for case in range(N_CASES * TIMES):
        rng = random.Random(f"weights {case}")
        name = rng.choice(sorted(tensors))
        change = (rng.randrange(tensors[name].numel()), rng.choice(VALUES))
        path = with_weights(original, tmp_path / str(case) / "model", {name: change})
        command = COMMANDS[case % len(COMMANDS)]
        out = tmp_path / str(case) / "out"
        capsys.readouterr()
        code = code_of(f"{command} --model {path} {data(files, command)} --out {out}")
        error, said = capsys.readouterr().err, f"case {case}, {name} {change}: {command}"
        if code == 0:
            tally["done"] += 1
            for table in tables(out):
                frame = pd.read_csv(table)
                for column in ("accuracy", "margin", "accuracy_change", "kl", "entropy"):
                    if column in frame:
                        assert np.isfinite(frame[column]).all(), f"{said}, {column}"
        else:
            tally["refused"] += 1
            assert is_refused_in_one_line(error), f"{said}: {error}"
            assert not tables(out), said
        shutil.rmtree(tmp_path / str(case))
    assert min(tally.values()) > 2, tally


def test_a_model_that_overflows_in_float16_alone_is_told_so(
    cases: Cases, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_weights(cases.path("bert"), tmp_path / "model", {"classifier.bias": (1, 1e6)})
    command = f"ablation --components L0.H1 --fill zero --resamples 5 --model {path} "
    command += data(files, "ablation")
    assert torch.tensor(1e6).half().isinf()
    assert code_of(f"{command} --dtype float16 --out {tmp_path}/half") == 1
    error = capsys.readouterr().err
    assert is_refused_in_one_line(error), error
    assert "(infinity, float16)" in error
    assert "load it in float32" in error
    assert code_of(f"{command} --out {tmp_path}/whole") == 0
    assert np.isfinite(pd.read_csv(tmp_path / "whole/tables/ablation.csv")["margin"]).all()
