"""Checkpoints that number the same classes differently."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from mechcore.data.encoding import encode
from mechcore.data.examples import Examples
from mechcore.data.readers import read_examples
from mechcore.evaluation.evaluate import evaluate
from mechcore.models import load_model, load_tokenizer
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir


def plain(path: Path) -> Any:
    """The checkpoint as transformers reads it."""
    return hf.AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()


def renumbered(path: Path, order: Sequence[int], folder: Path) -> Path:
    """The checkpoint with class ``order[i]`` as class ``i``, in its head and in its names."""
    model, tokenizer = plain(path), load_tokenizer(path)
    names = [model.config.id2label[i] for i in order]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight[list(order)])
        model.classifier.bias.copy_(model.classifier.bias[list(order)])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def expected(path: Path, examples: Examples) -> list[bool]:
    """Whether transformers' answer, by its own name, is the label, example by example."""
    model, tokenizer = plain(path), load_tokenizer(path)
    right = []
    for row in examples.frame.itertuples():
        logits = model(**tokenizer(row.text_a, row.text_b, return_tensors="pt")).logits[0]
        answer = model.config.id2label[int(logits.argmax())]
        wanted = str(row.label)
        negated = wanted.removeprefix("non-")
        right.append(answer != negated if negated != wanted else answer == wanted)
    return right


def correct(path: Path, examples: Examples) -> list[bool]:
    data = encode(examples, load_tokenizer(path), max_length=128, truncate=False)
    return evaluate(load_model(path), data, in_domain=False).correct.tolist()


def test_a_trained_classifier_whose_classes_are_swapped(tmp_path: Path) -> None:
    examples = tiny_world.generate("id", 60, 5)
    right = expected(tiny_encoder_dir(), examples)
    assert sum(right) / len(right) > 0.8
    swapped = renumbered(tiny_encoder_dir(), (1, 0), tmp_path)
    assert correct(swapped, examples) == right == correct(tiny_encoder_dir(), examples)


@pytest.mark.real
@pytest.mark.once
@pytest.mark.parametrize("order", [(2, 0, 1), (1, 0, 2)])
def test_a_real_classifier_whose_classes_are_renumbered(
    real_data: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    path = real_data / "models" / "minilm-nli"
    changed = renumbered(path, order, tmp_path)
    files = real_data / "data"
    sources = [files / "mnli_dev_matched.tsv.gz", files / "hans_validation.tsv.gz"]
    for source, lowest in zip(sources, (0.55, 0.4), strict=True):
        examples = read_examples(source).sample(24, seed=1)
        right = expected(path, examples)
        assert sum(right) / len(right) > lowest
        assert correct(changed, examples) == right
