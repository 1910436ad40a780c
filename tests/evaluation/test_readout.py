"""Logits that are not finite give no answer, wherever they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from helpers import CLASSES, Cases

from mechcore.ablation import ablate, find_superadditive
from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import NotFiniteError
from mechcore.evaluation.evaluate import Evaluation, evaluate, kl, paired_change
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.finite import check_finite
from mechcore.models.protocol import weights_of
from mechcore.pruning import PruneSettings, attribution_scores, prune
from mechcore.pruning.teacher import Teacher

NAN, INF = float("nan"), float("inf")
ANSWERS = {"entailment": "yes", "contradiction": "no", "neutral": "never"}


def encoded(name: str) -> EncodedExamples:
    """Six examples, longest last."""
    pairs = [(" ".join(helpers.WORDS[5 - i : 6]), "the cat ran") for i in range(6)]
    options = {"prompt": "{a} , {b} .", "answers": ANSWERS} if name == "gpt2-lm" else {}
    return helpers.encoded_of(pairs, [*CLASSES, *CLASSES], name == "bert", **options)


def answer_column(name: str, data: EncodedExamples, answer: str) -> int:
    return CLASSES.index(answer) if data.answers is None else data.answers[answer][0]


def last_matrix(model: Any) -> Any:
    weights = weights_of(model)
    return weights.lm_head if hasattr(weights, "lm_head") else weights.classifier


@pytest.fixture(params=["bert", "gpt2-lm"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[NAN, -INF])
def broken(request: pytest.FixtureRequest, cases: Cases, name: str) -> Any:
    """Means are finite, and the logits of one class are not."""
    model = load_model(cases.path(name))
    with torch.no_grad():
        column = answer_column(name, encoded(name), "neutral")
        last_matrix(model).weight[column] = request.param
    return model


CALLS: dict[str, Callable[[Any, EncodedExamples, MeanActivations], Any]] = {
    "evaluate": lambda model, data, means: evaluate(model, data),
    "masked": lambda model, data, means: evaluate(
        model, data, mask=Mask.full(model).without("L0.H1"), means=means
    ),
    "tree": lambda model, data, means: ablate(model, ["L0.H1"], data, means, engine="tree"),
    "bfloat16": lambda model, data, means: ablate(
        model, ["L0.H1"], data, means, precision="bfloat16"
    ),
    "reference": lambda model, data, means: ablate(
        model, ["L0.H1"], data, means, engine="reference"
    ),
    "search": lambda model, data, means: find_superadditive(model, data, means, max_size=2),
    "prune": lambda model, data, means: prune(
        model, data, means, target_sparsities=0.5, seeds=1, preset=PruneSettings(steps=2, warmup=1)
    ),
    "attribution": attribution_scores,
}


@pytest.mark.parametrize("call", CALLS)
def test_no_caller_gets_logits_that_are_not_finite(broken: Any, name: str, call: str) -> None:
    data = encoded(name)
    means = MeanActivations.compute(broken, data)
    with pytest.raises(NotFiniteError, match=r"^logits: not finite \(.*float") as error:
        CALLS[call](broken, data, means)
    for wrong in ("engine", "schedule", "lr", "steps"):
        assert wrong not in str(error.value)


def test_masked_forwards_of_pruning_are_checked_too(cases: Cases) -> None:
    case, data = cases.get("bert"), encoded("bert")
    means = MeanActivations.compute(case.model, data)
    z = means.z.clone()
    z[0, 1] = 3e38  # overflows as soon as W_O adds it up
    means = replace(means, z=z)
    teacher = Teacher(case.model, data, PruneSettings())
    values = torch.ones(3, 2, 5)
    values[1, 0, 1] = 0
    with pytest.raises(NotFiniteError, match=r"for 2 of 2 .* numbers 0, 4 under 1 of 3 masks;"):
        teacher.kl_gradients(values, means, [4, 0])


def test_the_error_names_the_examples_in_the_order_of_the_data(cases: Cases) -> None:
    """Batches are by length, and so in another order."""
    model, data = load_model(cases.path("bert")), encoded("bert")
    dog = helpers.word_tokenizer().convert_tokens_to_ids("dog")
    assert [i for i, ids in enumerate(data.input_ids) if dog in ids] == [3, 4, 5]
    assert next(iter(data.batches(6)))["index"].tolist() != [*range(6)]
    with torch.no_grad():
        weights_of(model).bert.embeddings.word_embeddings.weight[dog] = NAN
    expected = r"^logits: not finite \(NaN, float32\) for 3 of 6 examples run together, numbers "
    with pytest.raises(NotFiniteError, match=expected + "3, 4, 5; the model's weights are damaged"):
        evaluate(model, data)
    with pytest.raises(NotFiniteError, match=r"for 1 of 1 examples run together, number [345];"):
        evaluate(model, data, batch_size=1)


def test_overflow_in_float16_advises_float32(cases: Cases) -> None:
    """The last matrix is scaled so that 65504 is exceeded, but not what float32 can hold."""
    model = load_model(cases.path("bert"))
    data = encoded("bert")
    with torch.no_grad():
        last_matrix(model).weight *= 6e4
    assert evaluate(model, data, in_domain=False).logits.isfinite().all()
    half = copy.deepcopy(model).to(torch.float16)
    with pytest.raises(NotFiniteError, match=r"infinity, float16\).*load it in float32"):
        evaluate(half, data)
    with pytest.raises(NotFiniteError, match=r"infinity, float16\).*load it in float32"):
        ablate(half, ["L0.H1"], data, fill="zero")


def silent(cases: Cases, *words: int) -> Any:
    """A language model that never says some words."""
    model = load_model(cases.path("gpt2-lm"))
    bias = torch.zeros(helpers.VOCABULARY)
    bias[list(words)] = -INF
    weights_of(model).lm_head.bias = torch.nn.Parameter(bias)
    return model


def test_words_that_are_not_read_may_have_minus_infinity(cases: Cases) -> None:
    data = encoded("gpt2-lm")
    assert data.answers is not None
    other = next(i for i in range(5, helpers.VOCABULARY) if (i,) not in data.answers.values())
    result = evaluate(silent(cases, other), data, in_domain=False)
    expected = evaluate(cases.get("gpt2-lm").model, data, in_domain=False)
    torch.testing.assert_close(result.logits, expected.logits)


def test_a_label_may_be_any_word_that_is_said(cases: Cases) -> None:
    model, plain = silent(cases, 3, 30), cases.get("gpt2-lm").model
    batch = helpers.padded(helpers.texts())
    labels = torch.tensor([5, 6, 7, 8, 9])
    result = evaluate(model, [batch | {"labels": labels}], in_domain=False)
    assert result.logits[:, [3, 30]].eq(-INF).all()
    said = torch.tensor([i for i in range(helpers.VOCABULARY) if i not in (3, 30)])
    logits = evaluate(plain, [batch | {"labels": labels}], in_domain=False).logits[:, said]
    right = torch.stack([logits[i, list(said).index(label)] for i, label in enumerate(labels)])
    others = (logits.double().exp().sum(1) - right.double().exp()).log()
    np.testing.assert_allclose(result.margin, (right - others).numpy(), atol=1e-4)
    assert kl(result.logits, result.logits).tolist() == [0.0] * 5
    for engine in ("tree", "restart", "reference"):
        swept = ablate(
            model, ["L0.H1"], [batch | {"labels": labels}], fill="zero", split="ood", engine=engine
        )
        (answers,) = swept.without.values()
        assert np.isfinite(answers.margin).all()
        assert np.isfinite(answers.kl).all()
        assert (answers.kl > 0).all()
    with pytest.raises(NotFiniteError, match="example 2 has the logit minus infinity"):
        evaluate(model, [batch | {"labels": torch.tensor([5, 6, 30, 8, 9])}])


def made(logits: list[list[float]]) -> Evaluation:
    correct = torch.zeros(len(logits), len(logits[0]), dtype=torch.bool)
    correct[:, 0] = True
    return Evaluation(torch.tensor(logits), correct, np.full(len(logits), "s", dtype=object), "")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_an_evaluation_has_finite_logits(value: float, column: int) -> None:
    logits = [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]
    fine = made(logits)
    assert paired_change(fine, fine).mean == 0
    logits[1][column] = value
    with pytest.raises(NotFiniteError, match=r"for 1 of 2 examples run together, number 1;"):
        made(logits)


def test_log_odds_that_logits_make_infinite_are_refused() -> None:
    for column in (0, 1):
        logits = [[1.0, 2.0], [0.0, 1.0]]
        for row in logits:
            row[column] = -INF
        with pytest.raises(NotFiniteError, match="example 0 has the logit minus infinity"):
            made(logits)


def test_minus_infinity_is_for_what_no_example_has() -> None:
    logits = torch.tensor([[-INF, 1.0, 2.0], [-INF, 0.0, 2.0]])
    check_finite(logits, range(2), never=True)
    for refused in (logits, logits[:, :1], torch.tensor([[-INF, 1.0], [0.0, 1.0]])):
        with pytest.raises(NotFiniteError, match="infinity"):
            check_finite(refused, range(2), never=refused is not logits)
