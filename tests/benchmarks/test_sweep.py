"""The sweep benchmark runs, and all that it compares gives the same logits."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.in_process import benchmark, printed_by


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    sweep = benchmark("sweep", monkeypatch)
    return printed_by(sweep, ["--quick", "--threads", "1", *options], monkeypatch)


def saved(path: Path) -> Any:
    return json.loads(path.read_text())


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(monkeypatch, "--json", str(tmp_path / "figures.json"))
    found = saved(tmp_path / "figures.json")
    singles, pairs = found["sweeps"]
    assert (singles["sets"], pairs["sets"]) == (24, 276)
    for sweep in (singles, pairs):
        differences = sweep["largest logit difference to raw hooks"]
        bfloat16 = differences.pop("mechcore tree, bfloat16")
        assert max(differences.values()) < 1e-4 < sweep["largest effect of a set on a logit"]
        assert 0 < bfloat16 < 0.1
        measured = [each["variant"] for each in sweep["variants"]]
        peers = {"raw hooks", "raw hooks, unsorted", "TransformerLens bridge", "pyvene", "nnsight"}
        assert peers <= {*measured, *found["left out"]}
        engines = {"mechcore tree, float32", "mechcore restart", "mechcore reference"}
        assert engines <= set(measured)
        for each in sweep["variants"]:
            assert each["ms per set and example"] > 0
            assert each["times as fast as raw hooks"] == pytest.approx(
                [
                    seconds["raw hooks"] / seconds[each["variant"]]
                    for seconds in sweep["seconds of each round"]
                ]
                * 3
            )
    # 2 layers of 12 heads: every layer evaluation but the first attention is of layer 0, whose
    # MLP runs for the full model and every head of layer 0; weights of an MLP are 2/3 of a layer.
    assert singles["layer evaluations"] == pytest.approx(1 / 3 + 2 / 3 * 13)
    assert pairs["layer evaluations"] == pytest.approx(1 / 3 + 2 / 3 * (13 + 66))
    # Restarts run layer 0 whole for the same sets; all of its streams attend in layer 1.
    assert singles["layer evaluations of restarts"] == pytest.approx(13 * 4 / 3, rel=1e-2)
    assert pairs["layer evaluations of restarts"] == pytest.approx((13 + 66) * 4 / 3, rel=1e-2)
    for name, reason in found["left out"].items():
        assert name in printed
        assert reason in printed
    assert found["peak MiB"]["mechcore tree, float32"] > 100


def test_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, figures = tmp_path / "scaling.png", tmp_path / "figures.json"
    run(monkeypatch, "--scaling", "--figure", str(figure), "--json", str(figures))
    assert figure.read_bytes().startswith(b"\x89PNG")
    rows = saved(figures)["scaling"]
    assert {row["axis"] for row in rows} == {"examples", "sets", "layers"}
    assert all(0 < row["lowest"] <= row["seconds"] <= row["highest"] for row in rows)


def test_a_decoder_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "figures.json"
    variants = benchmark("sweep_variants", monkeypatch)
    monkeypatch.setattr(variants, "save_qwen3_shaped", variants.save_minilm_shaped)  # is smaller
    printed = run(monkeypatch, "--decoder", "--json", str(figures))
    singles, pairs = saved(figures)["decoder"]
    assert singles["bound"] == pytest.approx(25 * 2 / (13 * 4 / 3), rel=1e-2)
    assert pairs["bound"] == pytest.approx(277 * 2 / (79 * 4 / 3), rel=1e-2)
    for each in (singles, pairs):
        assert (
            f"times as fast as whole forwards, by layer evaluations {each['bound']:.2f}" in printed
        )


def test_real_data_needs_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--data", "missing.tsv")
    assert "--model and --data belong together" in capsys.readouterr().err
