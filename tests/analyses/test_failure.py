"""What the page says of a failure, in the numbers of the tables."""

from typing import Any

import pandas as pd
import pytest
from analyses.shown import headlines_of
from pages import tables_of, with_tables, words_of

from mechcore.analyses.failure import Failure
from mechcore.main_study.report import REPORT
from mechcore.report.blocks import Section
from mechcore.report.run_folder import RunFolder
from mechcore.wording import MINUS

PLACES = [("all", "all"), ("all", "no"), ("all", "yes"), ("swaps", "no"), ("others", "yes")]


def failure(**outside: Any) -> pd.DataFrame:
    """60 % out of domain, where a threshold gives back 9 of 30 points."""
    whole: dict[str, Any] = {"balanced_accuracy": 0.6, "recalibrated": 0.69, "threshold": 0.09}
    whole |= {"threshold_low": 0.07, "threshold_high": 0.11, "ceiling": 0.7, "auc": 0.75}
    inside = {"split": "id", "accuracy": 0.9, "balanced_accuracy": 0.9, "wrong": 1.0}
    rows = [{"split": "ood", "wrong": 1.0} | whole | outside]
    accuracies, wrong = (0.2, 1.0, 0.1, 1.0), (1.0, 0.0, 0.9, 0.0)
    rows += [
        {"split": "ood", "accuracy": a, "wrong": w} for a, w in zip(accuracies, wrong, strict=True)
    ]
    rows += [inside]
    table = pd.DataFrame(rows).assign(n=100, data="data", guessing=0.5)
    table[["subset", "label"]] = [*PLACES, PLACES[0]]
    table["accuracy"] = table["accuracy"].fillna(0.6)
    for name in ("accuracy", "balanced_accuracy"):
        table[f"{name}_low"], table[f"{name}_high"] = table[name] - 0.01, table[name] + 0.01
    return table


def sets(**net: tuple[float, bool]) -> pd.DataFrame:
    """Net changes, the same everywhere, and whether they are confirmed; one is a pair."""
    rows = [
        {"set": name.replace("_", "."), "net": value, "confirmed": confirmed, "subset": s}
        | {"label": label, "kind": "single", "one_label": label != "all"}
        for s, label in PLACES
        for name, (value, confirmed) in net.items()
    ]
    table = pd.DataFrame(rows).assign(n=100, fixed=30, broken=10, information=0.01)
    table = table.assign(net_low=table["net"] - 0.01, net_high=table["net"] + 0.01)
    return table.assign(said="yes", said_change=-0.03)


@pytest.fixture
def shown(run: RunFolder) -> Any:
    def of(failure: pd.DataFrame, sets: pd.DataFrame, **more: Any) -> tuple[Section, list[str]]:
        filled = with_tables(run, failure=failure, failure_sets=sets, **more)
        (section,) = Failure.sections(filled)
        return section, headlines_of(Failure, filled)

    return of


NETS = {"L0_H0": (0.05, True), "L0_H1": (-0.2, True), "L1_MLP": (0.2, False)}


def test_the_headline_says_what_is_wrong(shown: Any) -> None:
    _, texts = shown(failure(), sets(**NETS))
    assert texts[0] == (
        "Balanced accuracy is 60.0 % out of domain and 90.0 % in domain, a gap of 30.0 points "
        "[28.6, 31.4]: a new threshold gives back +9.0 points [+7.0, +11.0] (at most 10.0 points), "
        "and the other 21.0 points are missing information. 100.0 % of the wrong answers are on no."
    )
    assert texts[1] == (
        "The failure is in part a shifted threshold (30.0 % of the gap); ablation does not explain "
        "the rest: L0.H0 hurts most: ablating it fixes 30 answers and breaks 10, net +5.0 points "
        "[+4.0, +6.0]."
    )
    assert texts[2] == (
        "Most wrong answers are in the subsets swaps (10.0 % right) and others (100.0 % right)."
    )
    assert "1 hurts beyond the threshold (L0.H0 +5.0 points without it)" in texts[3]
    assert "1 is needed (L0.H1 -20.0 points without it)" in texts[3]


def test_splits_with_other_labels_are_compared_with_guessing(shown: Any) -> None:
    table = failure()
    table.loc[table["split"] == "id", "guessing"] = 1 / 3
    _, texts = shown(table, sets(**NETS))
    both = "is 60.0 % out of domain (by guessing 50.0 %) and 90.0 % in domain (by guessing 33.3 %)"
    assert both in texts[0]


@pytest.mark.parametrize(
    ("outside", "nets", "said"),
    [
        ({}, {"L0_H0": (0.24, True)}, "mostly the work of L0.H0: ablating it fixes 30"),
        ({}, {"L0_H0": (0.1, True)}, "in part the work of L0.H0"),
        ({"recalibrated": 0.61, "threshold": 0.01}, NETS, "Ablation does not explain this failure"),
        (
            {"recalibrated": 0.61, "threshold": 0.01},
            {"L0_H0": (0.05, False)},
            "What these texts take seems to be missing from the model",
        ),
        (
            {"recalibrated": 0.61, "threshold": 0.01},
            {"L0_H0": (0.08, False)},
            "The examples are too few to exclude that one hurts by up to 9.0 points (L0.H0).",
        ),
        ({"recalibrated": 0.505, "threshold": -0.095}, NETS, "is the model better than guessing"),
        ({"recalibrated": None}, NETS, "too few examples of a label"),
        ({"balanced_accuracy": 0.9}, NETS, "no failure out of domain is shown"),
        ({"balanced_accuracy": None, "recalibrated": None}, NETS, "with one label, a shifted thre"),
    ],
)
def test_a_rule_says_what_explains_it(
    outside: dict[str, Any], nets: Any, said: str, shown: Any
) -> None:
    _, texts = shown(failure(**outside), sets(**nets))
    assert said in " ".join(texts)


def test_both_sides_of_every_place_are_in_a_table(shown: Any) -> None:
    section, _ = shown(failure(), sets(**NETS))
    where, sides, *rest = tables_of(section.blocks)
    assert [row[1:3] for row in where.rows][:3] == [["all", "all"], ["all", "no"], ["all", "yes"]]
    assert where.rows[-1][0] == "in-domain"
    net = f"{MINUS}20.0 [{MINUS}21.0, {MINUS}19.0]"
    for row, place in zip(sides.rows, PLACES, strict=True):
        assert tuple(row[:2]) == place
        assert row[3:6] == ["L1.MLP (not confirmed)", "30 / 10", "+20.0 [+19.0, +21.0]"]
        assert row[6:] == ["L0.H1", "30 / 10", net]
    assert rest == []
    assert "compare it with what it breaks on the other label" in words_of(section.blocks)


def test_moved_thresholds_are_parted_by_direction_and_size(shown: Any, run: RunFolder) -> None:
    roles = run.tables["roles"].assign(role="moves the threshold")
    names = roles["component"].tolist()[:6]
    nets = pd.concat([sets(L0_H0=(0.0, False)).assign(set=name) for name in names])
    sizes = dict(zip(names, (-0.08, -0.03, -0.01, 0.02, 0.06, 0.07), strict=True))
    nets["said_change"] = nets["set"].map(sizes)
    section, _ = shown(failure(), nets.reset_index(drop=True), roles=roles)
    table = tables_of(section.blocks)[-1]
    less, more = table.rows
    assert less == [
        *("yes less often", "3", "1", "1", "1"),
        f"{names[0]} {MINUS}8.0, {names[1]} {MINUS}3.0, {names[2]} {MINUS}1.0",
    ]
    assert more[:5] == ["yes more often", "3", "2", "1", "0"]


def test_it_stands_first_after_what_opens_the_page(run: RunFolder) -> None:
    filled = with_tables(run, failure=failure(), failure_sets=sets(**NETS))
    assert next(iter(REPORT.findings(filled))).section == "failure"
    assert next(iter(REPORT.sections(filled))).id == "failure"
    assert [*Failure.headlines(run)] == [*Failure.blocks(run)] == []
