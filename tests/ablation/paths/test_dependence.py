"""Dependence on the core, on answers made up so that the figures can be written out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.few import encoded, means_of, of_margins
from helpers import Cases
from scipy import stats

from mechcore.ablation import Answers, ablate
from mechcore.ablation.effects.confirmation import ON_HALVES
from mechcore.ablation.effects.roles import BOTH, OUT, OUT_ONLY
from mechcore.ablation.paths.dependence import (
    Readers,
    beside_random,
    core_dependence_table,
    random_senders,
    readers_of,
)
from mechcore.ablation.paths.verdict import (
    CORE_VERDICT,
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    Verdict,
    core_dependence_verdict,
)
from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation
from mechcore.masking.means import MeanActivations

N = 400
LABEL = np.arange(N) % 2
A, B = Component(1, 0), Component(1, 1)


def evaluation(right: np.ndarray) -> Evaluation:
    """A model that is right where it says, by a margin of 2 nats."""
    subsets = np.where(np.arange(N) < N // 2, "first", "second")
    return of_margins(np.where(right == (LABEL == 1), 2.0, -2.0), LABEL, subsets)


FULL = evaluation(np.ones(N, dtype=bool))


def wrong(share: float, seed: int = 0) -> Answers:
    """Without something, this share of the answers is wrong, alike for both labels."""
    order = np.random.default_rng(seed).permutation(N // 2)
    fails = np.repeat(order < share * N // 2, 2)
    return Answers.of(evaluation(~fails), FULL)


def readers(blind: Sequence[float], controls: Sequence[Sequence[float]] = ()) -> Readers:
    """Without A a tenth, without B two tenths of the answers are wrong."""
    return Readers(
        FULL,
        {A: wrong(0.1), B: wrong(0.2)},
        dict(zip((A, B), map(wrong, blind), strict=True)),
        [dict(zip((A, B), map(wrong, shares), strict=True)) for shares in controls],
        "made up",
        "ood",
    )


def roles(**given: str) -> pd.DataFrame:
    names = {"a": "L1.H0", "b": "L1.H1"}
    return pd.DataFrame({"component": [names[k] for k in given], "role": list(given.values())})


def test_changes_and_shares_by_hand() -> None:
    table = core_dependence_table(readers([0.05, 0.2], [[0.0, 0.1], [0.1, 0.3], [0.0, 0.0]]))
    whole = table[table["subset"] == "all"].set_index(["receiver", "metric"])
    a, b = whole.loc[("L1.H0", "accuracy")], whole.loc[("L1.H1", "accuracy")]
    assert (a["change"], a["blind_change"], a["share"]) == pytest.approx((-0.1, -0.05, 0.5))
    assert (b["change"], b["blind_change"], b["share"]) == pytest.approx((-0.2, -0.2, 1))
    assert 0.95 < b["share_low"] < 1 < b["share_high"] < 1.05  # the same answers, but so many
    assert a["change_low"] < -0.1 < a["change_high"]
    # -0.05 is reached by one control of three, -0.2 too: (1 + 1) / (1 + 3).
    assert (a["p_control"], b["p_control"]) == (0.5, 0.5)
    assert a["control_change"] == pytest.approx(-0.1 / 3)
    assert b["control_change"] == pytest.approx(-0.4 / 3)
    # A wrong answer costs 2 + 2 nats of margin.
    assert whole.loc[("L1.H0", "margin"), "change"] == pytest.approx(-0.4)
    # Answers are wrong alike for both labels: no threshold makes them good.
    assert whole.loc[("L1.H1", "information"), "change"] == pytest.approx(-0.2, abs=0.02)
    assert whole.loc[("L1.H1", "threshold"), "change"] == pytest.approx(0, abs=0.02)
    assert set(table["subset"]) == {"first", "second", "all"}
    assert set(table["n_controls"]) == {3}


def test_answers_of_a_rare_label_weigh_more() -> None:
    """One in ten examples has the second label, and no answer changes.

    An answer of it counts 500 / 100 in balanced accuracy, and so do the half answers that intervals
    add: they reach to Student's t times that over 502.
    """
    n = 500
    label = (np.arange(n) >= 450).astype(int)
    full = of_margins(np.where(label == 1, 2.0, -2.0), label, "all")
    same = Answers.of(full, full)
    made = Readers(full, {A: same}, {A: same}, [], "x", "ood")
    reach = stats.t.ppf(0.975, n - 1) / (n + 2)
    weight = 500 / 100
    table = core_dependence_table(made).set_index("metric")
    ends = ["change_low", "change_high", "blind_change_low", "blind_change_high"]
    for metric, unit in (("information", weight), ("threshold", weight), ("accuracy", 1)):
        expected = pytest.approx([-unit * reach, unit * reach] * 2)
        assert table.loc[metric, ends].tolist() == expected
    # 0.020, which is over the least effect of interest: without the weight it would be under.
    finding = core_dependence_verdict(made, roles(a=OUT), least=0.01)
    assert finding.figures["blind_change_high"] == pytest.approx(weight * reach)
    assert finding.verdict == INCONCLUSIVE


def test_a_share_of_nothing_and_information_of_one_label_are_missing() -> None:
    made = readers([0.05, 0.2])
    nothing = Readers(FULL, {A: wrong(0), B: wrong(0.2)}, made.blind, [], "made up", "id")
    table = core_dependence_table(nothing)
    a = table[(table["receiver"] == "L1.H0") & (table["metric"] == "accuracy")]
    assert a[["share", "share_low", "share_high", "p_control"]].isna().all(axis=None)
    assert (a["blind_change"] < 0).all()
    full = FULL.part(np.flatnonzero(LABEL == 0))
    answers = Answers.of(full, full)
    of_one_label = Readers(full, {A: answers}, {A: answers}, [], "x", "ood")
    assert set(core_dependence_table(of_one_label)["metric"]) == {"accuracy", "margin"}
    finding = core_dependence_verdict(of_one_label, roles(a=OUT))
    assert finding.verdict == INCONCLUSIVE
    assert "one label only" in finding.explanation


@pytest.mark.parametrize(
    ("blind", "controls", "given", "expected"),
    [
        ([0.1, 0.2], [[0.01, 0.02]] * 39, {"a": OUT, "b": OUT_ONLY}, SUPPORTED),
        ([0.1, 0.2], [[0.01, 0.02]] * 39, {"a": OUT, "b": BOTH}, SUPPORTED),
        ([0.1, 0.2], [[0.1, 0.3]] * 39, {"a": OUT, "b": OUT_ONLY}, NOT_SUPPORTED),
        ([0.1, 0.2], [[0.01, 0.02]] * 9, {"a": OUT, "b": OUT_ONLY}, INCONCLUSIVE),  # p = 0.1
        ([0.0, 0.0], [[0.01, 0.02]] * 39, {"a": OUT, "b": OUT_ONLY}, NOT_SUPPORTED),
        ([0.1, 0.2], [], {"a": OUT, "b": OUT_ONLY}, INCONCLUSIVE),
        ([0.01, 0.01], [[0.0, 0.0]] * 9, {"a": OUT, "b": OUT_ONLY}, INCONCLUSIVE),
        ([0.1, 0.2], [[0.01, 0.02]] * 39, {"a": BOTH, "b": BOTH}, INCONCLUSIVE),
    ],
)
def test_verdicts_by_their_rules(blind: Any, controls: Any, given: Any, expected: str) -> None:
    finding = core_dependence_verdict(readers(blind, controls), roles(**given))
    assert finding.verdict == expected, finding.explanation


def test_a_verdict_is_confirmed_on_the_half_that_did_not_choose() -> None:
    """Blind to the core, A is wrong on a tenth: of both halves alike, or of the first half alone.

    Of the first half it is then wrong on a fifth, which is how it was found, and on the other not.
    """
    half = np.arange(N) // 2 % 2
    on_first = Answers.of(evaluation(~((half == 0) & (np.arange(N) // 4 % 5 == 0))), FULL)
    on_both = Answers.of(evaluation(np.arange(N) // 4 % 10 != 0), FULL)

    def judged(blind: Answers, first: str, second: str) -> Verdict:
        controls = [{A: wrong(0, seed)} for seed in range(39)]
        made = Readers(FULL, {A: wrong(0.1)}, {A: blind}, controls, "x", "ood")
        of = roles(a=OUT).assign(**dict(zip(ON_HALVES, ([first], [second]), strict=True)))
        return core_dependence_verdict(made, of, half=half)

    verdict = judged(on_both, OUT, OUT_ONLY)
    [row] = verdict.table().to_dict("records")
    assert (verdict.verdict, row["halves_found"]) == (SUPPORTED, 2)
    assert row["blind_change_confirmed"] == pytest.approx(-0.1, abs=0.01)
    assert row["blind_change_confirmed_low"] < -0.1 < row["blind_change_confirmed_high"] < 0
    assert row["p_confirmed"] == 1 / 40
    assert "found on one half of the examples, on the other by \u221210." in verdict.explanation
    verdict = judged(on_first, OUT, BOTH)
    assert (verdict.verdict, verdict.figures["halves_found"]) == (INCONCLUSIVE, 1)
    assert verdict.figures["blind_change"] == pytest.approx(-0.1, abs=0.01)
    assert verdict.figures["blind_change_confirmed"] == pytest.approx(0, abs=1e-9)
    verdict = judged(on_both, BOTH, BOTH)
    assert (verdict.verdict, verdict.figures["halves_found"]) == (INCONCLUSIVE, 0)
    assert "blind_change_confirmed" not in verdict.figures
    assert "not confirmed on held-out halves" in verdict.explanation


def test_the_figures_of_a_verdict() -> None:
    made = readers([0.1, 0.2], [[0.0, 0.0]] * 39)
    finding = core_dependence_verdict(made, roles(a=OUT, b=OUT_ONLY))
    why = finding.explanation
    assert "each of 2 components needed out of domain and not shown to be" in why
    assert "changes information out of domain by \u221215." in why
    assert "heads of the same layers, by 0.0 (39 sets, p = 0.025)" in why
    [row] = finding.table().to_dict("records")
    CORE_VERDICT.check(finding.table())
    assert (row["n_receivers"], row["n_controls"], row["p_control"]) == (2, 39, 1 / 40)
    assert row["blind_change"] == pytest.approx(-0.15, abs=0.02)
    assert row["blind_change_low"] < row["blind_change"] < row["blind_change_high"]
    assert row["control_change"] == pytest.approx(0, abs=1e-9)


def test_cores_without_controls() -> None:
    with pytest.raises(
        InputError, match="layer 0 has 1 head outside the core; expected at least the 3"
    ):
        random_senders([Component(0, h) for h in range(3)], ModelShape(2, 4), 1)
    with pytest.raises(InputError, match=r"found L0.MLP; expected heads"):
        random_senders([Component(0)], ModelShape(2, 4), 1)


@dataclass
class Small:
    """A BERT with a few examples, out of domain."""

    model: Any
    data: EncodedExamples
    means: MeanActivations

    def of(self, core: list[str]) -> tuple[Any, list[str], EncodedExamples, MeanActivations]:
        return self.model, core, self.data, self.means

    def readers(self, core: list[str], **options: Any) -> Readers:
        return readers_of(*self.of(core), split="ood", **options)

    def margins(self, *cuts: str) -> dict[str, np.ndarray]:
        """Without each set of components or paths, by the reference."""
        options: dict[str, Any] = {"split": "ood", "engine": "reference"}
        swept = ablate(self.model, cuts, self.data, self.means, **options)
        by_name = {str(cut): answers.margin for cut, answers in swept.without.items()}
        return {name: by_name[name] for name in cuts}


@pytest.fixture(scope="module")
def small(cases: Cases) -> Small:
    model, data = cases.get("bert").model, encoded()
    return Small(model, data, means_of(model, data))


def test_readers_are_cut_one_by_one(small: Small) -> None:
    core = ["L0.H1", "L0.H2"]
    made = beside_random(small.readers(core), *small.of(core), n_controls=2)
    names = ["L0.MLP", "L1.H0", "L1.H1", "L1.H2", "L1.H3", "L1.MLP"]
    assert list(map(str, made.blind)) == names
    cuts = "L0.H1+L0.H2>L1.H3", "L0.H1+L0.H2>L0.MLP", "L1.H3", "L0.H0+L0.H3>L1.MLP"
    by_name = small.margins(*cuts)
    [control] = made.controls  # of four heads two are left
    answers = [made.blind[Component(name)] for name in ("L1.H3", "L0.MLP")]
    answers += [made.without[Component("L1.H3")], control[Component("L1.MLP")]]
    for got, margin in zip(answers, by_name.values(), strict=True):
        np.testing.assert_allclose(got.margin, margin, atol=1e-5)


def test_controls_that_are_the_same_to_a_receiver_count_once(small: Small) -> None:
    """One core head in each layer of four: a head of layer 1 sees one of three others."""
    core = ["L0.H1", "L1.H2"]
    made = beside_random(small.readers(core), *small.of(core), n_controls=8)
    assert len(made.controls) == 8  # of 3 x 3
    table = core_dependence_table(made)
    whole = table[(table["subset"] == "all") & (table["metric"] == "margin")].set_index("receiver")
    seen = whole["n_controls"].to_dict()
    assert (seen.pop("L1.MLP"), set(seen.values())) == (8, {3})
    margins = small.margins(*(f"{head}>L1.H0" for head in ("L0.H0", "L0.H2", "L0.H3")))
    changes = [float((margin - made.full.margin).mean()) for margin in margins.values()]
    row = whole.loc["L1.H0"]
    assert row["control_change"] == pytest.approx(np.mean(changes), abs=1e-5)
    reach = sum(abs(change) >= abs(row["blind_change"]) for change in changes)
    assert row["p_control"] == pytest.approx((1 + reach) / 4)


def test_known_ablations_have_to_be_of_these_examples_by_the_same_fill(small: Small) -> None:
    sets = ["L0.H0", "L1.H1", "L1.MLP"]
    other = ablate(small.model, ["L1.H1"], small.data, small.means, split="ood").part(np.arange(4))
    message = r"in the known ablations \(4\) differ from those on these examples \(7\)"
    with pytest.raises(InputError, match=message):
        small.readers(["L0.H1"], known=other)
    known = ablate(small.model, sets, small.data, split="ood", fill="zero")
    with pytest.raises(InputError, match="expected ablations with the same fill, means and seed"):
        small.readers(["L0.H1"], known=known)
    reused = small.readers(["L0.H1"], known=known, fill="zero")
    anew = small.readers(["L0.H1"], fill="zero")
    for one, two in ((reused.without, anew.without), (reused.blind, anew.blind)):
        assert one.keys() == two.keys()
        for receiver in one:
            np.testing.assert_allclose(one[receiver].margin, two[receiver].margin, atol=1e-4)
    with pytest.raises(InputError, match="no sender runs before any receiver"):
        small.readers(["L1.H1"], receivers=["L0.H1"])


def test_random_heads_stand_beside_chosen_readers_on_the_same_examples(small: Small) -> None:
    alone, given = small.readers(["L0.H1"]), small.of(["L0.H1"])
    # A component that runs before the core does not read it, and has no controls.
    wanted = ["L1.H2", "L0.H3", "L1.MLP"]
    some = beside_random(alone, *given, receivers=wanted, n_controls=3)
    assert [list(map(str, control)) for control in some.controls] == [["L1.H2", "L1.MLP"]] * 3
    everything = beside_random(alone, *given, n_controls=3)
    whole, part = (core_dependence_table(readers) for readers in (everything, some))
    rows = whole["receiver"].isin(wanted)
    pd.testing.assert_frame_equal(part[rows], whole[rows], atol=1e-6)
    assert set(part[~rows]["n_controls"]) == {0}
    model, core, data, means = given
    with pytest.raises(InputError, match=r"\(7\) differ from those on these examples \(4\)"):
        beside_random(alone, model, core, data.part(range(4)), means, n_controls=1)
