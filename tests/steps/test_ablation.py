"""Ablation as a step of a study: groups of subsets, and what an interrupted job keeps."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Cases
from steps.few_inputs import inputs_of

from mechcore.ablation import (
    ablate,
)
from mechcore.analyses.search import Search
from mechcore.analyses.sweep import Swept
from mechcore.masking.means import MeanActivations
from mechcore.steps.answers import (
    known_groups,
)
from mechcore.steps.inputs import Inputs

NAMES = ("L0.H1", "L0.MLP", "L1.H2")


@pytest.fixture(scope="module")
def inputs(cases: Cases) -> Inputs:
    return inputs_of(cases)


@pytest.fixture(scope="module")
def means(inputs: Inputs) -> MeanActivations:
    return MeanActivations.compute(inputs.model, inputs.data["id"], n_samples=0)


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
def test_groups_are_told_of_where_all_their_subsets_are_there(inputs: Inputs) -> None:
    found = ablate(inputs.model, ["L0.H1"], inputs.data["ood"], fill="zero", split="ood")
    whole, part = ("hans 0", "hans 1"), ("hans 0", "hans 7")
    groups = {"both": whole, "one gone": part, "hans 0": whole}
    assert known_groups(found, groups) == {"both": whole}
    inside = ablate(inputs.model, ["L0.H1"], inputs.data["id"], fill="zero", split="id")
    assert known_groups(inside, groups) == {}


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
@pytest.mark.parametrize("step", ["sweep", "search"])
def test_a_job_of_a_study_keeps_what_an_interrupted_one_finds_again(
    step: str,
    inputs: Inputs,
    means: MeanActivations,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module(f"mechcore.analyses.{step}")
    monkeypatch.setattr(module, "inputs_of", lambda _: inputs)
    monkeypatch.setattr(module, "means_of", lambda *_: means)
    common = {"seed": 0, "batch_size": 8, "fill": "mean"}
    made = {
        "sweep": lambda: Swept(**common, components="mlps"),
        "search": lambda: Search(
            **common, n_resamples=10, split="id", components="mlps", max_size=2
        ),
    }[step]()
    folder, partial = tmp_path / "result", tmp_path / "partial"
    folder.mkdir()
    work: Any = SimpleNamespace(folder=folder, partial=partial, write_tables=lambda _: None)
    made.run(work)
    kept = [path.name.partition("-")[0] for path in partial.iterdir()]
    expected = {"sweep": {"sweep": 2}, "search": {"screening": 1, "sweep": 3}}
    assert dict(Counter(kept)) == expected[step]
