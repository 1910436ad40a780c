"""Encoders that say where their modules are: one line a family, and the same tests for all."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
import transformers as hf
from helpers import Case, edited, padded, reference_logits, texts, torch_hooks
from torch import Tensor

from mechcore.ablation import ablate
from mechcore.attention import attention_scores, categorize_heads
from mechcore.components import Mask, ModelShape
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.architectures.base import ARCHITECTURES, Architecture
from mechcore.models.export import export_checkpoint
from mechcore.models.running import forward, is_causal, is_classifier, model_classes
from mechcore.training import new_model

N_LAYERS = 3
SIZES = {"hidden_size": helpers.D_MODEL, "num_hidden_layers": N_LAYERS}
SIZES |= {"num_attention_heads": helpers.N_HEADS, "max_position_embeddings": 48}
WIDE = {"intermediate_size": 24}


@dataclass(frozen=True)
class Family:
    """A tiny configuration, and where Hugging Face has the layers, and W_O and W_out in them.

    Attributes:
        shared: whether layers share their weights.
        rough: whether Hugging Face computes some of it in float32, whatever the weights are.
        projected: whether queries, keys and values have hook points.
        between: whether something stands between the first two layers.
        pre_norm: whether layers read what they normalise.
    """

    own: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, str, str] = helpers.PLACES["bert"]
    shared: bool = False
    rough: bool = False
    projected: bool = True
    between: bool = False
    pre_norm: bool = False


DEBERTA_V3 = WIDE | {"relative_attention": True, "position_buckets": 4, "share_att_key": True}
DEBERTA_V3 |= {"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"}
DEBERTA_V3 |= {"position_biased_input": False, "type_vocab_size": 0}
MODERN = {**WIDE, "local_attention": 6, "cls_token_id": 2, "bos_token_id": 2, "eos_token_id": 3}
IN_MODERN = ("layers", "attn.Wo", "mlp.Wo")
FAMILIES = {
    "XLMRoberta": Family({**WIDE, "type_vocab_size": 1}),
    "Camembert": Family({**WIDE, "type_vocab_size": 1}),
    "Electra": Family({**WIDE, "embedding_size": 8}),
    "DistilBert": Family(
        {"hidden_dim": 24}, ("transformer.layer", "attention.out_lin", "ffn.lin2")
    ),
    "MPNet": Family(WIDE, ("encoder.layer", "attention.attn.o", "output.dense")),
    "Albert": Family(
        {**WIDE, "embedding_size": 8, "num_hidden_groups": 2},
        (
            "encoder.albert_layer_groups",
            "albert_layers.0.attention.dense",
            "albert_layers.0.ffn_output",
        ),
        shared=True,
    ),
    "DebertaV2": Family(DEBERTA_V3),
    "DebertaV2 with a convolution": Family(
        {**DEBERTA_V3, "conv_kernel_size": 3, "conv_act": "gelu"}, between=True
    ),
    "DebertaV2 with matrices of its own": Family(
        {**DEBERTA_V3, "share_att_key": False, "position_biased_input": True, "type_vocab_size": 2}
        | {"norm_rel_ebd": "none", "position_buckets": -1, "embedding_size": 8}
    ),
    "Deberta": Family(DEBERTA_V3, rough=True, projected=False),
    "ModernBert": Family(MODERN, IN_MODERN, rough=True, pre_norm=True),
    "ModernBert of means": Family(
        {**MODERN, "classifier_pooling": "mean", "mlp_bias": True, "norm_bias": True},
        IN_MODERN,
        rough=True,
        pre_norm=True,
    ),
}
for _name, _family in FAMILIES.items():
    helpers.PLACES[getattr(hf, f"{_name.split()[0]}Config").model_type] = _family.places

MASKS = torch.rand(2, N_LAYERS, 5, generator=torch.Generator().manual_seed(0))
EXAMPLES = Examples(
    "few",
    pd.DataFrame(
        [
            ("the cat saw a dog", "the cat saw", "entailment", "u"),
            ("a bird ran", "the bird ran quickly , and a cat saw", "neutral", "u"),
            ("never", "often", "contradiction", "u"),
        ],
        columns=["text_a", "text_b", "label", "subset"],
    ),
)
COMPONENTS = ("L0.H1", "L1.H0", "L1.H3", "L2.H2", "L1.MLP")
Get = Callable[..., Case]


def class_of(name: str, ending: str) -> Any:
    """A class of Hugging Face's for a family."""
    return getattr(hf, name.split()[0] + ending)


def config_of(name: str, **changes: Any) -> Any:
    """A tiny configuration with three classes and a padding id that is not 0."""
    labels = dict(enumerate(helpers.CLASSES))
    names = {"id2label": labels, "label2id": {label: i for i, label in labels.items()}}
    tokens = {"vocab_size": helpers.VOCABULARY, "pad_token_id": helpers.PAD}
    own = FAMILIES[name].own
    return class_of(name, "Config")(**{**SIZES, **names, **tokens, **own, **changes})


def save(model: Any, path: Path) -> Path:
    """Randomise a Hugging Face model, and save it with a tokenizer."""
    helpers.randomise(model)
    model.save_pretrained(path)
    segments = model.config.model_type in ("electra", "albert")
    helpers.word_tokenizer(segments=segments).save_pretrained(path)
    return path


def plain(path: Path, kind: Any = hf.AutoModelForSequenceClassification, **options: Any) -> Any:
    return kind.from_pretrained(path, attn_implementation="eager", **options).eval()


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Get:
    """A family's classifier, made once; not to be changed."""

    @cache
    def case(name: str, dtype: torch.dtype = torch.float32) -> Case:
        path = tmp_path_factory.getbasetemp() / f"encoders-{name}"
        if not path.exists():
            save(class_of(name, "ForSequenceClassification")(config_of(name)), path)
        reference, model = plain(path, dtype=dtype), load_model(path, dtype=dtype)
        return Case(reference.config.model_type, path, model, reference, dtype)

    return case


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def means_of(model: Any) -> MeanActivations:
    return MeanActivations.compute(model, padded(texts((7, 3, 8, 8), seed=9)), n_samples=0)


@torch.no_grad()
def masked_logits(model: Any, mask: Mask, batch: Any, fill: str = "mean") -> Tensor:
    with masked(model, mask, means_of(model), fill) as run:
        return run(batch)


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@torch.no_grad()
def attentions(reference: Any, row: Tensor) -> Tensor:
    """Hugging Face's attention of one unpadded text, [layer, head, query, key]."""
    return torch.cat(reference(row[None], output_attentions=True).attentions)


# -- logits and hook points -----------------------------------------------------------------------


def test_what_is_loaded(get: Get, name: str) -> None:
    model = get(name).model
    assert is_classifier(model)
    assert not is_causal(model)
    assert model_classes(model) == list(helpers.CLASSES)
    assert ModelShape.of(model) == ModelShape(N_LAYERS, helpers.N_HEADS)
    assert model.cfg.d_mlp == 24
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_are_those_of_hugging_face_on_the_unpadded_text(
    get: Get, name: str, side: str
) -> None:
    case, batch = get(name), padded(texts(), side, extra=2, noise=3)
    expected = reference_logits(case.reference, texts())
    assert expected.std(0).max() > 0.05
    with torch.no_grad():
        close(forward(case.model, batch), expected)
        close(case.model(batch["input_ids"], attention_mask=batch["attention_mask"]), expected)


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
def test_settings_of_families(
    name: str, changes: dict[str, Any], n_layers: int, tmp_path: Path
) -> None:
    cls = getattr(hf, f"{name}ForSequenceClassification")
    path = save(cls(config_of(name, **changes)), tmp_path)
    model, reference = load_model(path), plain(path)
    rows = [row.clamp(min=4) for row in texts()]
    assert ModelShape.of(model) == ModelShape(n_layers, helpers.N_HEADS)
    assert len(attentions(reference, rows[0])) == n_layers
    for side in ("right", "left"):
        found = masked_logits(model, Mask.full(model), padded(rows, side, extra=2))
        close(found, reference_logits(reference, rows))
        for component in ModelShape.of(model).components:
            without = masked_logits(
                model, Mask.full(model).without(component), padded(rows, side), "zero"
            )
            assert (without - found).abs().max() > 1e-4


@pytest.mark.parametrize("side", ["right", "left"])
def test_patterns_are_hugging_faces_and_what_the_output_is_made_of(
    get: Get, name: str, side: str
) -> None:
    case, rows = get(name), texts()
    kept: dict[str, Tensor] = {}
    points = ["hook_attn_scores", "hook_pattern", "hook_z", "hook_v"]
    points = points if FAMILIES[name].projected else points[:-1]
    hooks: list[Any] = [
        (each, lambda value, hook, each=each: kept.__setitem__(each, value))
        for each in (
            f"blocks.{layer}.attn.{point}" for layer in range(N_LAYERS) for point in points
        )
    ]
    with torch.no_grad(), case.model.hooks(fwd_hooks=hooks):
        forward(case.model, padded(rows, side, extra=1))
    for layer in range(N_LAYERS):
        scores, pattern, z, *v = (kept[f"blocks.{layer}.attn.{point}"] for point in points)
        for i, row in enumerate(rows):
            n = len(row)
            close(pattern[i, :, :n, :n], attentions(case.reference, row)[layer], 1e-6)
            close(pattern[i, :, :n, n:], torch.zeros(4, n, pattern.shape[-1] - n), 1e-6)
        close(scores.softmax(-1), pattern, 1e-6)
        for each in v:
            close(torch.einsum("bhqk,bkhd->bqhd", pattern, each), z)


def test_a_pattern_that_a_hook_changes_is_used(get: Get, name: str) -> None:
    model, ids = get(name).model, texts((6,))[0][None]
    first = torch.zeros(6, 6)
    first[:, 0] = 1
    kept: dict[str, Tensor] = {}
    hooks = [
        ("blocks.1.attn.hook_pattern", lambda pattern, hook: first.expand_as(pattern)),
        *[("blocks.1.attn.hook_v", lambda v, hook: kept.__setitem__("v", v))]
        * FAMILIES[name].projected,
        ("blocks.1.attn.hook_z", lambda z, hook: kept.__setitem__("z", z)),
    ]
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=hooks)
    if FAMILIES[name].projected:
        close(kept["z"], kept["v"][:, :1].expand_as(kept["z"]), 1e-6)
    else:
        close(kept["z"], kept["z"][:, :1].expand_as(kept["z"]), 1e-6)


def test_the_cache_has_transformer_lenss_names_and_shapes(get: Get, name: str) -> None:
    n, heads, width = 6, helpers.N_HEADS, helpers.D_MODEL
    with torch.no_grad():
        _, found = get(name).model.run_with_cache(texts((n,))[0][None])
    for layer in range(N_LAYERS):
        parts = "qkvz" if FAMILIES[name].projected else "z"
        shapes = {(part, "attn"): (1, n, heads, width // heads) for part in parts}
        shapes |= {(part, "attn"): (1, heads, n, n) for part in ("pattern", "attn_scores")}
        for part in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"):
            shapes[part, None] = (1, n, width)
        for (part, where), shape in shapes.items():
            assert found[part, layer, where].shape == shape if where else True
            assert found[part, layer].shape == shape
        mid = "ln2" if FAMILIES[name].pre_norm else "mlp.in"
        close(found["resid_mid", layer], found[f"blocks.{layer}.{mid}.hook_in"], 0)
        if layer > FAMILIES[name].between:
            close(found["resid_pre", layer], found["resid_post", layer - 1], 0)
    assert found["hook_embed"].shape[:2] == (1, n)


# -- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", [("1.2",), ("0.mlp",), COMPONENTS], ids=str)
@pytest.mark.parametrize("side", ["right", "left"])
def test_mean_ablation_equals_editing_the_weights(
    get: Get, name: str, component: tuple[str, ...], side: str
) -> None:
    if FAMILIES[name].shared:
        pytest.skip("its layers share weights: see the test with raw hooks")
    case, mask = get(name), Mask.full(get(name).model).without(*component)
    means = means_of(case.model)
    heads = {(c.layer, c.head): means.z[c.layer, c.head] for c in mask.ablated if c.is_head}
    mlps = {c.layer: means.mlp[c.layer] for c in mask.ablated if not c.is_head}
    expected = reference_logits(edited(case.reference, heads, mlps), texts())
    found = masked_logits(case.model, mask, padded(texts(), side, extra=3, noise=2))
    close(found, expected)
    assert (expected - reference_logits(case.reference, texts())).abs().max() > 1e-3


@pytest.mark.parametrize("side", ["right", "left"])
def test_continuous_masks_of_every_layer_equal_raw_hooks(get: Get, name: str, side: str) -> None:
    case, values = get(name), MASKS[0]
    means = means_of(case.model)

    def on_z(layer: int, z: Tensor) -> Tensor:
        m = values[layer, :4, None]
        return m * z + (1 - m) * means.z[layer].float()

    def on_mlp(layer: int, out: Tensor) -> Tensor:
        return values[layer, 4] * out + (1 - values[layer, 4]) * means.mlp[layer].float()

    with torch_hooks(case.reference, on_z, on_mlp):
        expected = reference_logits(case.reference, texts())
    close(masked_logits(case.model, Mask(values), padded(texts(), side, extra=1)), expected)
    assert (expected - reference_logits(case.reference, texts())).abs().max() > 1e-3


def test_means_are_those_of_raw_hooks(get: Get, name: str) -> None:
    case = get(name)
    runs = [helpers.captured(case.reference, row) for row in texts((7, 3, 8, 8), seed=9)]
    for found, i in ((means_of(case.model).z, 0), (means_of(case.model).mlp, 1)):
        expected = torch.cat([run[i].double() for run in runs], 1).mean(1)
        close(found.double(), expected, 1e-6)


def test_a_mask_of_ones_changes_no_bit(get: Get, name: str) -> None:
    model, batch = get(name).model, padded(texts())
    with torch.no_grad():
        expected = forward(model, batch)
    ones = torch.ones(N_LAYERS, 5, requires_grad=True)  # so that nothing is left out
    assert torch.equal(masked_logits(model, Mask(ones), batch), expected)


def test_gradients_are_those_of_finite_differences(get: Get, name: str) -> None:
    model, batch = get(name, torch.float64).model, padded(texts((5, 3)))
    start = 0.1 + 0.8 * MASKS[1].double()
    weights = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def value(values: Tensor) -> Tensor:
        with masked(model, Mask(values), means_of(model)) as run:
            return (run(batch) * weights).sum()

    values = start.clone().requires_grad_()
    value(values).backward()
    expected = torch.zeros_like(start)
    rough = FAMILIES[name].rough
    step = 1e-2 if rough else 1e-4
    for i in range(start.numel()):
        nudge = torch.zeros_like(start)
        nudge.view(-1)[i] = step
        with torch.no_grad():
            slopes = [
                (value(start + k * nudge) - value(start - k * nudge)) / (2 * k * step)
                for k in (1, 2)
            ]
        # The large step needs the next order, too.
        expected.view(-1)[i] = (4 * slopes[0] - slopes[1]) / 3
    assert expected.abs().min() > (0 if rough else 1e-6)
    close(values.grad, expected, 1e-3 if rough else 1e-6)


def test_a_copy_of_the_model_is_masked_on_its_own(get: Get, name: str) -> None:
    model, batch = get(name).model, padded(texts())
    mask = Mask.full(model).without(*COMPONENTS)
    other = copy.deepcopy(model)
    expected = masked_logits(model, mask, batch)
    close(masked_logits(other, mask, batch), expected, 0)


def test_shared_layers_give_the_answers_of_masks_run_one_by_one(get: Get, name: str) -> None:
    case = get(name)
    options: dict[str, Any] = {"means": means_of(case.model), "split": "ood"}
    arguments = case.model, [*COMPONENTS, "L0.H0+L2.MLP"], EXAMPLES
    expected = ablate(*arguments, engine="reference", **options)
    engines = ["restart", "tree"]
    if ARCHITECTURES[case.reference.config.model_type].stack is Architecture.stack:
        with pytest.raises(InputError, match="engine='restart' runs any model"):
            ablate(*arguments, engine="tree", **options)
        engines.remove("tree")
    for engine in engines:
        found = ablate(*arguments, engine=engine, **options)  # type: ignore[arg-type]
        close(found.full.logits, expected.full.logits)
        for components, answers in expected.without.items():
            close(found.without[components].logits, answers.logits)


# -- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
def test_head_categories(get: Get, name: str, side: str) -> None:
    case, rows = get(name), texts()
    scores = attention_scores(case.model, [padded(rows, side)], resamples=0)
    previous = [attentions(case.reference, row).diagonal(-1, -2, -1).flatten(0, 1) for row in rows]
    expected = torch.cat(previous, -1).double().mean(-1)
    close(torch.tensor(scores["mass_previous"]), expected)
    labelled = categorize_heads(case.model, EXAMPLES, resamples=0)
    assert len(labelled) == N_LAYERS * helpers.N_HEADS
    assert labelled["mass_previous"].between(0, 1).all()


# -- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["ForMaskedLM", "Model"])
def test_without_a_head(name: str, head: str, tmp_path: Path) -> None:
    path = save(class_of(name, head)(config_of(name)), tmp_path)
    with pytest.raises(InputError, match=f"its architecture is {name.split()[0]}{head}"):
        load_model(path)
    model, body, rows = load_model(path, head=False), plain(path, hf.AutoModel), texts()
    assert not is_classifier(model)
    with torch.no_grad():
        states = forward(model, padded(rows, "left"))
        for i, row in enumerate(rows):
            close(states[i, : len(row)], body(row[None]).last_hidden_state[0])
        patterns = model.run_with_cache(rows[0][None])[1]
    for layer, expected in enumerate(attentions(body, rows[0])):
        close(patterns["pattern", layer][0], expected, 1e-6)


@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_masks_fold_into_checkpoints(get: Get, name: str, fill: Any, tmp_path: Path) -> None:
    case, batch, out = get(name), padded(texts()), tmp_path / "out"
    mask = Mask.full(case.model).without(*COMPONENTS)
    if FAMILIES[name].shared:
        with pytest.raises(InputError, match="share weights"):
            export_checkpoint(case.path, out, mask, means_of(case.model), fill)
        assert not out.exists()
        return
    export_checkpoint(case.path, out, mask, means_of(case.model), fill)
    expected = masked_logits(case.model, mask, batch, fill)
    with torch.no_grad():
        close(plain(out)(**batch).logits, expected)
        close(forward(load_model(out), batch), expected)


def test_a_new_head_on_a_pretrained_body_and_one_on_a_classifiers(
    name: str, tmp_path: Path
) -> None:
    path = save(class_of(name, "ForMaskedLM")(config_of(name)), tmp_path / "base")
    before = plain(path, hf.AutoModel).state_dict()
    model, tokenizer = new_model(path, classes=["no", "yes"], seed=0)
    assert type(model) is class_of(name, "ForSequenceClassification")
    after = model.base_model.state_dict()
    for key in before.keys() & after.keys():
        if "pooler" not in key:
            assert torch.equal(before[key], after[key]), key
    model.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    with pytest.warns(match="is for no, yes, and is replaced by a new one for a, b, c"):
        other, _ = new_model(tmp_path / "tuned", classes=["a", "b", "c"], seed=1)
    batch = padded(texts())
    with torch.no_grad():
        close(forward(load_model(tmp_path / "tuned"), batch), model.eval()(**batch).logits)
        assert other(**batch).logits.shape == (len(texts()), 3)
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["id2label"]["1"] == "yes"
