"""`mechcore reproduce extractive` as users call it, bad input included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechcore.cli import main
from mechcore.papers.extractive.facts import city_ordering, city_tasks
from mechcore.papers.extractive.settings import ExtractiveSettings, default_settings
from mechcore.study.executors import Local

_BOTH = ("facts", "implications")


def call(command: str, *more: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *command.split(), *map(str, more)])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ExtractiveSettings, dict[str, Any]]]:
    """What studies were asked for; none is done, and each leaves two small tables."""
    calls = []

    def noting(settings: ExtractiveSettings, out: Path, **how: Any) -> list[Path]:
        calls.append((settings, how))
        (out / "tables").mkdir(parents=True)
        (out / "config.json").write_text(json.dumps({"kind": "extractive"}))
        verdict = {"claim": 1, "title": "Known", "verdict": "supported", "figure": "0.50."}
        pd.DataFrame([verdict]).to_csv(out / "tables" / "extractive_verdicts.csv", index=False)
        return [out / "report.html"]

    monkeypatch.setattr("mechcore.study.run.run_study", noting)
    return calls


def test_a_study_with_all_options(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = (
        "--base gpt2 --seeds 3,4 --experiments ocr,scores --learning-rates 1e-5,1e-4 --epochs 4,8 "
        "--batch-size 4 --ordering-rate 2e-5 --ordering-epochs 3 --replay 2 --grafting-rate 3e-5 "
        "--grafting-epochs 5 --counterfactuals 7 --compat paper --cuts 4,8 --precision bfloat16 "
        "--backend hooked --workers 2 --cpus 1 --device cpu"
    )
    assert call(f"extractive {options}", "--out", out, "--store", tmp_path / "store") == 0
    ((settings, how),) = asked
    assert settings.base == "gpt2"
    assert (settings.seeds, settings.experiments) == ((3, 4), ("ocr", "scores"))
    assert (settings.learning_rates, settings.epochs) == ((1e-5, 1e-4), (4, 8))
    ordering, grafting = settings.ordering, settings.grafting
    assert (ordering.learning_rate, ordering.epochs, ordering.replay) == (2e-5, 3, 2)
    assert (grafting.learning_rate, grafting.epochs, grafting.replay) == (3e-5, 5, 0)
    assert settings.batch_size == ordering.batch_size == grafting.batch_size == 4
    assert (settings.counterfactuals, settings.compat, settings.cuts) == (7, "paper", (4, 8))
    assert (settings.precision, settings.backend) == ("bfloat16", "hooked")
    assert how["executor"] == Local(workers=2, cpus=1, device="cpu")
    assert how["store"] == tmp_path / "store"
    shown = capsys.readouterr().out
    assert "Known" in shown
    assert f"report: {out / 'report.html'}" in shown


def test_a_study_without_options(asked: list[Any], tmp_path: Path) -> None:
    for i, options in enumerate(("", " --quick", " --base gpt2")):
        assert call(f"extractive{options}", "--out", tmp_path / str(i)) == 0
    tiny, own = default_settings(), default_settings("gpt2")
    assert [settings for settings, _ in asked] == [tiny, tiny.quick(), own]
    assert asked[2][1]["executor"] == Local(workers=1)


def test_facts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "facts.jsonl"
    assert call("facts --seed 5", "--out", out) == 0
    table = pd.read_json(out, lines=True)
    assert f"({len(table)} prompts)" in capsys.readouterr().out
    assert call("facts", "--out", tmp_path / "facts.txt") == 2
    assert "expected a name that ends with .jsonl" in capsys.readouterr().err
    second, order = city_tasks(5)[1].implications, city_ordering(5).other_facts
    own = table[(table["task"] == "second-hop") & (table["data"] == "implications")]
    assert own["prompt"].tolist() == list(second.prompts)
    others = table[table["data"] == "other facts"]
    assert others["completion"].tolist() == list(order.completions)
    counts = table.groupby(["task", "data"], sort=False).size().to_dict()
    assert counts == {
        **{(task, data): 20 for task in ("first-hop", "second-hop") for data in _BOTH},
        **{("ordering", data): 84 for data in _BOTH},
        **{("ordering", f"test {data}"): 20 for data in _BOTH},
        **{("ordering", f"other {data}"): 84 for data in _BOTH},
    }
