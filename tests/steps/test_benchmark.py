"""The benchmark of methods: what was done is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechcore.bench.case import Case
from mechcore.bench.cases import load_case
from mechcore.steps import benchmark
from mechcore.steps.benchmark import run_benchmark


def test_the_benchmark_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: Any = (["copies-encoder", "or-decoder"], ["random"], ["exact"], [0, 1])
    done: list[str] = []

    def fails(name: str, *arguments: Any, **options: Any) -> Case:
        done.append(name)
        if len(done) == 3:
            raise KeyboardInterrupt
        return load_case(name, *arguments, **options)

    monkeypatch.setattr(benchmark, "load_case", fails)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(tmp_path, *wanted)
    nodes, pairs = run_benchmark(tmp_path, *wanted)
    assert done == ["copies-encoder", "or-decoder", *["copies-encoder"] * 2, "or-decoder"]
    assert len(nodes) == 2 * 2
    assert set(pairs["case"]) == {"or-decoder"}
    again, _ = run_benchmark(tmp_path, *wanted)
    pd.testing.assert_frame_equal(nodes, again)
    assert len(done) == 5
    assert (nodes.groupby("case")["auroc"].nunique() == 2).all()  # each repetition draws anew
    others, _ = run_benchmark(tmp_path, ["copies-encoder"], ["random", "attribution"], ["exact"])
    assert others["auroc"][0] == nodes["auroc"][0]
    assert len(done) == 6
