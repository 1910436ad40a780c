"""The experiments on random decoders, against the same steps done one by one.

The fixtures make sure that weights and hooks are as before after every test; what differs between
kinds of models is for the tests of tuning, weights and scores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from papers.extractive.tiny import Decoder

from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import (
    EncodedOrdering,
    EncodedTask,
    encode_ordering,
    encode_task,
    mean_rank,
    ranks,
    rewards,
)
from mechcore.papers.extractive.experiments import freezing as freezing_module
from mechcore.papers.extractive.experiments import ordering as ordering_module
from mechcore.papers.extractive.experiments import recall as recall_module
from mechcore.papers.extractive.experiments.freezing import freezing
from mechcore.papers.extractive.experiments.grafting import grafting
from mechcore.papers.extractive.experiments.ordering import ordering
from mechcore.papers.extractive.experiments.recall import recall
from mechcore.papers.extractive.experiments.score_maps import Localization, Scores, correlation
from mechcore.papers.extractive.facts import Facts, FactTask, OrderingTask
from mechcore.papers.extractive.scores import extractive_scores
from mechcore.papers.extractive.weights import (
    TuneSettings,
    WeightDelta,
    applied,
    restored,
    snapshot,
    tune,
    tuned,
)

NAMES = ("cat", "dog", "bird", "who")
CITIES, ANIMALS = ("yes", "no", "here", "often"), ("ran", "not", "never", "quickly")
BOTH = ("facts", "implications")
FAST = TuneSettings(learning_rate=0.02, epochs=2, batch_size=2, seed=5)


def some(name: str, wording: str, subjects: Sequence[str], completions: Sequence[str]) -> Facts:
    prompts = tuple(wording.format(subject) for subject in subjects)
    return Facts(name, prompts, tuple(completions), tuple(subjects), tuple(sorted(completions)))


def both(
    which: str, wordings: Sequence[str], subjects: Sequence[str], turned: bool = False
) -> tuple[Facts, Facts]:
    """Facts and implications; the answers may be those of the next subject."""
    answers = [(*words[turned:], *words[:turned]) for words in (CITIES, ANIMALS)]
    names = f"{which}facts", f"{which}implications"
    facts, implications = (
        some(name, wording, subjects, known)
        for name, wording, known in zip(names, wordings, answers, strict=True)
    )
    return facts, implications


@pytest.fixture(scope="module")
def task() -> EncodedTask:
    tokenizer = helpers.word_tokenizer(segments=False)
    wordings = ("the {} saw", "if a {} never saw")
    return encode_task(FactTask("first-hop", *both("", wordings, NAMES)), tokenizer)


@pytest.fixture(scope="module")
def people() -> EncodedOrdering:
    """Four training names and, as test names, two words each."""
    wordings, tests = ("{} saw", "{} if a"), [f"the {name}" for name in NAMES]
    parts = (
        *both("", wordings, NAMES),
        *both("test ", wordings, tests),
        *both("other ", wordings, NAMES, turned=True),
    )
    return encode_ordering(OrderingTask(*parts), helpers.word_tokenizer(segments=False))


def of(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def rank(table: pd.DataFrame, **where: Any) -> float:
    (mean,) = of(table, **where)["mean_rank"]
    return float(mean)


def ranked(model: Any, parts: Any, *names: str) -> dict[str, float]:
    """Mean ranks of some of the parts of a task, by their names."""
    return {name: mean_rank(model, getattr(parts, name.replace(" ", "_"))) for name in names}


def test_scores_are_taken_on_the_first_implications(people: EncodedOrdering) -> None:
    whole = people.implications
    some = whole.first(3)
    assert len(some) == 3
    for name in ("prompt_ids", "completion_ids", "tokens"):
        assert getattr(some, name) == getattr(whole, name)[:3]
    assert torch.equal(some.option_ids, whole.option_ids)
    assert torch.equal(some.answers, whole.answers[:3])
    assert len(whole.first(20)) == len(whole)


def test_recall_is_of_the_chosen_training(tiny_llama: Decoder, task: EncodedTask) -> None:
    slow = TuneSettings(learning_rate=1e-5, epochs=1, batch_size=2, seed=5)
    recalled = recall(tiny_llama.model, task, [slow, FAST], n_resamples=50)
    assert recalled.chosen == FAST
    assert recalled.grid[["learning_rate", "epochs", "chosen"]].to_numpy().tolist() == [
        [1e-5, 1, False],
        [0.02, 2, True],
    ]
    ranking = recalled.ranks.set_index(["data", "state"])
    trained = tuned(tiny_llama.model, task.facts, FAST)
    for state, delta in (("before", WeightDelta({})), ("after", trained)):
        with applied(tiny_llama.model, delta):
            for name in ("facts", "implications"):
                row, data = ranking.loc[(name, state)], getattr(task, name)
                own_ranks = ranks(tiny_llama.model, data).double()
                assert row["mean_rank"] == pytest.approx(float(own_ranks.mean()))
                assert row["low"] <= row["mean_rank"] <= row["high"]
                assert 0 <= row["low"] < row["high"] <= 3
                assert row["reward"] == pytest.approx(float(rewards(tiny_llama.model, data).mean()))
    assert set(recalled.ranks["task"]) == set(recalled.grid["task"]) == {"first-hop"}
    assert set(recalled.ranks["seed"]) == set(recalled.grid["seed"]) == {5}
    assert set(ranking["n"]) == set(ranking["n_options"]) == {4}
    assert set(ranking["learning_rate"]) == {0.02}


@pytest.mark.parametrize(
    ("facts", "losses", "implications", "chosen"),
    [
        ((1.0, 0.0, 0.0), (0.1, 0.5, 0.2), (0.0, 1.0, 9.0), 2),  # rank, then loss
        ((0.0, 0.0, 1.0), (0.3, 0.3, 0.1), (9.0, 1.0, 0.0), 0),  # then the first
        ((2.0, 1.0, 3.0), (0.1, 0.9, 0.1), (0.0, 9.0, 0.0), 1),
    ],
)
def test_implications_have_no_say(
    facts: Any,
    losses: Any,
    implications: Any,
    chosen: int,
    decoders: Any,
    task: EncodedTask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of made-up results, those of the facts alone decide."""
    grid, at = [TuneSettings(learning_rate=0.1 * (i + 1)) for i in range(3)], [0]

    def made_up_tune(model: Any, data: Any, settings: TuneSettings) -> pd.DataFrame:
        at[0] = grid.index(settings)
        return pd.DataFrame({"epoch": [1, 2], "loss": [9.9, losses[at[0]]]})

    def made_up_rank(model: Any, data: Any) -> float:
        return (facts if data is task.facts else implications)[at[0]]

    monkeypatch.setattr(recall_module, "tune", made_up_tune)
    monkeypatch.setattr(recall_module, "mean_rank", made_up_rank)
    recalled = recall(decoders("bridge").model, task, grid, n_resamples=10)
    assert recalled.chosen == grid[chosen]
    assert recalled.grid["chosen"].tolist() == [i == chosen for i in range(3)]
    assert recalled.grid["loss"].tolist() == list(losses)
    assert recalled.grid["implications"].tolist() == list(implications)


def test_score_maps_are_of_the_implications(tiny_llama: Decoder, task: EncodedTask) -> None:
    delta = tuned(tiny_llama.model, task.facts, FAST)
    base: Any = SimpleNamespace(model=tiny_llama.model, tasks=lambda seed: {task.name: task})
    step = Scores("bridge", "float32", FAST, task.name, counterfactuals=2, compat=None)
    scores, sums = step.tables(base, Path()).values()
    wanted = extractive_scores(
        tiny_llama.model, task.implications, delta, counterfactuals=2, seed=5
    )
    pd.testing.assert_frame_equal(scores.drop(columns=["task", "seed"]), wanted.table())
    points = wanted.sums()
    (row,) = sums.to_dict("records")
    assert (row["task"], row["seed"], row["n"]) == ("first-hop", 5, 4)
    for column in ("informative", "other", "gradient", "actual"):
        assert row[column] == pytest.approx(points[column].mean())
    assert row["informative"] + row["other"] == pytest.approx(row["gradient"], abs=1e-4)
    with applied(tiny_llama.model, delta):
        after = rewards(tiny_llama.model, task.implications)
    before = rewards(tiny_llama.model, task.implications)
    assert row["actual"] == pytest.approx(float((after - before).mean()), abs=1e-5)
    assert row["r"] == pytest.approx(np.corrcoef(points["gradient"], points["actual"])[0, 1])
    assert set(scores["seed"]) == {5}


def test_correlations() -> None:
    # Deviations -1, 0, 1 and -1, -1, 2: 3 / sqrt(2 * 6); p of t = r / sqrt(1 - r^2) = sqrt(3) with
    # one degree of freedom: 1 - 2 arctan(sqrt(3)) / pi.
    r, p = correlation(pd.Series([1.0, 2, 3]), pd.Series([0.0, 0, 3]))
    assert (r, p) == (pytest.approx(3 / math.sqrt(12)), pytest.approx(1 / 3))
    assert np.isnan(correlation(pd.Series([1.0, 2, 3]), pd.Series([4.0, 4, 4]))).all()
    assert np.isnan(correlation(pd.Series([1.0, 2]), pd.Series([4.0, 5]))).all()


def layer_of(name: str) -> int:
    (layer,) = re.findall(r"\.(\d+)\.", name)
    return int(layer)


def test_freezing_both_ways(
    tiny_gpt2: Decoder, task: EncodedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[set[int]] = []
    trained: list[dict[str, float]] = []

    def spying(model: Any, data: Any, settings: TuneSettings, *, layers: Any = None) -> Any:
        before = snapshot(model)
        history = tune(model, data, settings, layers=layers)
        now = named_weights(model)
        moved.append({layer_of(n) for n, old in before.items() if not torch.equal(old, now[n])})
        trained.append(ranked(model, task, *BOTH))
        return history

    monkeypatch.setattr(freezing_module, "tune", spying)
    table = freezing(tiny_gpt2.model, task, FAST)
    assert moved == [{1}, {0}]  # early frozen, then late
    assert set(table["cut"]) == {1}
    assert len(table) == 4 * 2 * 2
    for frozen, expected in zip(("early", "late"), trained, strict=True):
        rows = of(table, frozen=frozen, way="trained")
        assert {name: rank(rows, data=name) for name in BOTH} == expected
    delta = tuned(tiny_gpt2.model, task.facts, FAST)
    kept = {"none": {0, 1}, "early": {1}, "late": {0}, "all": set()}
    for frozen, layers in kept.items():
        left = WeightDelta({n: change for n, change in delta.items() if layer_of(n) in layers})
        with applied(tiny_gpt2.model, left):
            expected = ranked(tiny_gpt2.model, task, *BOTH)
        for way in ("reverted", "trained")[: 2 if frozen in ("none", "all") else 1]:
            rows = of(table, frozen=frozen, way=way)
            assert {name: rank(rows, data=name) for name in BOTH} == expected


def test_orders_and_what_is_replayed(
    decoders: Any, people: EncodedOrdering, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def spying(model: Any, data: Any, settings: TuneSettings, *, replay: Any = None) -> None:
        sets = data if isinstance(data, list) else [data]
        old = replay.facts.name if settings.replay and replay is not None else None
        calls.append(([part.facts.name for part in sets], settings.replay, old))

    monkeypatch.setattr(ordering_module, "tune", spying)
    model = decoders("bridge").model
    table = ordering(model, people, TuneSettings(seed=3, replay=4))
    last = (["test facts"], 0, None)
    assert calls == [
        *((["facts", "implications"], 0, None), last),
        *((["facts"], 0, None), (["implications"], 4, "facts"), last),
        *((["implications"], 0, None), (["facts"], 4, "implications"), last),
    ]
    assert set(table["replay"]) == {True}
    calls.clear()
    plain = ordering(model, people, TuneSettings(seed=3))
    assert [replayed for _, replayed, _ in calls] == [0] * 8
    assert set(plain["replay"]) == {False}
    assert plain[["order", "data"]].to_numpy().tolist() == [
        [order, data]
        for order in ("joint", "facts first", "implications first")
        for data in ("facts", "implications", "test facts", "test implications")
    ]
    assert set(plain["seed"]) == {3}
    assert set(plain["chance"]) == {1.5}


def test_each_order_begins_from_the_same_weights(
    tiny_llama: Decoder, people: EncodedOrdering
) -> None:
    table = ordering(tiny_llama.model, people, FAST)
    with restored(tiny_llama.model):
        tune(tiny_llama.model, people.implications, FAST)
        tune(tiny_llama.model, people.facts, FAST)
        expected = ranked(tiny_llama.model, people, *BOTH)
        tune(tiny_llama.model, people.test_facts, FAST)
        expected |= ranked(tiny_llama.model, people, "test facts", "test implications")
    for data, value in expected.items():
        assert rank(table, order="implications first", data=data) == value


def weights_after(model: Any, *trained: Any) -> dict[str, torch.Tensor]:
    """All weights after training these data one after another."""
    with restored(model):
        for data in trained:
            tune(model, data, FAST)
        return snapshot(model)


def put(model: Any, weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in named_weights(model).items():
            parameter.copy_(weights[name])


def test_grafts_are_sums_of_weights(tiny_llama: Decoder, people: EncodedOrdering) -> None:
    model = tiny_llama.model
    base = weights_after(model)
    facts = weights_after(model, people.facts)
    both = weights_after(model, people.facts, people.implications)
    alone = weights_after(model, people.implications)
    other = weights_after(model, people.other_facts)
    models = {
        "other facts": other,
        "graft": {n: other[n] + both[n] - facts[n] for n in base},
        "control graft": {n: other[n] + alone[n] - base[n] for n in base},
    }
    table = grafting(model, people, FAST)
    splits = ("other implications", "implications", "other facts", "facts")
    assert len(table) == 12
    for name, weights in models.items():
        with restored(model):
            put(model, weights)
            for split, expected in ranked(model, people, *splits).items():
                assert rank(table, model=name, data=split) == expected
    assert table[["n", "chance", "seed"]].drop_duplicates().to_numpy().tolist() == [[4, 1.5, 5]]


def test_localization_compares_components(tiny_gpt2: Decoder, people: EncodedOrdering) -> None:
    model = tiny_gpt2.model
    facts = weights_after(model, people.facts)
    both = weights_after(model, people.facts, people.implications)
    last = weights_after(model, people.facts, people.implications, people.test_facts)
    base: Any = SimpleNamespace(model=model, ordering=lambda seed: people)
    step = Localization("bridge", "float32", FAST, compat=None)
    table, squared = step.tables(base, Path()).values()

    def scores(at: dict[str, torch.Tensor], to: dict[str, torch.Tensor], data: Any) -> Any:
        with restored(model):
            put(model, at)
            delta = WeightDelta({name: to[name] - at[name] for name in tiny_gpt2.names})
            return extractive_scores(model, data, delta, counterfactuals=0)

    stored = scores(facts, both, people.implications).informative
    read = scores(both, last, people.test_implications).downstream
    rows = table.set_index("component")
    for column, scored in (("informative", stored), ("downstream", read)):
        for layer in (0, 1):
            expected = float(scored.mlps[:, layer].sum(-1).mean())
            assert rows.loc[f"L{layer}.MLP", column] == pytest.approx(expected, abs=1e-6)
            for head, values in enumerate(scored.heads[:, layer].unbind(1)):
                expected = float(values.sum(-1).mean())
                assert rows.loc[f"L{layer}.H{head}", column] == pytest.approx(expected, abs=1e-6)
    assert len(table) == 2 * 5
    for column, at, learned in (("facts", facts, "facts"), ("new_facts", last, "test_facts")):
        with restored(model):
            put(model, at)
            expected = mean_rank(model, getattr(people, learned))
        assert squared[column].tolist() == [pytest.approx(expected)] * 2
    by_kind = squared.set_index("kind")
    heads = table[table["kind"] == "head"]
    r = np.corrcoef(heads["informative"], heads["downstream"])[0, 1]
    assert by_kind.loc["head", "r"] == pytest.approx(r)
    assert by_kind.loc["head", "r2"] == pytest.approx(r * r)
    assert by_kind.loc["head", "n"] == 8
    assert math.isnan(by_kind.loc["mlp", "r"])  # of two points
    assert set(table["seed"]) == set(squared["seed"]) == {5}
