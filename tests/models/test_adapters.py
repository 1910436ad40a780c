"""Bridged classifiers give Hugging Face's logits, whatever the padding."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from helpers import LENGTHS, Case, Cases, padded, reference_logits, texts
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForSequenceClassification

import mechcore
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.models.running import forward, hook_pattern, is_causal, is_classifier, model_classes

LAYOUTS = {
    "no padding": {},
    "right": {"side": "right", "extra": 3},
    "left": {"side": "left", "extra": 3},
    "right, random ids": {"side": "right", "noise": 5},
    "left, random ids": {"side": "left", "extra": 7, "noise": 6},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_hugging_face_on_the_unpadded_text(case: Case, layout: str) -> None:
    rows = texts((6, 6) if layout == "no padding" else LENGTHS)
    with torch.no_grad():
        logits = forward(case.model, padded(rows, **LAYOUTS[layout]))
    expected = reference_logits(case.reference, rows)
    assert expected.std(0).max() > 0.01  # the texts differ, so a wrong row would show
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_calling_the_model_directly_is_shielded_from_padding_too(case: Case) -> None:
    rows = texts()
    expected = reference_logits(case.reference, rows)
    for side in ("right", "left"):
        batch = padded(rows, side, extra=2, noise=3)
        with torch.no_grad():
            logits = case.model(batch["input_ids"], attention_mask=batch["attention_mask"])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_logits_need_no_attention_mask(case: Case) -> None:
    rows = texts((5, 5))
    with torch.no_grad():
        logits = forward(case.model, {"input_ids": torch.stack(rows).tolist(), "labels": "unread"})
    expected = reference_logits(case.reference, rows)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_segment_ids_reach_bert_and_move_with_their_tokens(cases: Cases, side: str) -> None:
    case = cases.get("bert")
    rows = texts()
    batch = padded(rows, side, extra=2)
    generator = torch.Generator().manual_seed(0)
    segments = [torch.randint(0, 2, (len(row),), generator=generator) for row in rows]
    batch["token_type_ids"] = torch.where(
        batch["attention_mask"] == 1, padded(segments, side, extra=2)["input_ids"], 1
    )
    with torch.no_grad():
        logits = forward(case.model, batch)
        expected = torch.cat(
            [
                case.reference(input_ids=row[None], token_type_ids=segment[None]).logits
                for row, segment in zip(rows, segments, strict=True)
            ]
        )
        direct = case.model(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
        )
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(direct, expected, rtol=0, atol=1e-5)
    without = reference_logits(case.reference, rows)
    assert (expected - without).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
def test_models_without_segments_ignore_segment_ids(cases: Cases, architecture: str) -> None:
    case = cases.get(architecture)
    batch = padded(texts())
    with torch.no_grad():
        plain = forward(case.model, batch)
        types = torch.zeros_like(batch["input_ids"])
        if architecture != "roberta":  # it has one type, which is the same for all tokens
            types[0] = 7
        assert torch.equal(forward(case.model, {**batch, "token_type_ids": types}), plain)


@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_patterns_fire_and_are_distributions_over_real_tokens(
    case: Case, side: str
) -> None:
    batch = padded(texts(), side, extra=2, noise=1)
    patterns: dict[int, torch.Tensor] = {}
    hooks = [
        (hook_pattern(i), lambda pattern, hook, i=i: patterns.__setitem__(i, pattern))
        for i in range(helpers.N_LAYERS)
    ]
    with torch.no_grad(), case.model.hooks(fwd_hooks=hooks):
        forward(case.model, batch)
    assert sorted(patterns) == [0, 1]
    # Encoders see their padding on the right, see mechcore.models.batches.
    layout = padded(texts(), "right", extra=2) if case.is_encoder else batch
    real = layout["attention_mask"].bool()
    for pattern in patterns.values():
        assert pattern.shape == (len(real), helpers.N_HEADS, *[real.shape[1]] * 2)
        queries = pattern.transpose(1, 2)[real]  # [token, head, key]
        keys = real[:, None].expand_as(pattern[:, 0])[real][:, None].expand_as(queries)
        sums = queries.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)
        assert (queries[~keys] < 1e-6).all()
        assert (queries >= 0).all()
        assert queries[keys].std() > 0.01


def test_shape_classes_and_kind_are_read_from_the_checkpoint(case: Case) -> None:
    assert ModelShape.of(case.model) == ModelShape(helpers.N_LAYERS, helpers.N_HEADS)
    assert is_classifier(case.model)
    assert model_classes(case.model) == list(helpers.CLASSES)
    assert is_causal(case.model) == (not case.is_encoder)


def test_weights_are_frozen_and_the_model_is_in_evaluation_mode(case: Case) -> None:
    parameters = list(case.model.parameters())
    assert len(parameters) > 10
    assert not any(parameter.requires_grad for parameter in parameters)
    assert not case.model.training
    assert not case.model.original_model.training


def test_a_padded_batch_without_a_padding_id_is_an_error(cases: Cases) -> None:
    path = cases.path("gpt2")
    model = mechcore.load_model(path)
    batch = padded(texts())
    # The shield reads the id when the model is built: build one from a model that has none.
    model.original_model.config.pad_token_id = None
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf_model = AutoModelForSequenceClassification.from_pretrained(path, attn_implementation="eager")
    hf_model.config.pad_token_id = None
    bridge = build_bridge_from_module(
        hf_model, "GPT2ForSequenceClassification", hf_config=hf_model.config, model_name="tiny"
    )
    with pytest.raises(InputError, match=r"needs config\.pad_token_id"):
        forward(bridge, batch)


# -- TransformerLens's own door -----------------------------------------------------------------


def test_adapters_are_registered_as_entry_points() -> None:
    found = {
        point.name: point.load() for point in entry_points(group="transformer_lens.architectures")
    }
    encoders = {"Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "DistilBert", "Albert"}
    for name in encoders | {"MPNet", "GPT2", "Llama", "Mistral", "Qwen2"}:
        assert (
            found[f"{name}ForSequenceClassification"]
            is SUPPORTED_ARCHITECTURES[f"{name}ForSequenceClassification"]
        )


def boot(path: Path, **options: Any) -> Any:
    return TransformerBridge.boot_transformers(str(path), device="cpu", **options)


def test_transformer_lens_boots_a_classifier_given_its_class(case: Case) -> None:
    bridge = boot(case.path, model_class=AutoModelForSequenceClassification)
    rows = texts()
    with torch.no_grad():
        for side in ("right", "left"):
            logits = forward(bridge, padded(rows, side, noise=2))
            expected = reference_logits(case.reference, rows)
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_without_its_class_the_error_names_the_alternatives(case: Case) -> None:
    with pytest.raises(InputError, match=r"mechcore\.load_model\(path\)") as caught:
        boot(case.path)
    assert "model_class=transformers.AutoModelForSequenceClassification" in str(caught.value)
