"""Ablation of the core: which sets, beside which other heads, and what a sweep knows already."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.ablation import Ablations, Answers, ComponentSet, ablate, ablation_table, sets
from mechcore.ablation.effects.changes import CONTROLLED
from mechcore.analyses.ablation import Ablation
from mechcore.components import Mask, ModelShape, parse_components
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.steps.core_ablation import beside, core_ablation_tables, joint_sets
from mechcore.steps.inputs import Inputs

pytestmark = pytest.mark.filterwarnings("ignore:in-domain accuracy")


@pytest.fixture(scope="module")
def swept(inputs: Inputs, means: MeanActivations) -> dict[str, Ablations]:
    """Every component, ablated alone."""
    options: dict[str, Any] = {"seed": 3, "batch_size": 4, "fill": "mean"}
    chosen = sets.singles(inputs.model)
    return {
        split: ablate(inputs.model, chosen, data, means, split=split, **options)  # type: ignore[arg-type]
        for split, data in inputs.data.items()
    }


def step(**changes: Any) -> Ablation:
    settings: dict[str, Any] = {"n_resamples": 10, "max_joint": 2, "max_non_core": 2, "controls": 3}
    settings |= {"control_examples": 5, "seed": 3, "batch_size": 4, "fill": "mean"}
    return Ablation(names={}, **settings | changes)


def ood_of(losses: dict[str, float]) -> tuple[list[ComponentSet], Ablations]:
    """Single heads, and answers with these losses of accuracy, in tenths."""
    correct = np.ones(10, dtype=bool)
    full = Answers(correct, correct.astype(float), np.zeros(10))
    singles = [ComponentSet.of([name]) for name in losses]
    without = {
        single: Answers(np.arange(10) >= loss, full.margin, full.kl)
        for single, loss in zip(singles, losses.values(), strict=True)
    }
    return singles, Ablations(full, without, "hans", "ood")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_joint", "expected"),
    [
        # All pairs of the two with the largest losses, which is both together; and the whole core.
        (2, "L0.H3+L2.H2"),
        (3, "L0.H3+L2.H2 L0.H0+L0.H3 L0.H0+L2.H2 L0.H0+L0.H3+L2.H2"),
        (1, ""),
        (0, ""),
    ],
)
def test_the_heads_that_matter_most_are_ablated_together(max_joint: int, expected: str) -> None:
    singles, ood = ood_of({"L0.H0": 1, "L0.H3": 5, "L1.H1": 0, "L2.H2": 3})
    joint = [str(heads) for heads in joint_sets(singles, ood, max_joint)]
    assert joint == [*expected.split(), "L0.H0+L0.H3+L1.H1+L2.H2"]


def test_a_whole_core_is_listed_once() -> None:
    for losses, expected in (
        ({"L0.H0": 1, "L0.H3": 5}, ["L0.H0+L0.H3"]),
        ({"L0.H0": 1}, []),
        ({}, []),
    ):
        assert [str(heads) for heads in joint_sets(*ood_of(losses), 4)] == expected


@pytest.mark.parametrize("splits", [("id", "ood"), ("ood",)])
def test_what_a_sweep_knows_of_the_core_is_not_ablated_again(
    inputs: Inputs,
    means: MeanActivations,
    swept: dict[str, Ablations],
    monkeypatch: pytest.MonkeyPatch,
    splits: tuple[str, ...],
) -> None:
    core = parse_components(["L0.H1", "L0.H2", "L1.H2"])
    alone = core_ablation_tables(inputs, means, core, step(), {})
    known = {split: swept[split] for split in splits}
    asked: dict[str, list[ComponentSet]] = {"id": [], "ood": []}

    def noted(model: Any, chosen: Any, *args: Any, split: Any, **more: Any) -> Ablations:
        asked[split] += chosen
        return ablate(model, chosen, *args, split=split, **more)

    monkeypatch.setattr("mechcore.ablation.ablate", noted)
    again = core_ablation_tables(inputs, means, core, step(), known)
    for split, chosen in asked.items():
        assert chosen
        assert all(len(heads) > 1 for heads in chosen) == (split in splits)
    for name in ("ablation", "interactions"):
        table, reused = alone[name], again[name]
        if name == "ablation":  # a sweep has more heads that single ones stand beside
            table, reused = (frame[frame["size"] > 1] for frame in (table, reused))
        # Batches of other sets round otherwise; p-values and intervals of tiny effects feel it.
        columns = [column for column in table if column not in ("p", "p_adjusted")]
        ends = [column for column in columns if column.endswith(("low", "high"))]
        pd.testing.assert_frame_equal(reused[ends], table[ends], atol=1e-3)
        columns = [column for column in columns if column not in ends]
        pd.testing.assert_frame_equal(reused[columns], table[columns], atol=1e-6)


def test_intervals_are_drawn_with_the_seed(
    inputs: Inputs, means: MeanActivations, swept: dict[str, Ablations]
) -> None:
    core = parse_components(["L0.H1", "L1.H2"])
    effects = core_ablation_tables(inputs, means, core, step(), {})["ablation"]
    single = effects[effects["kind"] == "single"].set_index(["set", "split", "subset"])
    ends = ["margin_change_low", "margin_change_high"]
    for seed, equal in ((3, True), (0, False)):
        tables = (ablation_table(ablated, n_resamples=10, seed=seed) for ablated in swept.values())
        other = pd.concat(tables).set_index(single.index.names).loc[single.index]
        assert ((single[ends] - other[ends]).abs().max(axis=None) < 1e-3) == equal


@given(st.sets(st.integers(0, 11), max_size=8), st.integers(0, 12), st.integers(0, 99))
def test_other_heads_are_drawn_for_those_of_the_core_in_turn(
    chosen: set[int], n: int, seed: int
) -> None:
    shape = ModelShape(3, 4)
    core = [shape.heads[i] for i in sorted(chosen)]
    drawn = beside(core, shape, n, seed)
    assert drawn == beside(core, shape, n, seed)
    assert drawn == sorted(set(drawn) - set(core))
    assert len(drawn) <= n
    if not core:
        assert len(drawn) == min(n, 12)
        return
    wanted = Counter(head.layer for head in core)
    rounds, rest = divmod(len(drawn), len(core))
    for layer, count in Counter(head.layer for head in drawn).items():
        # Every round has as many of each layer as the core, the last one no more than that.
        assert rounds * wanted[layer] <= count <= (rounds + (rest > 0)) * wanted[layer]
    short = [layer for layer, count in wanted.items() if (rounds + 1) * count > 4 - count]
    assert len(drawn) == n or short


def test_mlps_are_beside_other_mlps() -> None:
    named = parse_components(["L1.H0", "L0.MLP"])
    drawn = beside(named, ModelShape(3, 4), 4, 0)
    assert {component.layer for component in drawn if component.is_head} == {1}
    assert list(map(str, drawn[-1:])) == ["L2.MLP"]
    assert sum(component.is_head for component in drawn) == 2
    assert beside(parse_components(["0.mlp", "1.mlp", "2.mlp"]), ModelShape(3, 4), 4, 0) == []


def test_named_components_are_beside_others_like_them_and_go_on_when_interrupted(
    inputs: Inputs, means: MeanActivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = step(components=("L0.H1", "L1.MLP"), sets=("L0.H1+L1.H2",), controls=9)
    members = named.named(ModelShape.of(inputs.model))
    tables = core_ablation_tables(inputs, means, members, named, {}, tmp_path)
    kinds = tables["ablation"].drop_duplicates("set").set_index("set")["kind"].to_dict()
    assert list(kinds)[:-1] == ["L0.H1", "L1.H2", "L1.MLP", "L0.H1+L1.MLP", "L0.H1+L1.H2"]
    assert kinds["other components (mean of 2)"] == "non-core"
    controls = tables["ablation"].query("subset == 'all' and n_controls.notna()")
    # Of a head of layer 0 and the other MLP there are three sets.
    assert set(controls.query("size == 2")["n_controls"]) == {3}
    monkeypatch.setattr("mechcore.ablation.engines.engine.TreeEngine.run", None)
    again = core_ablation_tables(inputs, means, members, named, {}, tmp_path)
    for name, table in tables.items():
        pd.testing.assert_frame_equal(again[name], table)


def test_the_core_is_beside_other_heads_of_its_layers(
    inputs: Inputs, means: MeanActivations
) -> None:
    core = parse_components(["L0.H1", "L1.H0", "L1.H2"])
    table = core_ablation_tables(inputs, means, core, step(controls=50), {})["ablation"]
    CONTROLLED.check(table)
    whole = table[table["size"] == 3].dropna(subset="n_controls")
    # 3 heads of layer 0, and the one pair of layer 1.
    assert set(whole["n_controls"]) == {3}
    assert whole["set"].unique().tolist() == ["L0.H1+L1.H0+L1.H2"]
    for split in ("id", "ood"):
        data = inputs.encode(inputs.data[split].examples.sample(5, 3))
        full = Mask.full(inputs.model)
        masks = [full.without("1.1", "1.3", f"0.{head}") for head in (0, 2, 3)]
        masks += [full.without(*core), full]
        *others, without, at_start = (
            evaluate(inputs.model, data, mask=mask, means=means, in_domain=False).margin.mean()
            for mask in masks
        )
        changes = np.array(others) - at_start
        row = whole.query("split == @split and subset == 'all'").iloc[0]
        assert row["n_beside"] == 5
        assert row["margin_change_beside"] == pytest.approx(without - at_start, abs=1e-4)
        assert row["margin_control_change"] == pytest.approx(changes.mean(), abs=1e-4)
        larger = (np.abs(changes) >= abs(at_start - without)).sum()
        assert row["margin_p_control"] == pytest.approx((1 + larger) / 4)


@pytest.mark.parametrize("known", [False, True])
def test_heads_of_the_core_are_beside_those_that_were_ablated(
    inputs: Inputs, means: MeanActivations, swept: dict[str, Ablations], known: bool
) -> None:
    core, alone = parse_components(["L0.H1", "L1.H0"]), swept["ood"]
    tables = core_ablation_tables(inputs, means, core, step(), swept if known else {})
    overall = tables["ablation"].query("split == 'ood' and subset == 'all'")
    singles = overall.query("kind == 'single'")
    # All three others of a layer, or the one of each that was drawn; all eight examples.
    assert set(singles["n_controls"]) == {3 if known else 1}
    assert set(singles["n_beside"]) == {8}
    row = singles.query("set == 'L1.H0'").iloc[0]
    changes = {str(heads): alone.changes(heads, "margin").mean() for heads in alone.sets}
    assert row["margin_change_beside"] == pytest.approx(changes["L1.H0"], abs=1e-4)
    others = np.array([changes[f"L1.H{i}"] for i in (1, 2, 3)])
    expected = (
        others.mean() if known else others[np.abs(others - row["margin_control_change"]).argmin()]
    )
    assert row["margin_control_change"] == pytest.approx(expected, abs=1e-4)


def test_a_core_without_other_sets_stands_alone(inputs: Inputs, means: MeanActivations) -> None:
    heads = parse_components(["0.0", "0.1", "0.2"])
    none = core_ablation_tables(inputs, means, heads, step(controls=0), {})
    assert set(none["ablation"].dropna(subset="n_controls")["size"]) == {1}
    tables = core_ablation_tables(inputs, means, heads, step(controls=9), {})
    whole = tables["ablation"].query("size > 1 and subset == 'all' and n_controls.notna()")
    assert set(whole["n_beside"]) == {9, 8}
    assert set(whole["n_controls"]) == {0}
    assert whole[["margin_control_change", "accuracy_p_control"]].isna().all(axis=None)
    assert whole["margin_change_beside"].tolist() == pytest.approx(whole["margin_change"].tolist())
