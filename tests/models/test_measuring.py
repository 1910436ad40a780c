"""Models are measured in evaluation mode, by hooks that see their own runs alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CLASSES, Cases, padded, texts
from torch import Tensor, nn

from mechcore.ablation import ablate, find_superadditive
from mechcore.attention import attention_examples, attention_scores
from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.measuring import evaluating, hooked
from mechcore.models.running import forward, hook_z, weights_of
from mechcore.papers.cognitive.probing import activations_at, hook_resid_post
from mechcore.papers.extractive.encoded import encode_facts
from mechcore.papers.extractive.facts import Facts
from mechcore.papers.extractive.ranks import all_option_logits
from mechcore.papers.extractive.scores import extractive_scores
from mechcore.papers.extractive.tuning import TuneSettings, tuned
from mechcore.papers.extractive.weights import WeightDelta, snapshot, trainable_names
from mechcore.pruning import PruneSettings, attribute, attribution_scores, prune
from mechcore.training import accuracies, classification

N = 12
MASK = ("L0.H1", "L1.MLP")


@pytest.fixture(scope="module")
def data() -> EncodedExamples:
    words = helpers.WORDS
    frame = pd.DataFrame(
        {
            "text_a": [" ".join(words[i : i + 3]) for i in range(N)],
            "text_b": [" ".join(words[(3 * i) % 9 : (3 * i) % 9 + 4]) for i in range(N)],
            "label": [CLASSES[i % 3] for i in range(N)],
            "subset": "s",
        }
    )
    return encode(Examples("twelve", frame), helpers.word_tokenizer(), max_length=48, words=True)


@pytest.fixture(scope="module")
def facts() -> Any:
    prompts = ("the cat saw a", "the dog often saw a", "the yes saw a")
    found = Facts("three", prompts, ("bird", "cat", "yes"), ("cat", "dog often", "yes"))
    return encode_facts(found, helpers.word_tokenizer(segments=False))


def modules(model: Any) -> dict[str, nn.Module]:
    """Those of a bridge, and those of the model that it wraps."""
    parts = {"": model, "original ": weights_of(model)}
    return {
        prefix + name: each for prefix, part in parts.items() for name, each in part.named_modules()
    }


def fills(model: Any) -> dict[str, bool]:
    return {name: each.training for name, each in modules(model).items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Models of these tests' own: gradients leave tensors in a bridge that cannot be copied."""
    return Cases(tmp_path_factory.mktemp("own"))


def in_training(model: Any) -> Any:
    """A copy in training mode, with one module left in evaluation mode, that drops a lot out."""
    model = copy.deepcopy(model).train()
    dropouts = [each for each in modules(model).values() if isinstance(each, nn.Dropout)]
    assert len(dropouts) > 3
    for each in dropouts:
        each.p = 0.5
    dropouts[-1].eval()
    return model


def tensors(found: Any) -> list[Tensor]:
    """All numbers of a result, in order."""
    if torch.is_tensor(found):
        return [found]
    if isinstance(found, pd.DataFrame):
        return [torch.tensor(found.select_dtypes("number").to_numpy(dtype=float))]
    return [each for part in found for each in tensors(part)]


Call = Callable[[Any, EncodedExamples, Any], Any]


def _means(model: Any, data: EncodedExamples, facts: Any) -> Any:
    found = MeanActivations.compute(model, data)
    return found.z, found.mlp, found.samples_z


def _zero(model: Any, **options: Any) -> Any:
    return masked(model, Mask.full(model).without(*MASK), fill="zero", **options)


def _masked(model: Any, data: EncodedExamples, facts: Any) -> Any:
    with torch.no_grad(), _zero(model) as run:
        return run(data.rows(range(N)))


def _the_model_itself(model: Any, data: EncodedExamples, facts: Any) -> Any:
    with torch.no_grad(), _zero(model):
        return model(padded(texts())["input_ids"])


def _pruned(model: Any, data: EncodedExamples, facts: Any) -> Any:
    means = MeanActivations.compute(model, data, n_samples=0)
    settings = PruneSettings(steps=6, warmup=2, batch_size=4, tolerance=1)
    return [s.scores for s in prune(model, data, means, sparsity=0.5, seeds=1, preset=settings)]


def _attribution(model: Any, data: EncodedExamples, facts: Any) -> Any:
    means = MeanActivations.compute(model, data, n_samples=0)
    (found,) = attribute(model, data, means, sparsity=0.5)
    return found.scores, attribution_scores(model, data, means)


def _swept(engine: Any) -> Call:
    def call(model: Any, data: EncodedExamples, facts: Any) -> Any:
        found = ablate(model, ["L0.H1", "L1.MLP"], data, fill="zero", engine=engine, split="ood")
        drops = [found.changes(each, "margin") for each in found.without]
        return found.full.logits, torch.tensor(np.stack(drops))

    return call


def _searched(model: Any, data: EncodedExamples, facts: Any) -> Any:
    means = MeanActivations.compute(model, data, n_samples=0)
    found = find_superadditive(model, data, means, max_size=2, n_resamples=10, split="ood")
    return found.found, found.screening


def _pictures(model: Any, data: EncodedExamples, facts: Any) -> Any:
    found = attention_examples(model, data, helpers.word_tokenizer(), ["L0.H0", "L1.H1"])
    return [torch.tensor(each.pattern) for each in found]


def _probed(model: Any, data: EncodedExamples, facts: Any) -> Any:
    return [*activations_at(model, data, [hook_resid_post(1)]).values.values()]


ENCODER: dict[str, Call] = {
    "forward": lambda model, data, facts: forward(model, data.rows(range(N))).detach(),
    "means": _means,
    "evaluate": lambda model, data, facts: evaluate(model, data, in_domain=False).logits,
    "masked": _masked,
    "the model itself": _the_model_itself,
    "prune": _pruned,
    "attribution": _attribution,
    "tree": _swept("tree"),
    "reference": _swept("reference"),
    "search": _searched,
    "heads": lambda model, data, facts: attention_scores(model, data, resamples=0),
    "attention": _pictures,
    "probing": _probed,
}


def _scored(model: Any, data: EncodedExamples, facts: Any) -> Any:
    names = trainable_names(model)
    delta = WeightDelta({name: 0.1 * each for name, each in snapshot(model, names).items()})
    return extractive_scores(model, facts, delta, counterfactuals=1, check=False).sums()


def _tuned(model: Any, data: EncodedExamples, facts: Any) -> Any:
    found = tuned(model, facts, TuneSettings(learning_rate=1e-3, epochs=1))
    return [*found.values()]


DECODER: dict[str, Call] = {
    "ranks": lambda model, data, facts: all_option_logits(model, facts),
    "extractive scores": _scored,
    "tuned": _tuned,
}
CALLS = [("bert", *each) for each in ENCODER.items()]
CALLS += [("gpt2-lm", *each) for each in DECODER.items()]


@pytest.mark.parametrize(("name", "call"), [c[::2] for c in CALLS], ids=[c[1] for c in CALLS])
def test_a_model_in_training_mode_is_measured_in_evaluation_mode(
    cases: Cases, data: EncodedExamples, facts: Any, name: str, call: Call
) -> None:
    model = in_training(cases.get(name).model)
    before = fills(model)
    assert {*before.values()} == {True, False}
    expected, found = (call(each, data, facts) for each in (cases.get(name).model, model))
    for one, other in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert fills(model) == before
    with torch.no_grad():  # it does drop out
        ids = padded(texts())["input_ids"]
        plain = forward(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        own = model(ids, return_type="logits")
    assert not torch.allclose(plain, own, atol=1e-3)


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
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        raise RuntimeError("inside")
    assert fills(model) == before
    with pytest.raises(InputError, match="embedding"):
        forward(model, {"input_ids": torch.tensor([[helpers.VOCABULARY]])})
    assert fills(model) == before
    with pytest.raises(RuntimeError, match="inside"), _zero(model):
        raise RuntimeError("inside")
    assert fills(model) == before


def test_accuracies_leave_a_model_in_its_mode(data: EncodedExamples) -> None:
    model = helpers.hf_classifier("bert")
    objective = classification(model, helpers.word_tokenizer())
    expected = accuracies(model, objective, data)
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.9
    model.train()
    assert accuracies(model, objective, data) == expected
    assert all(each.training for each in model.modules())


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


@pytest.mark.hooked
def test_a_copy_of_a_masked_hooked_transformer_is_not_masked(cases: Cases) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm"))
    plain = logits_of(model)
    with _zero(model):
        twin = copy.deepcopy(model)
        assert not torch.allclose(logits_of(model), plain)
        assert torch.equal(logits_of(twin), plain)
    assert torch.equal(logits_of(twin), plain)


def test_a_copy_adds_nothing_to_the_means_of_the_model(cases: Cases) -> None:
    model, batch = cases.get("bert").model, padded(texts())
    expected = MeanActivations.compute(model, [batch, batch])
    copies = []

    def batches() -> Any:
        yield batch
        copies.append(copy.deepcopy(model))
        forward(copies[0], batch)
        yield batch

    found = MeanActivations.compute(model, batches())
    forward(copies[0], batch)
    assert torch.equal(found.z, expected.z)
    assert torch.equal(found.mlp, expected.mlp)
    assert torch.equal(found.samples_z, expected.samples_z)


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What a call in another thread returns, or raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except MechcoreError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_cannot_run_a_masked_model(case: helpers.Case) -> None:
    model, batch = case.model, padded(texts())
    plain = logits_of(model)
    with torch.no_grad(), _zero(model) as run:
        under_mask = run(batch)
        twin = copy.deepcopy(model)
        for call in (
            lambda: model(batch["input_ids"]),
            lambda: logits_of(model),
            lambda: run(batch),
        ):
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


def test_nothing_of_hooks_stays(case: helpers.Case) -> None:
    point = case.model.hook_dict[hook_z(0)]
    for _ in range(2):
        with _zero(case.model):
            assert len(point._forward_pre_hooks) == len(point._forward_hooks) == 1
        assert len(point._forward_pre_hooks) == len(point._forward_hooks) == 0
