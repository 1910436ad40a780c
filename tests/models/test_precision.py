"""Models in half precision: finite numbers, near those of float32, reduced in higher precision.

bfloat16 keeps 8 significant bits, so that every rounding errs by up to 0.4 %; float16 keeps 11, for
0.05 %. Over six layers logits and means were found to err by as much, and the gradients of a mask
by 7 % and 1 %; the tolerances are about three times these.
"""

from dataclasses import dataclass
from typing import Any

import helpers
import pytest
import torch
from helpers import Case, close, padded, reference_logits, texts
from torch import Tensor

from mechcore.ablation import sweep
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.evaluation.evaluate import Evaluation, evaluate, kl
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import forward
from mechcore.pruning import prune_settings
from mechcore.pruning.mask_training import MaskTraining
from mechcore.pruning.teacher import Teacher
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir

HALF = {"bfloat16": (0.015, 0.2), "float16": (0.002, 0.03)}
"""Error of logits and means, and of gradients, as shares of their size."""

OPEN = 2.0  # where all gates are open, the KL is a difference of near equals
SIZES: dict[str, Any] = {"steps": 3, "warmup": 1, "batch_size": 16, "masks_per_pass": 2}
SETTINGS = prune_settings("fast", **SIZES, tolerance=1, log_alpha_mean=OPEN)


@dataclass(frozen=True)
class Figures:
    """What the trained encoder gives in one precision."""

    model: Any
    means: MeanActivations
    full: Evaluation
    part: Evaluation
    loss: Tensor
    gradient: Tensor


@pytest.fixture(scope="module")
def data() -> EncodedExamples:
    examples = tiny_world.generate("id", 24, 5)
    return encode(examples, load_tokenizer(tiny_encoder_dir()), max_length=48)


@pytest.fixture(scope="module")
def figures(data: EncodedExamples) -> dict[str, Figures]:
    return {name: figures_in(name, data) for name in ("float32", *HALF)}


def figures_in(name: Any, data: EncodedExamples) -> Figures:
    model = load_model(tiny_encoder_dir(), dtype=name)
    means = MeanActivations.compute(model, data)
    mask = Mask.full(model).without("L1.H0", "L2.H3", "L3.MLP")
    shape = ModelShape.of(model)
    values = torch.stack([MaskTraining(SETTINGS, shape, 0.5, seed).draw() for seed in (0, 1)])
    teacher = Teacher(model, data, SETTINGS)
    loss, gradient = teacher.kl_gradients(values, means, range(16))
    part = evaluate(model, data, mask=mask, means=means)
    return Figures(model, means, evaluate(model, data), part, loss, gradient)


def near(values: Tensor, expected: Tensor, share: float) -> None:
    assert torch.isfinite(values).all()
    error = (values.double() - expected.double()).norm() / expected.double().norm()
    assert 0 < error < share


@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_near_float32(figures: dict[str, Figures], name: str) -> None:
    exact, half = figures["float32"], figures[name]
    logits, gradients = HALF[name]
    near(half.full.logits, exact.full.logits, logits)
    near(half.part.logits, exact.part.logits, logits)
    near(half.means.z, exact.means.z, logits)
    near(half.means.mlp, exact.means.mlp, logits)
    near(half.loss, exact.loss, gradients)
    near(half.gradient, exact.gradient, gradients)
    # What is made of logits is not in half precision.
    assert (half.means.z.dtype, half.full.logits.dtype) == (torch.float64, torch.float32)
    assert (half.loss.dtype, half.gradient.dtype) == (torch.float32, torch.float32)
    full, part = half.full.logits.double(), half.part.logits.double()
    right = half.full.correct_classes.int().argmax(1)
    odds = full.gather(1, right[:, None]) - full.gather(1, 1 - right[:, None])
    close(torch.tensor(half.full.margin), odds[:, 0], 1e-12)
    expected = (full.softmax(1) * (full.log_softmax(1) - part.log_softmax(1))).sum(1)
    close(kl(half.full.logits, half.part.logits), expected, 1e-9)


@pytest.mark.parametrize("name", HALF)
def test_all_engines_sweep_a_model_in_half_precision(
    figures: dict[str, Figures], data: EncodedExamples, name: str
) -> None:
    half = figures[name]
    sets = [("L1.H0",), ("L2.H3", "L3.MLP")]
    tables = [
        sweep(half.model, sets, data, half.means, engine=engine, n_resamples=10)
        for engine in ("tree", "restart", "reference")
    ]
    columns = ["accuracy_change", "margin_change"]
    *shared, reference = (torch.tensor(table[columns].to_numpy()) for table in tables)
    for changes in shared:
        close(changes, reference, 8 * HALF[name][0])


@pytest.mark.parametrize("name", HALF)
def test_every_architecture_in_half_precision(case: Case, name: Any) -> None:
    model = load_model(case.path, dtype=name)
    assert ModelIdentity.of(model).dtype == name
    rows = texts()
    with torch.no_grad():
        logits = forward(model, padded(rows, "left", noise=1))
    assert logits.shape == (len(rows), len(helpers.CLASSES))
    near(logits, reference_logits(case.reference, rows), 4 * HALF[name][0])
