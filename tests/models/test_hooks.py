"""Models are measured in evaluation mode, by hooks that see their own runs alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from helpers import Cases, padded, texts
from pruning.oracles import some_examples
from torch import Tensor, nn

from mechcore.attention import score_heads
from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.hooks import evaluating, hooked
from mechcore.models.protocol import forward, hook_z, weights_of

N = 12
MASK = ("L0.H1", "L1.MLP")


@pytest.fixture(scope="module")
def data() -> EncodedExamples:
    return encode(some_examples(N), helpers.word_tokenizer(), max_length=48, words=True)


def modules(model: Any) -> dict[str, nn.Module]:
    """Those of a bridge, and those of the model that it wraps."""
    parts = {"": model, "original ": weights_of(model)}
    return {prefix + name: m for prefix, part in parts.items() for name, m in part.named_modules()}


def fills(model: Any) -> dict[str, bool]:
    return {name: module.training for name, module in modules(model).items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Models of these tests' own: gradients leave tensors in a bridge that cannot be copied."""
    return Cases(tmp_path_factory.mktemp("own"))


def in_training(model: Any) -> Any:
    """A copy in training mode, with one module left in evaluation mode, that drops a lot out."""
    model = copy.deepcopy(model).train()
    dropouts = [module for module in modules(model).values() if isinstance(module, nn.Dropout)]
    assert len(dropouts) > 3
    for dropout in dropouts:
        dropout.p = 0.5
    dropouts[-1].eval()
    return model


def tensors(result: Any) -> list[Tensor]:
    """All numbers of a result, in order."""
    if torch.is_tensor(result):
        return [result]
    if isinstance(result, pd.DataFrame):
        return [torch.tensor(result.select_dtypes("number").to_numpy(dtype=float))]
    return [tensor for part in result for tensor in tensors(part)]


Call = Callable[[Any, EncodedExamples], Any]


def parts(means: MeanActivations) -> Any:
    return means.z, means.mlp, means.samples_z


def _zero(model: Any, **options: Any) -> Any:
    return masked(model, Mask.full(model).without(*MASK), fill="zero", **options)


def _the_model_itself(model: Any, data: EncodedExamples) -> Any:
    with torch.no_grad(), _zero(model):
        return model(padded(texts())["input_ids"])


CALLS: dict[str, Call] = {
    "forward": lambda model, data: forward(model, data.rows(range(N))).detach(),
    "means": lambda model, data: parts(MeanActivations.compute(model, data)),
    "the model itself": _the_model_itself,
    "heads": lambda model, data: score_heads(model, data, resamples=0).table(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_model_in_training_mode_is_measured_in_evaluation_mode(
    cases: Cases, data: EncodedExamples, call: str
) -> None:
    model = in_training(cases.get("bert").model)
    before = fills(model)
    assert {*before.values()} == {True, False}
    expected, result = (CALLS[call](m, data) for m in (cases.get("bert").model, model))
    for one, other in zip(tensors(result), tensors(expected), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert fills(model) == before
    with torch.no_grad():  # it does drop out
        one, other = (model(padded(texts())["input_ids"]) for _ in range(2))
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.hooked
def test_a_hooked_transformer_keeps_its_mode(cases: Cases, data: EncodedExamples) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm")).train()
    MeanActivations.compute(model, padded(texts()))
    assert {*fills(model).values()} == {True}
    with _zero(model):
        assert {*fills(model).values()} == {False}


def test_modes_come_back_after_an_error(cases: Cases) -> None:
    model = in_training(cases.get("bert").model)
    before = fills(model)
    with evaluating(model):
        assert {*fills(model).values()} == {False}
    assert fills(model) == before
    for context in (evaluating, _zero):
        with pytest.raises(RuntimeError, match="inside"), context(model):
            raise RuntimeError("inside")
        assert fills(model) == before
    with pytest.raises(InputError, match="embedding"):
        forward(model, {"input_ids": torch.tensor([[helpers.VOCABULARY]])})
    assert fills(model) == before


# -- copies and threads ---------------------------------------------------------------------------


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return forward(model, padded(texts()))


def test_a_copy_of_a_masked_model_is_not_masked(case: helpers.Case) -> None:
    model = case.model
    plain = logits_of(model)
    with _zero(model):
        twin = copy.deepcopy(model)
        under_mask = logits_of(model)
        assert (under_mask - plain).abs().max() > 1e-3
        assert torch.equal(logits_of(twin), plain)
        assert torch.equal(logits_of(model), under_mask)
        with _zero(twin):
            assert torch.equal(logits_of(twin), under_mask)
        assert torch.equal(logits_of(twin), plain)
    assert torch.equal(logits_of(twin), plain)
    assert torch.equal(logits_of(model), plain)
    with _zero(twin):
        assert torch.equal(logits_of(twin), under_mask)


def test_a_copy_adds_nothing_to_the_means_of_the_model(cases: Cases) -> None:
    model, batch = cases.get("bert").model, padded(texts())
    expected = MeanActivations.compute(model, [batch, batch])
    copies = []

    def batches() -> Any:
        yield batch
        copies.append(copy.deepcopy(model))
        forward(copies[0], batch)
        yield batch

    means = MeanActivations.compute(model, batches())
    forward(copies[0], batch)
    assert all(map(torch.equal, parts(means), parts(expected)))


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What a call in another thread returns, or raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except MechcoreError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_another_thread_cannot_run_a_masked_model(case: helpers.Case) -> None:
    model, batch = case.model, padded(texts())
    plain = logits_of(model)
    with torch.no_grad(), _zero(model) as run:
        under_mask = run(batch)
        twin = copy.deepcopy(model)
        calls = [lambda: model(batch["input_ids"]), lambda: logits_of(model), lambda: run(batch)]
        for call in calls:
            error = in_a_thread(call)
            assert isinstance(error, MechcoreError)
            assert str(error).startswith("masked: another thread has masked this model")
        assert torch.equal(in_a_thread(lambda: logits_of(twin)), plain)
        assert torch.equal(run(batch), under_mask)
    assert torch.equal(in_a_thread(lambda: logits_of(model)), plain)


def test_what_another_thread_runs_is_not_recorded(cases: Cases) -> None:
    model, seen = cases.get("bert").model, []
    with hooked(model, [(hook_z(0), lambda value, hook: seen.append(value.shape))]):
        in_a_thread(lambda: logits_of(model))
        assert seen == []
        logits_of(model)
    assert len(seen) == 1
    logits_of(model)
    assert len(seen) == 1
