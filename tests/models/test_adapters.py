"""Bridged classifiers give Hugging Face's logits, whatever the padding."""

import copy
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Case, Cases, close, padded, reference_logits, texts
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import AutoModelForSequenceClassification

from mechcore.errors import InputError
from mechcore.models.protocol import forward


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
    given = {name: value.clone() for name, value in batch.items()}
    with torch.no_grad():
        logits = forward(case.model, batch)
        assert all(torch.equal(value, given[name]) for name, value in batch.items())
        expected = torch.cat(
            [
                case.reference(input_ids=row[None], token_type_ids=segment[None]).logits
                for row, segment in zip(rows, segments, strict=True)
            ]
        )
        others = {name: batch[name] for name in ("attention_mask", "token_type_ids")}
        direct = case.model(batch["input_ids"], **others)
    close(logits, expected)
    close(direct, expected)
    without = reference_logits(case.reference, rows)
    assert (expected - without).abs().amax(1).min() > 1e-3


def test_a_padded_batch_without_a_padding_id_is_an_error(cases: Cases) -> None:
    # The shield reads the id when the model is built: build one from a model that has none.
    hf_model = copy.deepcopy(cases.get("gpt2").reference)
    hf_model.config.pad_token_id = None
    bridge = build_bridge_from_module(
        hf_model, "GPT2ForSequenceClassification", hf_config=hf_model.config, model_name="tiny"
    )
    with pytest.raises(InputError, match=r"needs config\.pad_token_id"):
        forward(bridge, padded(texts()))


# -- TransformerLens's own door -----------------------------------------------------------------


def test_adapters_are_registered_as_entry_points() -> None:
    points = {
        point.name: point.load() for point in entry_points(group="transformer_lens.architectures")
    }
    encoders = {"Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "DistilBert", "Albert"}
    for name in encoders | {"MPNet", "GPT2", "Llama", "Mistral", "Qwen2"}:
        assert (
            points[f"{name}ForSequenceClassification"]
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
            close(logits, reference_logits(case.reference, rows))


def test_without_its_class_the_error_names_the_alternatives(case: Case) -> None:
    with pytest.raises(InputError, match=r"mechcore\.load_model\(path\)") as caught:
        boot(case.path)
    assert "model_class=transformers.AutoModelForSequenceClassification" in str(caught.value)
