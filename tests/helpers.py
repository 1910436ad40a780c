"""Tiny random models, batches and oracles that know nothing of the package's own code."""

from __future__ import annotations

import base64
import copy
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.models import load_model
from mechcore.settings import Entry, entries
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import Inputs, open_model, read_split
from mechcore.worlds.embedded import tiny_decoder_dir, tiny_encoder_dir

ARCHITECTURES = ("bert", "roberta", "gpt2", "llama", "mistral", "qwen2")
FEW = ("bert", "gpt2", "llama")
"""An encoder, a decoder, and one with grouped queries: what holds for each holds for all."""
ENCODERS = ("bert", "roberta")
N_LAYERS, N_HEADS, D_MODEL, VOCABULARY = 2, 4, 16, 40
CLASSES = ("contradiction", "entailment", "neutral")
PAD = 1
"""RoBERTa derives positions from its padding id, so the tiny models all use an id other than 0."""


def embedded_shape(kind: str = "encoder") -> ModelShape:
    """The shape of an embedded model, by its configuration."""
    folder = tiny_encoder_dir() if kind == "encoder" else tiny_decoder_dir()
    config = hf.AutoConfig.from_pretrained(folder)
    return ModelShape(config.num_hidden_layers, config.num_attention_heads)


def close(actual: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    """Make sure that two tensors are equal but for ``atol``."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def script(path: Path) -> ModuleType:
    """A module that is in no package, imported."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- models -------------------------------------------------------------------------------------


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Fill every parameter, biases and norms included, so that nothing is hidden by a zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = name.endswith("weight") and parameter.ndim == 1
            parameter.copy_(1 + 0.2 * noise if is_norm else 0.3 * noise)


def hf_classifier(architecture: str, classes: Sequence[str] = CLASSES, seed: int = 0) -> Any:
    """A tiny sequence classifier with random weights."""
    names = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: i for i, name in enumerate(classes)},
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    sizes = {
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
    }
    if architecture == "bert":
        model = hf.BertForSequenceClassification(hf.BertConfig(**names, **sizes))
    elif architecture == "roberta":
        model = hf.RobertaForSequenceClassification(
            hf.RobertaConfig(**names, **sizes, type_vocab_size=1)
        )
    elif architecture == "gpt2":
        model = hf.GPT2ForSequenceClassification(hf.GPT2Config(**names, **_GPT2_SIZES))
    elif architecture == "llama":
        config = hf.LlamaConfig(**names, **sizes, num_key_value_heads=2)
        model = hf.LlamaForSequenceClassification(config)
    elif architecture == "mistral":  # heads wider than d_model / n_heads
        config = hf.MistralConfig(**names, **sizes, num_key_value_heads=2, head_dim=8)
        model = hf.MistralForSequenceClassification(config)
    else:
        config = hf.Qwen2Config(**names, **sizes, num_key_value_heads=2)
        model = hf.Qwen2ForSequenceClassification(config)
    randomise(model, seed)
    return model.eval()


_GPT2_SIZES = {
    "n_embd": D_MODEL,
    "n_layer": N_LAYERS,
    "n_head": N_HEADS,
    "n_inner": 24,
    "n_positions": 48,
}


def gpt2_language_model(seed: int = 0, **changes: Any) -> hf.GPT2LMHeadModel:
    """A tiny GPT-2 language model with random weights."""
    config = hf.GPT2Config(
        **{"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": None}
        | {"eos_token_id": None, "attn_implementation": "eager"}
        | _GPT2_SIZES
        | changes
    )
    model = hf.GPT2LMHeadModel(config)
    randomise(model, seed)
    return model.eval()


@dataclass(frozen=True)
class Case:
    """One checkpoint, loaded by the package and, separately, by Hugging Face alone."""

    architecture: str
    path: Path
    model: Any
    reference: Any
    dtype: torch.dtype = torch.float32

    @property
    def is_encoder(self) -> bool:
        return self.architecture in ENCODERS


class Cases:
    """Loads every checkpoint once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Any, Case] = {}

    def path(self, architecture: str) -> Path:
        """A checkpoint directory; ``"gpt2-lm"`` is the language model."""
        path = self.folder / architecture
        if not path.exists():
            lm = architecture == "gpt2-lm"
            (gpt2_language_model() if lm else hf_classifier(architecture)).save_pretrained(path)
            # Only BERT tells segments apart.
            word_tokenizer(segments=architecture == "bert").save_pretrained(path)
        return path

    def get(self, architecture: str, dtype: torch.dtype = torch.float32) -> Case:
        if (architecture, dtype) not in self.known:
            path = self.path(architecture)
            is_lm = architecture == "gpt2-lm"
            kind: Any = hf.AutoModelForCausalLM if is_lm else hf.AutoModelForSequenceClassification
            reference = kind.from_pretrained(path, dtype=dtype, attn_implementation="eager")
            model = load_model(path, dtype=dtype)
            self.known[architecture, dtype] = Case(
                architecture, path, model, reference.eval(), dtype
            )
        return self.known[architecture, dtype]


def hooked_transformer(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A HookedTransformer of a GPT-2 language model's checkpoint (TransformerLens 3)."""
    return load_model(path, backend="hooked", dtype=dtype)


def hooked_encoder(seed: int = 0) -> Any:
    """A tiny random HookedEncoder (TransformerLens 3)."""
    from transformer_lens import HookedEncoder, HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        d_model=D_MODEL,
        d_head=4,
        d_mlp=24,
        d_vocab=VOCABULARY,
        n_ctx=48,
        act_fn="gelu",
        attention_dir="bidirectional",
        normalization_type="LN",
        device="cpu",
        seed=seed,
    )
    model = HookedEncoder(cfg)
    randomise(model, seed)
    return model.eval()


def hook_counts(model: Any) -> dict[str, int]:
    """Hooks on every hook point, those of other users included."""
    return {
        name: len(point.fwd_hooks) + len(point.bwd_hooks) for name, point in model.hook_dict.items()
    }


# -- tokenizers ---------------------------------------------------------------------------------

WORDS = (
    *("the", "cat", "dog", "saw", "a", "bird", "ran", ".", ",", "yes"),
    *("no", "if", "who", "and", "not", "quickly", "never", "often", "here"),
)


def word_tokenizer(segments: bool = True) -> hf.PreTrainedTokenizerFast:
    """One token per word, ``[CLS] a [SEP] b [SEP]``, with segment ids as BERT's or without."""
    vocabulary = {
        word: i for i, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    }
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return bert_like(tokenizer, segments)


def bert_like(tokenizer: Tokenizer, segments: bool) -> hf.PreTrainedTokenizerFast:
    """A tokenizer with BERT's special tokens, with segment ids or without."""
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", *["token_type_ids"] * segments, "attention_mask"],
    )


# -- examples -----------------------------------------------------------------------------------


def examples_of(
    texts: Sequence[str | tuple[str, str]], label: Any = "x", subset: Any = "s", name: str = "x"
) -> Examples:
    """Texts and pairs of them, with one label and subset for all or a list of them."""
    pairs = [(text, "") if isinstance(text, str) else text for text in texts]
    frame = pd.DataFrame(pairs, columns=["text_a", "text_b"])
    return Examples(name, frame.assign(label=label, subset=subset))


def load_inputs(model: ModelConfig, data: DataConfig, splits: Sequence[str]) -> Inputs:
    """A model with the data of splits, as steps read them."""
    inputs = open_model(model)
    for split in splits:
        inputs.add(split, *read_split(split, model, data))
    return inputs


def every_setting(kind: Any) -> Iterator[tuple[str, Entry]]:
    """The settings of a class and of its groups, by name."""
    for entry in entries(kind).values():
        yield entry.name, entry
        if entry.group is not None:
            yield from every_setting(entry.group)


def encoded_of(
    texts: Sequence[str | tuple[str, str]], label: Any = "x", segments: bool = True, **options: Any
) -> EncodedExamples:
    """By the tokenizer of words unless another is given; other options are those of `encode`."""
    tokenizer = options.pop("tokenizer", None) or word_tokenizer(segments)
    examples = examples_of(texts, label, options.pop("subset", "s"))
    return encode(examples, tokenizer, **{"max_length": 48, **options})


# -- batches ------------------------------------------------------------------------------------

LENGTHS = (9, 4, 6, 2, 9)


def texts(lengths: Sequence[int] = LENGTHS, seed: int = 1) -> list[Tensor]:
    """Random token ids without padding, one vector per text."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(PAD + 1, VOCABULARY, (n,), generator=generator) for n in lengths]


def padded(
    rows: Sequence[Tensor], side: str = "right", extra: int = 0, noise: int | None = None
) -> dict[str, Tensor]:
    """One batch of ``rows``, with ``extra`` columns of padding and random ids there if asked."""
    width = max(map(len, rows)) + extra
    ids = torch.full((len(rows), width), PAD)
    if noise is not None:
        generator = torch.Generator().manual_seed(noise)
        ids = torch.randint(0, VOCABULARY, ids.shape, generator=generator)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def reference_logits(reference: Any, rows: Sequence[Tensor]) -> Tensor:
    """Hugging Face's logits of every text on its own: [text, class], the last token's for LMs."""
    with torch.no_grad():
        logits = [reference(input_ids=row[None]).logits[0] for row in rows]
    return torch.stack([answer[-1] if answer.ndim == 2 else answer for answer in logits])


# -- oracles: where components are in a plain Hugging Face model --------------------------------


PLACES = {
    **dict.fromkeys(ENCODERS, ("encoder.layer", "attention.output.dense", "output.dense")),
    "gpt2": ("h", "attn.c_proj", "mlp.c_proj"),
    **dict.fromkeys(("llama", "mistral", "qwen2"), ("layers", "self_attn.o_proj", "mlp.down_proj")),
}
"""The layers, and W_O and W_out in each of them, in the base model of a ``model_type``."""


def _layers(model: Any) -> list[nn.Module]:
    """The module that every layer runs, which may be the same for several."""
    layers = list(model.base_model.get_submodule(PLACES[model.config.model_type][0]))
    n = model.config.num_hidden_layers
    return [layers[i * len(layers) // n] for i in range(n)]


def _place(model: Any, layer: int, which: int) -> tuple[nn.Module, str]:
    parent, _, name = PLACES[model.config.model_type][which].rpartition(".")
    return _layers(model)[layer].get_submodule(parent), name


def attention_output(model: Any, layer: int) -> tuple[nn.Module, str]:
    """The module that holds W_O, and its name in its parent for replacing."""
    return _place(model, layer, 1)


def mlp_output(model: Any, layer: int) -> tuple[nn.Module, str]:
    """The module that holds W_out, and its name in its parent."""
    return _place(model, layer, 2)


def _as_linear(place: tuple[nn.Module, str]) -> nn.Linear:
    """Replace the output projection by an equal nn.Linear that has a bias."""
    parent, name = place
    old = getattr(parent, name)
    weight = old.weight if isinstance(old, nn.Linear) else old.weight.T  # Conv1D: [in, out]
    new = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        new.weight.copy_(weight)
        new.bias.zero_()
        if old.bias is not None:
            new.bias.copy_(old.bias)
    setattr(parent, name, new)
    return new


@torch.no_grad()
def edited(model: Any, heads: Mapping[tuple[int, int], Tensor], mlps: Mapping[int, Tensor]) -> Any:
    """A copy whose weights make these heads' and MLPs' outputs the given vectors."""
    model = copy.deepcopy(model)
    for layer in {layer for layer, _ in heads}:
        output = _as_linear(attention_output(model, layer))
        for (at, head), vector in heads.items():
            if at == layer:
                size = len(vector)
                columns = slice(head * size, (head + 1) * size)
                output.bias += output.weight[:, columns] @ vector.to(output.weight)
                output.weight[:, columns] = 0
    for layer, vector in mlps.items():
        output = _as_linear(mlp_output(model, layer))
        output.weight.zero_()
        output.bias.copy_(vector)
    return model


@contextmanager
def torch_hooks(
    model: Any,
    on_z: Callable[[int, Tensor], Tensor | None],
    on_mlp: Callable[[int, Tensor], Tensor | None],
) -> Iterator[Any]:
    """Read or replace z [batch, pos, head, d_head] and MLP outputs with plain torch hooks.

    A module that several layers share is taken to run once for each, in their order.
    """
    handles = []
    layers: dict[nn.Module, list[int]] = {}
    for layer, block in enumerate(_layers(model)):
        layers.setdefault(block, []).append(layer)

    def z_hook(turns: Iterator[int]) -> Any:
        def hook(module: Any, args: tuple[Tensor, ...]) -> Any:
            new = on_z(next(turns), args[0].unflatten(-1, (N_HEADS, -1)))
            return None if new is None else (new.flatten(-2), *args[1:])

        return hook

    def mlp_hook(turns: Iterator[int]) -> Any:
        return lambda module, args, output: on_mlp(next(turns), output)

    for shared in layers.values():
        parent, name = attention_output(model, shared[0])
        hook = z_hook(itertools.cycle(shared))
        handles.append(getattr(parent, name).register_forward_pre_hook(hook))
        parent, name = mlp_output(model, shared[0])
        hook = mlp_hook(itertools.cycle(shared))
        handles.append(getattr(parent, name).register_forward_hook(hook))
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def captured(model: Any, row: Tensor) -> tuple[Tensor, Tensor]:
    """Activations of one unpadded text: z [layer, pos, head, d_head], mlp [layer, pos, d_model]."""
    z: dict[int, Tensor] = {}
    mlp: dict[int, Tensor] = {}
    with torch_hooks(model, z.__setitem__, mlp.__setitem__):
        model(input_ids=row[None])
    layers = sorted(z)
    return torch.cat([z[i] for i in layers]), torch.cat([mlp[i] for i in layers])


# -- drawings --------------------------------------------------------------------------------------

_BLANK = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>',
    "png": base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
    ),
}
"""Pictures of one pixel."""


@contextmanager
def undrawn() -> Iterator[None]:
    """Figures are made of the tables, but saved as pictures of one pixel.

    To draw them takes longer than all the rest of a small study. That they are drawn well is for
    ``tests/report`` and the first test of ``tests/cli/test_commands.py``.
    """
    blocks: Any = importlib.import_module("mechcore.report.blocks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_drawn", lambda figure, end: _BLANK[end])
        yield
