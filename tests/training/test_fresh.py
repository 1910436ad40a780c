"""New models: heads, classes, vocabularies; trained, stored and read again by every part."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
from helpers import CLASSES, FEW, WORDS, hf_classifier, word_tokenizer
from models.checkpoints import change_config
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from training.builders import train_classifier

from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model
from mechcore.models.protocol import forward
from mechcore.training import (
    TrainSettings,
    accuracies,
    classification,
    new_model,
)
from mechcore.worlds.embedded import tiny_decoder_dir

SETTINGS = TrainSettings(
    steps=3, learning_rate=1e-2, batch_size=4, evaluate_every=9, checkpoint_every=9
)


def examples(n: int = 12) -> Examples:
    """Texts of different lengths whose label depends on one word."""
    rows = [
        (" ".join(WORDS[: 3 + i % 4]), f"a {('yes', 'no', 'if')[i % 3]} cat", CLASSES[i % 3], "all")
        for i in range(n)
    ]
    return Examples("words", pd.DataFrame(rows, columns=["text_a", "text_b", "label", "subset"]))


def no_padding_tokenizer() -> hf.PreTrainedTokenizerFast:
    """As GPT-2's: an end-of-text token, and none for padding."""
    names = ["<|endoftext|>", *WORDS]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(names)}, unk_token=names[0]))
    tokenizer.pre_tokenizer = Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[0])


def save_body(architecture: str, folder: Path) -> dict[str, torch.Tensor]:
    """A pretrained model without a head; returns its weights."""
    model = hf_classifier(architecture)
    body = model.base_model
    causal = architecture != "bert"
    body.config.pad_token_id = None if causal else body.config.pad_token_id
    body.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    body.save_pretrained(folder)
    (no_padding_tokenizer() if causal else word_tokenizer()).save_pretrained(folder)
    return dict(body.state_dict())


@pytest.mark.parametrize("architecture", FEW)
def test_a_new_head_on_a_pretrained_body(architecture: str, tmp_path: Path) -> None:
    body = save_body(architecture, tmp_path / "base")
    model, tokenizer = new_model(tmp_path / "base", classes=CLASSES, seed=0)
    assert model.config.id2label == dict(enumerate(CLASSES))
    assert model.config.label2id == {name: i for i, name in enumerate(CLASSES)}
    assert model.config.pad_token_id == tokenizer.pad_token_id is not None
    assert model.dtype == torch.float32
    kept = model.base_model.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in body.items() if name in kept)
    assert {name.split(".")[0] for name in body.keys() - kept.keys()} <= {"pooler"}
    again, _ = new_model(tmp_path / "base", classes=CLASSES, seed=0)
    other, _ = new_model(tmp_path / "base", classes=CLASSES, seed=1)
    weights, seed1 = again.state_dict(), other.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    changed = {n.split(".")[0] for n, v in weights.items() if not torch.equal(v, seed1[n])}
    assert changed == {"classifier" if architecture == "bert" else "score"}

    data = examples()
    train_classifier(model, tokenizer, data, {"id": data}, tmp_path / "run", SETTINGS)
    final = tmp_path / "run" / "final"
    reference = hf.AutoModelForSequenceClassification.from_pretrained(final).eval()
    read = load_model(final)
    batch = classification(reference, tokenizer).encode(data).rows(range(len(data)))
    names = ["input_ids", *["token_type_ids"] * (architecture == "bert")]
    with torch.no_grad():
        logits = forward(read, batch)
        for i, n in enumerate(batch["attention_mask"].sum(1).tolist()):
            alone = reference(**{name: batch[name][i : i + 1, :n] for name in names}).logits[0]
            torch.testing.assert_close(logits[i], alone, atol=1e-5, rtol=1e-5)


def test_from_scratch_takes_nothing_but_configuration_and_tokenizer(tmp_path: Path) -> None:
    body = save_body("bert", tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").unlink()
    name = "bert.encoder.layer.0.attention.self.query.weight"
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (
        new_model(tmp_path / "base", classes=CLASSES, from_scratch=True, seed=seed)[0].state_dict()
        for seed in (3, 3, 4)
    )
    assert torch.equal(torch.rand(3), expected)  # the caller's random numbers are left alone
    assert first[name].shape == body[name.removeprefix("bert.")].shape
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert float(first[name].std()) == pytest.approx(0.02, rel=0.3)  # BERT's initializer_range


def save_classifier(folder: Path, classes: tuple[str, ...] = CLASSES) -> Any:
    model = hf_classifier("bert", classes)
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return model


def test_a_head_for_the_same_classes_is_kept_in_its_order(tmp_path: Path) -> None:
    order = [2, 0, 1]
    names = tuple(CLASSES[i] for i in order)
    straight = save_classifier(tmp_path / "straight")
    turned = save_classifier(tmp_path / "turned", names)
    turned.load_state_dict(straight.state_dict())
    with torch.no_grad():
        turned.classifier.weight.copy_(straight.classifier.weight[order])
        turned.classifier.bias.copy_(straight.classifier.bias[order])
    turned.save_pretrained(tmp_path / "turned")
    data, results = examples(), []
    for name in ("straight", "turned"):
        wanted = ["Entailment", "NEUTRAL", "contradiction"]
        model, tokenizer = new_model(tmp_path / name, classes=wanted, seed=0)
        objective = classification(model, tokenizer)
        before = accuracies(model, objective, objective.encode(data))
        history = train_classifier(
            model.train(), tokenizer, data, {"id": data}, tmp_path / f"{name}-run", SETTINGS
        )
        results.append((before, history["accuracy"].tolist(), history["loss"].tolist()))
        stored = hf.AutoConfig.from_pretrained(tmp_path / f"{name}-run" / "final").id2label
        assert list(stored.values()) == list(CLASSES if name == "straight" else names)
    assert results[0][:2] == results[1][:2]
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-4)
    model, _ = new_model(tmp_path / "turned", seed=0)
    assert list(model.config.id2label.values()) == list(names)


@pytest.mark.parametrize("names", [CLASSES, ("LABEL_0", "LABEL_1"), ("a", "b", "c", "d")])
def test_a_head_for_other_classes_is_replaced(names: tuple[str, ...], tmp_path: Path) -> None:
    old = save_classifier(tmp_path, names)
    with pytest.warns(MechcoreWarning, match="replaced by a new one for x, y, z"):
        model, again = (new_model(tmp_path, classes=["x", "y", "z"], seed=0)[0] for _ in range(2))
    head = model.classifier.weight
    assert head.shape == (3, 16)
    assert torch.equal(head, again.classifier.weight)
    assert float(head.detach().std()) == pytest.approx(0.02, rel=0.5)  # the old one has 0.3
    kept = old.bert.state_dict()
    assert all(torch.equal(v, kept[n]) for n, v in model.bert.state_dict().items())


def refused(base: Path, message: str, **options: Any) -> None:
    """No model with the three classes, or with other options, can be made of the base."""
    with pytest.raises(InputError, match=message):
        new_model(base, **{"classes": CLASSES, "seed": 0} | options)


def test_bases_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    save_body("bert", bert)
    refused(bert, "names no classes; give the classes to learn", classes=None)
    refused(bert, "numbers have no agreed meaning", classes=["0", "1"])
    refused(bert, "expected at least two different names", classes=["non-x", "Non X"])
    message = "has no causal language model; leave out the prompt"
    refused(bert, message, classes=None, prompt="{a}")
    refused(tiny_decoder_dir(), "give only one of them", prompt="{a}")
    refused(tmp_path / "gone", "no such directory")
    refused(bert, "device gpu: expected cpu, cuda or mps", device="gpu")
    config = json.loads((bert / "config.json").read_text())
    change_config(bert, vocab_size=20)
    refused(bert, "its tokenizer has token 23, its model only 20")
    change_config(bert, **config)
    gone = "encoder.layer.1.output.dense.weight"
    lose(bert, gone)
    refused(bert, f"lack the weights bert.{gone} of Bert")
    hf.BigBirdConfig(vocab_size=40).save_pretrained(bert)
    refused(bert, "mechcore reads no classifiers of the family 'big_bird'")


def lose(folder: Path, part: str) -> None:
    """Take the weights with this in their names away."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if part not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_layers_of_a_base_that_are_left_out_are_reported(kind: str, tmp_path: Path) -> None:
    getattr(hf, kind)(hf_classifier("bert").config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MechcoreWarning)
        new_model(tmp_path, classes=CLASSES, seed=0)
    change_config(tmp_path, num_hidden_layers=1)
    with pytest.warns(MechcoreWarning, match=r"does not read the weights .*encoder\.layer\.1\."):
        new_model(tmp_path, classes=CLASSES, seed=0)


def test_a_head_that_is_kept_is_never_made_up(tmp_path: Path) -> None:
    save_classifier(tmp_path, (*CLASSES, "other"))
    change_config(tmp_path, id2label=dict(enumerate(CLASSES)))
    refused(tmp_path, r"classifier.bias has \[4\], not \[3\]")
    lose(tmp_path, "classifier")
    refused(tmp_path, r"lack the weights classifier\.bias, classifier\.weight")


def test_a_base_whose_names_contradict_each_other(tmp_path: Path) -> None:
    save_classifier(tmp_path)
    change_config(tmp_path, label2id={name: 2 - i for i, name in enumerate(CLASSES)})
    for classes in (None, CLASSES):
        message = "contradicts itself: id2label has 0: contradiction"
        refused(tmp_path, message, classes=classes)
    model, _ = new_model(tmp_path, classes=CLASSES, seed=0, from_scratch=True)
    assert [*model.config.id2label.values()] == [*CLASSES]
    with pytest.warns(MechcoreWarning, match="is replaced by a new one for yes, no"):
        new_model(tmp_path, classes=("yes", "no"), seed=0)
