"""Tables of lost information and shifted thresholds, through the real ablation path and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ablation.few import of_margins

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    component_roles,
    information_table,
)
from mechcore.ablation.effects.information import INFORMATION
from mechcore.ablation.effects.roles import NONE
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.p_values import paired_p
from mechcore.evaluation.recalibration import LEAST, ONE_LABEL, decompose

A, B = (ComponentSet.of([name]) for name in ("L0.H0", "L0.H1"))


def answers(subsets: list[str], label: np.ndarray) -> Ablations:
    """All right at first; without A all margins are 5 larger, without B a quarter is confused."""
    margin = np.where(label == 1, 1.0, -1.0)
    confused = np.where(np.arange(len(label)) % 4 == 0, -1.0, margin)
    full, more, fewer = (of_margins(m, label, subsets) for m in (margin, margin + 5, confused))
    return Ablations.of(full, {A: more, B: fewer}, "made up", "ood")


HALVES = np.repeat([1, 0], 200)
TWO_SUBSETS = ["entailed"] * 200 + ["not"] * 200


def test_a_table_by_hand() -> None:
    ablations, groups = answers(TWO_SUBSETS, HALVES), {"both": ["not", "entailed"]}
    table = information_table(ablations, groups, n_resamples=200)
    INFORMATION.check(table)
    assert list(table.columns) == INFORMATION.required
    assert table["subset"].tolist() == ["entailed"] * 2 + ["not"] * 2 + ["all"] * 2 + ["both"] * 2
    alone = table[:4]
    assert (alone["reason"] == ONE_LABEL).all()
    assert alone.filter(regex="_change|_p").isna().all(axis=None)
    for subset in ("all", "both"):
        rows = table[table["subset"] == subset].set_index("set")
        assert (rows["reason"] == "").all()
        for name, total, information in (("L0.H0", -0.5, 0.0), ("L0.H1", -0.125, -0.125)):
            row = rows.loc[name]
            assert row["balanced_accuracy_change"] == pytest.approx(total)
            assert row["information_change"] == pytest.approx(information)
            assert row["threshold_change"] == pytest.approx(total - information)
        assert rows.loc["L0.H0", "information_p"] == 1
        # 50 of 200 examples of one label: the standard error of a share, halved.
        error = np.sqrt(0.25 * 0.75 / 200) / 2
        assert rows.loc["L0.H1", "information_change_se"] == pytest.approx(error, rel=0.01)
        low, high = rows.loc["L0.H1", ["information_change_low", "information_change_high"]]
        assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.2)
        assert low < -0.125 < high
        p = rows["information_p"]
        assert rows["information_p_adjusted"].tolist() == pytest.approx([1, 2 * p["L0.H1"]])


def test_clusters_of_copies_and_few_clusters() -> None:
    once = answers(TWO_SUBSETS, HALVES)
    ten = np.repeat(np.arange(400), 10)
    copied = once.part(ten)
    known = replace(copied, full=replace(copied.full, clusters=ten))
    texts = replace(known, full=replace(known.full, population="texts"))
    tables = [information_table(e, n_resamples=50) for e in (once, copied, known, texts)]
    INFORMATION.check(tables[2])
    rows = [frame[frame["subset"] == "all"].set_index("set").loc["L0.H1"] for frame in tables]
    errors = [row["information_change_se"] for row in rows]
    assert errors[2] == pytest.approx(errors[0], rel=0.05)
    assert errors[1] < 0.4 * errors[0] > errors[3]
    assert [rows[2][name] for name in ("n_clusters", "population")] == [400, "clusters"]
    assert rows[2]["df"] == pytest.approx(399)
    assert not {"n_clusters", "df", "information_change_other_low"} & {*tables[0], *tables[1]}
    for end in ("low", "high"):
        main, other = f"information_change_{end}", f"information_change_other_{end}"
        assert [rows[2][main], rows[2][other]] == pytest.approx([rows[3][other], rows[3][main]])
    whole = answers(["all"] * 400, HALVES)
    few = replace(whole, full=replace(whole.full, clusters=np.arange(400) // 80))
    table = information_table(few, n_resamples=50)
    assert table["information_change"].tolist() == pytest.approx([0, -0.125])
    for name in ("low", "high", "se", "p"):
        column = "information_p" if name == "p" else f"information_change_{name}"
        assert table[column].isna().tolist() == [name != "p", True], column  # nothing has p 1
    assert table.filter(regex="other").notna().all(axis=None)
    assert (table["reason"] == "5 clusters: an interval for others needs at least 8").all()
    roles = component_roles(table, table)
    assert (roles["role"] == NONE).all()
    assert not roles["sure"].any()
    assert "a change of -12.5 points; 5 clusters" in roles["open"].iloc[1]
    assert "nan" not in roles["explanation"].str.cat()


def test_the_largest_of_several_shifts_is_corrected_for_the_choice() -> None:
    rng, label = np.random.default_rng(0), np.arange(180) % 3
    correct = torch.tensor(np.eye(3, dtype=bool)[label])
    names = np.full(180, "all", dtype=object)

    def evaluation() -> Evaluation:
        noise = torch.tensor(rng.normal(size=(180, 3)))
        return Evaluation(correct + noise, correct, names, "")

    without = {ComponentSet.of([f"L{i}.H0"]): evaluation() for i in range(5)}
    ablations = Ablations.of(evaluation(), without, "made up", "id")
    table = information_table(ablations)
    logits = np.stack([cut.logits for cut in ablations.without.values()])
    parts = decompose(ablations.full.logits.numpy(), logits, correct.numpy())
    p = paired_p(parts.shift.in_answers, answers=True)
    np.testing.assert_allclose(table["shift_p"], np.minimum(3 * p, 1))


def test_a_threshold_is_one_for_all_subsets_of_a_group() -> None:
    # In "low" margins are 4 lower than in "high". Each alone is separated fully; with one
    # threshold for both, at best one of the four halves is wrong.
    label = np.tile([0, 1], 200)
    names = ["low"] * 200 + ["high"] * 200
    margin = np.where(label == 1, 1.0, -1.0) + np.where(np.arange(400) < 200, -2, 2)
    ablations = answers(names, label)
    logits = np.stack([np.zeros(400), margin], axis=1)
    ablations = replace(ablations, without={A: replace(ablations.without[A], logits=logits)})
    table = information_table(ablations, n_resamples=2).set_index("subset")
    assert table["information_change"][["low", "high"]].tolist() == pytest.approx([0, 0])
    # Which of two halves is the wrong one differs between folds, and costs a little.
    assert table["information_change"]["all"] == pytest.approx(-0.25, abs=0.03)


def test_what_cannot_be_tabled() -> None:
    table = information_table(answers(["s"] * 60, np.arange(60) % 2), n_resamples=2)
    message = f"too few examples: 30 of the rarest label, at least {LEAST}"
    assert table["reason"].str.startswith(message).all()
    assert table["information_change"].isna().all()
    ablations = answers(TWO_SUBSETS, HALVES)
    both = ["not", "entailed"]
    for groups in ({"g": ["none"]}, {"g": []}, {"not": both}, {"all": both}):
        with pytest.raises(InputError, match=r"group '(g|not|all)'"):
            information_table(ablations, groups)
    without = {A: replace(ablations.without[A], logits=None)}
    with pytest.raises(InputError, match=r"logits without L0\.H0 were not kept"):
        information_table(replace(ablations, without=without))
    assert information_table(replace(ablations, without={})).empty
