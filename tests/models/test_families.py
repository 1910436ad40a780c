"""Every family once: Hugging Face's logits and patterns, and masks that equal edited weights."""

from __future__ import annotations

from typing import Any

import helpers
import pandas as pd
import pytest
import torch
import transformers as hf
from helpers import Case, close, edited, padded, reference_logits, texts, torch_hooks
from models.families import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    REFUSED,
    TABLE,
    Families,
    attentions,
    class_of,
    config_of,
    plain,
    save,
    table,
)
from torch import Tensor

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.masking.interventions import masked, masked_stack
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.architectures.base import ARCHITECTURES, Architecture
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import (
    forward,
    hook_pattern,
    is_causal,
    is_classifier,
    model_classes,
    model_inputs,
    read_position,
)
from mechcore.training import new_model


@pytest.fixture(params=[*helpers.ARCHITECTURES, *FAMILIES])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(families: Families, name: str) -> Case:
    """A classifier of each family in turn; not to be changed."""
    return families.get(name)


def test_logits_are_those_of_hugging_face_whatever_the_padding(case: Case, name: str) -> None:
    model, expected = case.model, reference_logits(case.reference, texts())
    assert is_classifier(model)
    assert is_causal(model) == (name not in (*helpers.ENCODERS, *ENCODERS))
    assert model_classes(model) == list(helpers.CLASSES)
    assert ModelShape.of(model) == ModelShape(2 + (name in ENCODERS), helpers.N_HEADS)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert expected.std(0).max() > 0.01  # the texts differ, so a wrong row would show
    for side in ("right", "left"):
        batch = padded(texts(), side, extra=2, noise=3)
        with torch.no_grad():
            close(forward(model, batch), expected)
            close(model(batch["input_ids"], attention_mask=batch["attention_mask"]), expected)


@pytest.mark.parametrize("side", ["right", "left"])
def test_patterns_are_those_of_hugging_face(case: Case, side: str) -> None:
    rows, kept = texts(), dict[str, Tensor]()
    names = [hook_pattern(layer) for layer in range(ModelShape.of(case.model).n_layers)]
    hooks: list[Any] = [
        (name, lambda value, hook, name=name: kept.__setitem__(name, value)) for name in names
    ]
    batch = padded(rows, side, extra=1)
    with torch.no_grad(), case.model.hooks(fwd_hooks=hooks):
        forward(case.model, batch)
    real = batch["attention_mask"].bool()
    if not is_causal(case.model):  # encoders get their padding on the right
        real = padded(rows, extra=1)["attention_mask"].bool()
    for i, row in enumerate(rows):
        for name, expected in zip(names, attentions(case.reference, row), strict=True):
            pattern = kept[name][i][:, real[i]]
            close(pattern[:, :, real[i]], expected)
            close(pattern[:, :, ~real[i]], torch.zeros(()).expand(pattern[:, :, ~real[i]].shape))


@torch.no_grad()
def test_masks_equal_edited_weights(case: Case, name: str) -> None:
    """By means where the family has a file; zeros where a norm may follow W_out."""
    family, model = FAMILIES.get(name), case.model
    components = ["0.1", "1.2"] + ["1.mlp"] * (family is None or not family.experts)
    mask = Mask.full(model).without(*components)
    means = MeanActivations.compute(model, padded(texts((7, 3, 8, 8), seed=9)), n_samples=0)
    z, mlp = (0 * part if name in DECODERS else part for part in (means.z, means.mlp))
    if family is not None and family.shared:

        def on_z(layer: int, own: Tensor) -> Tensor:
            return torch.where(mask.heads[layer, :, None] == 1, own, z[layer].float())

        def on_mlp(layer: int, own: Tensor) -> Tensor:
            return own if mask.mlps[layer] == 1 else mlp[layer].float().expand_as(own)

        with torch_hooks(case.reference, on_z, on_mlp):
            expected = reference_logits(case.reference, texts())
    else:
        heads = {(c.layer, c.head): z[c.layer, c.head] for c in mask.ablated if c.head is not None}
        mlps = {c.layer: mlp[c.layer] for c in mask.ablated if c.head is None}
        expected = reference_logits(edited(case.reference, heads, mlps), texts())
    assert (expected - reference_logits(case.reference, texts())).abs().max() > 1e-3
    for side in ("right", "left"):
        batch = padded(texts(), side, extra=3, noise=2)
        with masked(model, mask, means, "zero" if name in DECODERS else "mean") as run:
            close(run(batch), expected)
        ones = torch.ones(mask.values.shape, requires_grad=True)  # so that nothing is left out
        with masked(model, Mask(ones), means) as run:
            assert torch.equal(run(batch), forward(model, batch))


@torch.no_grad()
def test_layers_as_functions_are_the_model_where_the_family_offers_them(case: Case) -> None:
    model, shape = case.model, ModelShape.of(case.model)
    kind = case.reference.config.model_type
    family = ARCHITECTURES[kind] if kind in ARCHITECTURES else Architecture  # noqa: SIM401
    if family.stack is Architecture.stack:
        with pytest.raises(InputError, match=r"found a bridge of .*; expected a TransformerBridge"):
            stack_of(model)
        return
    stack, ones = stack_of(model), torch.ones(1, shape.n_layers, shape.columns)
    z = torch.zeros(shape.n_layers, shape.n_heads, model.cfg.d_head)
    for side in ("right", "left"):
        inputs = model_inputs(model, padded(texts(), side, extra=1))
        read = read_position(model, inputs)
        logits = masked_stack(stack, inputs, read, ones, z, torch.zeros(shape.n_layers, 1))
        close(logits[0], reference_logits(case.reference, texts()))


@pytest.mark.parametrize("name", FAMILIES)
def test_pretrained_models_load_and_get_a_classification_head(name: str, tmp_path: Any) -> None:
    loader = hf.AutoModelForMaskedLM if name in ENCODERS else hf.AutoModelForCausalLM
    path, rows = save(loader.from_config(config_of(name)), tmp_path / "base"), texts()
    if name in ENCODERS:
        with pytest.raises(InputError, match=f"its architecture is {name.split()[0]}ForMaskedLM"):
            load_model(path)
        model, body = load_model(path, head=False), plain(path, hf.AutoModel)
        assert not is_classifier(model)
        with torch.no_grad():
            states = forward(model, padded(rows, "left"))
            for i, row in enumerate(rows):
                close(states[i, : len(row)], body(row[None]).last_hidden_state[0])
    else:
        model, body = load_model(path), plain(path, hf.AutoModelForCausalLM)
        with torch.no_grad():
            logits = forward(model, padded(rows, "left", extra=1))[:, -1]
        close(logits, reference_logits(body, rows), 1e-4)
        body = body.base_model
    classifier, _ = new_model(path, classes=["no", "yes"], seed=0)
    assert type(classifier) is class_of(name, "ForSequenceClassification")
    assert classifier.config.num_labels == 2
    weights, given = classifier.base_model.state_dict(), body.state_dict()
    shared = [key for key in weights.keys() & given.keys() if "pooler" not in key]
    assert len(shared) > 10
    assert all(torch.equal(weights[key], given[key]) for key in shared)


BRIDGED_LATER = {"HunYuanDenseV1": pytest.mark.hooked}  # by TransformerLens 4.3


@pytest.mark.once
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForCausalLM"])
@pytest.mark.parametrize(
    "refused", [pytest.param(name, marks=BRIDGED_LATER.get(name, ())) for name in REFUSED]
)
def test_a_family_bridged_otherwise_is_refused(refused: str, head: str, tmp_path: Any) -> None:
    own = {} if refused == "OpenAIGPT" else {"intermediate_size": 24, "num_key_value_heads": 2}
    config = config_of(refused, **own, **({"head_dim": 4} if "HunYuan" in refused else {}))
    model = (
        hf.AutoModelForCausalLM.from_config(config)
        if head == "ForCausalLM"
        else class_of(refused, head)(config)
    )
    save(model, tmp_path)
    with pytest.raises(InputError, match=r"its logits are not those of Hugging Face: they differ"):
        load_model(tmp_path)


@pytest.mark.once
def test_the_documentation_lists_the_families_of_these_tests() -> None:
    expected = table().reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(TABLE, dtype=str), expected.astype("str"))
    assert not set(REFUSED) & set(expected["family"])
