"""Exported checkpoints, run by transformers alone, against masked models and raw torch hooks."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import Cases, close, padded, texts
from models.families import config_of as tiny_config
from safetensors.torch import load_file

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MismatchError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.architectures import decoders
from mechcore.models.export import export_checkpoint

FULL = Mask.full(ModelShape(helpers.N_LAYERS, helpers.N_HEADS))
MASKS = {
    "nothing": FULL,
    "a head": FULL.without("1.2"),
    "an MLP": FULL.without("0.mlp"),
    "everything": ~FULL,
    "several": FULL.without("0.0", "0.3", "0.mlp", "1.1"),
}
CHECKPOINTS = ("bert", "gpt2-lm", "mistral", "qwen2-lm")


TWO = {"intermediate_size": 24, "num_key_value_heads": 2}
OWN = {"Llama": {}, "Mistral": {"head_dim": 8}, "Qwen2": {"tie_word_embeddings": True}}


def language_model(family: str, **changes: Any) -> Any:
    """A tiny random decoder with shared key and value heads; Qwen2's embeddings are tied."""
    config = tiny_config(family, **{**TWO, **OWN[family], **changes})
    model = hf.AutoModelForCausalLM.from_config(config)
    helpers.randomise(model)
    return model.eval()


def saved(model: Any, path: Path) -> Path:
    model.save_pretrained(path)
    helpers.word_tokenizer().save_pretrained(path)
    return path


@dataclass(frozen=True, eq=False)
class Source:
    """A checkpoint, the model that mechcore makes of it, and that model's means."""

    path: Path
    model: Any
    means: MeanActivations

    @classmethod
    def at(cls, path: Path) -> "Source":
        model = load_model(path)
        return cls(path, model, MeanActivations.compute(model, padded(texts((7, 3, 8), seed=9))))

    def exported(self, name: str) -> Path:
        """The checkpoint with a mask of `MASKS` folded in, written once; not to be changed."""
        out = self.path.with_name(f"{self.path.name} without {name}")
        if not out.exists():
            export_checkpoint(self.path, out, MASKS[name], self.means)
        return out

    def masked(self, mask: Mask, batch: Any, fill: Any = "mean") -> torch.Tensor:
        with torch.no_grad(), masked(self.model, mask, self.means, fill) as run:
            return real(run(batch), batch)


Sources = Callable[[str], Source]


@pytest.fixture(scope="module")
def sources(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Makes every checkpoint once."""
    folder = tmp_path_factory.mktemp("sources")

    @cache
    def get(name: str) -> Source:
        family, _, is_lm = name.partition("-")
        if not is_lm or family == "gpt2":
            return Source.at(cases.path(name))
        return Source.at(saved(language_model(family.capitalize()), folder / name))

    return get


@pytest.fixture(params=CHECKPOINTS)
def source(request: pytest.FixtureRequest, sources: Sources) -> Source:
    return sources(request.param)


def plain(path: Path) -> Any:
    """The checkpoint as transformers loads it by default."""
    is_lm = not config_of(path)["architectures"][0].endswith("ForSequenceClassification")
    kind: Any = hf.AutoModelForCausalLM if is_lm else hf.AutoModelForSequenceClassification
    return kind.from_pretrained(path).eval()


def config_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text())


@torch.no_grad()
def plain_logits(path: Path, batch: Any) -> torch.Tensor:
    return real(plain(path)(**batch).logits, batch)


def real(logits: torch.Tensor, batch: Any) -> torch.Tensor:
    """Without those at padding: [row, class], or [token, vocab]."""
    return logits if logits.ndim == 2 else logits[batch["attention_mask"] == 1]


@pytest.mark.parametrize("name", MASKS)
def test_the_checkpoint_gives_the_masked_logits(source: Source, name: str) -> None:
    batch, mask = padded(texts(), extra=3), MASKS[name]
    expected = source.masked(mask, batch)
    close(plain_logits(source.exported(name), batch), expected)
    if name != "nothing":
        assert (expected - source.masked(FULL, batch)).abs().max() > 1e-2


# -- weights --------------------------------------------------------------------------------------

ATTENTION = ("attention.output.dense", "attn.c_proj", "self_attn.o_proj")
MLP = ("output.dense", "mlp.c_proj", "mlp.down_proj")


def pruned_entries(name: str, tensor: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Where folding may write into a weight or bias of this name."""
    nowhere = torch.zeros(tensor.shape, dtype=torch.bool)
    module, _, kind = name.rpartition(".")
    layer = re.search(r"\.(\d+)\.", name)
    if layer is None or not module.endswith((*ATTENTION, *MLP)):
        return nowhere
    heads, mlp = mask.heads[int(layer[1])] == 0, mask.mlps[int(layer[1])] == 0
    if not module.endswith(ATTENTION):
        return nowhere | mlp
    if kind == "bias":
        return nowhere | heads.any()
    is_conv1d = "c_proj" in module  # [in, out]
    inputs = heads.repeat_interleave(tensor.shape[0 if is_conv1d else 1] // len(heads))
    return nowhere | (inputs[:, None] if is_conv1d else inputs)


@pytest.mark.parametrize("name", ["nothing", "several"])
def test_only_pruned_weights_change(source: Source, name: str) -> None:
    before = load_file(source.path / "model.safetensors")
    after = load_file(source.exported(name) / "model.safetensors")
    for key, tensor in after.items():
        pruned = pruned_entries(key, tensor, MASKS[name])
        assert key in before or key.endswith(".bias")
        expected = before.get(key, torch.zeros_like(tensor))
        assert torch.equal(tensor[~pruned], expected[~pruned])
        assert tensor.dtype == torch.float32
        if key.endswith(".weight"):
            assert not tensor[pruned].any()
    assert before.keys() <= after.keys()
    if name == "nothing":
        assert config_of(source.exported(name)) == config_of(source.path)
        return
    pair = [("the cat saw a dog", "a bird ran .")]
    old, new = map(hf.AutoTokenizer.from_pretrained, (source.path, source.exported(name)))
    assert dict(new(pair)) == dict(old(pair))


def test_a_bias_is_summed_in_float64_and_rounded_once(sources: Sources) -> None:
    source = sources("bert")
    before = load_file(source.path / "model.safetensors")
    after = load_file(source.exported("several") / "model.safetensors")
    name = "bert.encoder.layer.0.attention.output.dense"
    weight, bias = before[f"{name}.weight"].double(), before[f"{name}.bias"].double()
    for head in (0, 3):
        bias = bias + weight[:, 4 * head : 4 * head + 4] @ source.means.z[0, head]
    assert torch.equal(after[f"{name}.bias"], bias.float())
    mlp = after["bert.encoder.layer.0.output.dense.bias"]
    assert torch.equal(mlp, source.means.mlp[0].float())


# -- Llama with biases ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pruned", "attention", "mlp"),
    [
        ("llama-lm", "a head", True, False),
        ("mistral", "an MLP", False, True),
        ("qwen2-lm", "an MLP", True, True),  # its queries, keys and values have biases already
    ],
)
def test_biases_come_where_they_are_needed(
    sources: Sources, name: str, pruned: str, attention: bool, mlp: bool
) -> None:
    source = sources(name)
    before, after = config_of(source.path), config_of(source.exported(pruned))
    kind = "ForCausalLM" if "-lm" in name else "ForSequenceClassification"
    assert after["architectures"] == [f"Llama{kind}"]
    assert (after["attention_bias"], after["mlp_bias"]) == (attention, mlp)
    same = before.keys() - decoders._OWN_FIELDS - {"attention_bias", "mlp_bias"}
    assert {field: after[field] for field in same} == {field: before[field] for field in same}
    assert not after.keys() & decoders._WINDOW_FIELDS


def folded(model: Any, name: str, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compare the logits of a model's export with masked ones; its configurations."""
    source, batch = Source.at(saved(model, path / "in")), padded(texts((48, 20)))
    export_checkpoint(source.path, path / "out", MASKS[name], source.means)
    close(plain_logits(path / "out", batch), source.masked(MASKS[name], batch))
    return config_of(source.path), config_of(path / "out")


BOTH = {"attention_bias": True, "mlp_bias": True}
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
OF_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
    {"rope_type": "llama3", "original_max_position_embeddings": 16, **OF_LLAMA3},
]


@pytest.mark.parametrize(
    ("family", "changes", "name", "expected"),
    [
        ("Llama", {"attention_bias": True}, "an MLP", BOTH),
        ("Llama", {"mlp_bias": True}, "a head", BOTH),
        *(("Mistral", {"rope_parameters": rope}, "a head", {}) for rope in ROPES),
        # Windows that do nothing.
        ("Mistral", {"sliding_window": 48}, "several", {}),
        ("Mistral", {"sliding_window": None}, "several", {}),
        ("Qwen2", {**WINDOW, "use_sliding_window": False}, "several", {}),
        ("Qwen2", {**WINDOW, "max_window_layers": 2}, "several", {}),
        ("Qwen2", {**WINDOW, "sliding_window": 48}, "several", {}),
    ],
)
def test_settings_of_decoders_carry_over(
    family: str, changes: dict[str, Any], name: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    before, after = folded(language_model(family, **changes), name, tmp_path)
    assert {field: after[field] for field in expected} == expected
    rope = {**before["rope_parameters"], **changes.get("rope_parameters", {})}
    assert after["rope_parameters"] == rope


@pytest.mark.parametrize(
    ("family", "changes"), [("Mistral", {"sliding_window": 47}), ("Qwen2", WINDOW)]
)
def test_a_window_in_use_is_refused(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    source = Source.at(saved(language_model(family, **changes), tmp_path / "in"))
    batch, mask, out = padded(texts((48, 20))), MASKS["several"], tmp_path / "out"
    message = rf"sliding window \(found {changes['sliding_window']} for 48 positions\)"
    with pytest.raises(InputError, match=message):
        export_checkpoint(source.path, out, mask, source.means)
    assert not out.exists()
    export_checkpoint(source.path, out, mask, fill="zero")
    close(plain_logits(out, batch), source.masked(mask, batch, "zero"))
    assert config_of(out) == config_of(source.path)


def test_other_things_that_a_llama_lacks(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Source.at(saved(language_model("Mistral", hidden_size=18), tmp_path / "in"))
    mask, out = MASKS["several"], tmp_path / "out"
    with pytest.raises(InputError, match="has no 4 heads at hidden size 18; use fill='zero'"):
        export_checkpoint(odd.path, out, mask, odd.means)
    qwen2 = sources("qwen2-lm")
    monkeypatch.setattr(decoders, "_WINDOW_FIELDS", {"sliding_window", "layer_types"})
    with pytest.raises(InputError, match="Llama with biases has no setting max_window_layers"):
        export_checkpoint(qwen2.path, out, mask, qwen2.means)
    assert not out.exists()


# -- what else is in the folder -------------------------------------------------------------------


def test_mechcore_json_says_what_was_done(sources: Sources, tmp_path: Path) -> None:
    source, mask = sources("bert"), MASKS["several"]
    trained = Mask(mask.values.clone().requires_grad_())
    export_checkpoint(source.path, tmp_path / "mean", trained, source.means)
    facts = json.loads((tmp_path / "mean" / "mechcore.json").read_text())
    assert facts == {
        "format": "mechcore-export-1",
        "source": str(source.path),
        "revision": None,
        "fill": "mean",
        "sparsity": 0.4,
        "kept": ["L0.H1", "L0.H2", "L1.H0", "L1.H2", "L1.H3", "L1.MLP"],
        "pruned": ["L0.H0", "L0.H3", "L0.MLP", "L1.H1"],
        "means_data": source.means.data,
    }
    export_checkpoint(str(source.path), tmp_path / "zero", mask, source.means, "zero")
    zero = json.loads((tmp_path / "zero" / "mechcore.json").read_text())
    assert zero == {**facts, "fill": "zero", "means_data": None}


@pytest.mark.parametrize("family", ["gpt2", "Mistral"])
def test_generation_settings_stay(family: str, tmp_path: Path) -> None:
    model = helpers.gpt2_language_model() if family == "gpt2" else language_model(family)
    source = Source.at(saved(model, tmp_path / "in"))
    # Published like this by several models, though temperature needs sampling.
    generation = {"do_sample": False, "temperature": 0.6, "max_new_tokens": 7, "eos_token_id": 5}
    (source.path / "generation_config.json").write_text(json.dumps(generation))
    export_checkpoint(source.path, tmp_path / "out", MASKS["several"], source.means)
    after = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: after[name] for name in generation} == generation


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    before, after = folded(helpers.hf_classifier("mistral").half(), "several", tmp_path)
    assert (before["dtype"], after["dtype"]) == ("float16", "float32")


def test_classifiers_learn_the_padding_token(tmp_path: Path) -> None:
    for model, expected in (
        (helpers.hf_classifier("gpt2"), helpers.PAD),
        (helpers.gpt2_language_model(), None),
    ):
        model.config.pad_token_id = None
        _, after = folded(model, "several", tmp_path / str(expected))
        assert after.get("pad_token_id") == expected


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask.stack([FULL, FULL]), r"Mask\(2 masks.* a single mask of zeros and ones"),
        (Mask(torch.full((2, 5), 0.5)), "continuous.* a single mask of zeros and ones"),
        (Mask(torch.ones(3, 5)), "mask has 3 layers x 4 heads with MLPs, the model has 2"),
    ],
)
def test_masks_that_do_not_fold(sources: Sources, tmp_path: Path, mask: Mask, message: str) -> None:
    source = sources("bert")
    with pytest.raises(InputError, match=message):
        export_checkpoint(source.path, tmp_path / "out", mask, source.means)
    assert not any(tmp_path.iterdir())


def test_means_that_cannot_be_folded(sources: Sources, cases: Cases, tmp_path: Path) -> None:
    source, out, mask = sources("bert"), tmp_path / "out", MASKS["a head"]

    def refused(means: Any, error: type[Exception], message: str, fill: Any = "mean") -> None:
        with pytest.raises(error, match=message):
            export_checkpoint(source.path, out, mask, means, fill)
        assert not any(tmp_path.iterdir())

    refused(None, InputError, "fill 'mean' needs means; pass MeanActivations.compute")
    positions = MeanActivations.compute(source.model, padded(texts()), per_position=True)
    refused(positions, InputError, r"means are per position \(9 positions\), but a bias is one")
    refused(source.means, InputError, "fill is 'resample'; expected 'mean' or 'zero'", "resample")
    refused(sources("roberta").means, MismatchError, "computed on another model.*weights")
    refused(sources("mistral").means, MismatchError, "d_head 8 against 4")
    half = load_model(source.path, dtype=torch.bfloat16)
    half_means = MeanActivations.compute(half, padded(texts()))
    refused(half_means, MismatchError, "dtype bfloat16 against float32")
    same = replace(source.means, data="of other data")
    export_checkpoint(source.path, out, mask, same)


def test_places_that_cannot_be_written(sources: Sources, tmp_path: Path) -> None:
    source, mask = sources("bert"), MASKS["a head"]
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "empty").mkdir()
    export_checkpoint(source.path, tmp_path / "empty", mask, source.means)
    shutil.rmtree(tmp_path / "empty")
    for out, message in (
        (file, "file is a file; expected a new or empty folder"),
        (file / "below", "file is not a writable folder"),
        (tmp_path, "is a folder with files; expected a new or empty folder: remove it"),
        (source.path, "is a folder with files"),
    ):
        with pytest.raises(InputError, match=message):
            export_checkpoint(source.path, out, mask, source.means)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "mine"


def test_sources_that_cannot_be_exported(sources: Sources, tmp_path: Path) -> None:
    source, mask, out = sources("bert"), MASKS["a head"], tmp_path / "out"
    with pytest.raises(InputError, match=r"source is a TransformerBridge; expected the directory"):
        export_checkpoint(source.model, out, mask, source.means)
    with pytest.raises(InputError, match="no such directory"):
        export_checkpoint(tmp_path / "none", out, mask, source.means)
    path = saved(hf.GPTNeoXForCausalLM(tiny_config("GPTNeoX")), tmp_path / "neox")
    with pytest.raises(InputError, match=r"found GPTNeoXForCausalLM, which .* are bert, .* qwen2"):
        export_checkpoint(path, out, mask, fill="zero")
    for architecture in ("bert", "llama"):
        bare = tmp_path / architecture
        helpers.hf_classifier(architecture).save_pretrained(bare)
        with pytest.raises(InputError, match=f"{architecture}: no usable tokenizer"):
            export_checkpoint(bare, out, mask, fill="zero")
    assert not out.exists()
