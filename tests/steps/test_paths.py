"""Who reads the core, as a step of a study: which tables there are and what they hold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.few import encoded, means_of
from helpers import Cases, word_tokenizer

from mechcore.ablation import ComponentSet, ablate
from mechcore.ablation.effects.changes import Answers
from mechcore.ablation.effects.roles import NONE, OUT_ONLY
from mechcore.ablation.paths.dependence import largest_readers
from mechcore.analyses.paths import Paths
from mechcore.components import ModelShape, parse_components
from mechcore.masking.means import MeanActivations
from mechcore.steps.config import ModelConfig
from mechcore.steps.inputs import Inputs
from mechcore.steps.paths import path_tables

STEP = Paths(
    seed=3,
    batch_size=4,
    fill="mean",
    names={},
    groups={},
    n_resamples=10,
    controls=2,
    max_examples=300,
    least=0.01,
)
CORE = parse_components("L0.H1")
ROLES = pd.DataFrame(
    {"component": ["L1.H0", "L1.MLP", "L1.H2"], "role": [OUT_ONLY, "moves the threshold", NONE]}
    | {f"information_change_{place}": [-0.2, -0.1, 0.0] for place in ("id", "ood")}
)


@pytest.fixture(scope="module")
def inputs(cases: Cases) -> Inputs:
    model, data = cases.get("bert").model, {"id": encoded(), "ood": encoded()}
    return Inputs(ModelConfig("bert"), model, word_tokenizer(), data, {"id": 9, "ood": 9})


@pytest.fixture(scope="module")
def means(inputs: Inputs) -> MeanActivations:
    return means_of(inputs.model, inputs.data["id"])


@pytest.fixture(scope="module")
def tables(inputs: Inputs, means: MeanActivations) -> dict[str, pd.DataFrame]:
    return path_tables(inputs, means, CORE, STEP, ROLES)


pytestmark = pytest.mark.filterwarnings("ignore:in-domain accuracy")


def test_all_components_behind_and_all_before_the_answer(
    inputs: Inputs, means: MeanActivations, tables: dict[str, pd.DataFrame]
) -> None:
    assert set(tables) == {"core_dependence", "path_information", "core_verdict"}
    for schema in Paths.schemas[:2]:
        schema.check(tables[schema.name])
    behind = ["L0.MLP", "L1.H0", "L1.H1", "L1.H2", "L1.H3", "L1.MLP"]
    dependence = tables["core_dependence"].query("subset == 'all' and metric == 'margin'")
    assert dependence["receiver"].tolist() == behind * 2
    paths = (
        tables["path_information"]
        .query("subset == 'all' and split == 'ood'")
        .set_index(["senders", "receiver"])
    )
    assert len(paths) == 10 + len(behind)
    assert {to for sender, to in paths.index if sender != "L0.H1"} == {"answer"}
    assert {to for sender, to in paths.index if sender == "L0.H1"} == {"answer", *behind}
    # A core of one head: its paths are what being blind to the core is.
    outside = dependence[dependence["split"] == "ood"].set_index("receiver")
    for name in behind:
        cut = paths.loc[("L0.H1", name), "margin_change"]
        assert outside.loc[name, "blind_change"] == pytest.approx(cut, abs=1e-6)
    answers = ablate(
        inputs.model, ["L1.H2>answer"], inputs.data["ood"], means, engine="reference", split="ood"
    )
    [path] = answers.without
    expected = answers.changes(path, "margin").mean()
    assert paths.loc[("L1.H2", "answer"), "margin_change"] == pytest.approx(expected, abs=1e-5)


def test_controls_stand_beside_the_largest_readers_and_those_of_the_verdict(
    inputs: Inputs,
    means: MeanActivations,
    tables: dict[str, pd.DataFrame],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of five components behind the core, here the one that changes most and L1.H0, needed."""
    whole = tables["core_dependence"]
    outside = whole.query("split == 'ood' and subset == 'all' and metric == 'margin'")
    sizes = outside.set_index("receiver")["blind_change"].abs()
    assert set(outside["n_controls"]) == {2}, "all are among the ten largest"
    monkeypatch.setattr("mechcore.steps.paths.largest_readers", lambda t: largest_readers(t, 1))
    table = path_tables(inputs, means, CORE, STEP, ROLES)["core_dependence"]
    counts = table.set_index(["split", "receiver"])["n_controls"]
    assert set(counts[counts > 0].index) == {("ood", sizes.idxmax()), ("ood", "L1.H0")}
    assert sizes.idxmax() != "L1.H0"
    rows = whole[whole["receiver"] == "L1.H0"].reset_index(drop=True)
    alone = table[table["receiver"] == "L1.H0"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, rows, atol=1e-6)


def test_what_a_sweep_ablated_is_not_ablated_again(
    inputs: Inputs, means: MeanActivations, tables: dict[str, pd.DataFrame]
) -> None:
    """Known changes have exact values: only that of the last layer's MLP is not 0."""
    swept = {}
    for split, data in inputs.data.items():
        sweep = ablate(inputs.model, ["L1.MLP"], data, means, split=split)  # type: ignore[arg-type]
        unchanged = Answers.of(sweep.full, sweep.full)
        shape = ModelShape.of(inputs.model)
        alone = {ComponentSet((component,)): unchanged for component in shape.components}
        swept[split] = replace(sweep, without=alone | dict(sweep.without))
    known = path_tables(inputs, means, CORE, STEP, ROLES, swept)["core_dependence"]
    own = tables["core_dependence"]
    last = (own["receiver"] == "L1.MLP").to_numpy()
    assert set(known["change"][~last]) == {0}
    assert set(own["change"][~last]) != {0}
    assert known["change"][last].tolist() == pytest.approx(own["change"][last].tolist(), abs=1e-6)
    pd.testing.assert_series_equal(known["blind_change"], own["blind_change"], atol=1e-6)


@pytest.mark.parametrize(
    ("fill", "reused"),
    [("mean", True), ("zero", True), ("resample", False), ("counterfactual", False)],
)
def test_changes_with_fills_that_are_drawn_anew_are_not_those_of_the_sweep(
    fill: str, reused: bool
) -> None:
    swept: Any = SimpleNamespace(needs={"swept": None})
    assert replace(STEP, fill=fill)._reuses(swept) == reused


def test_a_core_that_leaves_too_few_heads_has_no_controls(
    inputs: Inputs, means: MeanActivations
) -> None:
    core = parse_components("L0.H0,L0.H1,L0.H2")
    tables = path_tables(inputs, means, core, STEP, ROLES)
    without = path_tables(inputs, means, core, STEP)  # no roles, no verdict
    for result in (tables, without):
        assert set(result["core_dependence"]["n_controls"]) == {0}
    assert "core_verdict" not in without
    text = tables["core_verdict"]["explanation"].iloc[0]
    assert "layer 0 has 1 head outside the core; expected at least the 3 of the core" in text


def test_nothing_runs_after_the_core(inputs: Inputs, means: MeanActivations) -> None:
    step: Any = replace(STEP, controls=0)
    tables = path_tables(inputs, means, parse_components("L1.MLP"), step, ROLES)
    assert tables["core_dependence"].empty
    assert tables["core_verdict"]["explanation"].tolist() == ["no component runs after the core"]
    assert set(tables["path_information"]["receiver"]) == {"answer"}
    assert np.isnan(tables["core_verdict"]["blind_change"]).all()
