"""What is DeBERTa's and ModernBERT's own; `test_encoders` has what they share with the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import padded, reference_logits, texts
from models.test_encoders import class_of, close, config_of, plain, save
from safetensors.torch import load_file

from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.export import export_checkpoint
from mechcore.models.running import forward, n_token_types


def classifier(name: str, path: Path, **changes: Any) -> Any:
    """A tiny classifier, saved and loaded."""
    model = class_of(name, "ForSequenceClassification")(config_of(name, **changes))
    return load_model(save(model, path))


# -- DeBERTa --------------------------------------------------------------------------------------


def test_hooks_of_queries_and_keys_see_tokens_not_relative_positions(tmp_path: Path) -> None:
    model = classifier("DebertaV2", tmp_path)
    ids = texts((8,))[0][None]  # as many tokens as relative positions, which share the matrices
    attention = model.blocks[1].attn
    kept: dict[str, list[torch.Tensor]] = {"hook_in": [], "hook_q": [], "hook_k": []}
    hooks: list[Any] = [
        (f"blocks.1.attn.{each}", lambda x, hook, each=each: kept[each].append(x)) for each in kept
    ]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        for _ in range(2):
            forward(model, {"input_ids": ids})
        for part in "qk":
            matrix = getattr(attention, part).original_component
            for x, found in zip(kept["hook_in"], kept[f"hook_{part}"], strict=True):
                close(found.flatten(2), matrix(x), 0)


def test_queries_that_a_hook_changes_are_used_and_those_of_positions_kept(tmp_path: Path) -> None:
    """Of scores, a zero query leaves the keys' alone, which see positions."""
    model = classifier("DebertaV2", tmp_path)
    ids, scores = texts((6,))[0][None], []
    hooks = [
        ("blocks.0.attn.hook_q", lambda q, hook: torch.zeros_like(q)),
        ("blocks.0.attn.hook_attn_scores", lambda x, hook: scores.append(x)),
    ]
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=hooks)
        expected = plain(tmp_path)
        matrix = expected.deberta.encoder.layer[0].attention.self
        positions = expected.deberta.encoder.get_rel_embedding()
        queries = matrix.query_proj(positions).unflatten(-1, (4, 4))
        keys = matrix.key_proj(expected.deberta.embeddings(ids))[0].unflatten(-1, (4, 4))
        distance = torch.arange(6)[:, None] - torch.arange(6)
        # Four buckets a side, the nearest exact; a key looks at how far ahead it is of the query.
        buckets = expected.deberta.encoder.get_rel_pos(torch.zeros(1, 6, 16))[0]
        assert torch.equal(buckets[distance.abs() < 2], distance[distance.abs() < 2])
        places = (4 - buckets).clamp(0, 7)
        content = torch.einsum("khd,phd->hkp", keys, queries) / (4 * 3) ** 0.5
        wanted = content.gather(2, places.expand(4, -1, -1)).transpose(1, 2)
    close(scores[0][0], wanted)


def test_a_configuration_without_architectures_as_published(tmp_path: Path) -> None:
    save(hf.DebertaV2ForMaskedLM(config_of("DebertaV2")), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="has null as architectures; expected a list with"):
        load_model(tmp_path)
    model, body = load_model(tmp_path, head=False), plain(tmp_path, hf.AutoModel)
    row = texts((7,))[0]
    with torch.no_grad():
        close(forward(model, padded([row], "left", extra=2))[0, :7], body(row[None])[0][0])


def test_token_types_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert n_token_types(classifier("DebertaV2", tmp_path / "none")) == 0
    assert n_token_types(classifier("DebertaV2", tmp_path / "two", type_vocab_size=2)) == 2


def test_heads_that_mix_their_patterns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="talking_head=True, whose heads mix their patterns"):
        classifier("Deberta", tmp_path, talking_head=True)


def test_a_precision_in_which_hugging_face_fails_is_refused(tmp_path: Path) -> None:
    classifier("Deberta", tmp_path)
    with pytest.raises(
        InputError, match=r"DebertaForSequenceClassification fails in torch\.bfloat16"
    ):
        load_model(tmp_path, dtype="bfloat16")


# -- ModernBERT -----------------------------------------------------------------------------------


def test_local_layers_see_a_window_and_global_ones_the_whole_text(tmp_path: Path) -> None:
    model = classifier("ModernBert", tmp_path)  # half a window is 3
    with torch.no_grad():
        _, found = model.run_with_cache(texts((12,))[0][None])
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs() > 3
    for layer, is_local in enumerate([False, True, True]):
        pattern = found["pattern", layer][0]
        assert (pattern[:, ~far] > 0).all()
        assert (pattern[:, far] == 0).all() if is_local else (pattern[:, far] > 0).all()


def test_queries_keys_and_values_are_thirds_of_the_fused_matrix(tmp_path: Path) -> None:
    model = classifier("ModernBert", tmp_path)
    with torch.no_grad():
        _, found = model.run_with_cache(texts((6,))[0][None])
        fused = model.blocks[1].attn.qkv.original_component(found["blocks.1.attn.hook_in"])
    for part, expected in zip("qkv", fused.split(16, -1), strict=True):
        close(found[part, 1].flatten(2), expected, 0)


def test_a_value_that_a_hook_changes_is_used(tmp_path: Path) -> None:
    model = classifier("ModernBert", tmp_path)
    kept: dict[str, torch.Tensor] = {}

    def without_head(v: torch.Tensor, hook: Any) -> torch.Tensor:
        v = v.clone()
        v[:, :, 2] = 0
        return v

    hooks = [
        ("blocks.2.attn.hook_v", without_head),
        ("blocks.2.attn.hook_z", lambda z, hook: kept.__setitem__("z", z)),
    ]
    with torch.no_grad():
        model.run_with_hooks(texts((6,))[0][None], fwd_hooks=hooks)
    assert (kept["z"] == 0).all(-1).all((0, 1)).tolist() == [False, False, True, False]


@pytest.mark.parametrize("name", ["ModernBert", "ModernBert of means"])
def test_padding_beyond_the_window_is_a_number_in_float64(name: str, tmp_path: Path) -> None:
    classifier(name, tmp_path)
    model = load_model(tmp_path, dtype=torch.float64)
    rows = texts((20, 2))
    with torch.no_grad():
        found = forward(model, padded(rows))
    close(found, reference_logits(plain(tmp_path, dtype=torch.float64), rows), 1e-6)


def test_folding_adds_biases_where_means_need_them(tmp_path: Path) -> None:
    model = classifier("ModernBert", tmp_path / "in")
    means = MeanActivations.compute(model, padded(texts((7, 3, 8))), n_samples=0)
    before = load_file(tmp_path / "in" / "model.safetensors")
    for part, others, component in (
        ("attention", {"attn.Wo.bias", "attn.Wqkv.bias"}, "1.2"),
        ("mlp", {"mlp.Wi.bias", "mlp.Wo.bias"}, "1.mlp"),
    ):
        out = tmp_path / part
        export_checkpoint(tmp_path / "in", out, Mask.full(model).without(component), means)
        after = load_file(out / "model.safetensors")
        new = {key.split(".", 3)[-1] for key in after.keys() - before.keys()}
        assert new == others
        changed = [key for key in before if not torch.equal(after[key], before[key])]
        assert len(changed) == 1
        config = hf.AutoConfig.from_pretrained(out)
        assert (config.attention_bias, config.mlp_bias) == (part == "attention", part == "mlp")
        assert type(plain(out)) is hf.ModernBertForSequenceClassification
