"""Ablation as a step of a study: which tables there are, what they hold, and state files."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import Cases
from steps.few_inputs import inputs_of

from mechcore.ablation import (
    ComponentSet,
    ablate,
    ablation_table,
    dividends,
    information_table,
    interactions,
    sets,
    shapley,
)
from mechcore.analyses.search import Search
from mechcore.analyses.sweep import Swept
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.steps.ablation import (
    SWEEP_TABLES,
    known_groups,
    sweep_tables,
)
from mechcore.steps.inputs import Inputs

NAMES = ("L0.H1", "L0.MLP", "L1.H2")


@pytest.fixture(scope="module")
def inputs(cases: Cases) -> Inputs:
    return inputs_of(cases)


@pytest.fixture(scope="module")
def means(inputs: Inputs) -> MeanActivations:
    return MeanActivations.compute(inputs.model, inputs.data["id"], n_samples=0)


def kinds_of(names: list[str]) -> dict[ComponentSet, str]:
    found = [ComponentSet.of(name.split("+")) for name in names]
    return {each: "joint" if len(each) > 1 else "single" for each in found}


ALL_SUBSETS = [str(each) for each in sets.subsets(NAMES)]


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
def test_the_tables_are_those_of_both_kinds_of_data(inputs: Inputs, means: MeanActivations) -> None:
    kinds = kinds_of(ALL_SUBSETS)
    tables, found = sweep_tables(inputs, means, kinds, n_resamples=10, batch_size=4, seed=3)
    names = ["ablation", "interactions", "interaction_stability"]
    assert list(tables) == [*names, "information", "dividends", "shapley"]
    for schema in SWEEP_TABLES:
        schema.check(tables[schema.name])
    assert [(each.data, each.role) for each in found] == [("matched", "id"), ("hans", "ood")]
    options: dict[str, Any] = {"n_resamples": 10, "seed": 3}
    again = [
        ablate(inputs.model, list(kinds), inputs.data[role], means, role=role, batch_size=4)  # type: ignore[arg-type]
        for role in ("id", "ood")
    ]
    for name, wanted in {
        "ablation": [ablation_table(each, kinds, **options) for each in again],
        "interactions": [interactions(each, **options) for each in again],
        "information": [information_table(each, **options) for each in again],
        "dividends": [dividends(each, **options) for each in again],
        "shapley": [shapley(each, **options) for each in again],
    }.items():
        pd.testing.assert_frame_equal(tables[name], pd.concat(wanted, ignore_index=True))


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (ALL_SUBSETS, True),
        (ALL_SUBSETS[:-1], False),  # without all three
        ([*ALL_SUBSETS[:3], ALL_SUBSETS[-1]], False),  # without the pairs
        (["L0.H1", "L0.MLP", "L0.H1+L0.MLP", "L1.H0+L1.H1+L1.H2"], True),  # and another set
        (["L0.H1"], False),
        (["L0.H1", "L0.MLP"], False),
        (["L0.H1+L0.MLP"], False),
    ],
)
def test_dividends_need_all_subsets(inputs: Inputs, names: list[str], expected: bool) -> None:
    tables, _ = sweep_tables(inputs, None, kinds_of(names), fill="zero", n_resamples=2)
    assert ("dividends" in tables) == ("shapley" in tables) == expected
    alone = {name for name in names if "+" not in name}
    tested = {name for name in names if "+" in name and set(name.split("+")) <= alone}
    assert set(tables["interactions"]["set"]) == tested
    assert set(tables["ablation"]["set"]) == set(names)
    if expected:
        assert set(tables["shapley"]["set"]) == alone
        assert set(tables["dividends"]["set"]) == alone | tested


def test_more_than_ten_components_have_no_exact_values(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechcore.steps.ablation.MOST_EXACT", 2)
    two, three = kinds_of(["L0.H1", "L0.MLP", "L0.H1+L0.MLP"]), kinds_of(ALL_SUBSETS)
    options: dict[str, Any] = {"fill": "zero", "n_resamples": 2}
    for kinds, expected in ((two, True), (three, False)):
        assert ("shapley" in sweep_tables(inputs, None, kinds, **options)[0]) == expected


def test_options_are_passed_on(inputs: Inputs, means: MeanActivations) -> None:
    kinds = kinds_of(["L0.H1", "L1.MLP", "L0.H1+L1.MLP"])

    def changes(**options: Any) -> np.ndarray:
        tables, found = sweep_tables(inputs, means, kinds, n_resamples=2, **options)
        assert (found[0].agreement is None) == ("precision" not in options)
        return tables["ablation"]["margin_change"].to_numpy()

    tree = changes()
    np.testing.assert_allclose(changes(engine="reference"), tree, rtol=0, atol=1e-5)
    assert np.abs(changes(fill="zero") - tree).max() > 1e-3
    coarse = np.abs(changes(precision="bfloat16") - tree).max()
    assert 1e-6 < coarse < 0.2


def test_no_set(inputs: Inputs) -> None:
    with pytest.raises(InputError, match=r"no set; name at least one component \(--components\)"):
        sweep_tables(inputs, None, {}, fill="zero")
    with pytest.raises(InputError, match="out of range"):
        sweep_tables(inputs, None, kinds_of(["L2.H0"]), fill="zero")


# -- state files ----------------------------------------------------------------------------------


def test_what_is_kept_is_not_run_again(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree: Any = importlib.import_module("mechcore.ablation.engines").TreeEngine
    real, runs = tree.run, []

    def counted(self: Any, *arguments: Any) -> None:
        runs.append(len(self.job.data))
        real(self, *arguments)

    monkeypatch.setattr(tree, "run", counted)
    options: dict[str, Any] = {"fill": "zero", "n_resamples": 5, "batch_size": 4}
    kinds = kinds_of(["L0.H1", "L1.MLP", "L0.H1+L1.MLP"])
    whole, _ = sweep_tables(inputs, None, kinds, state=tmp_path, **options)
    names = ["sweep-id.safetensors", "sweep-ood.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    n = len(runs)
    assert set(runs) == {9, 8}
    again, _ = sweep_tables(inputs, None, kinds, state=tmp_path, **options)
    assert len(runs) == n
    (tmp_path / names[1]).unlink()
    parts, _ = sweep_tables(inputs, None, kinds, state=tmp_path, **options)
    assert set(runs[n:]) == {8}
    for name, table in whole.items():
        pd.testing.assert_frame_equal(again[name], table)
        pd.testing.assert_frame_equal(parts[name], table)
    with pytest.raises(InputError, match="that of another run: sets differ"):
        sweep_tables(inputs, None, kinds_of(["L0.H1"]), state=tmp_path, **options)


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:in-domain accuracy")
def test_groups_are_told_of_where_all_their_subsets_are_there(inputs: Inputs) -> None:
    found = ablate(inputs.model, ["L0.H1"], inputs.data["ood"], fill="zero", role="ood")
    whole, part = ("hans 0", "hans 1"), ("hans 0", "hans 7")
    groups = {"both": whole, "one gone": part, "hans 0": whole}
    assert known_groups(found, groups) == {"both": whole}
    inside = ablate(inputs.model, ["L0.H1"], inputs.data["id"], fill="zero", role="id")
    assert known_groups(inside, groups) == {}
    tables, _ = sweep_tables(
        inputs, None, kinds_of(["L0.H1"]), fill="zero", groups=groups, n_resamples=2
    )
    information = tables["information"]
    assert set(information.loc[information["role"] == "ood", "subset"]) == {*whole, "both", "all"}
    assert "both" not in set(information.loc[information["role"] == "id", "subset"])


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
            **common, n_resamples=10, role="id", components="mlps", max_size=2
        ),
    }[step]()
    folder, partial = tmp_path / "result", tmp_path / "partial"
    folder.mkdir()
    work: Any = SimpleNamespace(folder=folder, partial=partial, write_tables=lambda _: None)
    made.run(work)
    assert {path.name for path in partial.iterdir()} >= {
        "sweep": {"sweep-id.safetensors", "sweep-ood.safetensors"},
        "search": {"search.safetensors", "sweep-1.safetensors", "sweep-report.safetensors"},
    }[step]
