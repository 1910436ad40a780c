"""Layers as plain functions against Hugging Face's own layers, and against loops over tokens."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from helpers import Case, Cases, captured, close, padded, texts
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import model_inputs, read_position
from mechcore.models.stack import Layer, Linear, Norm, Stack

MODELS = ("bert", "gpt2-lm", "llama", "mistral")
LAST = helpers.N_LAYERS - 1
HEADS = list(range(helpers.N_HEADS))
SUBSETS: list[list[int]] = [[0], [3], [1, 2], [0, 3], [1, 2, 3], HEADS]


@dataclass(frozen=True)
class Walk:
    """What a stack computed on its way through all layers."""

    z: list[Tensor]
    mlp: list[Tensor]
    x: Tensor
    logits: Tensor


@torch.no_grad()
def walk(stack: Stack, inputs: dict[str, Tensor], read: Tensor | None = None) -> Walk:
    context, heads = stack.context(inputs, read), list(range(stack.n_heads))
    x, zs, outs = stack.embed(inputs), [], []
    for layer in range(len(stack.layers)):
        z = stack.z(layer, x, context, heads)
        x = stack.kept_positions(layer, x, context) + stack.project(layer, z, heads, bias=True)
        x = stack.after_attention(layer, x)
        out = stack.mlp(layer, x)
        x = stack.after_mlp(layer, x + out)
        zs.append(z)
        outs.append(out)
    return Walk(zs, outs, x, stack.out(stack.head(x)))


@dataclass(frozen=True)
class Subject:
    """A model, its stack and Hugging Face's model of the same weights."""

    model: Any
    stack: Stack
    reference: Any

    def inputs(self, side: str = "right", extra: int = 0, noise: int | None = 3) -> dict[str, Any]:
        return model_inputs(self.model, padded(texts(), side, extra, noise))

    def read(self, inputs: dict[str, Any]) -> Tensor:
        """The position that the head reads."""
        return read_position(self.model, inputs)


@pytest.fixture(params=MODELS)
def subject(request: pytest.FixtureRequest, cases: Cases) -> Subject:
    """One model of each kind of attention: both directions, causal, grouped and rotary."""
    case = cases.get(request.param)
    return Subject(case.model, stack_of(case.model), case.reference)


# -- against Hugging Face -------------------------------------------------------------------------

PADDINGS = [("right", 0), ("right", 4), ("left", 0), ("left", 4)]


@pytest.mark.parametrize(("side", "extra"), PADDINGS)
def test_every_layer_is_that_of_hugging_face(subject: Subject, side: str, extra: int) -> None:
    inputs = subject.inputs(side, extra)
    trace = walk(subject.stack, inputs)
    real = inputs["attention_mask"].bool()
    for i, row in enumerate(texts()):
        z, mlp = captured(subject.reference, row)
        for layer in range(helpers.N_LAYERS):
            close(trace.z[layer][i][real[i]], z[layer])
            close(trace.mlp[layer][i][real[i]], mlp[layer])
    assert all(torch.isfinite(x).all() for x in (*trace.z, *trace.mlp))
    trace = walk(subject.stack, inputs, subject.read(inputs))
    assert trace.x.shape == (5, 1, helpers.D_MODEL)
    close(trace.logits[:, 0], helpers.reference_logits(subject.reference, texts()))


def test_texts_without_padding(subject: Subject) -> None:
    ids = torch.stack(texts((6, 6, 6)))
    inputs = model_inputs(subject.model, {"input_ids": ids})
    assert subject.stack.context(inputs, None).real is None
    logits = walk(subject.stack, inputs).logits
    with torch.no_grad():
        expected = subject.reference(input_ids=ids).logits
    if expected.ndim == 2:
        logits = logits[:, 0 if subject.stack.post_norm else -1]
    close(logits, expected)


def test_segments_are_embedded(cases: Cases) -> None:
    case, row = cases.get("bert"), texts((6,))[0]
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    batch = {"input_ids": row[None], "token_type_ids": segments}
    trace = walk(stack_of(case.model), model_inputs(case.model, batch), torch.tensor([0]))
    with torch.no_grad():
        close(trace.logits[:, 0], case.reference(**batch).logits)
    assert (trace.logits[:, 0] - helpers.reference_logits(case.reference, [row])).abs().max() > 1e-3


# -- parts of it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_last_layer_at_one_position_is_that_of_all(subject: Subject, side: str) -> None:
    inputs = subject.inputs(side, extra=2)
    everywhere = walk(subject.stack, inputs)
    real = inputs["attention_mask"].bool()
    rows = torch.arange(len(real))
    for n in range(2):  # any real position can be read, not only the first or last
        read = torch.stack([where.nonzero().flatten()[(n + i) % 2] for i, where in enumerate(real)])
        trace = walk(subject.stack, inputs, read)
        assert trace.z[LAST].shape[:2] == (5, 1)
        assert trace.z[0].shape == everywhere.z[0].shape
        close(trace.z[LAST][:, 0], everywhere.z[LAST][rows, read])
        close(trace.mlp[LAST][:, 0], everywhere.mlp[LAST][rows, read])
        close(trace.x[:, 0], everywhere.x[rows, read])


@pytest.mark.parametrize("heads", SUBSETS, ids=str)
def test_some_heads_are_the_selection_of_all(subject: Subject, heads: list[int]) -> None:
    inputs = subject.inputs("left", extra=1)
    stack, read = subject.stack, subject.read(inputs)
    with torch.no_grad():
        x = stack.embed(inputs)
        for layer, at in ((0, None), (LAST, None), (LAST, read)):
            context = stack.context(inputs, at)
            expected = stack.z(layer, x, context, HEADS)[:, :, heads]
            close(stack.z(layer, x, context, heads), expected)


def test_heads_add_up_through_w_o(subject: Subject) -> None:
    inputs, stack = subject.inputs(), subject.stack
    with torch.no_grad():
        z = stack.z(0, stack.embed(inputs), stack.context(inputs, None), HEADS)
        whole = stack.project(0, z, HEADS, bias=True)
        parts = [stack.project(0, z[:, :, part], part, bias=False) for part in ([0, 2], [1], [3])]
        close(sum(parts) + stack.project(0, 0 * z, HEADS, bias=True), whole)
        fill = stack.project(0, z[0, 0, [1, 3]], [1, 3], bias=False)  # without batch and position
        assert fill.shape == (helpers.D_MODEL,)
        close(fill, stack.project(0, z[:, :, [1, 3]], [1, 3], bias=False)[0, 0])


def test_other_heads_in_every_row_go_through_w_o(subject: Subject) -> None:
    stack, heads = subject.stack, torch.tensor([[0, 2], [3, 1], [2, 1]])
    z = torch.randn(3, 2, 4, 5, stack.d_head, generator=torch.Generator().manual_seed(0))
    projected = stack.project_each(1, z, heads)
    for row, kept in enumerate(heads.tolist()):  # project wants heads in order
        order = sorted(range(2), key=kept.__getitem__)
        one = z[row, order].movedim(0, -2)
        expected = stack.project(1, one, sorted(kept), bias=False)
        torch.testing.assert_close(projected[row], expected, rtol=1e-5, atol=1e-6)


# -- settings, and what is refused ----------------------------------------------------------------


def logits_of(model: Any, batch: Any) -> Tensor:
    """Logits of a model's stack at the position that the head reads."""
    inputs = model_inputs(model, batch)
    return walk(stack_of(model), inputs, read_position(model, inputs)).logits[:, 0]


def bridge(hf_model: Any, folder: Path) -> Any:
    """Randomise a Hugging Face model, and load its checkpoint."""
    helpers.randomise(hf_model)
    hf_model.save_pretrained(folder)
    return load_model(folder)


def classifier(architecture: str, **changes: Any) -> Any:
    """A tiny classifier with other settings."""
    plain = helpers.hf_classifier(architecture)
    settings = {**plain.config.to_dict(), **changes}
    config = type(plain.config)(**settings, attn_implementation="eager")
    return type(plain)(config).eval()


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"layer_norm_eps": 0.1}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rms_norm_eps": 0.1}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}),
        ("mistral", {"sliding_window": 48}),
        ("qwen2", {"num_key_value_heads": 1}),
    ],
    ids=str,
)
def test_settings_of_bridges_are_read(
    tmp_path: Path, cases: Cases, architecture: str, changes: dict[str, Any]
) -> None:
    hf_model = classifier(architecture, **changes)
    model = bridge(hf_model, tmp_path)
    expected = helpers.reference_logits(hf_model, texts())
    for side in ("right", "left"):
        close(logits_of(model, padded(texts(), side, extra=1, noise=2)), expected)
    plain = helpers.reference_logits(cases.get(architecture).reference, texts())
    assert changes.get("sliding_window", 1) != 1 or (expected - plain).abs().max() > 2e-5


@pytest.mark.parametrize("by_layer", [False, True])
def test_scores_without_a_scale(by_layer: bool, tmp_path: Path) -> None:
    """TransformerLens scales them all the same, and such a bridge is refused by `load_model`."""
    settings = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": by_layer}
    hf_model = classifier("gpt2", **settings)
    with pytest.raises(InputError, match=r"its logits are not those of Hugging Face"):
        bridge(hf_model, tmp_path)
    expected = helpers.reference_logits(hf_model, texts())
    model = build_bridge_from_module(
        hf_model, "GPT2ForSequenceClassification", hf_config=hf_model.config
    )
    close(logits_of(model, padded(texts(), extra=1, noise=2)), expected)


def test_a_stack_is_a_copy_in_the_precision_of_the_model(case64: Case) -> None:
    model, batch = copy.deepcopy(case64.model), padded(texts())
    stack = stack_of(model)
    weights = [stack.out.weight, stack.layers[0].qkv.weight, stack.layers[1].o.weight]
    assert {weight.dtype for weight in weights} == {torch.float64}
    assert not any(weight.requires_grad for weight in weights)
    inputs = model_inputs(model, batch)
    expected = walk(stack, inputs).logits
    helpers.randomise(model.original_model, seed=1)
    assert torch.equal(walk(stack, inputs).logits, expected)
    assert (walk(stack_of(model), inputs).logits - expected).abs().max() > 1e-2


def refusal(model: Any) -> str:
    """The reason given for a model without a stack."""
    families = "bert, roberta, xlm-roberta, camembert, electra, distilbert, gpt2, llama, mistral"
    message = (
        f"^prefix-sharing engine: found (.*); expected a TransformerBridge of {families}, qwen2 "
        "with its usual settings, on one device; engine='restart' runs any model whose layers can "
    )
    with pytest.raises(InputError) as caught:
        stack_of(model)
    match = re.match(message, str(caught.value))
    assert match, str(caught.value)
    return match[1]


def test_bert_as_a_decoder_is_refused(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in helpers.ENCODERS:
        model = cases.get(architecture).model
        monkeypatch.setattr(model.original_model.config, "is_decoder", True)
        assert refusal(model) == f"a {architecture} with is_decoder=True"


def test_sliding_windows_are_refused(tmp_path: Path) -> None:
    model = bridge(classifier("mistral", sliding_window=4), tmp_path / "mistral")
    assert refusal(model) == "a mistral with a sliding window of 4 positions"
    settings = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = bridge(classifier("qwen2", **settings, layer_types=None), tmp_path / "qwen2")
    assert "sliding_attention" in model.original_model.config.layer_types
    assert refusal(model) == "a qwen2 with a sliding window of 8 positions"


@pytest.mark.hooked
def test_hooked_models_are_refused() -> None:
    assert refusal(helpers.hooked_encoder()) == "a HookedEncoder"


def test_half_precision_is_that_of_the_layers_matrices_alone(subject: Subject) -> None:
    stack = subject.stack
    half = stack.to(torch.bfloat16)
    for layer, kept in zip(half.layers, stack.layers, strict=True):
        assert (layer.gate is None) == (kept.gate is None)
        parts = [layer.qkv, layer.o, layer.up, layer.down, *[layer.gate] * (layer.gate is not None)]
        tensors = [tensor for part in parts for tensor in (part.weight, part.bias)]
        assert {tensor.dtype for tensor in tensors if tensor is not None} == {torch.bfloat16}
        assert layer.norm_attn is kept.norm_attn
        assert layer.norm_mlp is kept.norm_mlp
        assert kept.qkv.weight.dtype == torch.float32
    inputs = subject.inputs("left", extra=1)
    read = subject.read(inputs)
    trace, expected = walk(half, inputs, read), walk(stack, inputs, read)
    assert all(z.dtype == torch.bfloat16 for z in (*trace.z, *trace.mlp))
    assert half.embed(inputs).dtype == torch.float32
    assert half.out is stack.out
    assert half.head is stack.head
    assert trace.x.dtype == trace.logits.dtype == torch.float32
    assert torch.equal(half.embed(inputs), stack.embed(inputs))
    # Logits of a random head can cancel, where rounding shows as much as it likes.
    for rounded, exact in ((trace.x, expected.x), (trace.z[LAST].float(), expected.z[LAST])):
        assert (rounded - exact).norm() < 0.03 * exact.norm()
    assert not torch.equal(trace.logits, expected.logits)


# -- written out ----------------------------------------------------------------------------------


def test_norms_by_hand() -> None:
    x = torch.tensor([[3.0, -1.0, 1.0, 1.0]])  # mean 1, variance 2, mean square 3
    weight, bias = torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([0.0, 0.5, 0.0, 0.0])
    root = math.sqrt(2.25)
    close(Norm(weight, bias, 0.25)(x), torch.tensor([[2 / root, -4 / root + 0.5, 0.0, 0.0]]), 1e-6)
    root = math.sqrt(4)
    expected = torch.tensor([[3 / root, -2 / root, 1 / root, 1 / root]])
    close(Norm(weight, None, 1.0, rms=True)(x), expected, 1e-6)


N_HEADS, D_HEAD, D_MODEL = 4, 4, 8


def micro(n_kv_heads: int, rotated: int, causal: bool) -> Stack:
    """One random layer of attention without norms; ``rotated`` dimensions of a head turn."""
    generator = torch.Generator().manual_seed(5)

    def linear(n_out: int, n_in: int) -> Linear:
        return Linear(*(torch.randn(s, generator=generator) for s in ((n_out, n_in), (n_out,))))

    def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = angle(positions[..., None], torch.arange(rotated // 2).repeat(2))
        return angles.cos(), angles.sin()

    no_norm: Any = lambda x: x  # noqa: E731
    layer = Layer(
        qkv=linear((N_HEADS + 2 * n_kv_heads) * D_HEAD, D_MODEL),
        o=linear(D_MODEL, N_HEADS * D_HEAD),
        up=linear(3, D_MODEL),
        gate=None,
        down=linear(D_MODEL, 3),
        norm_attn=no_norm,
        norm_mlp=no_norm,
        scale=0.3,
    )
    return Stack(
        layers=(layer,),
        n_heads=N_HEADS,
        n_kv_heads=n_kv_heads,
        d_head=D_HEAD,
        post_norm=False,
        causal=causal,
        activation=torch.relu,
        embed=lambda inputs: inputs["x"],
        head=lambda x: x,
        out=linear(2, D_MODEL),
        rotary=rotary if rotated else None,
    )


def angle(position: Tensor, pair: Tensor) -> Tensor:
    return position * 0.7 / (1 + pair)


def attention_by_loops(stack: Stack, x: Tensor, mask: Tensor, rotated: int) -> Tensor:
    """Z of one text [pos, d_model], token by token and head by head; nan at padding."""
    weights = stack.layers[0]
    n, kv = stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head
    q, k, v = weights.qkv(x).split([n, kv, kv], -1)
    places = mask.cumsum(0) - 1
    z = torch.full((len(x), stack.n_heads, stack.d_head), math.nan)
    for head, i in ((h, i) for h in range(stack.n_heads) for i in mask.nonzero().flatten()):
        group = head // (stack.n_heads // stack.n_kv_heads)
        query = q.unflatten(-1, (-1, stack.d_head))[i, head]
        keys, values = (part.unflatten(-1, (-1, stack.d_head))[:, group] for part in (k, v))
        seen = [j for j in mask.nonzero().flatten() if not stack.causal or j <= i]
        here = turned(query, places[i], rotated)
        scores = torch.stack([here @ turned(keys[j], places[j], rotated) for j in seen])
        z[i, head] = (scores * weights.scale).softmax(0) @ values[torch.stack(seen)]
    return z


def turned(vector: Tensor, place: Tensor, rotated: int) -> Tensor:
    """Every pair (p, p + rotated / 2) as a complex number, multiplied by exp(i angle)."""
    half = rotated // 2
    pairs = torch.complex(vector[:half], vector[half:rotated])
    pairs = pairs * torch.exp(1j * angle(place, torch.arange(half)))
    return torch.cat([pairs.real, pairs.imag, vector[rotated:]])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rotated", [0, 2, 4])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_is_that_of_loops(n_kv_heads: int, rotated: int, causal: bool, side: str) -> None:
    stack = micro(n_kv_heads, rotated, causal)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    mask = mask if side == "right" else mask.flip(1)
    x = torch.randn(2, 5, D_MODEL, generator=torch.Generator().manual_seed(1))
    expected = torch.stack(
        [attention_by_loops(stack, *row, rotated) for row in zip(x, mask, strict=True)]
    )
    inputs, heads = {"x": x, "attention_mask": mask}, list(range(N_HEADS))
    z = stack.z(0, x, stack.context(inputs, None), heads)
    close(z[mask.bool()], expected[mask.bool()])
    read = torch.tensor([3, 1 if side == "right" else 3])
    z = stack.z(0, x, stack.context(inputs, read), heads)
    close(z[:, 0], expected[[0, 1], read])
