"""Rules of roles on losses made by hand; how often they are right is a benchmark's test."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ablation.few import SMALL
from ablation.few import information_rows as table
from ablation.planted import CARRIES, HEURISTIC, IDLE, IDLE_SIZE, two_domains
from scipy import stats

from mechcore import MeanActivations, load_model
from mechcore.ablation import (
    RoleSettings,
    ablate,
    component_roles,
    explain_role,
    information_table,
    sets,
    verdict,
)
from mechcore.ablation.effects.information import INFORMATION
from mechcore.ablation.effects.roles import (
    BOTH,
    COMPONENT_ROLES,
    HARMFUL_IN,
    HARMFUL_OUT,
    IN,
    IN_ONLY,
    NONE,
    OUT,
    OUT_ONLY,
    ROLES,
    THRESHOLD,
    UNDECIDED,
    ranked,
)
from mechcore.components import Component, ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.p_values import selective_p
from mechcore.models.encoded import as_encoded
from mechcore.pruning.attribution import margin_slopes

LARGE = 0.02
"""The standard error of changes of which little is known."""


def unknown(names: Iterable[str], why: str) -> pd.DataFrame:
    rows = [{"set": name, "reason": why} for name in names]
    return pd.DataFrame(rows, columns=INFORMATION.names)


CASES = {
    # name: in domain, out of domain, role, sure
    "L0.H0": ((0.05, SMALL), (0.03, SMALL), BOTH, True),
    "L0.H1": ((0.05, SMALL), (-0.03, SMALL), HARMFUL_OUT, True),
    "L0.H2": ((0.05, SMALL), (0.001, SMALL), IN_ONLY, True),
    "L0.H3": ((0.05, SMALL), (0.02, LARGE), IN, False),  # neither a loss nor none
    "L0.H4": ((0.001, SMALL), (0.05, SMALL), OUT_ONLY, True),
    "L0.H5": ((-0.03, SMALL), (0.05, SMALL), OUT_ONLY, True),
    "L0.H6": ((0.02, LARGE), (0.05, SMALL), OUT, False),
    "L0.H7": ((-0.03, SMALL), (0.0, SMALL), HARMFUL_IN, True),
    "L1.H0": ((0.0, SMALL), (0.0, SMALL), NONE, True),
    "L1.H1": ((0.02, LARGE), (0.0, SMALL), NONE, False),
    # Shown not to be 0, but less than a point.
    "L1.H2": ((0.006, 0.0005), (0.0, SMALL), NONE, True),
    # Two points of twenty are a minor share; of four they are not.
    "L1.H3": ((0.2, SMALL), (0.02, 0.01), IN_ONLY, True),
    "L1.H4": ((0.04, SMALL), (0.02, 0.01), IN, False),
    "L1.H5": ((0.0, 0.0), (0.0, 0.0), NONE, True),  # not one answer changes
}
MOVED = {"L2.H0": 0.05, "L2.H1": -0.05}
SHIFTED = {"L2.H2": 0.13}
"""What it costs one label it gives another."""


def all_cases() -> pd.DataFrame:
    still = dict.fromkeys([*MOVED, *SHIFTED], (0.0, SMALL))
    inside, outside = ({name: case[i] for name, case in CASES.items()} | still for i in (0, 1))
    return component_roles(table(inside), table(outside, MOVED, SHIFTED))


def test_every_rule() -> None:
    roles = all_cases()
    COMPONENT_ROLES.check(roles)
    assert roles["explanation"].tolist() == [explain_role(row) for _, row in roles.iterrows()]
    got = {row.component: (row.role, row.sure) for row in roles.itertuples()}
    expected = {name: case[2:] for name, case in CASES.items()}
    assert got == expected | dict.fromkeys([*MOVED, *SHIFTED], (THRESHOLD, True))
    assert set(roles["role"]) | {UNDECIDED} == set(ROLES)
    assert (roles["sure"] == (roles["open"] == "")).all()
    row = roles.set_index("component").loc["L0.H3"]
    assert row["open"] == (
        "information out of domain: a change of -2.0 points (-5.9 to 1.9) is inconclusive"
    )
    roles = ranked(all_cases())
    assert roles["component"].tolist()[:5] == ["L0.H5", "L0.H6", "L0.H4", "L0.H0", "L0.H1"]
    assert not {NONE, UNDECIDED} & set(roles["role"])


def test_figures_are_those_of_the_tables_and_p_is_corrected_within_and_over_components() -> None:
    names = ["L0.H0", "L0.H1"]
    inside = table(dict(zip(names, [(0.05, LARGE), (0.0, SMALL)], strict=True)))
    outside = table(dict(zip(names, [(0.03, SMALL), (0.01, LARGE)], strict=True)), {"L0.H1": 0.004})
    roles = component_roles(inside, outside.iloc[::-1]).set_index("component")
    assert roles.loc["L0.H1", "information_change_ood"] == -0.01
    assert roles.loc["L0.H0", "information_change_low_id"] == pytest.approx(-0.05 - 1.96 * LARGE)
    p = {z: 2 * stats.norm.sf(z) for z in (2, 2.5, 15)}
    corrected = {
        # L0.H0 is selected alone: the second of its six changes, at half of alpha.
        ("L0.H0", "information", "id"): 6 * p[2.5] / 2 * 2,
        ("L0.H0", "information", "ood"): 6 * p[15] * 2,
        ("L0.H1", "information", "ood"): 1.0,
        # L0.H1 is selected where both are, at alpha.
        ("L0.H1", "threshold", "ood"): 6 * p[2],
    }
    for (name, figure, place), expected in corrected.items():
        assert roles.loc[name, f"{figure}_p_adjusted_{place}"] == pytest.approx(expected)


def test_a_change_is_selected_where_its_component_is_and_at_the_level_that_leaves() -> None:
    """The two steps of Benjamini and Bogomolov, as they are defined at one level."""
    rng = np.random.default_rng(0)
    n_selected = set()
    for alpha in (0.01, 0.05, 0.2, 0.5):
        p = rng.uniform(size=(40, 6)) ** rng.integers(1, 6, (40, 1))
        p[3, 2:] = np.nan
        p[4] = np.nan
        known = [row[~np.isnan(row)] for row in p]
        simes = [min(np.sort(r) * len(r) / np.arange(1, len(r) + 1), default=2) for r in known]
        ordered = np.sort(simes[:4] + simes[5:])
        at_most = np.flatnonzero(ordered <= alpha * np.arange(1, 40) / 39)
        n = at_most[-1] + 1 if len(at_most) else 0
        n_selected.add(n)
        for row, corrected in zip(p, selective_p(p), strict=True):
            level, m = alpha * n / 39, (~np.isnan(row)).sum()
            k = [k for k in range(1, m + 1) if np.sort(row)[k - 1] <= level * k / m]
            threshold = level * max(k) / m if k else -1
            np.testing.assert_array_equal(corrected <= alpha, row <= threshold)
            np.testing.assert_array_equal(np.isnan(corrected), np.isnan(row))
    assert len(n_selected) > 2


def test_how_sure_a_change_near_the_least_effect_is() -> None:
    """0.6 points less than the least effect, of 1, by 2 standard errors."""
    change = table({"L0.H0": (0.004, 0.003)})
    sure = component_roles(change, change)
    few = component_roles(change.assign(df=5.0), change.assign(df=3.0))
    assert [sure["sure"].item(), few["sure"].item()] == [True, False]
    least = 0.01
    losses = {"L0.H0": least, "L0.H1": np.nextafter(least, 0), "L0.H2": np.nextafter(least, 1)}
    rows = table({name: (loss, 0.001) for name, loss in losses.items()})
    roles = component_roles(rows, rows, RoleSettings(least=least))
    assert roles["role"].tolist() == [BOTH] * 3
    assert roles["sure"].all()


def test_settings_decide() -> None:
    # Nine changes of 2.5 standard errors are significant at 5 % when corrected with the others.
    one = {"L0.H0": (0.05, LARGE)}
    places = table(one), table(one)
    assert component_roles(*places)["role"].tolist() == [BOTH]
    strict = component_roles(*places, RoleSettings(alpha=0.01))
    assert strict["role"].tolist() == [NONE]
    assert not strict["sure"].any()
    places = table({"L0.H0": (0.05, SMALL)}), table({"L0.H0": (0.0, SMALL)})
    assert component_roles(*places)["role"].tolist() == [IN_ONLY]
    coarse = component_roles(*places, RoleSettings(least=0.1))
    assert coarse["role"].tolist() == [NONE]
    assert coarse["sure"].all()
    for name in ("alpha", "least", "minor"):
        with pytest.raises(InputError, match=f"{name} is 1; expected a number above 0 and below 1"):
            RoleSettings(**{name: 1})


def test_figures_that_are_missing_or_do_not_belong_together() -> None:
    names = {"L0.H0": (0.05, SMALL), "L0.H1": (0.0, SMALL)}
    roles = component_roles(table(names), unknown(names, "one label only")).set_index("component")
    assert roles["role"].to_dict() == {"L0.H0": IN, "L0.H1": UNDECIDED}
    assert not roles["sure"].any()
    assert roles.loc["L0.H0", "open"] == "information out of domain: one label only"
    assert "changes by an unknown amount out of domain" in explain_role(roles.reset_index().iloc[1])
    first, second = table({"L0.H0": (0.0, SMALL)}), table({"L0.H1": (0.0, SMALL)})
    with pytest.raises(InputError, match=r"L0\.H0 is in only one of the tables"):
        component_roles(first, second)
    with pytest.raises(InputError, match=r"L0\.H0 occurs twice"):
        component_roles(pd.concat([first, first]), first)


TWO_MEANS = {
    # name: in domain, out of domain with the training mean and with the other, role, sure
    "L0.H0": ((0.0, SMALL), (0.05, SMALL), (0.04, SMALL), OUT_ONLY, True),
    "L0.H1": ((0.05, SMALL), (-0.05, SMALL), (-0.04, SMALL), HARMFUL_OUT, True),
    "L0.H2": ((0.05, SMALL), (0.0, SMALL), (0.001, SMALL), IN_ONLY, True),
    # Lost or gained with one of the means alone, whichever it is.
    "L0.H3": ((0.0, SMALL), (0.05, SMALL), (0.0, SMALL), NONE, False),
    "L0.H4": ((0.0, SMALL), (0.0, SMALL), (0.05, SMALL), NONE, False),
    "L0.H5": ((0.0, SMALL), (0.05, SMALL), (0.03, LARGE), NONE, False),
    "L0.H6": ((0.05, SMALL), (-0.05, SMALL), (0.0, SMALL), IN, False),
    "L0.H7": ((0.05, SMALL), (0.05, SMALL), (-0.05, SMALL), IN, False),
    "L1.H0": ((-0.03, SMALL), (0.05, SMALL), (0.0, SMALL), HARMFUL_IN, False),
    "L1.H1": ((0.0, SMALL), (0.0, SMALL), (0.0, LARGE), NONE, False),
    # A minor share of what is lost in domain, but lost with one of the means.
    "L1.H2": ((0.2, SMALL), (0.02, SMALL), (0.0, SMALL), IN_ONLY, False),
    # In domain a minor share of what is lost out of domain with one of the means.
    "L1.H3": ((0.02, 0.01), (0.2, SMALL), (0.2, SMALL), OUT_ONLY, True),
    "L1.H4": ((0.02, 0.01), (0.2, SMALL), (0.04, SMALL), OUT, False),
    "L1.H5": ((0.0, SMALL), (0.0, SMALL), (0.0, SMALL), NONE, True),
}


def with_two_means() -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """The roles of `TWO_MEANS`, L2.H0 and L2.H1 moving the threshold with both means and one."""
    parts = [{name: case[i] for name, case in TWO_MEANS.items()} for i in range(3)]
    moved = {"L2.H0": 0.05, "L2.H1": 0.05}
    tables = [
        table(losses | dict.fromkeys(moved, (0.0, SMALL)), threshold)
        for losses, threshold in zip(parts, ({}, moved, {"L2.H0": 0.05}), strict=True)
    ]
    tables[2]["injected_margin"] = np.arange(len(tables[2]), dtype=float)
    return component_roles(*tables[:2], ood_mean=tables[2]), tables


def test_out_of_domain_counts_what_is_so_with_both_means() -> None:
    roles, tables = with_two_means()
    COMPONENT_ROLES.check(roles)
    got = {row.component: (row.role, row.sure) for row in roles.itertuples()}
    expected = {name: case[3:] for name, case in TWO_MEANS.items()}
    assert got == expected | {"L2.H0": (THRESHOLD, True), "L2.H1": (NONE, False)}
    assert (roles["sure"] == (roles["open"] == "")).all()
    assert roles["injected_margin"].tolist() == list(range(len(roles)))
    other = tables[2].set_index("set").loc[roles["component"]]
    for end in ("", "_low", "_high"):
        changes = roles[f"information_change{end}_ood_mean"].tolist()
        assert changes == other[f"information_change{end}"].tolist()
    rows = roles.set_index("component", drop=False)
    for part in (
        "information out of domain: a change of -5.0 points (-5.4 to -4.6; p = 1 among all comp",
        "with the out-of-domain mean of 0.0 points (-0.4 to 0.4), is inconclusive",
        "the mean decides: needed out of domain only with the training mean alone, no detectable",
    ):
        assert part in rows.loc["L0.H3", "open"]
    with_both = "(4.6 to 5.4) out of domain, and with the out-of-domain mean loses 4.0 points (3.6"
    assert with_both in explain_role(rows.loc["L0.H0"])


def test_an_idle_head_has_no_role_by_a_constant_that_a_mean_injects(
    tmp_path: Path,
) -> None:
    frames = two_domains(tmp_path)
    model = load_model(tmp_path)
    data = {r: as_encoded(model, frame, split=r) for r, frame in frames.items()}  # type: ignore[arg-type]
    means = {r: MeanActivations.compute(model, data[r], n_samples=0) for r in ("train", "ood")}

    def changes(split: str, mean: str) -> pd.DataFrame:
        swept = ablate(model, sets.singles(model), data[split], means[mean], split=split)  # type: ignore[arg-type]
        return information_table(swept, n_resamples=20).query("subset == 'all'")

    tables = changes("id", "train"), changes("ood", "train")
    trained, both = (
        component_roles(*tables, ood_mean=own).set_index("component")
        for own in (None, changes("ood", "ood"))
    )
    heads = [CARRIES, HEURISTIC, IDLE]
    assert trained.loc[heads, "role"].tolist() == [BOTH, HARMFUL_OUT, THRESHOLD]
    assert trained["sure"].all()
    assert both.loc[heads, "role"].tolist() == [BOTH, HARMFUL_OUT, NONE]
    assert both["sure"].to_dict() == {name: name != IDLE for name in both.index}
    assert both.loc[IDLE, "open"].endswith(
        "the mean decides: moves the threshold with the training mean alone, no detectable effect "
        "with the out-of-domain mean alone"
    )
    # It says entailment in every text out of domain, and nothing in domain.
    injected = [margin_slopes(model, data["ood"], means[r]) for r in ("ood", "train")]
    layer, column = ModelShape.of(model).index(Component.parse(IDLE))
    entailed = (frames["ood"]["label"] == "entailment").to_numpy()
    np.testing.assert_allclose(
        (injected[0] - injected[1])[:, layer, column],
        np.where(entailed, -IDLE_SIZE, IDLE_SIZE),
        atol=1e-5,
    )


def test_sentences() -> None:
    roles = all_cases().set_index("component", drop=False)
    assert explain_role(roles.loc["L0.H4"]) == (
        "L0.H4 is needed out of domain only: without it the model loses 0.1 points of "
        "information (-0.3 to 0.5) in domain and loses 5.0 points (4.6 to 5.4) out of domain; by a "
        "shifted threshold it loses 0.0 points (-0.4 to 0.4) in domain and loses 0.0 points (-0.4 "
        "to 0.4) out of domain; on balance 0.0 % (-0.4 to 0.4) of the answers in domain and 0.0 % "
        "(-0.4 to 0.4) out of domain change sides."
    )
    for name, said in {
        "L2.H2": "and 13.0 % (12.6 to 13.4) out of domain change sides.",
        "L0.H1": "in domain and gains 3.0 points (2.6 to 3.4) out of domain",
        "L0.H3": " Not sure: information out of domain: a change of -2.0 points (-5.9 to 1.9) is",
        "L1.H0": "L1.H0 has no detectable effect:",
        "L2.H0": "L2.H0 moves the threshold:",
    }.items():
        assert said in explain_role(roles.loc[name])
    # By itself, an interval of one of many components may well exclude 0.
    row = roles.loc["L1.H0"].copy()
    row["information_change_high_ood"] = -0.001
    start = "L1.H0 has no detectable effect, corrected for all components: without it"
    assert explain_role(row).startswith(start)


def test_the_verdict_counts_names_and_measures() -> None:
    roles = all_cases()
    assert verdict(roles) == (
        "Of 17 components ablated alone, 1 is harmful out of domain (L0.H1 +3.0 [+2.6, +3.4] "
        "points of information without it); 4 carry the generalisation (L0.H5 \u22125.0 "
        "[\u22125.4, \u22124.6], L0.H6 \u22125.0 [\u22125.4, \u22124.6], L0.H4 \u22125.0 "
        "[\u22125.4, \u22124.6], and 1 more); 2 are needed in "
        "domain only (L1.H3 and L0.H2); any one of 3 can be removed (costs up to 0.6 points of "
        "information in domain or out of domain, intervals to 0.7, and by a shifted threshold up "
        "to 0.0, to 0.4)."
    )
    inside = roles[roles["role"] == IN_ONLY]
    assert "; 1 is needed in domain only (L1.H3)" in verdict(inside[1:])
    named = "4 are needed in domain only (L1.H3, L1.H3, L0.H2 and 1 more)"
    assert named in verdict(pd.concat([inside, inside]))
    none = "none is shown to be harmful out of domain; none is shown to carry"
    assert none in verdict(inside)
    assert verdict(roles[:0]) == "No component was ablated."
    known, why = {"L0.H0": (0.05, SMALL), "L0.H1": (0.0, SMALL)}, "one label only: why"
    nothing = unknown(known, why)
    inside = "1 is needed in domain (L0.H0 \u22125.0 [\u22125.4, \u22124.6] points of information "
    assert verdict(component_roles(table(known), nothing)) == (
        f"Of 2 components ablated alone, {inside}without it); out of domain, {why}."
    )
    assert verdict(component_roles(nothing, nothing)) == (
        f"No role of 2 components is known: in domain, {why}; out of domain, {why}."
    )
