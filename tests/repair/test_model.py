"""Gates folded into weights, against masked models; checkpoints, run by transformers alone."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from helpers import CLASSES, Case, Cases, close, padded, texts

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_tokenizer
from mechcore.repair.model import RepairableModel

BATCH = padded(texts((5, 8, 3), seed=2))


@pytest.fixture
def means(case: Case) -> MeanActivations:
    return MeanActivations.compute(case.model, padded(texts((7, 3, 8), seed=9)))


@pytest.fixture
def repairable(case: Case, means: MeanActivations) -> RepairableModel:
    return RepairableModel(case.model, case.path, load_tokenizer(case.path), means)


def some_gates(shape: ModelShape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape.n_layers, shape.columns, generator=generator)


def test_gates_are_the_intervention(
    case: Case, means: MeanActivations, repairable: RepairableModel
) -> None:
    gates = some_gates(repairable.shape)
    with torch.no_grad(), masked(case.model, Mask(gates), means) as run:
        expected = run(BATCH)
    close(repairable.logits(BATCH, repairable.gated(gates)), expected)
    gates = torch.ones_like(some_gates(repairable.shape))
    for name, weight in repairable.gated(gates).items():
        assert torch.equal(weight, repairable.weights[name]), name


def test_gradients_are_finite_differences(repairable: RepairableModel) -> None:
    gates = some_gates(repairable.shape).requires_grad_()

    def total(gates: torch.Tensor) -> torch.Tensor:
        return repairable.logits(BATCH, repairable.gated(gates)).square().sum()

    (slopes,) = torch.autograd.grad(total(gates), gates)
    step = 1e-2
    for place in ((0, 1), (1, 0), (1, repairable.shape.columns - 1)):
        ends = []
        for sign in (1, -1):
            moved = gates.detach().clone()
            moved[place] += sign * step
            ends.append(float(total(moved)))
        assert float(slopes[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02)


def test_a_saved_repair_is_a_plain_checkpoint(repairable: RepairableModel, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in repairable.weights.items()}
    weights = repairable.gated(some_gates(repairable.shape))
    repairable.save(weights, tmp_path / "gates", {"repair": "gates"})
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "gates").eval()
    with torch.no_grad():
        got = model(**BATCH).logits
    close(got, repairable.logits(BATCH, weights))
    assert (tmp_path / "gates" / "mechcore.json").is_file()
    assert all(torch.equal(w, before[n]) for n, w in repairable.weights.items())


def test_a_bias_that_the_head_cannot_hold_is_not_saved(
    case: Case, repairable: RepairableModel, tmp_path: Path
) -> None:
    name = repairable.head_weights[1]
    weights = {name: repairable.weights[name] + torch.arange(len(CLASSES))}
    if repairable.adds_bias:
        with pytest.raises(InputError, match="no bias for its classes"):
            repairable.save(weights, tmp_path / "out", {})
    else:
        repairable.save(weights, tmp_path / "out", {})
        model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
        assert torch.equal(model.get_parameter(name), weights[name])


def test_language_models_are_refused(cases: Cases) -> None:
    case = cases.get("gpt2-lm")
    with pytest.raises(InputError, match="is not a classifier"):
        RepairableModel(case.model, case.path, load_tokenizer(case.path))
