"""Labels by a rule on mass and ratio, the figures behind one, and agreement of labellings."""

import math
from typing import Any

import pandas as pd
import pytest
import torch
from attention.planted import (
    ENCODER,
    one_hot,
    random_patterns,
    score_patterns,
    stacked,
    tokens_of,
)
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from mechcore.attention import Thresholds, categorise, explain, label_agreement
from mechcore.components import Component
from mechcore.errors import InputError

NAN = float("nan")


def scores(**columns: list[float]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_labels_stand_after_the_head_and_are_replaced_when_given_again() -> None:
    given = scores(layer=[0], head=[1], mass_next=[0.5], ratio_next=[4.0])
    once = categorise(given)
    columns = ["layer", "head", "category", "also", "mass_next", "ratio_next"]
    assert list(once.columns) == columns
    again = categorise(once, Thresholds(mass=0.6))
    assert list(again.columns) == columns
    assert (again["category"].item(), once["category"].item()) == ("mixed", "next")


def test_other_tables_are_errors() -> None:
    for table, message in (
        (scores(mass_next=[0.5]), "no column ratio_next"),
        (scores(layer=[0]), r"no column mass_\.\.\."),
        (scores(mass_other=[0.5], ratio_other=[2.0]), r"no column mass_\.\.\."),
    ):
        with pytest.raises(InputError, match=message):
            categorise(table)
    with pytest.raises(InputError, match=r"head L0\.H0: not in the table"):
        explain(scores(layer=[0]), "L0.H0")
    with pytest.raises(InputError, match=r"no column mass_\.\.\."):
        explain(pd.DataFrame({"component": ["L0.H0"]}), "L0.H0")


@pytest.mark.parametrize("ratio", [0.99, -1.0, float("inf"), NAN])
def test_ratio_threshold_is_at_least_one(ratio: float) -> None:
    with pytest.raises(InputError, match="ratio is"):
        Thresholds(ratio=ratio)


MASSES = st.one_of(st.just(NAN), st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0]))
RATIOS = st.sampled_from([0.0, 1.0, 2.9, 3.0, 7.0])


@given(
    st.lists(st.lists(st.tuples(MASSES, RATIOS), min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.sampled_from([1.0, 3.0]),
)
def test_labels_are_those_of_the_rule(
    heads: list[list[tuple[float, float]]], mass: float, ratio: float
) -> None:
    columns: dict[str, list[float]] = {}
    for i, name in enumerate("abc"):
        columns[f"mass_{name}"] = [head[i][0] for head in heads]
        columns[f"ratio_{name}"] = [head[i][1] for head in heads]
    labelled = categorise(scores(**columns), Thresholds(mass, ratio))
    for (_, row), head in zip(labelled.iterrows(), heads, strict=True):
        passing = [
            (-m, name) for name, (m, r) in zip("abc", head, strict=True) if m >= mass and r >= ratio
        ]
        names = [name for _, name in sorted(passing)]
        assert row["category"] == (names[0] if names else "mixed")
        assert row["also"] == " ".join(names[1:])


@pytest.fixture(scope="module")
def heads() -> pd.DataFrame:
    """L0.H0 attends to the previous token, L0.H1 spreads, L0.H2 to [CLS] and, a little, back."""
    of_nine, of_eight = tokens_of("^abc|abc|", "-000-111-"), tokens_of("^abcd|e|", "-0000-1-")
    tokens = stacked(*[of_nine] * 8, *[of_eight] * 4)
    clear = one_hot([0, 0, 1, 2, 3, 4, 5, 6, 7]).expand(1, 12, 1, 9, 9)
    spread = random_patterns(tokens, seed=3, spread=0.5, layers=1, heads=1).nan_to_num(0)
    both = 0.6 * one_hot([0] * 9) + 0.4 * clear
    return score_patterns(torch.cat([clear, spread, both], 2), tokens, resamples=50)


@pytest.mark.parametrize("head", ["L0.H0", "0.1", Component(0, 2)])
def test_an_explanation_holds_the_figures_of_the_table(heads: pd.DataFrame, head: Any) -> None:
    explanation = explain(heads, head)
    name = str(Component.parse(head))
    row = heads[heads["component"] == name].iloc[0]
    assert explanation.component == name
    measures = ["mass", "low", "high", "uniform", "ratio", "sd", "examples"]
    assert list(explanation.table.columns) == ["category", *measures, "mass_passes", "ratio_passes"]
    assert sorted(explanation.table["category"]) == sorted(ENCODER[:-1])
    for _, line in explanation.table.iterrows():
        for measure in measures:
            expected = row[f"{measure}_{line['category']}"]
            assert line[measure] == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
        assert line["mass_passes"] == (line["mass"] >= 0.25)
        assert line["ratio_passes"] == (line["ratio"] >= 3)
    assert explanation.table["mass"].is_monotonic_decreasing
    assert explanation.category == categorise(heads).set_index("component")["category"][name]


def test_a_reason_says_what_passed_and_what_to_compare_it_with(heads: pd.DataFrame) -> None:
    # Attention to the previous token is 1 where there is one; uniform attention gives it 1/9 for 64
    # queries of eight examples and 1/8 for 28 of four: 1 / ((64 / 9 + 28 / 8) / 92) = 8.67.
    explanation = explain(heads, "L0.H0")
    assert explanation.category == "previous"
    assert explanation.reason == (
        "L0.H0 is previous: queries with such a key put 1.00 [1.00, 1.00] of their attention on "
        "it, 8.7 times uniform (12 examples; the rule: mass of at least 0.25 and 3 times that of "
        "uniform)."
    )


def test_a_reason_says_that_there_are_too_few_examples_for_an_interval() -> None:
    tokens = stacked(*[tokens_of("^abc|abc|", "-000-111-")] * 9)
    patterns = one_hot([0, 0, 1, 2, 3, 4, 5, 6, 7]).expand(1, 9, 1, 9, 9)
    few = explain(score_patterns(patterns, tokens, resamples=50), "L0.H0").reason
    assert "put 1.00 of their attention on it" in few
    assert "(9 examples, too few for an interval; the rule:" in few
    one = explain(score_patterns(patterns[:, :1], tokens_of("^abc|abc|", "-000-111-")), "L0.H0")
    assert "(1 example, too few for an interval; the rule:" in one.reason


def test_a_reason_names_further_labels(heads: pd.DataFrame) -> None:
    explanation = explain(heads, "L0.H2")
    assert explanation.category == "first"
    assert explanation.reason.endswith(" Less, but enough, goes to previous.")
    only = explain(heads, "L0.H2", Thresholds(mass=0.5))
    assert only.reason.endswith("; the rule: mass of at least 0.5 and 3 times that of uniform).")
    # With a ratio that the first token does not reach, the other one is the label.
    assert explain(heads, "L0.H2", Thresholds(mass=0.9)).category == "mixed"


def test_a_reason_for_no_label_names_the_largest_mass(heads: pd.DataFrame) -> None:
    explanation = explain(heads, "L0.H1")
    top = explanation.table.iloc[0]
    assert explanation.category == "mixed"
    assert explanation.reason == (
        "L0.H1 is mixed: no category reaches mass of at least 0.25 and 3 times that of uniform "
        f"attention; the most attention goes to {top['category']}, {top['mass']:.2f}, "
        f"{top['ratio']:.1f} times uniform."
    )
    assert top["mass"] == max(heads.filter(regex="^mass_(?!other)").iloc[1])


def test_a_reason_where_nothing_is_defined() -> None:
    given = scores(mass_next=[NAN], ratio_next=[NAN]).assign(component="L0.H0")
    explanation = explain(given, "0.0")
    assert explanation.reason == "L0.H0 is mixed: no category is defined for these inputs."
    assert not explanation.table[["mass_passes", "ratio_passes"]].any(axis=None)


NAMES = st.sampled_from(["mixed", "previous", "first", "repeated"])


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    first, second = (list(labels) for labels in zip(*pairs, strict=True))
    agreement = label_agreement(first, second)
    assert agreement.n == len(pairs)
    assert agreement.share == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    if len({*first, *second}) == 1:
        assert math.isnan(agreement.kappa)
    else:
        assert agreement.kappa == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
    reversed_ = label_agreement(second, first)
    assert reversed_.share == agreement.share
    assert reversed_.kappa == pytest.approx(agreement.kappa, nan_ok=True)


def test_labellings_that_cannot_be_compared_are_errors() -> None:
    with pytest.raises(InputError, match="labels: 2 and 1 of them"):
        label_agreement(["a", "b"], ["a"])
    with pytest.raises(InputError, match=r"labels: 0 and 0 of them; expected.*at least one"):
        label_agreement([], [])
