"""Answers of several tokens against Hugging Face run on every prompt with every answer."""

from __future__ import annotations

import warnings
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from helpers import Case, Cases

from mechcore.ablation import ablate
from mechcore.components import Component, Mask
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.pruning import PruneSettings, attribution_scores
from mechcore.pruning.teacher import Teacher

ANSWERS = {"entailment": "yes", "contradiction": "no never", "neutral": "no , not often"}
"""The last two begin alike."""
TEXTS = ("the cat saw a dog", "a bird", "never", "if the dog ran who saw the bird", "yes no")


def encoded(answers: dict[str, str] = ANSWERS, prompt: str = "{a} .", **options: Any) -> Any:
    labels = ["entailment", "neutral", "contradiction", "neutral", "entailment"]
    return helpers.encoded_of(TEXTS, labels, False, prompt=prompt, answers=answers, **options)


def written(model: Any, data: EncodedExamples) -> torch.Tensor:
    """Log-probabilities of the answers, [example, answer], each read from a run of its own."""
    rows = []
    for prompt in data.input_ids:
        scores = []
        for answer in data.answers.values():
            ids = torch.tensor([[*prompt, *answer]])
            words = model(input_ids=ids).logits[0].log_softmax(-1)
            scores.append(
                torch.stack([words[len(prompt) - 1 + i, t] for i, t in enumerate(answer)]).sum()
            )
        rows.append(torch.stack(scores))
    return torch.stack(rows)


@pytest.fixture
def case64(cases: Cases) -> Case:
    return cases.get("gpt2-lm", torch.float64)


def means_of(case: Case, data: EncodedExamples) -> MeanActivations:
    return MeanActivations.compute(case.model, data, n_samples=0)


def without(case: Case, means: MeanActivations, names: str) -> Any:
    """Hugging Face's model with the outputs of components fixed to their means."""
    parts = [Component.parse(name) for name in names.split("+")]
    heads = {(c.layer, c.head): means.z[c.layer, c.head] for c in parts if c.head is not None}
    mlps = {c.layer: means.mlp[c.layer] for c in parts if c.head is None}
    return helpers.edited(case.reference, heads, mlps)


@torch.no_grad()
def test_classes_are_log_probabilities_of_whole_answers(case64: Case) -> None:
    data = encoded()
    expected = written(case64.reference, data)
    answers = evaluate(case64.model, data, batch_size=2, in_domain=False)
    torch.testing.assert_close(answers.logits.double(), expected, rtol=0, atol=1e-5)
    assert expected.std(0).min() > 0.01
    for i, right in enumerate([0, 2, 1, 2, 0]):
        others = torch.cat([expected[i, :right], expected[i, right + 1 :]]).logsumexp(0)
        assert answers.margin[i] == pytest.approx(float(expected[i, right] - others), abs=1e-5)


@pytest.mark.parametrize("engine", ["tree", "restart", "reference"])
def test_sweeps_score_the_answers_of_the_edited_model(case64: Case, engine: Any) -> None:
    data, names = encoded(), ["L0.H1", "L1.MLP", "L0.MLP+L1.H0"]
    means = means_of(case64, data)
    swept = ablate(case64.model, names, data, means, split="ood", engine=engine, batch_size=2)
    for cut, answers in swept.without.items():
        with torch.no_grad():
            expected = written(without(case64, means, str(cut)), data).numpy()
        np.testing.assert_allclose(answers.logits, expected, rtol=0, atol=1e-5)


def test_masks_learn_from_the_distribution_over_answers(case64: Case) -> None:
    data = encoded()
    means = means_of(case64, data)
    teacher = Teacher(case64.model, data, PruneSettings(batch_size=2))
    values = Mask.full(case64.model).without("0.1", "1.mlp").values.double()[None]
    rows = [3, 0]
    (loss,), _ = teacher.kl_gradients(values, means, rows)
    with torch.no_grad():
        full = written(case64.reference, data)[rows].log_softmax(-1)
        got = written(without(case64, means, "L0.H1+L1.MLP"), data)[rows].log_softmax(-1)
    expected = (full.exp() * (full - got)).sum(-1).mean()
    assert expected > 1e-4
    torch.testing.assert_close(loss.double(), expected, rtol=0, atol=1e-6)


def test_attribution_adds_up_the_slopes_of_an_answers_tokens(case64: Case) -> None:
    data = encoded()
    means = means_of(case64, data)
    total = torch.zeros(2, 5, dtype=torch.float64)
    for i in range(len(TEXTS)):
        leaf = torch.ones(2, 5, dtype=torch.float64, requires_grad=True)
        with masked(case64.model, Mask(leaf), means) as run:

            def logits(input_ids: torch.Tensor, run: Any = run) -> Any:
                return type("Out", (), {"logits": run({"input_ids": input_ids})})

            scores = written(logits, data.part([i]))[0]
        others = torch.cat([scores[: scores.argmax()], scores[scores.argmax() + 1 :]])
        (slope,) = torch.autograd.grad(scores.max() - others.logsumexp(0), leaf)
        total += slope.abs()
    slopes = attribution_scores(case64.model, data, means, batch_size=3)
    torch.testing.assert_close(slopes.double(), total / len(TEXTS), rtol=0, atol=1e-6)


def test_the_longest_answer_needs_room_after_the_prompt() -> None:
    longest = max(map(len, encoded().input_ids))
    assert len(encoded(max_length=longest + 3).input_ids) == len(TEXTS)
    with pytest.raises(InputError, match=f"1 of 5 prompts are longer than {longest - 1} tokens"):
        encoded(max_length=longest + 2)


def test_prompts_and_answers_that_a_tokenizer_joins_are_refused() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {
        word: i
        for i, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "##s", "##no"])
    }
    for word in helpers.WORDS:
        vocabulary.setdefault(word, len(vocabulary))
    pieces = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    pieces.pre_tokenizer = Whitespace()
    tokenizer = helpers.bert_like(pieces, segments=False)
    answers = {"entailment": "no yes", "other": "yes"}
    joined = (
        r"answer 'no yes' of label 'entailment': is \['no', 'yes'\] alone, but .*'##no', 'yes'\]"
    )
    with pytest.raises(InputError, match=joined + "; expected the same tokens: move the space"):
        encoded(answers, "{a} so the cat", tokenizer=tokenizer)
    alone = {"entailment": "no", "other": "yes"}  # of one token each, "no" read as "##no"
    with pytest.warns(MechcoreWarning, match=r"answer 'no' of label 'entailment': is \['no'\] al"):
        encoded(alone, "{a} so the cat", tokenizer=tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MechcoreWarning)
        encoded(alone, "{a} so the cat ", tokenizer=tokenizer)
    encoded(answers, "{a} so the cat ", tokenizer=tokenizer)
