"""Two presets side by side: the paired interval by hand, and a run that goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks.in_process import benchmark
from helpers import Cases


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = benchmark("presets", monkeypatch)
    # One thread: from_pretrained changes classes while it runs, and two at once leave them changed.
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda _: ThreadPoolExecutor(1))
    return module


def test_the_interval_is_of_paired_differences(presets: Any) -> None:
    """Differences 0.01, 0.03 and 0.02: mean 0.02, standard error 0.01 / sqrt(3), t(2) = 4.303."""
    values = {"thorough": [0.1, 0.2, 0.3], "fast": [0.11, 0.23, 0.32]}
    rows = pd.DataFrame(
        {"preset": preset, "seed": seed, "sparsity": 0.5, "kl": kl}
        for preset, each in values.items()
        for seed, kl in enumerate(each)
    )
    [row] = presets.summary(rows).to_dict("records")
    assert (row["seeds"], row["thorough"]) == (3, pytest.approx(0.2))
    assert row["fast"] == pytest.approx(0.22)
    assert row["low"] == pytest.approx(0.02 - 4.303 * 0.01 / 3**0.5, abs=1e-5)
    assert row["high"] == pytest.approx(0.02 + 4.303 * 0.01 / 3**0.5, abs=1e-5)


def test_it_goes_on_where_it_was_interrupted(
    presets: Any, cases: Cases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tok5 tok6", "tok7", "tok8 tok9 tok10", "tok11", "tok12 tok5", "tok6 tok7"]
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "out.csv"
    pd.DataFrame({"text_a": words, "text_b": words[::-1]}).to_csv(pairs, sep="\t", index=False)
    given = ["--model", str(cases.path("bert")), "--pairs", str(pairs), "--out", str(out)]
    given += ["--sparsities", "0.3", "--train", "4", "--held-out", "2", "--seeds", "1", "2"]
    arguments = presets.parsed(given)
    arguments.settings = {"steps": 2, "batch_size": 2, "tolerance": 1.0}
    presets.main(arguments)
    rows = pd.read_csv(out)
    assert sorted(zip(rows["preset"], rows["seed"], strict=True)) == [
        ("fast", 1),
        ("fast", 2),
        ("thorough", 1),
        ("thorough", 2),
    ]
    assert (rows["kl"] > 0).all()
    rows[rows["seed"] == 1].assign(kl=7.0).to_csv(out, index=False)
    capsys.readouterr()
    presets.main(arguments)
    again = pd.read_csv(out).set_index(["preset", "seed"])["kl"]
    assert again["fast", 1] == 7.0
    assert again["fast", 2] == pytest.approx(rows.set_index(["preset", "seed"])["kl"]["fast", 2])
    assert "processor time: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="rows of other sparsities or numbers of pairs"):
        presets.main(presets.parsed([*given, "--held-out", "1"]))
    with pytest.raises(SystemExit, match=r"pairs.tsv: has 6 pairs; expected 7 or more"):
        presets.main(presets.parsed([*given, "--held-out", "3", "--out", str(tmp_path / "b.csv")]))
