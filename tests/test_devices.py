"""Work on other devices: the answers of the processor, and no waiting for every piece of it.

On a device that is played (`faraway`) what makes the host wait is counted; on CUDA, where it is
there, the same work is done in earnest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import helpers
import pytest
import torch
from faraway import faraway, send_away
from helpers import Cases
from pruning.oracles import encoded_for
from torch import Tensor

from mechcore.ablation import ablate
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.pruning import prune_settings
from mechcore.pruning.teacher import Teacher

FAMILIES = ("bert", "gpt2", "llama")
HEADS = [f"L{layer}.H{head}" for layer in range(helpers.N_LAYERS) for head in range(4)]


def random_masks(n: int, model: Any) -> Tensor:
    """Mask values of zeros, ones and what is between, [mask, layer, component]."""
    shape = ModelShape.of(model)
    drawn = torch.rand(n, shape.n_layers, shape.columns, generator=torch.Generator().manual_seed(0))
    return (1.5 * drawn - 0.25).clamp(0, 1)


def swept(model: Any, data: EncodedExamples, means: MeanActivations, n: int, **options: Any) -> Any:
    """Logits without each of ``n`` sets, components alone first."""
    names = [str(each) for each in ModelShape.of(model).components]
    chosen = [[name] for name in names] + [[a, b] for a in names for b in names if a < b]
    found = ablate(
        model, chosen[:n], data, means, role="ood", batch_size=3, max_tokens=1, **options
    )
    return torch.stack([torch.from_numpy(each.logits) for each in found.without.values()])


def tree(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    return swept(model, data, means, n, engine="tree")


def restart(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    return swept(model, data, means, n, engine="restart")


def evaluation(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    mask = Mask(random_masks(n, model))
    found = evaluate(model, data, mask=mask, means=means, batch_size=3, in_domain=False)
    return torch.stack([each.logits for each in found])


def pruning_step(model: Any, data: EncodedExamples, means: MeanActivations, n: int) -> Tensor:
    settings = prune_settings("fast", precision="float32", masks_per_pass=n, batch_size=4)
    teacher = Teacher(model, data, settings)
    for _ in range(2):
        losses, gradients = teacher.kl_gradients(random_masks(n, model), means, [0, 1, 3, 2])
    return torch.cat([losses, gradients.flatten()])


WORK: dict[str, Callable[..., Tensor]] = {
    "tree": tree,
    "restart": restart,
    "evaluation": evaluation,
    "pruning step": pruning_step,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("work", WORK)
def test_the_host_waits_as_often_for_many_as_for_few(cases: Cases, family: str, work: str) -> None:
    model, data = cases.get(family).model, encoded_for(family).part(range(6))
    means = MeanActivations.compute(model, data)
    other = send_away(load_model(cases.path(family)))
    waits: dict[int, Counter[str]] = {}
    for n in (6, 12):
        expected = WORK[work](model, data, means, n)
        with faraway() as waits[n]:
            found = WORK[work](other, data, means, n)
        assert found.equal(expected)
    assert waits[12] == waits[6]
