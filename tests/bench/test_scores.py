"""Scores against known truth, by hand and by their properties."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from mechcore.ablation.sets import ComponentSet
from mechcore.bench import Truth, mask_distance, node_auroc, pair_auroc, sign_accuracy
from mechcore.components import Component, Mask, ModelShape
from mechcore.errors import InputError, MismatchError

SHAPE = ModelShape(2, 2)


def truth_of(*names: str, **more: Any) -> Truth:
    return Truth(frozenset(map(Component, names)), **more)


def by_pair(**sizes: float) -> dict[ComponentSet, float]:
    """Numbers of pairs of heads of layer 0, by their two numbers: ``_01`` is L0.H0+L0.H1."""
    return {ComponentSet.of([f"0.{name[1]}", f"0.{name[2]}"]): size for name, size in sizes.items()}


def test_rankings_by_hand() -> None:
    truth = truth_of("L0.H1", "L1.MLP")
    scores = np.array([[0.3, 0.9, 0.1], [0.5, 0.2, 0.4]])
    # 0.9 is above all four others; 0.4 is above 0.3, 0.1 and 0.2, and under 0.5: 7 of 8.
    assert node_auroc(scores, truth, SHAPE) == pytest.approx(7 / 8)
    assert node_auroc(torch.tensor(scores), truth, SHAPE) == pytest.approx(7 / 8)
    # A tie counts half: 0.5 beside 0.5 makes 7.5 of 8.
    scores[1, 2] = 0.5
    assert node_auroc(scores, truth, SHAPE) == pytest.approx(7.5 / 8)
    assert node_auroc(np.zeros((2, 3)), truth, SHAPE) == 0.5
    scores = np.arange(6.0).reshape(2, 3)
    for names, n in (((), 0), (map(str, SHAPE.components), 6)):
        with pytest.raises(InputError, match=f"{n} of 6 are a true component; expected at"):
            node_auroc(scores, truth_of(*names), SHAPE)
    with pytest.raises(InputError, match=r"none for the true component L2\.H0"):
        node_auroc(scores, truth_of("L0.H0", "L2.H0"), SHAPE)
    for bad in (math.nan, math.inf):
        wrong = scores.copy()
        wrong[1, 2] = bad
        with pytest.raises(InputError, match=rf"found {bad} for L1\.MLP; expected a finite number"):
            node_auroc(wrong, truth_of("L0.H0"), SHAPE)
    with pytest.raises(MismatchError, match=r"found shape \(6,\); the model has 2 layers"):
        node_auroc(scores.ravel(), truth_of("L0.H0"), SHAPE)


PAIRS = truth_of("L0.H0", interactions=by_pair(_01=2.0, _23=-0.5))


def test_pairs_by_hand() -> None:
    predicted = by_pair(_01=-1.0, _02=0.5, _03=0.1, _23=0.3)
    # 1.0 is above 0.5 and 0.1, 0.3 above 0.1: 3 of 4, whatever the signs.
    assert pair_auroc(predicted, PAIRS) == pytest.approx(3 / 4)
    # The sign of 0.1 is wrong, of 2.3 too; of what is not true, it is not asked.
    assert sign_accuracy(predicted, PAIRS) == 0
    assert sign_accuracy(by_pair(_01=1.0, _23=0.3), PAIRS) == 0.5
    assert sign_accuracy(by_pair(_01=0.0, _23=-0.3), PAIRS) == 0.5  # 0 has no sign
    with pytest.raises(InputError, match="truth: interactions are unknown"):
        pair_auroc(by_pair(_01=1.0), truth_of("L0.H0"))
    with pytest.raises(InputError, match=r"none for the true pair L0\.H2\+L0\.H3"):
        pair_auroc(by_pair(_01=1.0, _02=1.0), PAIRS)
    with pytest.raises(InputError, match=r"predicted: found nan for L0\.H0\+L0\.H1"):
        sign_accuracy(by_pair(_01=math.nan, _23=1.0), PAIRS)
    # An interaction that is written down as 0 is none.
    nothing = truth_of("L0.H0", interactions=by_pair(_01=0.0))
    with pytest.raises(InputError, match="0 of 1 are a true pair"):
        pair_auroc(by_pair(_01=1.0), nothing)
    with pytest.raises(InputError, match="no pair interacts"):
        sign_accuracy(by_pair(_01=1.0), nothing)


def test_masks_by_hand() -> None:
    truth = truth_of("L0.H1", "L1.MLP")
    # Kept without being true: L0.MLP, L1.H0 and L1.H1; true and not kept: L1.MLP.
    assert mask_distance(Mask.full(SHAPE).without("L1.MLP", "L0.H0"), truth) == 4
    right = Mask.full(SHAPE).only(truth.components)
    assert mask_distance(right, truth) == 0
    assert mask_distance(~right, truth) == 6
    with pytest.raises(InputError, match="out of range"):
        mask_distance(right, truth_of("L2.H0"))
    with pytest.raises(InputError, match="zeros and ones"):
        mask_distance(Mask(torch.full((2, 3), 0.5)), truth)
