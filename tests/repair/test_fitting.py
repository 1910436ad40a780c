"""Rungs on planted models that fail for a known reason."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import close
from hypothesis import given
from hypothesis import strategies as st

from mechcore.bench.failing import failing_data, failing_model, tokenizer_of
from mechcore.errors import InputError
from mechcore.evaluation.readout import Readout
from mechcore.masking.means import MeanActivations
from mechcore.models.export import projection_of
from mechcore.repair import HELD_OUT, INSIDE, REPAIRED
from mechcore.repair.fitting import Fitting, Settings, subset_folds
from mechcore.repair.ladder import Labelled, Ladder, Outcome, runs_of
from mechcore.repair.model import RepairableModel
from mechcore.repair.outcome import gates_table, recommended, repair_table
from mechcore.repair.rungs import LastLayer

QUICK = Settings(steps=16)


@dataclass(frozen=True, eq=False)
class World:
    """A planted model with its data, and what of these is for the repair."""

    model: RepairableModel
    outside: Labelled
    inside: Labelled
    guard: Any

    def ladder(self, settings: Settings = QUICK) -> Ladder:
        return Ladder(self.model, self.outside, self.inside, self.guard, settings)

    def labels(self) -> dict[str, Any]:
        both = (("ood", self.outside), ("id", self.inside))
        return {split: of.data.examples.frame["label"].tolist() for split, of in both}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            model, sizes = failing_model(name, folder), {"train": 32, "id": 80, "ood": 240}
            data = failing_data(name, sizes)
            means = MeanActivations.compute(model, data["train"])
            labelled = {
                split: Labelled(data[split], Readout.of(model, d).correct_classes(d))
                for split, d in data.items()
            }
            repairable = RepairableModel(model, folder, tokenizer_of(), means)
            known[name] = World(repairable, labelled["ood"], labelled["id"], data["train"])
        return known[name]

    return of


def accuracies(world: World, weights: Any, n: int = 40) -> list[float]:
    """Of a repair on three kinds: on unseen examples of these, on the fourth, in domain."""
    logits = [world.model.answers(of.data, weights) for of in (world.outside, world.inside)]
    right = [
        of.correct[torch.arange(len(of.correct)), answers.argmax(-1)].numpy()
        for of, answers in zip((world.outside, world.inside), logits, strict=True)
    ]
    repaired = world.outside.subset < 3
    return [right[0][repaired][n:].mean(), right[0][~repaired].mean(), right[1].mean()]


def fitting(world: World, n: int = 40) -> Fitting:
    rows = np.flatnonzero(world.outside.subset < 3)[:n]
    return world.ladder().fitting(rows)


@pytest.mark.everyday
@pytest.mark.parametrize("rung", ["remove", "gates"])
def test_a_heuristic_head_is_turned_off_for_kinds_never_seen(worlds: Any, rung: str) -> None:
    world = worlds("head")
    assert max(accuracies(world, {})[:2]) < 0.1
    fit = fitting(world).fit(rung)
    assert min(accuracies(world, fit.weights)) >= 0.95
    assert fit.choice.loss < fit.choice.before
    if rung == "remove":
        assert fit.choice.note == "L0.H2"
    else:
        assert fit.fitted["gates"][0, 2] < 0.7 < fit.fitted["gates"][0, 0]


def test_heads_that_stand_in_for_each_other_are_both_turned_down(worlds: Any) -> None:
    world = worlds("backup")
    fit = fitting(world).fit("gates")
    assert min(accuracies(world, fit.weights)) >= 0.95


@pytest.mark.everyday
def test_a_moved_threshold_is_moved_back(worlds: Any) -> None:
    world = worlds("threshold")
    fit = fitting(world).fit("threshold")
    assert min(accuracies(world, fit.weights)) >= 0.95
    assert set(fit.weights) == {world.model.head_weights[1]}


@pytest.mark.parametrize("rung", ["threshold", "last-layer"])
def test_what_the_model_does_not_know_no_head_can_say(worlds: Any, rung: str) -> None:
    world = worlds("absent")
    before, after = accuracies(world, {}), accuracies(world, fitting(world).fit(rung).weights)
    assert max(after[:2]) < 0.65
    assert after[2] == pytest.approx(before[2], abs=0.1)


@pytest.mark.parametrize("rung", ["few-heads", "lora", "fine-tune"])
def test_trained_rungs_change_what_they_say(worlds: Any, rung: str) -> None:
    world = worlds("head")
    quick = fitting(world)
    quick.settings = Settings(steps=8)
    fit = quick.fit(rung)
    changed = {n for n, w in fit.weights.items() if not torch.equal(w, world.model.weights[n])}
    if rung == "few-heads":
        assert "L0.H2" in fit.choice.note.split()
        assert changed <= {
            f"{projection_of(world.model.hf, i, mlp=False)[0]}.weight" for i in range(3)
        }
    elif rung == "lora":
        assert not any("embed" in n or "classifier" in n or n.endswith("bias") for n in changed)
    assert fit.choice.loss <= fit.choice.before


def test_the_guard_keeps_the_model_as_it_is_in_domain(worlds: Any) -> None:
    """A large weight leaves little of a repair that moves answers in domain."""
    world = worlds("threshold")
    free, guarded = fitting(world), fitting(world)
    guarded.settings = replace(QUICK, guard=1e4)
    before, *after = (
        world.model.answers(world.inside.data, weights)
        for weights in ({}, *(f.fit("threshold").weights for f in (free, guarded)))
    )
    moved = [(logits - before).abs().max() for logits in after]
    assert moved[1] < 0.2 * moved[0]


@pytest.mark.everyday
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2, max_size=40), st.data()
)
def test_folds_are_of_whole_subsets_and_leave_every_label(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    subset, label = (np.array(part) for part in zip(*pairs, strict=True))
    folds = subset_folds(subset, label, data.draw(st.integers(1, 4)), 0)
    if folds is None:
        return
    assert len(np.unique(folds)) > 1
    for i in np.unique(subset):
        assert len(np.unique(folds[subset == i])) == 1
    for fold in np.unique(folds):
        assert set(label[folds != fold]) == set(label)


@pytest.mark.everyday
def test_no_figure_is_of_an_example_that_was_learned_from(worlds: Any) -> None:
    outside = worlds("head").outside
    runs = runs_of(outside, [20, 60], draws=3, folds=2, seed=0, inside=80)
    assert len(runs) == 2 * 3 * 2
    for run in runs:
        assert len(run.repair) == run.n_examples
        repaired, held = (run.tested[place] for place in (REPAIRED, HELD_OUT))
        for rows in (repaired, held):
            assert not {*outside.group[rows]} & {*outside.group[run.repair]}
        assert not {*outside.subset[held]} & {*outside.subset[run.repair]}
        assert {*outside.subset[repaired]} <= {*outside.subset[run.repair]}
        assert set(run.tested) == {REPAIRED, HELD_OUT, INSIDE}
    # The examples of a smaller repair are among those of a larger one.
    assert {*runs[0].repair} < {*runs[1].repair}
    with pytest.raises(InputError, match="lower --examples"):
        runs_of(outside, [200], draws=1, folds=2, seed=0, inside=80)


@pytest.mark.everyday
def test_what_is_tested_has_no_part_in_any_choice(worlds: Any) -> None:
    """Labels of all examples but those of the repair are turned round: the repairs are the same."""
    world = worlds("head")
    (run,) = runs_of(world.outside, [40], draws=1, folds=1, seed=0, inside=80)
    turned = world.outside.correct.flip(-1)
    turned[run.repair] = world.outside.correct[run.repair]
    rungs = ["none", "threshold", "last-layer", "remove"]
    (first,), (second,) = (
        list(replace(world, outside=outside).ladder(Settings(steps=4)).outcomes([run], rungs))
        for outside in (world.outside, replace(world.outside, correct=turned))
    )
    check_same(first, second)


def check_same(first: Outcome, second: Outcome) -> None:
    """The same numbers were fitted."""
    assert list(first.logits) == list(second.logits)
    for name, by_place in first.logits.items():
        for place, logits in by_place.items():
            assert np.array_equal(logits, second.logits[name][place])
        assert str(first.choices[name]) == str(second.choices[name])  # NaN is not NaN
    for gates in ("gates", "permuted"):
        assert np.array_equal(getattr(first, gates), getattr(second, gates))


@pytest.mark.everyday
def test_runs_that_are_done_are_not_done_again(
    worlds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds("head")
    runs = runs_of(world.outside, [40], draws=1, folds=2, seed=0, inside=80)
    rungs = ["none", "threshold", "gates"]
    ladder = world.ladder(Settings(steps=4))
    first = next(ladder.outcomes(runs, rungs, tmp_path))  # interrupted after one of two
    fitted, fit = [], Fitting.fit

    def watched(self: Fitting, name: str) -> Any:
        fitted.append(name)
        return fit(self, name)

    monkeypatch.setattr(Fitting, "fit", watched)
    again, second = ladder.outcomes(runs, rungs, tmp_path)
    assert fitted == rungs
    check_same(first, again)
    assert again.gates is not None
    check_same(second, list(ladder.outcomes(runs, rungs))[1])


@pytest.mark.everyday
def test_rungs_of_the_last_layer_share_what_the_layers_below_compute(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, ran, states = worlds("threshold"), [], RepairableModel.states

    def watched(self: RepairableModel, data: Any, weights: Any) -> Any:
        ran.append(data)
        return states(self, data, weights)

    monkeypatch.setattr(RepairableModel, "states", watched)
    runs = runs_of(world.outside, [40], draws=1, folds=2, seed=0, inside=80)
    first, _ = world.ladder().outcomes(runs, ["none", "threshold", "last-layer"])
    assert len(ran) == 3  # the guard, and the test data of both splits
    tested = world.outside.data.part(runs[0].tested[HELD_OUT].tolist())
    got = torch.from_numpy(first.logits["none"][HELD_OUT])
    close(got, world.model.answers(tested, {}))
    penalties = {*LastLayer.penalties, 0.0}  # nothing changed has none
    choice = first.choices["last-layer"]
    assert {choice.penalty, choice.penalty_random} <= penalties


def climbed(world: World, rungs: list[str], order: Any = slice(None)) -> tuple[list[Any], Any]:
    """Outcomes of these rungs with 40 examples, and their table; labels out of domain in order."""
    runs = runs_of(world.outside, [40], draws=1, folds=2, seed=0, inside=80)
    done, labels = list(world.ladder().outcomes(runs, rungs)), world.labels()
    labels |= {"ood": [*np.array(labels["ood"])[order]]}
    return done, repair_table(done, world.outside, world.inside, labels)


def test_the_ladder_says_what_helps(worlds: Any) -> None:
    world = worlds("head")
    rungs = ["none", "threshold", "remove", "gates"]
    done, table = climbed(world, rungs)
    assert recommended(table) == "remove"
    rows = table[table["label"] == "all"].set_index(["place", "rung"])
    for place in (REPAIRED, HELD_OUT):
        assert rows.loc[(place, "remove"), "accuracy"] > 0.95
        assert (rows["shown"][place, "remove"], rows["shown"][place, "threshold"]) == ("gain", "")
        assert rows.loc[(place, "gates"), "over_threshold_low"] > 0.5
    shape = world.model.shape
    gates = gates_table(done, shape.components, shape.index).set_index("component")
    assert gates.loc["L0.H2", "sign"] == "down"
    assert gates.index[0] == "L0.H2"


def test_permuted_labels_recommend_nothing(worlds: Any) -> None:
    world = worlds("absent")
    order = np.random.default_rng(3).permutation(len(world.outside.correct))
    mixed = replace(world.outside, correct=world.outside.correct[order])
    rungs = ["none", "threshold", "last-layer", "remove"]
    _, table = climbed(replace(world, outside=mixed), rungs, order)
    assert recommended(table) == ""


def test_a_threshold_carries_over_to_every_kind(worlds: Any) -> None:
    world = worlds("threshold")
    changes = world.ladder().transfer(40)
    assert changes.shape == (4, 4)
    assert (changes[~np.eye(4, dtype=bool)] > 0.3).all()  # few texts of a kind are unseen
