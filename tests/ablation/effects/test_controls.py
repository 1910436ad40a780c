"""Sets beside their controls, by hand."""

import numpy as np
import pytest
from ablation.planted import game

from mechcore.ablation import ComponentSet
from mechcore.ablation.effects.changes import CONTROLLED, control_table
from mechcore.evaluation.p_values import among_controls


def test_controls_by_hand() -> None:
    changes = {"L0.H0": [2.0, 4.0], "L0.H1": [1.0, 1.0], "L0.H2": [-3.0, -7.0], "L0.H3": [3.0, 3.0]}
    ablations = game(changes, subsets=["u", "v"])
    core, *others = (ComponentSet.of([name]) for name in changes)
    table = control_table(ablations, {core: others})
    margin = table.set_index("subset")
    assert margin.index.tolist() == ["u", "v", "all"]
    assert margin["n_beside"].tolist() == [1, 1, 2]
    assert margin["margin_change_beside"].tolist() == pytest.approx([2, 4, 3])
    assert margin["margin_control_change"].tolist() == pytest.approx([1 / 3, -1, -1 / 3])
    # As large in size: of 1, -3, 3 two; of 1, -7, 3 one; of 1, -5, 3 two, a tie among them.
    assert margin["margin_p_control"].tolist() == pytest.approx([3 / 4, 2 / 4, 3 / 4])
    assert margin["n_controls"].tolist() == [3, 3, 3]
    # All of so few are between -5 and 3.
    assert margin.loc[
        "all", ["margin_control_low", "margin_control_high"]
    ].tolist() == pytest.approx([-5, 3])
    ablations = game({"L0.H0": [2.0]})
    table = control_table(ablations, {ComponentSet.of(["L0.H0"]): []})
    assert (table["n_controls"] == 0).all()
    unknown = [n for n in table if str(n).endswith(("_control", "_change", "_low", "_high"))]
    assert len(unknown) == 8
    assert table[unknown].isna().all(axis=None)
    assert control_table(ablations, {}).columns.tolist() == table.columns.tolist()
    assert {*table.columns} < {*CONTROLLED.names}


@pytest.mark.parametrize(
    ("n", "low", "high"), [(1, 0, 0), (6, 0, 5), (39, 0, 38), (40, 0.975, 38.025), (201, 5, 195)]
)
def test_what_most_controls_are_between(n: int, low: float, high: float) -> None:
    row = among_controls(9.0, np.arange(n))
    assert [row["control_low"], row["control_high"]] == pytest.approx([low, high])
