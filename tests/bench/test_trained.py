"""The trained cases: they load, and what is said to be true of them is."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from mechcore.ablation.effects import ComponentSet
from mechcore.bench import siit
from mechcore.bench.case import Case
from mechcore.bench.library import PROGRAMS
from mechcore.bench.programs import values_of
from mechcore.bench.trained import (
    LARGEST_CHANGE,
    MEASURED_FILE,
    case_dir,
    failures,
    make,
    measure,
    trained_case,
)
from mechcore.components import ComponentLike, Mask, ModelShape
from mechcore.errors import InputError, MechcoreError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_tokenizer

FRESH = 7
LARGEST_FILE = 250_000


@pytest.fixture(scope="module", params=PROGRAMS)
def case(request: pytest.FixtureRequest) -> Case:
    return trained_case(request.param, seed=FRESH)


def test_it_implements_its_program_on_fresh_texts(case: Case) -> None:
    folder = case_dir(case.name)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    found = measure(model, load_tokenizer(folder), PROGRAMS[case.name], n=150, seed=FRESH)
    assert failures(found) == []
    stored = json.loads((folder / MEASURED_FILE).read_text())["measured"]
    assert failures(stored) == []
    assert list(stored) == list(found) == list(case.data)


def test_the_bridge_answers_as_the_plain_model(case: Case) -> None:
    folder = case_dir(case.name)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    found = evaluate(case.model, case.data["train"])
    for batch in case.data["train"].batches(by_length=False):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            expected = model(**inputs).logits
        torch.testing.assert_close(found.logits[batch["index"]], expected, atol=1e-4, rtol=1e-4)
    assert found.accuracy > 0.99
    assert (folder / "model.safetensors").stat().st_size < LARGEST_FILE


def test_ablations_by_the_package_cost_what_the_truth_says(case: Case) -> None:
    shape, program, truth = ModelShape.of(case.model), PROGRAMS[case.name], case.truth
    means = MeanActivations.compute(case.model, case.data["train"])
    full = {role: evaluate(case.model, data).margin for role, data in case.data.items()}

    def drops(*off: ComponentLike, role: str = "id") -> np.ndarray:
        mask = Mask.full(shape).without(*off)
        return full[role] - evaluate(case.model, case.data[role], mask=mask, means=means).margin

    others = [c for c in shape.components if c not in truth.components]
    for role, data in case.data.items():
        for off in (*([c] for c in others), others):
            assert np.abs(drops(*off, role=role)).max() < 2 * LARGEST_CHANGE
        slots = values_of(program.texts(role, len(data), FRESH))
        right = program.run(slots)[program.answer]
        for variable in program.variables:
            lost = 1 - right * program.without(slots, [variable.name])
            found = drops(variable.component, role=role)
            np.testing.assert_allclose(found.mean(), siit.MARGIN * lost.float().mean(), atol=0.15)
    assert truth.interactions is not None
    for pair in combinations(sorted(truth.components), 2):
        size = drops(*pair).mean() - sum(drops(each).mean() for each in pair)
        assert abs(size - truth.interactions.get(ComponentSet.of(pair), 0.0)) < 0.4, (pair, size)
    if truth.core is not None:
        idle = [c for c in shape.components if c not in truth.core]
        assert np.abs(drops(*idle)).max() < 2 * LARGEST_CHANGE
        assert all(drops(component).mean() > 0.5 for component in truth.core)


def test_pairs_are_as_long_and_answer_otherwise(case: Case) -> None:
    for role, data in case.data.items():
        pairs = case.pairs[role]
        assert [len(ids) for ids in pairs.input_ids] == [len(ids) for ids in data.input_ids]
        assert (pairs.examples.frame["label"] != data.examples.frame["label"]).all()
        assert evaluate(case.model, pairs).accuracy > 0.99
        subsets = {"all"} if "ood" not in case.data else {"typical", "untypical"}
        assert set(data.examples.subset_names) <= subsets


def test_the_same_seed_gives_the_same_data() -> None:
    sizes = {"train": 20, "id": 10, "ood": 10}
    one, same, other = (trained_case("copy", seed=seed, sizes=sizes) for seed in (1, 1, 2))
    assert {role: len(data) for role, data in one.data.items()} == {"train": 20, "id": 10}
    assert one.data["id"].fingerprint == same.data["id"].fingerprint
    assert one.data["id"].fingerprint != other.data["id"].fingerprint
    assert one.pairs["id"].fingerprint == same.pairs["id"].fingerprint
    assert str(one) == "Case(copy, 1 of 10 components true)"


def test_a_model_that_does_not_implement_its_program_is_not_saved(tmp_path: Path) -> None:
    out = tmp_path / "copy"
    with pytest.raises(MechcoreError, match=r"case copy: train: accuracy of answers is 0\.\d+"):
        make("copy", out, steps=1)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(InputError, match="exists; expected a folder to create"):
        make("copy", out, steps=1)
    for unknown in (trained_case, lambda name: make(name, tmp_path / "new")):
        with pytest.raises(InputError, match="'xor': not found; there are copy, conjunction"):
            unknown("xor")
