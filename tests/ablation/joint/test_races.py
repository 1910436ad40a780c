"""Races: decisions written out, against exact sweeps, and how often they are wrong."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.planted import PAIR, SIZE, examples, game, planted

from mechcore.ablation import Ablations, ComponentSet, Search, ablate, find_superadditive, race
from mechcore.ablation.joint import races, search
from mechcore.ablation.joint.decisions import AUDIT, DECISIONS, Goal, Interactions
from mechcore.components import Component
from mechcore.errors import InputError
from mechcore.evaluation.sequences import confidence_sequence

HEADS = [Component(layer, head) for layer in range(2) for head in range(4)]
PAIRS = [ComponentSet.of(pair) for pair in itertools.combinations(HEADS, 2)]


def test_goals_decide_by_bounds() -> None:
    low = np.array([0.11, 0.1, -0.1, -0.11, -0.5, -0.5])
    high = np.array([0.5, 0.5, 0.1, 0.1, -0.11, 0.5])
    expected = ["above", "open", "within", "open", "below", "open"]
    assert Goal(0.1, None).decisions(low, high).tolist() == expected
    # Two of five: the first is in, the last two are out; the second and third may change places.
    high, low = -np.array([5.0, 2, 1, 0, -3]), -np.array([6.0, 4, 3, 0.5, -2])
    assert Goal(None, 2).decisions(low, high).tolist() == ["top", "open", "open", "rest", "rest"]
    assert Goal(None, 3).decisions(low, high).tolist() == ["top", "top", "top", "rest", "rest"]
    assert Goal(None, 1).decisions(low, high).tolist() == ["top", *["rest"] * 4]


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("largest", [6.0, 0.0])
def test_effects_in_a_few_texts_are_not_taken_for_none(share: float, largest: float) -> None:
    """3 sets of 12 have all of a mean effect of 0.15 in a share of 600 texts; 12 orders of these.

    None of the others is larger in the second case, so that nothing seen first says what may come.
    """
    n, rng = 600, np.random.default_rng(0)
    effects = 0.03 * rng.standard_normal((12, n))
    for row in range(3):
        effects[row, rng.permutation(n)[: round(share * n)]] += 0.15 / share
    effects[3] += largest / 3 * rng.standard_normal(n)
    exact, goal, n_wrong = effects.mean(1), Goal(0.1, None, bound=0.1 / races.RARE), 0
    for seed in range(12):
        known = Interactions(PAIRS[:12], n, goal)
        known.values[:] = effects[:, np.random.default_rng(seed).permutation(n)]
        for stop in races.looks(n):
            known.decide(stop)
        n_wrong += (known.decisions != goal.decisions(exact, exact)).any()
    assert n_wrong <= 0.05 * 12


def test_a_set_that_breaks_its_bound_starts_anew() -> None:
    # 4 is 1.5^3.4 times the bound, so that 1.5^4 would do, and one more is taken. The first bound
    # has 0.9 of the error rate; the others 0.1 / 2, 0.1 / 6, 0.1 / 12, 0.1 / 20, 0.1 / 30 ...
    known = Interactions(PAIRS[:2], 200, Goal(0.001, None, error=0.1, bound=1.0))
    known.values[:] = np.random.default_rng(0).uniform(-1, 1, (2, 200))
    known.decide(32)
    old = known.low.copy(), known.high.copy()
    expected = confidence_sequence(known.values[:, :32], 200, 0.9 * 0.05, np.ones(2))
    np.testing.assert_allclose([known.low, known.high], expected)
    known.values[0, 40] = -4.0
    known.decide(44)
    assert known.steps.tolist() == [5, 0]
    seen = known.values[:, :44].astype(float)
    low, high = confidence_sequence(seen[:1], 200, 0.1 / 30 * 0.05, np.array([1.5**5]))
    assert (known.low[0], known.high[0]) == pytest.approx((low[0], high[0]))
    assert low[0] < old[0][0]  # what held under the bound that broke is forgotten
    assert known.low[1] >= old[0][1]
    known.values[0, 50] = 7.5  # under the bound it has now: 7.6
    known.decide(61)
    assert known.steps.tolist() == [5, 0]


A, B, C = map(str, PAIRS[:3])


@pytest.mark.parametrize(
    ("start", "n_audited", "then"),
    [
        (32, 0, [([B, C], 12), ([A], 12)]),
        (172, 0, [([B, C], 28), ([A], 168)]),
        (172, 3, [([A, B, C], 28)]),
    ],
)
def test_what_a_bound_that_broke_decided_is_open_again(
    start: int, n_audited: int, then: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One set is surely among the two largest until both others turn out to be larger."""
    n = 200
    order = np.random.default_rng(0).permutation(n)
    late, noise = order[start:], np.random.default_rng(1).uniform(-0.1, 0.1, n)
    losses = {A: 0.9 + noise, B: noise, C: -noise}
    for name in (B, C):
        losses[name][late] += 6.5
    losses[C][late[-20:]] += 2.0
    asked = made_up(monkeypatch, losses)
    options: dict[str, Any] = {"largest": 2, "bound": 1.0, "n_audited": n_audited}
    raced = race(None, PAIRS[:3], Rows.of(n), **options)
    assert raced.decisions["decision"].tolist() == ["rest", "top", "top"]
    assert asked[0] == (list(losses), 32)
    assert [asked[i : i + len(then)] for i in range(1, len(asked))].count(then) == 1
    assert raced.n_broken == 2
    assert raced.layers == 2.0 * sum(len(sets) * rows for sets, rows in asked)
    assert (
        "above the set's bound: 1 nats, as given, and more for the 2 of 3 sets" in raced.describe()
    )


def test_bounds_come_from_the_least_effect_or_the_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(size=40)
    many = [ComponentSet.of([Component(i, j), Component(10)]) for i in range(10) for j in range(10)]
    made_up(monkeypatch, dict.fromkeys(map(str, many), noise))
    raced = race(None, many, Rows.of(40), least=0.1)
    assert (raced.goal.bound, len(raced.audit)) == (5.0, 2)  # 0.1 in 2 % of texts; 2 % of the sets
    assert "5 nats, a mean of 0.1 concentrated in 2% of examples" in raced.describe()
    raced = race(None, many, Rows.of(40), largest=3)
    assert (raced.goal.bound, raced.bound_source) == (2.0, "the span of the full model's margin")
    raced = race(None, many, Rows.of(40), least=0.1, metric="accuracy")
    assert (raced.goal.bound, raced.n_broken) == (None, 0)
    assert "bound" not in raced.describe()


def made_up(monkeypatch: pytest.MonkeyPatch, losses: dict[str, np.ndarray]) -> list[Any]:
    """Have races ablate nothing but look up losses; what they ask for of these, in turn."""
    asked: list[Any] = []

    def look_up(model: Any, sets: Sequence[Any], data: Any, means: Any, **options: Any) -> Any:
        if not sets:  # the full model alone
            return game({"L0.H0": 0 * data}, start=np.full(len(data), 2.0))
        wanted = [str(cut) for cut in sets if str(cut) in losses]
        asked.append((wanted, len(data)))
        played = game({str(cut): -losses.get(str(cut), nothing)[data] for cut in sets})
        return Ablations(played.full, played.without, "made up", "id", layers=2.0 * len(wanted))

    nothing = np.zeros(len(next(iter(losses.values()))))

    monkeypatch.setattr(races, "ablate", look_up)
    monkeypatch.setattr(races, "as_encoded", lambda model, data, split: data)
    monkeypatch.setattr(races, "data_for", lambda metric, model, data, split: data)
    monkeypatch.setattr(races, "as_sets", lambda sets, model: sets)
    return asked


class Rows(np.ndarray):
    """Numbers of examples that stand for them."""

    correct = None

    @classmethod
    def of(cls, n: int) -> Any:
        return np.arange(n).view(cls)

    def part(self, rows: list[int]) -> Any:
        return self[rows]

    @property
    def examples(self) -> Any:
        return type("Named", (), {"name": "made up"})


def sets_of(*names: str) -> list[ComponentSet]:
    return [ComponentSet.of(name.split("+")) for name in names]


def test_sets_leave_when_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1000
    noise = np.random.default_rng(0).normal(size=n)
    losses = {"L0.H0": noise, "L0.H1": 0 * noise + 1, "L0.H2": 0 * noise}
    losses |= {"L0.H0+L0.H1": noise + 1.5 + 0.1 * noise**2, "L0.H0+L0.H2": noise + 0.3 * noise}
    asked = made_up(monkeypatch, losses)
    raced = race(None, sets_of("L0.H0+L0.H1", "L0.H0+L0.H2"), Rows.of(n), least=0.2, bound=1.5)
    table = raced.decisions.set_index("set")
    DECISIONS.check(raced.decisions)
    # The first interacts by -0.5 - 0.1 noise^2, the second by -0.3 noise, whose mean is nearly 0.
    assert table["decision"].to_dict() == {"L0.H0+L0.H1": "below", "L0.H0+L0.H2": "within"}
    exact = -0.5 - 0.1 * (noise**2).mean()
    assert table.loc["L0.H0+L0.H1", "low"] <= exact <= table.loc["L0.H0+L0.H1", "high"]
    # One is decided at once; what it alone needs is not ablated any more.
    assert asked[0] == (["L0.H0", "L0.H1", "L0.H2", "L0.H0+L0.H1", "L0.H0+L0.H2"], 32)
    assert asked[1] == (["L0.H0", "L0.H2", "L0.H0+L0.H2"], 12)
    assert table["n"].to_dict() == {"L0.H0+L0.H1": 32, "L0.H0+L0.H2": raced.n_looks[-1]}
    layers = sum(2.0 * len(sets) * rows for sets, rows in asked)
    assert (raced.layers, raced.exact_layers) == (layers, 2.0 * 5 * n)


def test_an_audit_finds_what_few_examples_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second was thought to lose under 0.2 and loses 0.6; the first somewhere from 0.5 to 0.7.
    known = Interactions(PAIRS[:2], 100, Goal(None, 1))
    known.values[:] = [[-0.65], [-0.6]]
    known.low[:], known.high[:] = [-0.7, -0.2], [-0.5, 0.2]
    known.decisions[:] = ["top", "rest"]
    audit = known.audit(np.array([1]))
    assert audit["right"].tolist() == [False]
    known.low[1] = -0.61  # bounds that hold, and a tie that order decided
    assert known.audit(np.array([1]))["right"].tolist() == [True]
    # One set in three does all it does in one of 200 examples, and the bound given is too low.
    n, rng = 400, np.random.default_rng(0)
    losses = {f"L0.H{i}+L1.MLP": 0.01 * rng.normal(size=n) for i in range(90)}
    for i in range(0, 90, 3):
        losses[f"L0.H{i}+L1.MLP"][rng.choice(n, 2, replace=False)] = 100.0
    made_up(monkeypatch, losses)
    raced = race(None, sets_of(*losses), Rows.of(n), least=0.1, bound=0.05, n_audited=60)
    AUDIT.check(raced.audit)
    exact = {name: -loss.mean() for name, loss in losses.items()}
    for row in raced.audit.itertuples():
        assert row.effect == pytest.approx(exact[row.set], abs=1e-6)
        assert row.right == ((row.decision == "below") == (exact[row.set] < -0.1))
        assert row.broken == (not row.right)  # what was not seen is what was over the bound
    n_wrong, most = raced.wrong
    assert n_wrong == (~raced.audit["right"]).sum() > 10
    assert 0.25 < n_wrong / 60 < most < 0.5
    assert (
        f"{n_wrong} of 60 audited are wrong, so at most {most:.1%} are, and {n_wrong} break the "
        "bound in other examples"
    ) in raced.describe()


def test_of_equals_the_first_is_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(size=40)
    chosen = PAIRS[:5]
    made_up(monkeypatch, {str(cut): noise + 9 * (i == 4) for i, cut in enumerate(chosen)})
    raced = race(None, chosen, Rows.of(40), largest=3)
    assert raced.decisions["decision"].tolist() == ["top", "top", "rest", "rest", "top"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return planted(tmp_path_factory.mktemp("or"))


def test_a_planted_pair_is_found(model: Any) -> None:
    raced = race(model, PAIRS, examples(80), fill="zero", split="ood", least=0.5, bound=SIZE)
    assert raced.decided("below") == [ComponentSet.of(PAIR)]
    row = raced.decisions.set_index("set").loc["+".join(PAIR)]
    assert row["effect"] == pytest.approx(-SIZE, abs=1e-3)  # the same in every text
    assert (row["data"], row["split"], row["n"]) == ("planted", "ood", 32)
    assert raced.exact_layers * 32 / 80 < raced.layers < raced.exact_layers


@pytest.mark.parametrize("metric", ["margin", "accuracy"])
def test_all_that_is_called_exact_is_what_an_exact_sweep_finds(model: Any, metric: Any) -> None:
    data = examples(40)
    options: dict[str, Any] = {"fill": "zero", "split": "ood"}
    least = SIZE if metric == "margin" else 1.0  # what the pair has, so that it stays undecided
    raced = race(model, PAIRS, data, least=least, metric=metric, **options)
    assert raced.decisions["exact"].any()
    swept = ablate(model, [*([c] for c in HEADS), *PAIRS], data, fill="zero", split="ood")
    for row in raced.decisions[raced.decisions["exact"]].itertuples():
        pair = ComponentSet.of(row.set.split("+"))
        alone = [swept.changes(ComponentSet((c,)), metric).mean() for c in pair.components]
        exact = swept.changes(pair, metric).mean() - sum(alone)
        assert row.effect == pytest.approx(exact, abs=1e-5)


def searched(model: Any, n_pairs: int | None, least: float) -> Search:
    options: dict[str, Any] = {"fill": "zero", "split": "ood", "components": HEADS, "max_size": 2}
    options |= {"n_pairs": n_pairs, "least": least, "guarantee": 0.05}
    return find_superadditive(model, examples(160), None, **options)


def test_a_search_with_a_guarantee_races_all_pairs(model: Any) -> None:
    result = searched(model, None, 0.5)
    assert result.superadditive["set"].unique().tolist() == ["+".join(PAIR)]
    assert (result.n_pairs, result.n_screened_out, result.n_tested) == (28, 0, 28)
    assert result.cost.forwards == 0
    assert result.races[2].goal.error == 0.05
    assert result.tables["race"]["decision"].value_counts().to_dict() == {"within": 27, "below": 1}
    none = searched(model, None, 50.0)
    assert none.superadditive.empty
    assert none.n_tested == 28


def test_what_was_screened_out_is_sampled(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SAMPLED", 12)
    result = searched(model, 5, 0.5)
    assert (result.n_screened_out, result.missed) == (23, (0, 12))
    assert len(result.races[2].decisions) == 5 + 12
    assert result.cost.backwards == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "least is None and largest None; expected one of them"),
        ({"least": 0.1, "largest": 2}, "least is 0.1 and largest 2; expected one of them"),
        ({"least": -0.1}, "least is -0.1; expected an effect of 0 or more"),
        ({"least": float("nan")}, "least is nan; expected an effect of 0 or more"),
        ({"least": 0.1, "metric": "Accuracy"}, "metric 'Accuracy'"),
        ({"largest": 1, "metric": len}, "race: metric 'len' does not say whether more is better"),
        ({"largest": 1, "metric": "kl"}, "kl of the full model is 0 for every .* a bound"),
        ({"largest": 0}, "largest is 0; expected at least 1 set"),
        ({"least": 0.1, "error": 1.0}, "error is 1.0; expected a probability between 0 and 1"),
        ({"least": 0.1, "n_audited": -1}, "n_audited is -1; expected at least 2, 1 and 0"),
        ({"least": 0.1, "bound": 0.0}, "bound is 0.0; expected a number above 0 in nats"),
        ({"least": 0.1, "bound": float("nan")}, "bound is nan; expected a number above 0 in nats"),
        (
            {"least": 0.1, "bound": 2.0, "metric": "accuracy"},
            "bound is 2.0; .*none for accuracy",
        ),
        ({"least": 0.1, "sets": []}, "0 sets and n_audited is 0; expected at least 2, 1"),
        ({"least": 0.1, "sets": ["L0.H1"]}, "L0.H1 has no interaction; expected two components"),
        ({"least": 0.1, "sets": ["L0.H1>L1.H2"]}, "has no interaction; expected two components"),
    ],
)
def test_what_cannot_be_raced_is_refused(model: Any, changes: dict[str, Any], message: str) -> None:
    options = {"sets": PAIRS, "fill": "zero", **changes}
    with pytest.raises(InputError, match=message):
        race(model, options.pop("sets"), examples(8), **options)


def test_a_search_says_what_a_guarantee_needs(model: Any) -> None:
    with pytest.raises(InputError, match="but there is no guarantee; add a probability"):
        find_superadditive(model, examples(40), None, fill="zero", least=0.1)
    with pytest.raises(InputError, match="least is None and largest None"):
        find_superadditive(model, examples(40), None, fill="zero", guarantee=0.05)


def test_a_stopped_race_goes_on(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, options = examples(80), {"fill": "zero", "split": "ood", "largest": 3, "n_audited": 4}
    whole = race(model, PAIRS, data, **options)
    assert len(whole.n_looks) > 1
    real, calls = races.ablate, []

    def stopping(*arguments: Any, **more: Any) -> Ablations:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(arguments[2]))
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(races, "ablate", stopping)
        with pytest.raises(KeyboardInterrupt):
            race(model, PAIRS, data, state=tmp_path, **options)
    assert calls == [80, 32]
    assert len(list(tmp_path.iterdir())) == 2
    raced = race(model, PAIRS, data, state=tmp_path, **options)
    pd.testing.assert_frame_equal(raced.decisions, whole.decisions)
    pd.testing.assert_frame_equal(raced.audit, whole.audit)
    assert (raced.layers, raced.n_looks) == (whole.layers, whole.n_looks)
