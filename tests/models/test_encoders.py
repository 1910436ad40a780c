"""What is encoders' own: settings, hook points of their attention, DeBERTa and ModernBERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import close, padded, reference_logits, texts
from models.families import ENCODERS, Families, attentions, class_of, classifier, plain
from safetensors.torch import load_file
from torch import Tensor

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.export import export_checkpoint
from mechcore.models.protocol import forward, n_token_types

N_LAYERS = 3


@pytest.fixture(params=ENCODERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("name", "changes", "n_layers"),
    [
        ("Electra", {"embedding_size": helpers.D_MODEL, "hidden_act": "relu"}, 3),
        ("DistilBert", {"activation": "relu", "sinusoidal_pos_embds": True}, 3),
        ("Camembert", {"pad_token_id": 3}, 3),
        ("Albert", {"num_hidden_groups": 1}, 3),
        ("Albert", {"num_hidden_groups": 3, "inner_group_num": 2}, 6),
    ],
    ids=str,
)
def test_other_settings(name: str, changes: dict[str, Any], n_layers: int, tmp_path: Path) -> None:
    model = classifier(name, tmp_path, **changes)
    reference, rows = plain(tmp_path), [row.clamp(min=4) for row in texts()]
    shape = ModelShape.of(model)
    assert shape == ModelShape(n_layers, helpers.N_HEADS)
    assert len(attentions(reference, rows[0])) == n_layers
    with torch.no_grad():
        logits = forward(model, padded(rows, "left", extra=2))
        close(logits, reference_logits(reference, rows))
        for component in shape.components[::2]:
            with masked(model, Mask.full(model).without(component), fill="zero") as run:
                assert (run(padded(rows)) - logits).abs().max() > 1e-4


def test_a_pattern_that_a_hook_changes_is_used(families: Families, name: str) -> None:
    """And the output is made of it: z is the pattern times the values."""
    model, ids = families.get(name).model, texts((6,))[0][None]
    first, kept = torch.zeros(6, 6), dict[str, Tensor]()
    first[:, 0] = 1
    hooks = [
        ("blocks.1.attn.hook_pattern", lambda pattern, hook: first.expand_as(pattern)),
        *[("blocks.1.attn.hook_v", lambda v, hook: kept.__setitem__("v", v))]
        * ENCODERS[name].projected,
        ("blocks.1.attn.hook_z", lambda z, hook: kept.__setitem__("z", z)),
    ]
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=hooks)
    close(kept["z"], kept["v" if ENCODERS[name].projected else "z"][:, :1].expand(kept["z"].shape))


def test_the_cache_has_transformer_lenss_names_and_shapes(families: Families, name: str) -> None:
    n, heads, width, family = 6, helpers.N_HEADS, helpers.D_MODEL, ENCODERS[name]
    with torch.no_grad():
        _, cache = families.get(name).model.run_with_cache(texts((n,))[0][None])
    for layer in range(N_LAYERS):
        shapes = dict.fromkeys("qkvz" if family.projected else "z", (1, n, heads, width // heads))
        shapes |= dict.fromkeys(("pattern", "attn_scores"), (1, heads, n, n))
        residual = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
        shapes |= dict.fromkeys(residual, (1, n, width))
        for part, shape in shapes.items():
            assert cache[part, layer].shape == shape
        close(cache["attn_scores", layer].softmax(-1), cache["pattern", layer], 1e-6)
        mid = "ln2" if family.pre_norm else "mlp.in"
        close(cache["resid_mid", layer], cache[f"blocks.{layer}.{mid}.hook_in"], 0)
        if layer > family.between:
            close(cache["resid_pre", layer], cache["resid_post", layer - 1], 0)
    assert cache["hook_embed"].shape[:2] == (1, n)


def test_layers_that_share_weights_are_not_folded(families: Families, tmp_path: Path) -> None:
    case = families.get("Albert")
    mask = Mask.full(case.model).without("0.1")
    with pytest.raises(InputError, match="share weights"):
        export_checkpoint(case.path, tmp_path / "out", mask, fill="zero")
    assert not (tmp_path / "out").exists()


# -- DeBERTa --------------------------------------------------------------------------------------


def test_hooks_of_queries_and_keys_see_tokens_not_relative_positions(families: Families) -> None:
    model = families.get("DebertaV2").model
    assert n_token_types(model) == 0
    assert n_token_types(families.get("DebertaV2 with matrices of its own").model) == 2
    ids = texts((8,))[0][None]  # as many tokens as relative positions, which share the matrices
    attention = model.blocks[1].attn
    kept: dict[str, list[torch.Tensor]] = {"hook_in": [], "hook_q": [], "hook_k": []}
    hooks: list[Any] = [
        (f"blocks.1.attn.{part}", lambda x, hook, part=part: kept[part].append(x)) for part in kept
    ]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        for _ in range(2):
            forward(model, {"input_ids": ids})
        for part in "qk":
            matrix = getattr(attention, part).original_component
            for x, y in zip(kept["hook_in"], kept[f"hook_{part}"], strict=True):
                close(y.flatten(2), matrix(x), 0)


def test_queries_that_a_hook_changes_are_used_not_those_of_positions(families: Families) -> None:
    """Of scores, a zero query leaves the keys' alone, which see positions."""
    model, expected = families.get("DebertaV2").model, families.get("DebertaV2").reference
    ids, scores = texts((6,))[0][None], []
    hooks = [
        ("blocks.0.attn.hook_q", lambda q, hook: torch.zeros_like(q)),
        ("blocks.0.attn.hook_attn_scores", lambda x, hook: scores.append(x)),
    ]
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=hooks)
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


def test_debertas_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="talking_head=True, whose heads mix their patterns"):
        classifier("Deberta", tmp_path / "mixed", talking_head=True)
    classifier("Deberta", tmp_path / "plain")  # in bfloat16 Hugging Face fails
    with pytest.raises(InputError, match=r"DebertaForSequenceClassification fails in torch\.bfl"):
        load_model(tmp_path / "plain", dtype="bfloat16")


# -- ModernBERT -----------------------------------------------------------------------------------


def test_attention_of_modernbert(families: Families) -> None:
    model = families.get("ModernBert").model  # half a window is 3
    with torch.no_grad():
        _, cache = model.run_with_cache(texts((12,))[0][None])
        fused = model.blocks[1].attn.qkv.original_component(cache["blocks.1.attn.hook_in"])
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs() > 3
    for layer, is_local in enumerate([False, True, True]):
        pattern = cache["pattern", layer][0]
        assert (pattern[:, ~far] > 0).all()
        assert (pattern[:, far] == 0).all() if is_local else (pattern[:, far] > 0).all()
    for part, expected in zip("qkv", fused.split(16, -1), strict=True):
        close(cache[part, 1].flatten(2), expected, 0)


def test_a_value_that_a_hook_changes_is_used(families: Families) -> None:
    z: list[Tensor] = []
    others = torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None]
    hooks = [
        ("blocks.2.attn.hook_v", lambda v, hook: v * others),
        ("blocks.2.attn.hook_z", lambda value, hook: z.append(value)),
    ]
    with torch.no_grad():
        families.get("ModernBert").model.run_with_hooks(texts((6,))[0][None], fwd_hooks=hooks)
    assert (z[0] == 0).all(-1).all((0, 1)).tolist() == [False, False, True, False]


@pytest.mark.parametrize("name", ["ModernBert", "ModernBert of means"])
def test_padding_beyond_the_window_is_a_number_in_float64(families: Families, name: str) -> None:
    case, rows = families.get(name, torch.float64), texts((20, 2))
    with torch.no_grad():
        close(forward(case.model, padded(rows)), reference_logits(case.reference, rows), 1e-6)


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
        assert type(plain(out)) is class_of("ModernBert", "ForSequenceClassification")
