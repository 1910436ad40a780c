"""Decoders without a file of their own: how long their texts may be, in a batch and alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import padded
from models.families import class_of, config_of, save

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.models.encoded import as_encoded
from mechcore.models.protocol import forward, longest_input
from mechcore.training import classification, new_model

OLD = {"original_max_position_embeddings": 20}
ROPES: dict[str, dict[str, Any]] = {
    "longrope": {"factor": 2.4, "short_factor": [1.0, 1.0], "long_factor": [4.0, 8.0], **OLD},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 2.4, **OLD},
    "llama3": {"factor": 2.4, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **OLD},
    "linear": {"factor": 2.4},
}


def rope(kind: str) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}


@pytest.mark.parametrize(
    ("family", "own", "longest"),
    [
        ("Mpt", {"max_seq_len": 12}, 12),
        ("Bloom", {"seq_length": 30}, 30),
        ("Bloom", {}, 2048),
        # Texts stay where their logits depend on nothing else.
        ("Llama", {"intermediate_size": 24, "rope_parameters": rope("longrope")}, 20),
    ],
)
def test_models_of_other_position_embeddings_have_a_longest_text(
    family: str, own: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    config = config_of(family, **own)
    if family != "Llama":
        del config.max_position_embeddings
    save(class_of(family, "ForSequenceClassification")(config), tmp_path)
    model, text = load_model(tmp_path), ["the " * (longest + 1)]
    with pytest.raises(InputError, match=f"longer than {longest} tokens.*--max-length {longest}"):
        as_encoded(model, text, labelled=False)
    assert len(as_encoded(model, text, labelled=False, max_length=longest).input_ids[0]) == longest
    base, tokenizer = new_model(tmp_path, classes=["no", "yes"], seed=0)
    assert classification(base, tokenizer).max_length == longest
    with pytest.raises(InputError, match=f"max_length {longest + 1}: expected 1 to {longest}"):
        classification(base, tokenizer, longest + 1)


@pytest.mark.parametrize("task", ["classification", "language-model"])
@pytest.mark.parametrize(
    ("kind", "steady"),
    [("longrope", 20), ("dynamic", 48), ("yarn", None), ("llama3", None), ("linear", None)],
)
def test_a_texts_logits_never_depend_on_the_others_in_its_batch(
    kind: str, steady: int | None, task: Any, tmp_path: Path
) -> None:
    config = config_of("Llama", intermediate_size=24, rope_parameters=rope(kind))
    lm = task == "language-model"
    save((hf.LlamaForCausalLM if lm else hf.LlamaForSequenceClassification)(config), tmp_path)
    model, end = load_model(tmp_path), steady or 60
    assert longest_input(model) == (steady or 48)
    generator = torch.Generator().manual_seed(0)
    short, long = (torch.randint(5, 20, (n,), generator=generator) for n in (6, end))
    longer = padded([short, torch.cat([long, long[:1]])], "left")
    with torch.no_grad():
        alone = forward(model, {"input_ids": short[None]})
        beside = forward(model, padded([short, long], "left"))
        if steady is None:
            beside_more = forward(model, longer)
            torch.testing.assert_close(beside_more[0, -1], beside[0, -1])
        else:
            with pytest.raises(InputError, match=rf"have {end + 1} tokens, .* at most {end}: Ll"):
                forward(model, longer)
        again = forward(model, {"input_ids": short[None]})
    last = (0, -1) if task == "language-model" else (0,)
    torch.testing.assert_close(beside[last], alone[last], rtol=0, atol=1e-5)
    torch.testing.assert_close(again, alone, rtol=0, atol=0)
