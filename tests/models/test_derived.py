"""Classifiers of decoders without a file of their own have Hugging Face's logits or do not load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch
import transformers as hf
from ablation.few import encoded, means_of
from helpers import padded, reference_logits, texts

from mechcore.ablation import ablate
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.masking.interventions import masked
from mechcore.models import load_model
from mechcore.models.encoded import as_encoded
from mechcore.models.running import (
    forward,
    hook_pattern,
    is_causal,
    is_classifier,
    longest_input,
    model_classes,
)
from mechcore.training import classification, new_model

SIZES: dict[str, Any] = {
    "hidden_size": helpers.D_MODEL,
    "num_hidden_layers": helpers.N_LAYERS,
    "num_attention_heads": helpers.N_HEADS,
    "max_position_embeddings": 48,
}
WIDE = {"intermediate_size": 24}
SHARED = {**WIDE, "num_key_value_heads": 2, "head_dim": 4}
EXPERTS = {**SHARED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "Arcee": SHARED,
    "Bloom": {},
    "Exaone4": SHARED,
    "Falcon": {},
    "GPTBigCode": {"n_inner": 24},
    "GPTJ": {"rotary_dim": 2, "n_inner": 24},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "intermediate_size": 24},
    "GPTNeoX": WIDE,
    "Gemma": SHARED,
    "Gemma2": {**SHARED, "sliding_window": 48},
    "Gemma3Text": {**SHARED, "sliding_window": 48},
    "Glm": SHARED,
    "Glm4": SHARED,
    "Mixtral": {**SHARED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Mpt": {},
    "Nemotron": SHARED,
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "Olmo": {**WIDE, "num_key_value_heads": 2},
    "Olmo2": {**WIDE, "num_key_value_heads": 2},
    "Olmo3": SHARED,
    "Phi": WIDE,
    "Phi3": {**WIDE, "num_key_value_heads": 2},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "Qwen3": SHARED,
    "Qwen3Moe": EXPERTS,
    "SeedOss": SHARED,
    "SmolLM3": {**WIDE, "num_key_value_heads": 2},
    "Starcoder2": {**WIDE, "num_key_value_heads": 2},
}

LLAMA = ("self_attn.o_proj", "mlp.down_proj")
FALCON = ("self_attention.dense", "mlp.dense_4h_to_h")
PLACES = dict.fromkeys(FAMILIES, LLAMA) | {
    "Bloom": FALCON,
    "Falcon": FALCON,
    "GPTBigCode": ("attn.c_proj", "mlp.c_proj"),
    "GPTJ": ("attn.out_proj", "mlp.fc_out"),
    "GPTNeo": ("attn.attention.out_proj", "mlp.c_proj"),
    "GPTNeoX": ("attention.dense", "mlp.dense_4h_to_h"),
    "Mpt": ("attn.out_proj", "ffn.down_proj"),
    "OPT": ("self_attn.out_proj", "fc2"),
    "Phi": ("self_attn.dense", "mlp.fc2"),
    "Starcoder2": ("self_attn.o_proj", "mlp.c_proj"),
}
"""Where Hugging Face has W_O and W_out in a layer."""
OF_EXPERTS = ("Mixtral", "Qwen2Moe", "Qwen3Moe")
"""Their MLPs have no W_out of their own."""


def layers_of(model: Any) -> Any:
    base = model.base_model
    base = getattr(base, "decoder", base)
    return next(getattr(base, name) for name in ("layers", "h", "blocks") if hasattr(base, name))


def saved(family: str, folder: Path, **own: Any) -> Any:
    """A tiny random classifier, saved with a tokenizer, as Hugging Face reads it back."""
    names = {
        "id2label": dict(enumerate(helpers.CLASSES)),
        "label2id": {name: i for i, name in enumerate(helpers.CLASSES)},
    }
    special = {"pad_token_id": helpers.PAD, "bos_token_id": None, "eos_token_id": None}
    config = getattr(hf, f"{family}Config")(
        **SIZES, **names, **special, vocab_size=helpers.VOCABULARY, **own
    )
    model = getattr(hf, f"{family}ForSequenceClassification")(config)
    helpers.randomise(model)
    model.save_pretrained(folder)
    helpers.word_tokenizer(segments=False).save_pretrained(folder)
    return hf.AutoModelForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_hugging_face_whatever_the_padding(family: str, tmp_path: Path) -> None:
    reference = saved(family, tmp_path, **FAMILIES[family])
    model = load_model(tmp_path)
    assert is_classifier(model)
    assert is_causal(model)
    assert model_classes(model) == list(helpers.CLASSES)
    assert ModelShape.of(model) == ModelShape(helpers.N_LAYERS, helpers.N_HEADS)
    expected = reference_logits(reference, texts())
    assert expected.std(0).max() > 0.1
    for side in ("right", "left"):
        batch = padded(texts(), side, extra=2, noise=3)
        with torch.no_grad():
            found = forward(model, batch)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
            with masked(model, Mask.full(model).without("0.1", "1.mlp"), fill="zero") as run:
                assert (run(batch) - found).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_components_are_masked_as_by_an_edit_of_their_weights(family: str, tmp_path: Path) -> None:
    reference = saved(family, tmp_path, **FAMILIES[family])
    model, batch = load_model(tmp_path), padded(texts(), "left", extra=1)
    layers, (attention, mlp) = layers_of(reference), PLACES[family]
    components = ["0.1"] if family in OF_EXPERTS else ["0.1", "1.mlp"]
    with torch.no_grad():
        forward_whole = forward(model, batch)
        with masked(model, Mask.full(model), fill="zero") as run:
            assert torch.equal(run(batch), forward_whole)
        with masked(model, Mask.full(model).without(components), fill="zero") as run:
            found = run(batch)
        layers[0].get_submodule(attention).weight[:, 4:8] = 0
        if family not in OF_EXPERTS:
            for parameter in layers[1].get_submodule(mlp).parameters():
                parameter.zero_()
    torch.testing.assert_close(found, reference_logits(reference, texts()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_language_models_of_the_family_load_and_get_a_classification_head(
    family: str, tmp_path: Path
) -> None:
    config = saved(family, tmp_path, **FAMILIES[family]).config
    reference = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    helpers.randomise(reference)
    reference.save_pretrained(tmp_path)
    batch, model = padded(texts(), "left", extra=1), load_model(tmp_path)
    with torch.no_grad():
        found = forward(model, batch)[:, -1]
    torch.testing.assert_close(found, reference_logits(reference, texts()), rtol=0, atol=1e-4)
    classifier, _ = new_model(tmp_path, classes=["no", "yes"], seed=0)
    weights, given = classifier.base_model.state_dict(), reference.base_model.state_dict()
    assert all(torch.equal(weights[name], given[name]) for name in given)
    assert classifier.config.num_labels == 2


@pytest.mark.parametrize(
    ("family", "own", "longest"),
    [("Mpt", {"max_seq_len": 12}, 12), ("Bloom", {"seq_length": 30}, 30), ("Bloom", {}, 2048)],
)
def test_models_without_position_embeddings_have_a_longest_text(
    family: str,
    own: dict[str, Any],
    longest: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(SIZES, "max_position_embeddings")
    saved(family, tmp_path, **own)
    model, text = load_model(tmp_path), ["the " * (longest + 1)]
    with pytest.raises(InputError, match=f"longer than {longest} tokens"):
        as_encoded(model, text, labelled=False)
    assert len(as_encoded(model, text, labelled=False, max_length=longest).input_ids[0]) == longest
    base, tokenizer = new_model(tmp_path, classes=["no", "yes"], seed=0)
    assert classification(base, tokenizer).max_length == longest


@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_are_those_of_hugging_face(family: str, tmp_path: Path) -> None:
    reference = saved(family, tmp_path, **FAMILIES[family])
    model, row = load_model(tmp_path), texts((7,))[0][None]
    with torch.no_grad():
        expected = reference(row, output_attentions=True).attentions
        for layer, pattern in enumerate(expected):
            found: list[torch.Tensor] = []
            hooks = [(hook_pattern(layer), lambda value, hook, found=found: found.append(value))]
            with model.hooks(fwd_hooks=hooks):
                forward(model, {"input_ids": row})
            torch.testing.assert_close(found[0], pattern, rtol=0, atol=1e-5)


@pytest.mark.once  # TransformerLens 4.3 bridges HunYuanDenseV1
@pytest.mark.parametrize("head", ["ForSequenceClassification", "LanguageModel"])
@pytest.mark.parametrize("family", ["OpenAIGPT", "HunYuanDenseV1", "StableLm"])
def test_a_family_that_is_bridged_otherwise_is_refused(
    family: str, head: str, tmp_path: Path
) -> None:
    reference = saved(family, tmp_path, **({} if family == "OpenAIGPT" else SHARED))
    if head == "LanguageModel":
        model = hf.AutoModelForCausalLM.from_config(reference.config)
        helpers.randomise(model)
        model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"its logits are not those of Hugging Face: they differ"):
        load_model(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_restarted_layers_give_the_answers_of_masks_run_one_by_one(
    family: str, tmp_path: Path
) -> None:
    saved(family, tmp_path, **FAMILIES[family])
    model, data = load_model(tmp_path), encoded()
    options: dict[str, Any] = {"means": means_of(model, data), "split": "ood"}
    cut = ["L0.H1", "L1.MLP", "L0.H0+L1.H2", "L0.H1>L1.H2", "L0.H1>answer"]
    expected = ablate(model, cut, data, engine="reference", **options)
    found = ablate(model, cut, data, engine="restart", **options)
    for each, answers in expected.without.items():
        np.testing.assert_allclose(found.without[each].logits, answers.logits, atol=1e-5)


# Which experts are asked jumps with the mask, and the logits with it.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in OF_EXPERTS])
def test_gradients_through_a_mask_are_those_of_finite_differences(
    family: str, tmp_path: Path
) -> None:
    saved(family, tmp_path, **FAMILIES[family])
    model, batch = load_model(tmp_path, dtype="float32"), padded(texts((5, 3)))
    weights = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    start = torch.full((helpers.N_LAYERS, helpers.N_HEADS + 1), 0.6)

    def value(values: torch.Tensor) -> torch.Tensor:
        with masked(model, Mask(values), fill="zero") as run:
            return (run(batch) * weights).double().sum()

    values = start.clone().requires_grad_()
    value(values).backward()
    for at in ((0, 1), (1, 2), (0, helpers.N_HEADS)):
        step, nudge = 1e-2, torch.zeros_like(start)
        nudge[at] = step
        with torch.no_grad():
            slope = (value(start + nudge) - value(start - nudge)) / (2 * step)
        assert float(values.grad[at]) == pytest.approx(float(slope), abs=2e-2)


ROPES: dict[str, Any] = {
    "longrope": {
        "factor": 2.4,
        "short_factor": [1.0, 1.0],
        "long_factor": [4.0, 8.0],
        "original_max_position_embeddings": 20,
    },
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 2.4, "original_max_position_embeddings": 20},
    "llama3": {
        "factor": 2.4,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 20,
    },
    "linear": {"factor": 2.4},
}


@pytest.mark.parametrize("task", ["classification", "language-model"])
@pytest.mark.parametrize(
    ("kind", "steady"),
    [("longrope", 20), ("dynamic", 48), ("yarn", None), ("llama3", None), ("linear", None)],
)
def test_a_texts_logits_never_depend_on_the_others_in_its_batch(
    kind: str, steady: int | None, task: Any, tmp_path: Path
) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    reference = saved("Llama", tmp_path, intermediate_size=24, rope_parameters=rope)
    if task == "language-model":
        reference = hf.AutoModelForCausalLM.from_config(reference.config)
        helpers.randomise(reference)
        reference.save_pretrained(tmp_path)
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


def test_texts_stay_where_their_logits_depend_on_nothing_else(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **ROPES["longrope"]}
    saved("Llama", tmp_path, intermediate_size=24, rope_parameters=rope)
    model = load_model(tmp_path)
    with pytest.raises(InputError, match=r"longer than 20 tokens .*--max-length 20"):
        as_encoded(model, ["the " * 21], labelled=False)
    base, tokenizer = new_model(tmp_path, classes=["no", "yes"], seed=0)
    assert classification(base, tokenizer).max_length == 20
    with pytest.raises(InputError, match="max_length 21: expected 1 to 20"):
        classification(base, tokenizer, 21)
