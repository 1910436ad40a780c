"""What is found on one half of the examples is measured on the other."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation.few import SMALL, information_rows, of_margins

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    component_roles,
    confirm_roles,
    confirmation,
    information_table,
)
from mechcore.ablation.effects import confirmation as confirmed
from mechcore.ablation.effects.confirmation import ROLES_TABLE, held_out_change
from mechcore.wording import MINUS

HALVED = ("id", "ood")
HALVES: dict[str, tuple[tuple[float, float], ...]] = {
    # in domain on both halves, out of domain on both: losses and their standard errors
    "both halves": ((0, SMALL), (0, SMALL), (0.05, 0.004), (0.03, 0.003)),
    "smaller": ((0, SMALL), (0, SMALL), (0.03, SMALL), (0.008, SMALL)),
    "chance": ((0, SMALL), (0, SMALL), (0.02, SMALL), (0.001, SMALL)),
    "harmful": ((0, SMALL), (0, SMALL), (-0.008, SMALL), (-0.04, SMALL)),
    "other sign": ((0, SMALL), (0, SMALL), (0.03, SMALL), (-0.03, SMALL)),
    "in both": ((0.05, SMALL), (0.05, SMALL), (0.05, SMALL), (0, SMALL)),
    # p = 0.040, corrected over the seven changes claimed on the first half 0.040 * 7 / 5.
    "one of many": ((0, SMALL), (0, SMALL), (0.03, SMALL), (0.0041, SMALL)),
    "idle": ((0, SMALL), (0, SMALL), (0, SMALL), (0, SMALL)),
}
EXPECTED = {
    # found on so many halves, its loss there, on the opposite halves, standard error; confirmed
    "both halves": ((0,), (2, 0.04, 0.04, 0.0025), True),
    "smaller": ((0,), (1, 0.03, 0.008, SMALL), True),
    "chance": ((0,), (1, 0.02, 0.001, SMALL), False),
    "harmful": ((0,), (1, -0.04, -0.008, SMALL), True),
    "other sign": ((0,), (2, 0.0, 0.0, SMALL / 2**0.5), False),
    "in both": ((2, 0.05, 0.05, SMALL / 2**0.5), (1, 0.05, 0.0, SMALL), False),
    "one of many": ((0,), (1, 0.03, 0.0041, SMALL), False),
    "idle": ((0,), (0,), False),
}


def half(place: int, number: int) -> pd.DataFrame:
    """Rows of the information table of a half."""
    return information_rows({name: of[2 * place + number] for name, of in HALVES.items()})


def test_changes_are_those_of_the_half_that_did_not_find_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves = iter([[half(place, number) for number in (0, 1)] for place in (0, 1)])
    monkeypatch.setattr(confirmed, "_on_halves", lambda *_: next(halves))
    all_examples = component_roles(half(0, 0), half(1, 0)).iloc[::-1]  # in an order of its own
    table = confirm_roles(all_examples, {"id": None, "ood": None})  # type: ignore[dict-item]
    pd.testing.assert_frame_equal(table[all_examples.columns], all_examples)
    by_hand = table.set_index("component", drop=False)
    ROLES_TABLE.check(by_hand)
    for name, (inside, outside, is_confirmed) in EXPECTED.items():
        for place, figures in (("id", inside), ("ood", outside)):
            change = f"information_change_{{}}_{place}"
            columns = [f"halves_found_{place}", *map(change.format, ("found", "confirmed"))]
            columns.append(change.format("confirmed_se"))
            n, *losses = figures
            figures = (n, *(-loss for loss in losses[:2]), *losses[2:])
            expected = [*figures, *[np.nan] * (4 - len(figures))]
            assert by_hand.loc[name, columns].tolist() == pytest.approx(expected, nan_ok=True), name
        assert by_hand.at[name, "confirmed"] == is_confirmed, name
    # Found: (2 * 4 + 3 + 2 + 4 + 0 + 2 * 5 + 5 + 3) / 11 points in the direction found; on the
    # other half (2 * 4 + 0.8 + 0.1 + 0.8 + 0 + 2 * 5 + 0 + 0.41) / 11.
    assert confirmation(by_hand) == (
        "Split-half check: 7 components with an information role on at least one half of the "
        "examples, 3 confirmed on the other, where effects average 1.8 points of information "
        "instead of 3.2."
    )
    assert "no component has an information role" in confirmation(by_hand.loc[["idle"]])
    assert confirmation(by_hand[["component", "role"]]) == ""  # of a run without the columns
    changes = {
        "in both": f"0.0 out of domain, {MINUS}5.0 in domain, not confirmed",
        "harmful": "+0.8 out of domain, confirmed",
        "idle": "",
    }
    assert {name: held_out_change(by_hand.loc[name]) for name in changes} == changes


def answers(seed: Any, n: int, split: str, **changes: Any) -> Ablations:
    """Of a model in which 24 components write alike, each little and right four times of five."""
    rng, label = np.random.default_rng(seed), np.arange(n) % 2
    sign = 2 * label - 1
    written = [0.2 * np.where(rng.random(n) < 0.8, sign, -sign) for _ in range(24)]
    noise = rng.normal(size=n)
    signal = sum(written) - 1.3 * sign
    margins = [signal - part + 0.97 * noise + 0.24 * rng.normal(size=n) for part in written]
    without = {
        ComponentSet.of([f"L0.H{i}"]): of_margins(margin, label, **changes)
        for i, margin in enumerate(margins)
    }
    return Ablations.of(of_margins(signal + noise, label, **changes), without, "made up", split)


def judged(by_split: dict[str, Ablations]) -> pd.DataFrame:
    options: dict[str, Any] = {"subsets": ["all"], "n_resamples": 2}
    return component_roles(*(information_table(made, **options) for made in by_split.values()))


CLUSTERED = {
    "of several sizes": np.repeat(np.arange(40), np.arange(40) % 7 + 1),
    "one large": np.repeat(np.arange(20), [60, *[3] * 19]),
    "across subsets": np.arange(240) % 30,
}


@pytest.mark.parametrize("clusters", CLUSTERED.values(), ids=CLUSTERED)
def test_no_cluster_is_in_both_halves(clusters: np.ndarray) -> None:
    label = np.arange(len(clusters)) % 2
    subsets = np.array(["a", "b", "c"], dtype=object)[np.arange(len(clusters)) % 3]
    full = of_margins(1.0 * label, label, subsets=subsets, clusters=clusters)
    halves = confirmed.half_of(full, 0)
    assert set(clusters[halves == 0]).isdisjoint(clusters[halves == 1])
    largest = np.bincount(clusters).max()
    assert abs((halves == 0).sum() - (halves == 1).sum()) <= largest + 6
    assert not np.array_equal(halves, confirmed.half_of(full, 1))


def test_examples_are_halved_within_subset_and_label() -> None:
    subsets = np.repeat(np.array([*"abcdefghi"], dtype=object), [1, 1, 1, 1, 1, 1, 9, 30, 41])
    label = np.arange(len(subsets)) % 2
    halves = confirmed.half_of(of_margins(1.0 * label, label, subsets=subsets), 3)
    assert abs(2 * halves.sum() - len(halves)) <= 1
    for name in subsets:
        for value in (0, 1):
            part = halves[(subsets == name) & (label == value)]
            assert abs(2 * part.sum() - len(part)) <= 1


def test_halves_that_are_too_small_say_so() -> None:
    inside = answers(0, 1200, "id")
    few = answers(1, 160, "ood")  # 80 of each label, 40 on a half
    grouped = answers(1, 1200, "ood", clusters=np.arange(1200) // 2 % 14)
    cases = {
        "40 of the rarest label, at least 50 of each are needed": {"id": inside, "ood": few},
        "7 clusters: an interval for others needs at least 8": {"id": inside, "ood": grouped},
    }
    for reason, both in cases.items():
        roles = confirm_roles(judged(both), both)
        assert roles["information_change_ood"].notna().all()
        columns = ["halves_found_ood", "information_change_confirmed_ood"]
        assert roles[columns].isna().all(axis=None)
        assert roles["halves_found_id"].notna().all()
        text = roles["reason_confirmed"].iloc[0]
        assert text.startswith("out of domain, on a half of the examples: ")
        assert text.endswith(reason)
        assert f" (not possible {text})." in confirmation(roles)
    both = {"id": few, "ood": few}
    neither = confirm_roles(judged(both), both)
    assert confirmation(neither).startswith("Split-half check: not possible (in domain, on a half")
    assert not neither["confirmed"].any()
