"""The trained cases: they load, and what is said to be true of them is."""

from itertools import combinations

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from mechcore.ablation.sets import ComponentSet
from mechcore.bench.case import Case
from mechcore.bench.cases import TRAINED, case_dir, trained_case, trained_truth
from mechcore.components import Component, ComponentLike, Mask, ModelShape
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations

FRESH = 7
LARGEST_CHANGE = 1.0  # nats, of components that matter to no answer
LARGEST_FILE = 250_000


@pytest.fixture(scope="module", params=TRAINED)
def case(request: pytest.FixtureRequest) -> Case:
    return trained_case(request.param, seed=FRESH)


def test_the_bridge_answers_as_the_plain_model(case: Case) -> None:
    folder = case_dir(case.name)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    answers = evaluate(case.model, case.data["train"])
    for batch in case.data["train"].batches():
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            expected = model(**inputs).logits
        torch.testing.assert_close(answers.logits[batch["index"]], expected, atol=1e-4, rtol=1e-4)
    assert answers.accuracy > 0.99
    assert (folder / "model.safetensors").stat().st_size < LARGEST_FILE
    for data in case.data.values():
        subsets = {"all"} if "ood" not in case.data else {"typical", "untypical"}
        assert set(data.examples.subset_names) <= subsets


def test_ablations_by_the_package_cost_what_the_truth_says(case: Case) -> None:
    shape, truth = ModelShape.of(case.model), case.truth
    means = MeanActivations.compute(case.model, case.data["train"])
    full = {split: evaluate(case.model, data).margin for split, data in case.data.items()}

    def changes(*off: ComponentLike, split: str = "id") -> np.ndarray:
        mask = Mask.full(shape).without(*off)
        return evaluate(case.model, case.data[split], mask=mask, means=means).margin - full[split]

    others = [c for c in shape.components if c not in truth.components]
    for split in case.data:
        for off in (*([c] for c in others[::4]), others):
            assert np.abs(changes(*off, split=split)).max() < LARGEST_CHANGE
    assert truth.interactions is not None
    for pair in combinations(sorted(truth.components), 2):
        size = changes(*pair).mean() - sum(changes(part).mean() for part in pair)
        assert abs(size - truth.interactions.get(ComponentSet.of(pair), 0.0)) < 0.4, (pair, size)
    if truth.core is not None:
        idle = [c for c in shape.components if c not in truth.core]
        assert np.abs(changes(*idle)).max() < LARGEST_CHANGE
        assert all(changes(component).mean() < -0.5 for component in truth.core)


def test_truths() -> None:
    def names(components: frozenset[Component] | None) -> set[str] | None:
        return None if components is None else set(map(str, components))

    def written(name: str) -> tuple[object, ...]:
        truth = trained_truth(name)
        assert truth.interactions is not None
        sizes = {str(pair): pytest.approx(size) for pair, size in truth.interactions.items()}
        return names(truth.components), sizes, names(truth.core), names(truth.generalising)

    # An answer is worth 4 nats.
    assert written("copy") == ({"L1.H2"}, {}, {"L1.H2"}, None)
    # Either head suffices; without the MLP nothing more can be lost, but neither can by a head.
    assert written("backup") == ({"L0.H0", "L1.H2", "L1.MLP"}, {"L0.H0+L1.H2": -4.0}, None, None)
    # Alone each head costs 2/3 and the MLP all, and any two of them together cost all.
    series = {"L0.H1+L0.H3": 4 / 3, "L0.H1+L1.MLP": 8 / 3, "L0.H3+L1.MLP": 8 / 3}
    both = {"L0.H1", "L0.H3", "L1.MLP"}
    assert written("conjunction") == (both, series, both, None)
    # In domain the comparison is idle: the heuristic and what reads it are the core.
    core, comparison = {"L2.H0", "L2.MLP"}, {"L0.H1", "L0.H2", "L1.MLP"}
    series = {"L2.H0+L2.MLP": 4.0}
    assert written("heuristic") == (core | comparison, series, core, comparison)
