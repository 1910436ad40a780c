"""Tables of the main job, from answers written out."""

from __future__ import annotations

import numpy as np
import torch

from mechcore.components import Mask, ModelShape
from mechcore.evaluation.evaluate import Evaluation
from mechcore.pruning import Subnetwork
from mechcore.steps.tables import answer_tables
from mechcore.subnetworks.core import ACCURACY_SPREAD


def answered(n_right: int) -> Evaluation:
    """Four examples, some answered rightly."""
    correct = torch.tensor([[True, False]] * 4)
    logits = torch.tensor([[1.0, 0.0]] * n_right + [[0.0, 1.0]] * (4 - n_right))
    return Evaluation(logits, correct, np.array(["all"] * 4, dtype=object), "")


def test_methods_are_not_seeds_of_each_other() -> None:
    mask = Mask.full(ModelShape(1, 4)).without("0.0")
    found = [
        Subnetwork(mask, 0.2, seed, torch.zeros(1, 5), method)
        for method in ("l0", "random")
        for seed in (1, 2)
    ]
    masked = [answered(n) for n in (4, 3, 1, 0)]
    roles = ("id", "ood")
    spread = answer_tables(
        {role: answered(4) for role in roles},
        found,
        dict.fromkeys(roles, masked),
        dict.fromkeys(roles, "data"),
    )["accuracy_spread"]
    ACCURACY_SPREAD.check(spread)
    inside = spread[spread["role"] == "id"]
    assert inside[["method", "n_seeds", "low", "high", "spread", "full"]].to_numpy().tolist() == [
        ["l0", 2, 0.75, 1.0, 0.25, 1.0],
        ["random", 2, 0.0, 0.25, 0.25, 1.0],
    ]
