"""Loading checkpoints: what works, and one clear line for what does not."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import numpy as np
import pytest
import torch
import transformers as hf
from helpers import Case, Cases, close, load_inputs, padded, reference_logits, texts
from models.checkpoints import change_config, refusal
from safetensors.torch import load_file, save_file

from mechcore.errors import InputError
from mechcore.models import hooked, load_model, load_tokenizer
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import (
    check_hooks,
    forward,
    is_classifier,
    model_classes,
)
from mechcore.models.tokenizers import check_vocabulary
from mechcore.steps.config import DataConfig, ModelConfig

# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "no such directory") for name in ("runs/of/mine", "./mine", "/nowhere/mine")),
        ("mine.gguf", "no such file"),
        ("nobody/no-such-model", "neither a local checkpoint nor a reachable hub id"),
    ],
)
def test_names_of_nothing(name: str, message: str) -> None:
    assert refusal(name).startswith(f"checkpoint {name}: {message}")


Change = Callable[[Path], Any]


def configured(**changes: Any) -> Change:
    return lambda path: change_config(path, **changes)


def of_file(change: Callable[[bytes], bytes], file: str = "model.safetensors") -> Change:
    """Change the bytes of a file."""
    return lambda path: (path / file).write_bytes(change((path / file).read_bytes()))


def weighed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Change the weights of a checkpoint."""

    def apply(path: Path) -> None:
        file = path / "model.safetensors"
        save_file(change(load_file(file)), file, {"format": "pt"})

    return apply


def adding(*names: str) -> Change:
    return weighed(lambda weights: {**weights, **{name: torch.ones(2) for name in names}})


def renamed(old: str, new: str) -> Change:
    return weighed(lambda weights: {k.replace(old, new): w for k, w in weights.items()})


def lacking(part: str) -> Change:
    return weighed(lambda weights: {k: v for k, v in weights.items() if part not in k})


LOST = "encoder.layer.1.attention.output.dense"
SHAPES = "its weights do not have the shapes in its config.json: .*"
DAMAGED = "model.safetensors is damaged or not a safetensors"
UNREAD = "does not read the weights bert.encoder.layer.1.attention.output.LayerNorm.b.* and 12 more"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: (path / "config.json").unlink(),
            "no config.json in this directory; found mo",
        ),
        (of_file(lambda _: b"{", "config.json"), "its configuration cannot be used: "),
        (of_file(lambda whole: whole[:-100]), DAMAGED),
        (of_file(lambda _: b"x" * 1000), DAMAGED),
        (of_file(lambda whole: (2**62).to_bytes(8, "little") + whole[8:]), DAMAGED),
        (
            lambda path: (path / "model.safetensors").rename(path / "weights.pt"),
            r"no weights \(model.safetensors\) in this directory; found .*weights.pt; expected one",
        ),
        (lacking("classifier"), "lack the weights classifier.bias, classifier.weight of"),
        (lacking(LOST), f"lack the weights bert.{LOST}.bias, bert.{LOST}.weight of"),
        (
            configured(intermediate_size=25),
            rf"{SHAPES}layer.0.intermediate.dense.bias has \[24\], n",
        ),
        (
            configured(vocab_size=41),
            rf"{SHAPES}word_embeddings.weight has \[40, 16\], not \[41, 16",
        ),
        (
            configured(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1}),
            rf"{SHAPES}classifier.bias has \[3\], not \[2\], classifier.weight has \[3, 16\], not",
        ),
        (
            renamed("classifier.", "score."),
            "have score.bias, score.weight instead; what is missing",
        ),
        (adding("classifier.norm.weight"), "not read the weights classifier.norm.w"),
        (configured(id2label=["a", "b"]), "its configuration cannot be used: "),
    ],
)
def test_damaged_checkpoints(bert: Path, change: Change, message: str) -> None:
    change(bert)
    text = refusal(bert)
    assert str(bert) in text
    assert re.search(message, text), text


def test_damage_that_matters_to_the_head_or_to_long_texts(bert: Path) -> None:
    change_config(bert, architectures=None)
    message = (
        r'has null as architectures; expected .* such as \["BertForSequenceClassification"\]: '
    )
    assert re.search(message, refusal(bert))
    assert not is_classifier(load_model(bert, head=False))
    change_config(bert, architectures=["BertForSequenceClassification"], num_hidden_layers=1)
    for head in (True, False):  # layers would not be run, and another network be measured
        assert re.search(f"{UNREAD} of its files, and would be", refusal(bert, head=head))
    change_config(bert, num_hidden_layers=helpers.N_LAYERS, chunk_size_feed_forward=4)
    message = "fails in torch.float32 on a text of 6 tokens: Th.* correct what the error names"
    assert re.search(message, refusal(bert))


def test_a_file_in_place_of_a_directory(bert: Path) -> None:
    message = "found a file; expected a directory, hub id or .gguf file: name its folder, "
    assert refusal(bert / "model.safetensors").endswith(f"{message}{bert}")


def test_a_bias_of_the_logits_that_is_not_read(cases: Cases, tmp_path: Path) -> None:
    path = Path(shutil.copytree(cases.path("gpt2-lm"), tmp_path / "gpt2"))
    adding("lm_head.bias")(path)
    assert "does not read the weights lm_head.bias" in refusal(path)


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "RobertaForMaskedLM"])
def test_an_encoder_whose_head_is_not_needed(tmp_path: Path, cases: Cases, kind: str) -> None:
    config = hf.AutoConfig.from_pretrained(cases.path("bert" if "Bert" in kind else "roberta"))
    saved: Any = getattr(hf, kind)(config)
    helpers.randomise(saved)
    saved.save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert f"its architecture is {kind}, which has no classification or causal" in message
    assert "fine-tune the model for the task first" in message
    model = load_model(tmp_path, head=False)
    assert not is_classifier(model)
    assert model_classes(model) is None
    body: Any = hf.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        states = forward(model, padded(texts(), "left"))
        for state, row in zip(states, texts(), strict=True):
            torch.testing.assert_close(state[: len(row)], body(row[None]).last_hidden_state[0])
    assert is_classifier(load_model(cases.path("bert"), head=False))  # a head that is read stays
    change_config(tmp_path, num_hidden_layers=1)
    assert "Model that its" in refusal(tmp_path, head=False)


def of_bert(kind: Any = hf.BertForSequenceClassification, n: int = 3, **changes: Any) -> Any:
    """A model of the tiny BERT's configuration with so many classes and these changes."""
    config = helpers.hf_classifier("bert", [f"class {i}" for i in range(n)]).config
    config.update(changes)
    return kind(config)


def of_kind(name: str, **sizes: Any) -> Any:
    """A tiny classifier of a family that mechcore does not know."""
    sizes |= {"vocab_size": 20, "pad_token_id": 0, "num_labels": 3}
    config = getattr(hf, f"{name}Config")(**sizes)
    return getattr(hf, f"{name}ForSequenceClassification")(config)


REGRESSION = r"its problem_type is regression \(num_labels is 1\): .*fine-tune it as a classifier$"
T5 = {"d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: of_bert(hf.BertForTokenClassification),
            "is BertForTokenClassification, which has no classification or causal.* or leave the "
            "head out .head=False., which shows what heads attend to$",
        ),
        (lambda: of_bert(n=1), REGRESSION),
        (lambda: helpers.hf_classifier("gpt2", ["score"]), REGRESSION),
        (
            lambda: of_bert(problem_type="multi_label_classification"),
            "its problem_type is multi_label_classification .*: any number of its labels can apply",
        ),
        (
            lambda: of_bert(problem_type="regression"),
            r"its problem_type is regression \(num_labels is 3\): .* set problem_type",
        ),
        (
            lambda: of_kind("T5", **T5),
            "no TransformerBridge adapter for T5ForSequenceClassification; classifiers that can be "
            "loaded are .*bert, roberta, xlm-roberta, .*docs/extend.md explains how to add a "
            "family$",
        ),
        (
            lambda: of_kind("XLNet", d_model=16, n_layer=1, n_head=2),
            "no TransformerBridge adapter for XLNetForSequenceClassification; ",
        ),
    ],
)
def test_models_that_do_something_else(tmp_path: Path, build: Any, message: str) -> None:
    build().save_pretrained(tmp_path)
    helpers.word_tokenizer().save_pretrained(tmp_path)
    text = refusal(tmp_path)
    assert re.search(message, text), text


def test_one_label_of_several_is_a_class_and_a_decoders_head_stays(tmp_path: Path) -> None:
    helpers.gpt2_language_model().base_model.save_pretrained(tmp_path / "body")
    assert "its architecture is GPT2Model" in refusal(tmp_path / "body", head=False)
    of_bert(problem_type="single_label_classification").save_pretrained(tmp_path)
    assert is_classifier(load_model(tmp_path))


def save_gguf(path: Path) -> None:
    """A random Llama of one layer, with a byte-level tokenizer of the letters a and b."""
    gguf = pytest.importorskip("gguf", reason="needs the gguf extra")
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 32, "embedding_length": 8, "block_count": 1, "vocab_size": 5}
    sizes |= {"feed_forward_length": 12, "head_count": 2, "head_count_kv": 1}
    sizes |= {"layer_norm_rms_eps": 1e-5, "rope_dimension_count": 4}
    tokens = {"tokenizer_model": "gpt2", "tokenizer_pre": "default", "token_merges": ["a b"]}
    tokens |= {"token_list": ["<s>", "</s>", "a", "b", "ab"], "token_types": [3, 3, 1, 1, 1]}
    for name, value in {**sizes, **tokens, "bos_token_id": 0, "eos_token_id": 1}.items():
        getattr(writer, f"add_{name}")(value)
    layer = {"attn_norm": (8,), "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8)}
    layer |= {"attn_output": (8, 8), "ffn_norm": (8,)}
    layer |= {"ffn_gate": (12, 8), "ffn_up": (12, 8), "ffn_down": (8, 12)}
    shapes = {"token_embd": (5, 8), "output": (5, 8), "output_norm": (8,)}
    for name, shape in {**shapes, **{f"blk.0.{k}": v for k, v in layer.items()}}.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file(tmp_path: Path) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    model, tokenizer = load_model(tmp_path / "tiny.gguf"), load_tokenizer(tmp_path / "tiny.gguf")
    assert (model.cfg.n_layers, model.cfg.n_heads) == (1, 2)
    ids = torch.tensor([tokenizer("abba", add_special_tokens=False)["input_ids"]])
    assert ids.tolist() == [[4, 3, 2]]
    reference: Any = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    with torch.no_grad():
        expected = reference.eval()(ids).logits
    torch.testing.assert_close(forward(model, {"input_ids": ids}), expected)


@pytest.mark.parametrize(
    ("architecture", "pad", "changes"),
    [
        ("bert", -1, {}),
        ("gpt2", helpers.VOCABULARY, {}),
        ("gpt2-lm", 10**6, {}),
        ("roberta", helpers.VOCABULARY, {}),
        ("roberta", None, {}),  # it counts positions by its padding token
        ("roberta", None, {"architectures": ["RobertaModel"]}),
    ],
)
def test_a_padding_token_without_a_row(
    cases: Cases, tmp_path: Path, architecture: str, pad: int | None, changes: dict[str, Any]
) -> None:
    path = Path(shutil.copytree(cases.path(architecture), tmp_path / "it"))
    change_config(path, pad_token_id=pad, **changes)
    message = refusal(path, head=not changes)
    given = "null" if pad is None else pad
    assert f"its config.json has {given} as pad_token_id; expected a row of the embe" in message
    assert "0 to 39: set it to the id of its tokenizer's padding token" in message
    assert message.endswith("or to null if it has none") == (architecture != "roberta")


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        ("bert", ("bert.embeddings.position_ids", "cls.predictions.bias", "qa_outputs.bias")),
        ("roberta", ("roberta.pooler.dense.weight", "roberta.pooler.dense.bias", "lm_head.bias")),
        ("gpt2-lm", ("h.0.attn.bias", "h.1.attn.masked_bias", "v_head.summary.bias")),
        ("gpt2", ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
        ("llama", ("model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight")),
    ],
)
def test_what_makes_no_difference_may_be_left_out(
    cases: Cases, tmp_path: Path, architecture: str, names: tuple[str, ...]
) -> None:
    path = Path(shutil.copytree(cases.path(architecture), tmp_path / "more"))
    adding(*names)(path)
    batch = padded(texts())
    expected = forward(cases.get(architecture).model, batch)
    torch.testing.assert_close(forward(load_model(path), batch), expected, rtol=0, atol=0)


def test_the_wrong_task(cases: Cases) -> None:
    assert "expected a language-model head" in refusal(cases.path("bert"), task="language-model")
    message = refusal(cases.path("gpt2-lm"), task="classification")
    assert "GPT2LMHeadModel; expected a sequence-classification head" in message
    message = refusal(cases.get("gpt2").reference)  # Hugging Face's own
    assert "found GPT2ForSequenceClassification; expected a HookedTransformer" in message


# -- what works -----------------------------------------------------------------------------------


def test_loads_by_text_and_path_and_takes_built_models_as_they_are(cases: Cases) -> None:
    path = cases.path("gpt2")
    model = load_model(str(path), task="classification")
    assert is_classifier(model)
    assert load_model(model) is model
    model.train()
    assert not load_model(model).training


def test_a_configuration_without_a_padding_token(tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "rotary_dim": 4}
    config = hf.CodeGenConfig(**sizes, vocab_size=40, bos_token_id=None, eos_token_id=None)
    assert not hasattr(config, "pad_token_id")
    reference = hf.CodeGenForCausalLM(config).eval()
    helpers.randomise(reference)
    reference.save_pretrained(tmp_path)
    rows = texts((7, 7))
    with torch.no_grad():
        logits = forward(load_model(tmp_path), padded(rows, "left", extra=2))[:, -1]
    close(logits, reference_logits(reference, rows))


def test_a_checkpoint_without_padding_id_takes_its_tokenizers(cases: Cases, tmp_path: Path) -> None:
    path = Path(shutil.copytree(cases.path("gpt2"), tmp_path / "gpt2"))
    change_config(path, pad_token_id=None)
    model = load_model(path)
    assert model.original_model.config.pad_token_id == load_tokenizer(path).pad_token_id
    with torch.no_grad():
        logits = forward(model, padded(texts(), "left", noise=1))
    close(logits, reference_logits(cases.get("gpt2").reference, texts()))


def test_a_tokenizer_without_padding_pads_with_the_end_token(tmp_path: Path) -> None:
    tokenizer = helpers.word_tokenizer()
    tokenizer.pad_token = None
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(tmp_path / "with end")
    assert load_tokenizer(tmp_path / "with end").pad_token == "[SEP]"
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "without")
    with pytest.raises(InputError, match="neither a padding nor an end token"):
        load_tokenizer(tmp_path / "without")


@pytest.mark.hooked
@pytest.mark.parametrize(
    "change", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}]
)
def test_hooked_reads_gpt2s_attention_scale(tmp_path: Path, change: dict[str, Any]) -> None:
    reference = helpers.gpt2_language_model(**change)
    reference.save_pretrained(tmp_path)
    rows = texts((7, 7))
    with torch.no_grad():
        logits = forward(helpers.hooked_transformer(tmp_path), padded(rows))[:, -1]
    close(logits, reference_logits(reference, rows))
    if "scale_attn_weights" in change:  # which a bridge does not read
        message = refusal(tmp_path)
        assert "its logits are not those of Hugging Face" in message
        assert "--backend hooked" in message


@pytest.mark.hooked
def test_what_the_hooked_backend_does_not_know(cases: Cases, tmp_path: Path) -> None:
    assert 'use backend "bridge"' in refusal(cases.path("gpt2"), backend="hooked")
    helpers.gpt2_language_model(activation_function="quick_gelu").save_pretrained(tmp_path)
    message = refusal(tmp_path, backend="hooked")
    assert "TransformerLens cannot make a HookedTransformer of it: act_fn" in message
    assert message.endswith('use backend "bridge"')
    load_model(tmp_path)


@pytest.mark.hooked
def test_hooked_with_other_logits_is_refused(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    right = hooked._sizes
    monkeypatch.setattr(hooked, "_sizes", lambda config: {**right(config), "eps": 0.5})
    message = refusal(cases.path("gpt2-lm"), backend="hooked")
    assert "its logits are not those of Hugging Face: they differ by " in message
    assert 'load it with backend "bridge" (--backend bridge), or use a' in message


def test_there_may_be_no_hooked_backend(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_lens", ModuleType("transformer_lens"))
    message = refusal(cases.path("gpt2-lm"), backend="hooked")
    assert "has no HookedTransformer" in message
    assert "transformer-lens<4" in message


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ({"1": "a", "2": "b", "3": "c"}, "1: a, 2: b, 3: c; expected a name for each of 0 to 2"),
        ({"0": "a", "2": "b", "3": "c"}, "0: a, 2: b, 3: c; expected"),
        ({"0": None, "1": "b", "2": "c"}, "0: None, 1: b, 2: c; expected"),
        ({"0": "a", "1": " ", "2": "c"}, "0: a, 1:  , 2: c; expected"),
    ],
)
def test_classes_of_other_indices(bert: Path, names: dict[str, str | None], listed: str) -> None:
    change_config(bert, id2label=names, label2id={})
    with pytest.raises(InputError) as caught:
        model_classes(model := load_model(bert))
    assert model_classes(model, ["d", "e", "f"]) == ["d", "e", "f"]
    start = f"BertForSequenceClassification ({bert}): the id2label of its config.json has {listed}"
    assert str(caught.value).startswith(start)


NAMES = {"0": "contradiction", "1": "entailment", "2": "neutral"}
GENERIC = {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


@pytest.mark.parametrize(
    ("id2label", "label2id", "disputed"),
    [
        (NAMES, {"contradiction": 0, "entailment": 1, "neutral": 2}, None),
        (NAMES, {"contradiction": "0", "ENTAILMENT": 1.0, "neutral ": 2}, None),
        (NAMES, NAMES, None),
        (NAMES, list(NAMES.values()), None),
        (NAMES, None, None),
        (NAMES, {"LABEL_0": 0, "LABEL_1": 1}, None),
        (NAMES, {"neutral": 2, "other": 0}, None),
        (GENERIC, {"neutral": 2, "entailment": 1, "contradiction": 0}, None),
        (NAMES, {"contradiction": 1, "entailment": 0, "neutral": 2}, ("01", "10")),
        (NAMES, {"Contradiction": "2", "entailment": 1, "neutral": 0}, ("02", "20")),
        (NAMES, {"neutral": 5}, ("2", "5")),
    ],
)
def test_names_of_classes_in_both_directions(
    bert: Path, id2label: Any, label2id: Any, disputed: tuple[str, str] | None
) -> None:
    change_config(bert, id2label=id2label, label2id=label2id)
    model = load_model(bert)  # for what needs no names
    if disputed is None:
        assert model_classes(model) == [*NAMES.values()]
        return
    own = ", ".join(f"{i}: {NAMES[i]}" for i in disputed[0])
    message = f"contradicts itself: id2label has {own}, but label2id has .*--class-names"
    with pytest.raises(InputError, match=message) as caught:
        model_classes(model)
    other = str(caught.value).partition("label2id has")[2]
    assert "".join(re.findall(r": (\d)[,;]", other)) == disputed[1]
    assert model_classes(model, ["a", "b", "c"]) == ["a", "b", "c"]


# -- batches and identities -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"attention_mask": torch.ones(1, 2)}, r"no input_ids; found \['attention_mask'\]"),
        (torch.ones(1, 2), "no input_ids; found Tensor"),
        ({"input_ids": torch.ones(3).long()}, r"shape \(3,\); expected \[batch, pos\]"),
        ({"input_ids": torch.ones(0, 3).long()}, "not empty"),
    ],
)
def test_batches_that_cannot_be_read(cases: Cases, batch: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        forward(cases.get("bert").model, batch)


@pytest.mark.parametrize(
    ("architecture", "value", "expected"),
    [("roberta", 1, "0 alone"), ("roberta", -1, "0 alone"), ("bert", 2, "0 to 1")],
)
def test_unknown_token_types(cases: Cases, architecture: str, value: int, expected: str) -> None:
    model, batch = cases.get(architecture).model, padded(texts(), "left", extra=2)
    types = torch.zeros_like(batch["input_ids"])
    types[1, -3] = types[4, 5] = value
    message = f"token_type_ids has {value} in row 1 at position 8; expected {expected}, the token "
    with pytest.raises(InputError, match=f"{message}types of the model: leave token_type_ids out"):
        forward(model, {**batch, "token_type_ids": types})


def test_token_types_of_padding_may_be_anything(cases: Cases) -> None:
    batch = padded(texts(), "left", extra=2)
    types = torch.where(batch["attention_mask"] == 0, 9, 0)
    for architecture in ("roberta", "bert", "gpt2"):
        model = cases.get(architecture).model
        with torch.no_grad():
            logits = forward(model, {**batch, "token_type_ids": types})
            assert torch.equal(logits, forward(model, {**batch, "token_type_ids": 0 * types}))


def with_tokens(cases: Cases, folder: Path, tokens: list[str], *, special: bool = False) -> Path:
    """A BERT whose tokenizer has tokens added at its end."""
    path = Path(shutil.copytree(cases.path("bert"), folder / "checkpoint"))
    tokenizer = helpers.word_tokenizer()
    tokenizer.add_tokens([f"filler{i}" for i in range(helpers.VOCABULARY - len(tokenizer))])
    tokenizer.add_tokens(tokens, special_tokens=special)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("value", [40, -1])
def test_ids_that_a_model_does_not_know(cases: Cases, value: int) -> None:
    model, batch = cases.get("bert").model, padded(texts())
    batch["input_ids"][1, 2] = batch["input_ids"][3, 0] = value
    message = f"input_ids has {value} in row 1 at position 2; expected 0 to 39, the rows of the emb"
    with pytest.raises(InputError, match=message):
        forward(model, batch)


def test_the_tokenizer_of_another_model_is_refused_on_loading(cases: Cases, tmp_path: Path) -> None:
    path = with_tokens(cases, tmp_path, ["one", "more"])
    message = (
        "has the token 'more' with id 41; expected ids from 0 to 39, the rows of the embedding"
    )
    with pytest.raises(InputError, match=message):
        load_inputs(ModelConfig(source=str(path)), DataConfig(), ())


def test_a_tokenizer_may_have_fewer_tokens_or_special_ones(cases: Cases, tmp_path: Path) -> None:
    model = cases.get("bert").model
    check_vocabulary("few", helpers.word_tokenizer(), model)
    path = with_tokens(cases, tmp_path, ["<|tool|>"], special=True)
    tokenizer = load_tokenizer(path)
    assert max(tokenizer.get_vocab().values()) == helpers.VOCABULARY
    check_vocabulary("special", tokenizer, model)
    with pytest.raises(InputError, match="input_ids has 40 in row 0"):
        forward(model, tokenizer(["<|tool|>"], return_tensors="pt"))


def test_a_hook_point_that_does_not_exist_is_an_error(case: Case) -> None:
    check_hooks(case.model, ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out"])
    with pytest.raises(InputError, match=r"no hook point blocks\.2\.hook_mlp_out"):
        check_hooks(case.model, ["blocks.2.hook_mlp_out"])


def test_an_identity_is_that_of_the_weights(cases: Cases, tmp_path: Path) -> None:
    path = cases.path("llama")
    model = load_model(path)
    first = ModelIdentity.of(model)
    assert first == ModelIdentity.of(load_model(path))
    helpers.hf_classifier("llama", seed=1).save_pretrained(tmp_path)
    differences = first.differences(ModelIdentity.of(load_model(tmp_path)))
    assert [line.split()[0] for line in differences] == ["weights"]
    other = ModelIdentity.of(cases.get("mistral").model)
    assert first.differences(other)[0] == "d_head 4 against 8"


@pytest.mark.parametrize("row", [0, 2900])
def test_an_identity_notices_every_edit_through_data(cases: Cases, row: int) -> None:
    model = load_model(cases.path("bert"))
    inner = model.original_model.bert
    inner.embeddings.word_embeddings.weight.data = embedding = torch.randn(3000, 16)
    heads = inner.encoder.layer[0].attention.self.query.weight.data.view(4, 4, 16)
    first = ModelIdentity.of(model)
    assert ModelIdentity.of(model) is first
    value = embedding[row, 5].clone()
    embedding[row, 5] = torch.nextafter(value, value + 1)
    assert ModelIdentity.of(model) != first
    embedding[row, 5] = value
    assert ModelIdentity.of(model) == first
    heads.copy_(heads.flip(0))
    assert ModelIdentity.of(model) != first
    heads.copy_(heads.flip(0))
    assert ModelIdentity.of(model) == first
