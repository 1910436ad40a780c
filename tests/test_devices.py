"""Work on other devices: the answers of the processor, and no waiting for every piece of it.

On a device that is played (`faraway`) what makes the host wait is counted; on CUDA, where it is
there, the same work is done in earnest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from faraway import FAR, faraway, own, send_away
from helpers import Cases
from pruning.oracles import encoded_for
from torch import Tensor

from mechcore.ablation import ablate, sets
from mechcore.ablation.joint.predictors import PairRequest
from mechcore.attention import categorize_heads
from mechcore.bench.predictors import hessian
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.pruning import prune_settings
from mechcore.pruning.teacher import Teacher


def random_masks(n: int, model: Any) -> Tensor:
    """Mask values of zeros, ones and what is between, [mask, layer, component]."""
    shape = ModelShape.of(model)
    drawn = torch.rand(n, shape.n_layers, shape.columns, generator=torch.Generator().manual_seed(0))
    return (1.5 * drawn - 0.25).clamp(0, 1)


def swept(model: Any, data: EncodedExamples, means: MeanActivations, n: int, **options: Any) -> Any:
    """Logits without each of ``n`` sets, components alone first."""
    names = [str(component) for component in ModelShape.of(model).components]
    chosen = [[name] for name in names] + [[a, b] for a in names for b in names if a < b]
    ablations = ablate(
        model, chosen[:n], data, means, split="ood", batch_size=4, max_tokens=1, **options
    )
    return torch.stack([torch.from_numpy(answers.logits) for answers in ablations.without.values()])


def tree(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    return swept(model, data, means, n, engine="tree")


def restart(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    return swept(model, data, means, n, engine="restart")


def evaluation(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    mask = Mask(random_masks(n, model))
    by_mask = evaluate(model, data, mask=mask, means=means, batch_size=4, in_domain=False)
    return torch.stack([answers.logits for answers in by_mask])


def pruning_step(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    settings = prune_settings("fast", precision="float32", masks_per_pass=n, batch_size=4)
    teacher = Teacher(model, data, settings)
    for _ in range(2):
        losses, gradients = teacher.kl_gradients(random_masks(n, model), means, [0, 1, 3, 2])
    return torch.cat([losses, gradients.flatten()])


def paths(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    """Logits with some paths from two heads cut."""
    cuts = sets.paths(["L0.H0", "L0.H1"], ["heads", "mlps"], model)[: n // 2 + 1]
    ablations = ablate(model, cuts, data, means, split="ood", batch_size=4)
    return torch.stack([torch.from_numpy(answers.logits) for answers in ablations.without.values()])


def categories(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    ones = [[1] * len(ids) for ids in data.input_ids]
    known = replace(data, words=data.input_ids, segments=ones, separators=ones)
    table = categorize_heads(model, known, batch_size=2, resamples=n)
    return torch.from_numpy(table.filter(like="mass_").to_numpy()).nan_to_num(-1)


def averages(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    drawn = MeanActivations.compute(model, data, n_samples=n, seed=1)
    return torch.cat([part.double().flatten() for part in (drawn.z, drawn.mlp, drawn.samples_z)])


def resampled(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    return swept(model, data, means, n, fill="resample")


def second_derivatives(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    components = ModelShape.of(model).components[:n]
    request = PairRequest(model, data, means, components, batch_size=4)
    return torch.tensor([*hessian(request).interactions.values()])


WORK: dict[str, Callable[..., Tensor]] = {
    "tree": tree,
    "restart": restart,
    "resampled": resampled,
    "evaluation": evaluation,
    "pruning step": pruning_step,
    "paths": paths,
    "categories": categories,
    "second derivatives": second_derivatives,
    "means": averages,
}
FEW = [*(("bert", work) for work in WORK), ("llama", "tree"), ("llama", "paths")]
"""Played as slowly as many times as there are operations."""


@pytest.mark.parametrize(("family", "work"), FEW)
def test_the_host_waits_as_often_for_many_as_for_few(cases: Cases, family: str, work: str) -> None:
    model, data = cases.get(family).model, encoded_for(family).part(range(4))
    means = MeanActivations.compute(model, data)
    other = send_away(load_model(cases.path(family)))
    waits: dict[int, Counter[str]] = {}
    with faraway():
        WORK[work](other, data, means, 2)  # whatever is done once for a model
    for n in (4, 8):
        expected = WORK[work](model, data, means, n)
        with faraway() as waits[n]:
            result = WORK[work](other, data, means, n)
        assert result.equal(expected)
    assert own(waits[4])
    assert own(waits[8]) == own(waits[4])


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("work", WORK)
def test_the_same_answers_on_another_device(
    cases: Cases, family: str, work: str, device: str
) -> None:
    model, data = cases.get(family).model, encoded_for(family).part(range(4))
    means = MeanActivations.compute(model, data)
    other = load_model(cases.path(family), device=device)
    result, expected = (WORK[work](copy, data, means, 8) for copy in (other, model))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.everyday
def test_the_device_that_is_played_counts() -> None:
    """Each kind of waiting, and nothing else."""
    near = torch.arange(3.0)
    with faraway() as waits:
        there = near.to(FAR)
        assert there.device == FAR
        assert not (there * 2).requires_grad
        assert there.to(FAR) is there
        near.to(FAR, non_blocking=True).add_(1)
        (there[there > 0], there[[0]], there.tolist(), there.sum().item(), bool(there.any()))
        torch.tensor([1, 2], device=FAR)
    kinds = Counter()
    for why, n in waits.items():
        kinds[why.split(" at ")[0]] += n
    assert kinds == {
        "copy to the device": 2,
        "copy to the host": 1,
        "index by truth values": 1,
        "tensors of both devices in index": 1,
        "_local_scalar_dense": 2,
    }
