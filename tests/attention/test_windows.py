"""Layers that attend to a window, against the keys that Hugging Face's own attention reaches."""

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from attention.builders import encoded_ids

from mechcore.attention import score_heads
from mechcore.models import load_model

SIZES: dict[str, Any] = {
    "hidden_size": helpers.D_MODEL,
    "num_hidden_layers": 2,
    "num_attention_heads": helpers.N_HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "vocab_size": helpers.VOCABULARY,
    "pad_token_id": helpers.PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {"num_key_value_heads": 2, "sliding_window": 4}
TYPES = {"layer_types": ["full_attention", "sliding_attention"]}
NEO = {
    "num_layers": 2,
    "num_heads": helpers.N_HEADS,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}
MODELS: dict[str, tuple[Any, Any]] = {
    "modernbert": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig(
            **SIZES | TYPES, local_attention=6, cls_token_id=2, sep_token_id=3, num_labels=3
        ),
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**SIZES | GROUPED)),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(**SIZES | GROUPED | TYPES, head_dim=4),
    ),
    "gpt_neo": (hf.GPTNeoForCausalLM, hf.GPTNeoConfig(**SIZES | NEO)),
}


@pytest.mark.parametrize("name", MODELS)
def test_keys_out_of_the_window_are_out_of_reach(tmp_path: Path, name: str) -> None:
    kind, config = MODELS[name]
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path)
    reference = kind.from_pretrained(tmp_path, attn_implementation="eager").eval()
    rows = [torch.randint(4, helpers.VOCABULARY, (n,)) for n in (14, 9) * 6]
    with torch.no_grad():
        seen = [reference(row[None], output_attentions=True).attentions for row in rows]
    scores = score_heads(load_model(tmp_path), encoded_ids(rows), resamples=20)
    table = scores.table().set_index(["layer", "head"])
    whole = [row.tril() if "Causal" in kind.__name__ else row for row in map(all_pairs, rows)]
    windows = 0
    for layer in range(2):
        patterns = [each[layer][0].double() for each in seen]
        reach = [(pattern > 0).any(0) for pattern in patterns]
        windows += not all(map(torch.equal, reach, whole))
        for category in ("first", "previous"):
            mass, uniform = [], []
            for pattern, keys in zip(patterns, reach, strict=True):
                for query in range(len(keys)):
                    key = 0 if category == "first" else query - 1
                    if key >= 0 and keys[query, key]:
                        mass.append(pattern[:, query, key])
                        uniform.append(1 / int(keys[query].sum()))
            expected = torch.stack(mass).mean(0).tolist()
            found = table.loc[layer]
            assert found[f"mass_{category}"].tolist() == pytest.approx(expected, rel=1e-4)
            even = sum(uniform) / len(uniform)
            assert found[f"uniform_{category}"].tolist() == pytest.approx([even] * len(found))
            ratios = [each / even for each in expected]
            assert found[f"ratio_{category}"].tolist() == pytest.approx(ratios, rel=1e-4)
            assert (found[f"low_{category}"] <= found[f"high_{category}"]).all()
    assert windows == (2 if name == "mistral" else 1)


def all_pairs(row: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(row), len(row), dtype=torch.bool)
