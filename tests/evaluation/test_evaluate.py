"""Accuracy, margins and intervals against written-out numbers and Hugging Face's own answers."""

import importlib
import math
import warnings
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from helpers import Case, Cases, close, encoded_of, padded, reference_logits, texts

from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.evaluation.evaluate import (
    Evaluation,
    evaluate,
    kl,
    paired_change,
)
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model

PAIRS = [
    ("the cat saw a dog", "the cat saw"),
    ("a bird ran", "the bird ran quickly , and a cat saw the dog"),
    ("never", "often"),
    ("the dog who saw a cat ran here", "no"),
    ("if a bird ran the dog saw a cat", "the cat never ran"),
    ("yes", "no , not here"),
    ("a dog ran", "a dog ran"),
]


def encoded(labels: list[str], segments: bool = True, **options: Any) -> EncodedExamples:
    return encoded_of(PAIRS[: len(labels)], labels, segments, **options)


def plain_logits(reference: Any, data: EncodedExamples) -> torch.Tensor:
    """One example after the other through Hugging Face."""
    logits = []
    for i, ids in enumerate(data.input_ids):
        inputs = {"input_ids": torch.tensor([ids])}
        if data.token_type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
        with torch.no_grad():
            logits.append(reference(**inputs).logits)
    return torch.cat(logits)


def by_hand() -> Evaluation:
    logits = [[2.0, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 5.0, 0.0], [1.0, 0.0, 0.5]]
    correct = [[1, 0, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1]]
    return Evaluation(
        torch.tensor(logits),
        torch.tensor(correct).bool(),
        np.array(["b", "b", "a", "b"], dtype=object),
        "mapping",
    )


MARGINS = [
    2 - math.log(2),  # e^2 against e^0 + e^0
    math.log(1 + math.e**3) - 1,  # e^0 + e^3 against e^1
    math.log(2) - 5,  # e^0 + e^0 against e^5
    math.log(1 + math.e**0.5) - 1,  # e^0 + e^.5 against e^1
]


def test_accuracy_and_margin_by_hand() -> None:
    result = by_hand()
    assert result.correct.tolist() == [True, True, False, False]
    assert result.accuracy == 0.5
    np.testing.assert_allclose(result.margin, MARGINS, rtol=1e-6)
    np.testing.assert_allclose(MARGINS, [1.306853, 2.048587, -4.306853, -0.025923], atol=1e-6)
    # Guessing is right with 1/3, 2/3, 2/3, 2/3.
    assert result.chance == pytest.approx((1 + 2 + 2 + 2) / 12)


def test_tables_by_hand() -> None:
    result = by_hand()
    assert result.subset_names == ["b", "a"]
    assert result.macro_accuracy == pytest.approx((2 / 3 + 0) / 2)
    table = result.table().set_index("subset")
    assert list(table.index) == ["b", "a", "all"]
    assert table["n"].tolist() == [3, 1, 4]
    assert table["accuracy"].tolist() == pytest.approx([2 / 3, 0, 0.5])
    b = (MARGINS[0] + MARGINS[1] + MARGINS[3]) / 3
    assert table["margin"].tolist() == pytest.approx([b, MARGINS[2], sum(MARGINS) / 4])


def test_kl_divergence_by_hand() -> None:
    def of(probabilities: list[float]) -> Evaluation:
        logits = torch.tensor([probabilities]).log() + 7  # a constant changes nothing
        return Evaluation(logits, torch.tensor([[True, False, False]]), np.array(["s"]), "")

    p, q = of([0.5, 0.25, 0.25]), of([0.25, 0.25, 0.5])
    # .5 ln(.5/.25) + .25 ln(.25/.25) + .25 ln(.25/.5) = .25 ln 2
    assert kl(p.logits, q.logits).tolist() == pytest.approx([0.25 * math.log(2)], abs=1e-6)
    assert kl(p.logits, p.logits).tolist() == pytest.approx([0], abs=1e-12)


LABELS = [
    "entailment",
    "neutral",
    "contradiction",
    "entailment",
    "neutral",
    "neutral",
    "entailment",
]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_logits_come_back_in_the_order_of_the_examples(case: Case, batch_size: int) -> None:
    data = encoded(LABELS, segments=case.architecture == "bert")
    order = [i for batch in data.batches(batch_size) for i in batch["index"].tolist()]
    assert order != list(range(7))
    result = evaluate(case.model, data, batch_size=batch_size, in_domain=False)
    expected = plain_logits(case.reference, data)
    close(result.logits, expected)
    indices = [helpers.CLASSES.index(label) for label in LABELS]
    np.testing.assert_array_equal(result.correct, (expected.argmax(1) == torch.tensor(indices)))
    log_p = expected.double().log_softmax(1)[range(7), indices]
    margin = log_p - (1 - log_p.exp()).log()
    np.testing.assert_allclose(result.margin, margin, atol=1e-4)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_never_changes_an_evaluation_of_plain_batches(case: Case, side: str) -> None:
    rows = texts()
    labels = torch.tensor([0, 1, 2, 1, 0])
    batches = [
        {**padded(rows[:3], side, extra=4, noise=1), "labels": labels[:3]},
        {**padded(rows[3:], side, noise=2), "labels": labels[3:].tolist()},
    ]
    result = evaluate(case.model, iter(batches), in_domain=False)
    expected = reference_logits(case.reference, rows)
    close(result.logits, expected)
    np.testing.assert_array_equal(result.correct, expected.argmax(1) == labels)
    assert result.mapping == "0 -> contradiction; 1 -> entailment; 2 -> neutral"
    assert result.table()["subset"].tolist() == ["all"]


@pytest.mark.parametrize("permutation", [(1, 2, 0), (2, 1, 0)])
def test_the_order_of_the_classes_in_a_checkpoint_does_not_matter(
    cases: Cases, tmp_path: Path, permutation: tuple[int, ...]
) -> None:
    reference = cases.get("bert").reference
    model = helpers.hf_classifier("bert", [helpers.CLASSES[i] for i in permutation])
    model.load_state_dict(reference.state_dict())
    with torch.no_grad():
        model.classifier.weight.copy_(reference.classifier.weight[list(permutation)])
        model.classifier.bias.copy_(reference.classifier.bias[list(permutation)])
    model.save_pretrained(tmp_path)
    data = encoded(["Entailment", "non-entailment", *LABELS[2:]])
    before = evaluate(cases.get("bert").model, data, in_domain=False)
    after = evaluate(load_model(tmp_path), data, in_domain=False)
    np.testing.assert_array_equal(after.correct, before.correct)
    np.testing.assert_allclose(after.margin, before.margin, atol=1e-5)
    close(after.logits, before.logits[:, list(permutation)])


def worst_and_best_labels(case: Case) -> tuple[list[str], list[str]]:
    logits = plain_logits(case.reference, encoded(LABELS))
    return (
        [helpers.CLASSES[i] for i in logits.argmin(1)],
        [helpers.CLASSES[i] for i in logits.argmax(1)],
    )


def test_an_in_domain_accuracy_under_chance_warns_and_names_the_mapping(cases: Cases) -> None:
    case = cases.get("bert")
    worst, _ = worst_and_best_labels(case)
    with pytest.warns(MechcoreWarning, match=r"accuracy 0\.000 is under chance \(0\.333\)") as seen:
        result = evaluate(case.model, encoded(worst))
    assert result.accuracy == 0
    assert len(seen) == 1
    for label in set(worst):
        assert f"{label} -> {label} ({helpers.CLASSES.index(label)})" in str(seen[0].message)
    assert "in_domain=False" in str(seen[0].message)
    assert seen[0].filename == __file__


def test_no_warning_where_an_accuracy_under_chance_is_a_finding(cases: Cases) -> None:
    case = cases.get("bert")
    worst, best = worst_and_best_labels(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(case.model, encoded(worst), in_domain=False).accuracy == 0
        assert evaluate(case.model, encoded(best)).accuracy == 1
        mask = Mask.full(case.model)
        assert evaluate(case.model, encoded(worst), mask=mask, fill="zero").accuracy == 0


def test_classes_can_be_renamed(cases: Cases) -> None:
    case = cases.get("bert")
    _, best = worst_and_best_labels(case)
    spoken = {"contradiction": "no", "entailment": "yes", "neutral": "maybe"}
    data = encoded([spoken[label] for label in best])
    assert evaluate(case.model, data, class_names=["no", "yes", "maybe"]).accuracy == 1
    with pytest.warns(MechcoreWarning, match="the checkpoint's own names in another order"):
        evaluate(case.model, encoded(best), class_names=helpers.CLASSES[::-1], in_domain=False)
    with pytest.raises(InputError, match=r"2 given \(a, b\), but the checkpoint has 3 classes"):
        evaluate(case.model, data, class_names=["a", "b"])
    with pytest.raises(InputError, match="not a class of the checkpoint"):
        evaluate(case.model, data)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "no labels; expected 5 class indices"),
        (torch.tensor([0, 1, 2, 0, 3]), "labels are from 0 to 3; expected 5 .*, 0 to 2"),
        (torch.tensor([0, 1, 2, 0, -1]), "labels are from -1 to 2"),
        (torch.tensor([0, 1]), r"labels are torch.int64 of shape \(2,\)"),
        (torch.tensor([0.2, 1.7, 2.0, 0.9, 0]), "labels are torch.float32 .* whole numbers"),
        ([0.0, 1.0, 2.0, 0.0, 1.0], "labels are torch.float32 .* whole numbers"),
        (torch.zeros(5, dtype=torch.bfloat16), "labels are torch.bfloat16 .* whole numbers"),
        (torch.zeros(5, 2).long(), r"labels are torch.int64 of shape \(5, 2\)"),
    ],
)
def test_labels_that_cannot_be_read(cases: Cases, labels: Any, message: str) -> None:
    batch = {**padded(texts()), "labels": labels}
    with pytest.raises(InputError, match=message):
        evaluate(cases.get("bert").model, batch)


@pytest.mark.parametrize("fill", ["mean", "zero"])
@pytest.mark.parametrize("max_rows", [1024, 4])
def test_masked_evaluations_are_those_of_masked_forwards(
    case: Case, fill: Any, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("mechcore.evaluation.evaluate"), "MAX_ROWS", max_rows
    )
    data = encoded(LABELS, segments=case.architecture == "bert")
    means = MeanActivations.compute(case.model, data, n_samples=0)
    values = torch.rand(5, 2, 5, generator=torch.Generator().manual_seed(3))
    masks = Mask(values)
    options = {"means": means, "fill": fill, "batch_size": 2, "in_domain": False}
    together = evaluate(case.model, data, mask=masks, **options)
    assert len(together) == 5
    one = evaluate(case.model, data, mask=masks[1], **options)
    close(together[1].logits, one.logits)
    with torch.no_grad(), masked(case.model, masks, means, fill) as run:
        for i, ids in enumerate(data.input_ids):
            batch = {"input_ids": torch.tensor([ids])}
            if data.token_type_ids is not None:
                batch["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
            expected = run(batch)[:, 0]
            close(torch.stack([result.logits[i] for result in together]), expected)
    assert all(result.mapping == one.mapping for result in together)


PROMPT = "{a} , {b} ."
ANSWERS = {"entailment": "yes", "contradiction": "no", "neutral": "never"}


def test_answers_of_a_language_model_are_read_after_the_prompt(cases: Cases) -> None:
    labels = ["entailment", "non-entailment", *LABELS[2:]]
    case, data = cases.get("gpt2-lm"), encoded(labels, prompt=PROMPT, answers=ANSWERS)
    result = evaluate(case.model, data, batch_size=3, in_domain=False)
    rows = [torch.tensor(ids) for ids in data.input_ids]
    vocabulary = helpers.word_tokenizer().get_vocab()
    tokens = [vocabulary[word] for word in ("yes", "no", "never")]
    expected = reference_logits(case.reference, rows)[:, tokens]
    close(result.logits, expected)
    wanted = [{0}, {1, 2}, {1}, {0}, {2}, {2}, {0}]
    assert [set(row.nonzero().flatten().tolist()) for row in result.correct_classes] == wanted
    best = expected.argmax(1).tolist()
    assert result.correct.tolist() == [i in w for i, w in zip(best, wanted, strict=True)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_answers_are_read_at_the_last_real_position(cases: Cases, side: str) -> None:
    case, rows = cases.get("gpt2-lm"), texts()
    labels = torch.tensor([5, 39, 0, 17, 2])
    batch = {**padded(rows, side, extra=3, noise=7), "labels": labels}
    result = evaluate(case.model, batch, in_domain=False)
    expected = reference_logits(case.reference, rows)
    assert result.logits.shape == (5, helpers.VOCABULARY)
    close(result.logits, expected)
    np.testing.assert_array_equal(result.correct, expected.argmax(1) == labels)
    assert evaluate(case.model, {**batch, "labels": expected.argmax(1)}).accuracy == 1


def test_a_language_model_needs_answers(cases: Cases) -> None:
    with pytest.raises(InputError, match="needs answer words for the labels"):
        evaluate(cases.get("gpt2-lm").model, encoded(LABELS))


@pytest.mark.hooked
def test_a_masked_language_model_has_no_answer_position() -> None:
    with pytest.raises(InputError, match="HookedEncoder is a masked language model"):
        evaluate(helpers.hooked_encoder(), {**padded(texts()), "labels": torch.zeros(5).long()})


def hand_made(correct: list[bool]) -> Evaluation:
    """Two classes, the first one right; its logit is 1 above or below the other's."""
    logits = torch.tensor([[1.0, 0.0] if right else [0.0, 1.0] for right in correct])
    flags = torch.tensor([[True, False]] * len(correct))
    return Evaluation(logits, flags, np.full(len(correct), "all", dtype=object), "hand-made")


def test_paired_change_is_the_difference_of_the_metrics():
    full, other = hand_made([True, True, True, False]), hand_made([True, False, False, False])
    change = paired_change(full, other)
    assert change.mean == pytest.approx(0.25 - 0.75)
    assert -1 <= change.low < change.mean < 0 < change.high < 1  # of four answers two change
    # Two of four margins fall from +1 to -1.
    assert paired_change(full, other, "margin").mean == pytest.approx(-2 * 2 / 4)
    same = paired_change(full, full, "margin")
    assert (same.mean, same.low, same.high) == (0, 0, 0)


def test_other_examples_and_an_unknown_metric_are_refused():
    full = hand_made([True] * 4)
    with pytest.raises(InputError, match="4 and 3 examples"):
        paired_change(full, hand_made([True] * 3))
    for call in (lambda: paired_change(full, full, "Accuracy"), lambda: full.values("acc")):
        with pytest.raises(InputError, match="expected 'accuracy' or 'margin'"):
            call()
