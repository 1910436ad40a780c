"""Metrics by hand, and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from mechcore.errors import InputError, NotFiniteError
from mechcore.evaluation.metrics import METRICS, Measured, Metric, as_metric

LOGITS = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 4.0, 1.0, 4.5]])
BATCH: dict[str, Any] = {
    "index": torch.tensor([7, 2]),
    "correct": torch.tensor([[True, False, False, False], [False, True, False, False]]),
    "wrong": torch.tensor([[False, True, True, False], [False, False, True, False]]),
    "full": torch.zeros(2, 4),
}


def log(*parts: float) -> float:
    return math.log(sum(map(math.exp, parts)))


BY_HAND = {
    "accuracy": [1, 1],  # the likeliest token of the second row is no answer
    "margin": [3 - log(1, 2), 3],
    "logit_difference": [3 - 1.5, 3],
    "logprob": [3 - log(3, 1, 2, 0), 4 - log(0, 4, 1, 4.5)],
    "rank": [1, 2],
    # Of a uniform distribution: log 1/4 less the mean log-probability.
    "kl": [
        -log(0, 0, 0, 0) - 1.5 + log(3, 1, 2, 0),
        -log(0, 0, 0, 0) - 9.5 / 4 + log(0, 4, 1, 4.5),
    ],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_metrics_of_one_position(name: str) -> None:
    values = as_metric(name)(LOGITS, BATCH)
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx(BY_HAND[name])


def test_all_own_metrics_say_their_unit_and_direction() -> None:
    assert METRICS.names() == [*BY_HAND, "loss"]
    directions = {name: as_metric(name).more_is_better for name in METRICS}
    assert [name for name, more in directions.items() if not more] == ["rank", "kl", "loss"]
    assert all(as_metric(name).unit for name in METRICS)


def test_several_correct_answers_count_together() -> None:
    both = BATCH["correct"] | torch.tensor([False, False, False, True])
    values = {n: as_metric(n)(LOGITS, {**BATCH, "correct": both})[0].item() for n in BY_HAND}
    whole = log(3, 1, 2, 0)
    assert values["logit_difference"] == pytest.approx((3 + 0) / 2 - 1.5)
    assert values["logprob"] == pytest.approx(log(3, 0) - whole)
    assert values["margin"] == pytest.approx(log(3, 0) - log(1, 2))
    assert values["rank"] == 1


@pytest.mark.parametrize("side", ["right", "left"])
def test_losses_of_real_tokens(side: str) -> None:
    # Tokens 0 2 1 and 3 1, where every position's logits are those of LOGITS[0] or uniform.
    ids = {"right": [[0, 2, 1], [3, 1, 0]], "left": [[0, 2, 1], [0, 3, 1]]}[side]
    mask = {"right": [[1, 1, 1], [1, 1, 0]], "left": [[1, 1, 1], [0, 1, 1]]}[side]
    batch = {"index": torch.arange(2), "input_ids": torch.tensor(ids)}
    batch["attention_mask"] = torch.tensor(mask)
    logits = LOGITS[:1].expand(2, 3, 4).clone()
    logits[0, 1] = 0
    first, second, only = log(3, 1, 2, 0) - 2, math.log(4), log(3, 1, 2, 0) - 1
    assert as_metric("loss")(logits, batch).tolist() == pytest.approx([(first + second) / 2, only])


def test_functions_and_registered_ones() -> None:
    def largest(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return logits.amax(-1)

    metric = as_metric(largest)
    assert (metric.name, metric.unit, metric.more_is_better) == ("largest", "", None)
    assert metric(LOGITS, BATCH).tolist() == [3, 4.5]
    METRICS.register("own")(largest)
    try:
        assert as_metric("own") == Metric("own", largest)
    finally:
        METRICS.remove("own")
    assert as_metric(metric) is metric


def test_what_is_no_metric() -> None:
    def rank(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return logits.sum(-1)

    with pytest.raises(InputError, match=r"metric 'rnk': unknown .did you mean 'rank'"):
        as_metric("rnk")
    for wrong in (rank, 3):
        with pytest.raises(InputError, match=r"expected one of accuracy, .* or a function"):
            as_metric(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="metric 'n': tables have such a column"):
        Metric("n", rank)
    returned: tuple[Any, ...] = (LOGITS, 1.0, LOGITS.sum())
    for value in returned:
        with pytest.raises(InputError, match=r"metric 'm': returned .* a value for every example"):
            Metric("m", lambda logits, batch, value=value: value)(LOGITS, BATCH)
    with pytest.raises(NotFiniteError, match="metric 'm': is nan for example 2"):
        Metric("m", lambda logits, batch: torch.tensor([1.0, math.nan]))(LOGITS, BATCH)


def test_values_refuse_what_answers_have() -> None:
    measured = Measured(as_metric("rank"), np.arange(3.0), np.array(["a", "b", "a"], dtype=object))
    assert repr(measured) == "Measured(n=3, rank=1.000 places)"
    assert measured.subset_names == ["a", "b"]
    assert measured.part([2, 0]).values("rank").tolist() == [2, 0]
    with pytest.raises(InputError, match="metric 'margin': found values of 'rank'"):
        measured.values("margin")
    with pytest.raises(InputError, match=r"metric 'rank': has no logits.*leave metric out"):
        _ = measured.logits
    assert not hasattr(measured, "nothing")
