"""CPR and CMD by hand, for any curve, and beside MIB's own figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.bench import CircuitSizes, cmd, cpr
from mechcore.bench.areas import MIB_SHARES, faithfulness
from mechcore.bench.faithfulness import ranked
from mechcore.components import ModelShape
from mechcore.errors import InputError


def test_areas_by_hand() -> None:
    shares, f = [0, 0.5, 1], np.array([0.0, 1.5, 1.0])
    # Trapezoids: (0 + 1.5) / 4 + (1.5 + 1) / 4 = 1; of |1 - f| 1, 0.5, 0: 1.5 / 4 + 0.5 / 4 = 0.5.
    assert cpr(shares, f) == pytest.approx(1)
    assert cmd(shares, f) == pytest.approx(0.5)
    # On a logarithmic axis 0.25, 0.5 and 1 are ln 2 apart: ln 2 * (0.75 + 1.25).
    shares = [0.25, 0.5, 1]
    assert cpr(shares, f, axis="log") == pytest.approx(2 * math.log(2))
    assert cmd(shares, f, axis="log") == pytest.approx(math.log(2))
    both = cpr(shares, np.stack([f, np.ones(3)]))  # rows by themselves
    np.testing.assert_allclose(both, [0.25 * 0.75 + 0.5 * 1.25, 0.75])


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=8, unique=True),
    st.sampled_from(["linear", "log"]),
    st.data(),
)
def test_areas_of_any_curve(shares: list[float], axis: Any, draw: st.DataObject) -> None:
    shares = sorted(shares)
    width = shares[-1] - shares[0] if axis == "linear" else math.log(shares[-1] / shares[0])
    ones = np.ones(len(shares))
    assert cpr(shares, ones, axis=axis) == pytest.approx(width)
    assert cmd(shares, ones, axis=axis) == 0
    numbers = st.lists(st.floats(-9, 9), min_size=len(shares), max_size=len(shares))
    f = np.array(draw.draw(numbers))
    assert cmd(shares, f, axis=axis) >= 0
    # What lies above 1 and what lies under it add up; the one less the other is CPR less the width.
    assert cmd(shares, f, axis=axis) >= abs(cpr(shares, f, axis=axis) - width) - 1e-9


def test_faithfulness_by_hand() -> None:
    # 1 of nothing, 5 of everything: 3 is half of the way, 6 is beyond it.
    np.testing.assert_allclose(faithfulness([1, 3, 6, 5], 5, 1), [0, 0.5, 1.25, 1])
    falling = faithfulness(np.array([[3.0, 1.0], [0.5, 0.0]]), [0.0, 0.0], [4.0, 1.0])
    np.testing.assert_allclose(falling, [[0.25, 0.75], [0.5, 1]])
    assert np.isnan(faithfulness([1.0], 1, 1)).all()


def test_sizes() -> None:
    assert CircuitSizes.of(4) == CircuitSizes((0, 0.25, 0.5, 0.75, 1), (0, 1, 2, 3, 4))
    assert CircuitSizes.of(4, axis="log").kept == (1, 2, 3, 4)
    assert CircuitSizes.of(10, [7, 2, 7]) == CircuitSizes((0.2, 0.7), (2, 7))
    # Rounded down, as MIB does: 0.2 of 14 are 2.8, and under 1000 components some sizes are empty.
    assert CircuitSizes.of(14, compat="mib") == CircuitSizes(
        MIB_SHARES, (0, 0, 0, 0, 0, 0, 1, 2, 7, 14)
    )
    with pytest.raises(InputError, match="found 0 to 5 components; expected 0 to 4"):
        CircuitSizes.of(4, range(6))
    with pytest.raises(InputError, match="compat is 'mib'; expected 'mib', without other sizes"):
        CircuitSizes.of(4, [1], compat="mib")


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ([0, 1], {}, "found the shares 0, 1 for 3 circuits"),
        ([0, 1, 0.5], {}, "each larger than the one before"),
        ([0, 0.5, 0.5], {}, "each larger than the one before"),
        ([0, 0.5, 2], {}, "from 0 to 1"),
        ([0, 0.5, 1], {"axis": "log"}, "size 0 has no logarithm"),
        ([0, 0.5, 1], {"axis": "both"}, "axis is 'both'; expected 'linear' or 'log'"),
    ],
)
def test_what_is_no_axis(shares: list[float], options: Any, message: str) -> None:
    for area in (cpr, cmd):
        with pytest.raises(InputError, match=message):
            area(shares, np.ones(3), **options)


# -- MIB's own figures ----------------------------------------------------------------------------

OF_MIB = [
    (1.576638736376, 0.701878328711, 1.155599135006, 5.752156143976),
    (4.339648500626, 3.393093374380, -1.051285351621, 7.959040630603),
    (1.393737416511, 0.507660310219, 0.987928879781, 5.919826399201),
    (13.373487869213, 12.442487869213, 14.809015637759, 14.809015637759),
    (1.750500956962, 0.839312557748, 2.837958921508, 4.069796357475),
    (-3.800029433132, 4.799029433132, -2.804550867223, 9.712306146205),
    (1.166513488135, 0.357433830642, 1.288354975141, 5.619400303841),
    (-1.394956990217, 2.393956990217, 3.648124793680, 3.733934764967),
    (5.963406879105, 5.006198496808, -0.339491788235, 8.846441253204),
    (2.101408113850, 1.157129172621, 2.340694351088, 4.567060927894),
]
"""Its CPR and CMD of circuits of nodes by signed scores on the linear axis, and by their size on
the logarithmic one, for the random score files of ten seeds (hannamw/MIB-circuit-track b759df3)."""


@pytest.mark.parametrize("seed", range(10))
def test_areas_are_those_of_mib(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = ModelShape(int(rng.integers(2, 13)), int(rng.integers(2, 17)))
    n = len(shape.components)
    weights = dict(zip(shape.components, rng.normal(0.1, 1.0, size=n), strict=True))
    values = np.array(list(weights.values())).reshape(shape.n_layers, shape.columns)
    scores = (values + rng.normal(size=values.shape)).astype(np.float32)  # as MIB's files hold them
    found: list[float] = []
    for axis, absolute in (("linear", False), ("log", True)):
        order = ranked(scores, shape, absolute=absolute)
        sizes = CircuitSizes.of(n, compat="mib")
        # The metric of a circuit is 2 and the weights of what it keeps.
        metric = [2 + sum(weights[c] for c in order[:k]) for k in (*sizes.kept, n, 0)]
        f = faithfulness(metric[:-2], metric[-2], metric[-1])
        found += (float(area(sizes.shares, f, axis=axis)) for area in (cpr, cmd))  # type: ignore[arg-type]
    assert found == pytest.approx(OF_MIB[seed], abs=1e-9)
