"""The protocol that all models follow: hook names, one forward call, and facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechcore.components import ModelShape
from mechcore.data.labels import class_names
from mechcore.errors import InputError
from mechcore.models.architectures.base import Architecture, architecture_of
from mechcore.models.batches import (
    UNREAD,
    arranged,
    as_tensor,
    check_unread,
    check_vocabulary_size,
    known_types,
    real_tokens,
    real_tokens_first,
    whole_numbers,
)
from mechcore.models.devices import sent
from mechcore.models.hooks import evaluating
from mechcore.session import plain_numbers, plain_session

Batch: TypeAlias = Mapping[str, Any]

_KINDS = {
    "TransformerBridge": "bridge",
    "HookedTransformer": "hooked-transformer",
    "HookedEncoder": "hooked-encoder",
}
_FUSED = (".qkv.", ".gate_up_proj.")
_LOGIT_BIAS = "lm_head.bias"


def hook_z(layer: int) -> str:
    """Heads' outputs before W_O, [batch, pos, head, d_head]."""
    return f"blocks.{layer}.attn.hook_z"


def hook_mlp_out(layer: int) -> str:
    """MLP output after its projection, before the residual add, [batch, pos, d_model]."""
    return f"blocks.{layer}.hook_mlp_out"


def output_hooks(shape: ModelShape) -> list[tuple[Literal["z", "mlp"], int, str]]:
    """Kind, layer and name of the hook points of all components' outputs."""
    kinds: list[tuple[Literal["z", "mlp"], Callable[[int], str]]] = [("z", hook_z)]
    kinds += [("mlp", hook_mlp_out)] * shape.has_mlps
    return [(kind, i, name(i)) for i in range(shape.n_layers) for kind, name in kinds]


def hook_resid_pre(layer: int) -> str:
    """The residual stream that a layer's attention reads, [batch, pos, d_model]."""
    return f"blocks.{layer}.hook_resid_pre"


def hook_resid_mid(layer: int) -> str:
    """The residual stream that a layer's MLP reads, [batch, pos, d_model]."""
    return f"blocks.{layer}.hook_resid_mid"


def hook_pattern(layer: int) -> str:
    """Attention probabilities, [batch, head, query, key]."""
    return f"blocks.{layer}.attn.hook_pattern"


def kind_of(model: Any) -> str:
    """``"bridge"``, ``"hooked-transformer"`` or ``"hooked-encoder"``; else an `InputError`."""
    for base in type(model).__mro__:
        if kind := _KINDS.get(base.__name__):
            return kind
    raise InputError(
        f"model: found {type(model).__name__}; expected a HookedTransformer, HookedEncoder or "
        "TransformerBridge: load it with mechcore.load_model"
    )


def _family(model: Any) -> Architecture | None:
    """The family of a bridge."""
    return architecture_of(model.original_model.config) if kind_of(model) == "bridge" else None


def is_classifier(model: Any) -> bool:
    """Whether the logits are those of a sequence-classification head, [batch, class]."""
    return kind_of(model) == "bridge" and type(model.original_model).__name__.endswith(
        "ForSequenceClassification"
    )


def is_causal(model: Any) -> bool:
    """Whether positions never attend to later ones (decoder), or may (encoder)."""
    if family := _family(model):
        return family.causal
    decoder = kind_of(model) == "hooked-transformer"
    return decoder and getattr(model.cfg, "attention_dir", "causal") == "causal"


def reach_of(model: Any, layer: int) -> int | None:
    """Distance in tokens to the furthest key that a layer attends to; None if unlimited."""
    if family := _family(model):
        return family.reach(layer)
    types = getattr(model.cfg, "attn_types", None)
    return int(model.cfg.window_size) - 1 if types and types[layer] == "local" else None


def n_kv_heads(model: Any) -> int:
    """Number of heads with their own keys and values; fewer than all if they are grouped."""
    if kind_of(model) == "bridge":
        grouped = getattr(model.original_model.config, "num_key_value_heads", None)
    else:
        apart = getattr(model.cfg, "ungroup_grouped_query_attention", False)
        grouped = None if apart else getattr(model.cfg, "n_key_value_heads", None)
    return int(grouped or model.cfg.n_heads)


def n_token_types(model: Any) -> int:
    """Number of token types: 0 if the model reads none, 1 if it distinguishes none."""
    kind = kind_of(model)
    if kind == "hooked-encoder":
        return len(model.embed.token_type_embed.W_token_type)
    if kind == "bridge" and hasattr(model, "token_type_embed"):
        return int(model.token_type_embed.original_component.num_embeddings)
    return 0


def n_tokens(model: Any) -> int:
    """Number of token ids of the model, counted from 0: the rows of its embedding."""
    inner = model.embed.original_component if kind_of(model) == "bridge" else None
    return int(getattr(inner, "num_embeddings", None) or model.cfg.d_vocab)


def name_of(model: Any) -> str:
    """The model's class and, if known, its checkpoint, for messages."""
    inner = weights_of(model)
    source = getattr(getattr(inner, "config", None), "name_or_path", None)
    return type(inner).__name__ + (f" ({source})" if source else "")


def model_classes(model: Any, given: Sequence[str] | None = None) -> list[str] | None:
    """Class names of a classifier, see `class_names`; None for language models."""
    if not is_classifier(model):
        return None
    return class_names(model.original_model.config, name_of(model), n_rows(model), given)


def n_rows(model: Any) -> int:
    """Number of classes of a classifier's head."""
    return int(model.original_model.config.num_labels)


def device_of(model: Any) -> torch.device:
    """The device of the model's first parameter, and so of inputs and logits."""
    return next(weights_of(model).parameters()).device


def dtype_of(model: Any) -> torch.dtype:
    """The type of the model's first parameter."""
    return next(weights_of(model).parameters()).dtype


def devices_of(model: Any) -> list[torch.device]:
    """The devices of the model's weights; the first is that of its inputs and logits."""
    return list(dict.fromkeys(p.device for p in weights_of(model).parameters()))


def weights_of(model: Any) -> nn.Module:
    """The module that holds the weights."""
    return model.original_model if kind_of(model) == "bridge" else model


def named_weights(model: Any) -> dict[str, nn.Parameter]:
    """Every weight of the model once, by its name in the checkpoint's own module.

    For fused matrices (GPT-2, Phi-3), only the parts that a bridge runs, which share their memory.
    """
    return {
        name.replace("_original_component.", ""): weight
        for name, weight in weights_of(model).named_parameters()
        if not any(fused in name for fused in _FUSED)
    }


def n_parameters(model: Any) -> int:
    """Number of weights, without the bias of zeros that a bridge may add to the logits."""
    weights = named_weights(model)
    if (bias := weights.get(_LOGIT_BIAS)) is not None and not bias.any():
        del weights[_LOGIT_BIAS]
    return sum(weight.numel() for weight in weights.values())


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """Disable gradients of the model's weights, and record all others, inside the block."""
    trainable = [p for p in weights_of(model).parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        with plain_session():
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@plain_numbers()
def forward(model: Any, batch: Batch) -> Float[Tensor, "batch *pos out"]:
    """Logits of one batch: [batch, class] from classifiers, [batch, pos, vocab] from others.

    The model always runs in evaluation mode. A batch has ``input_ids`` and optionally
    ``attention_mask`` and ``token_type_ids``, each [batch, pos]; other entries are ignored, but
    refused if they would change Hugging Face's answer.

    Raises:
        InputError: the batch has no ``input_ids``, shapes differ, the model lacks a token or token
            type, or the attention mask is not of zeros and ones, cannot be that of the tokens,
            or is missing although rows are padded.
    """
    inputs = model_inputs(model, batch)
    with evaluating(model):
        return logits_of(model, inputs)


def logits_of(model: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch *pos out"]:
    """`forward` of what `model_inputs` returned, in the model's own mode."""
    inputs = dict(inputs)
    ids = inputs.pop("input_ids")
    if kind_of(model) == "hooked-encoder":
        inputs["one_zero_attention_mask"] = inputs.pop("attention_mask")
    elif n_token_types(model) == 0:
        inputs.pop("token_type_ids", None)
    with arranged():
        logits = model(ids, return_type="logits", **inputs)
    if not torch.is_tensor(logits):
        raise InputError(f"model: forward returned {type(logits).__name__}; expected logits")
    return logits.to(ids.device)


@plain_numbers()
def model_inputs(model: Any, batch: Batch) -> dict[str, Int[Tensor, "batch pos"]]:
    """The tensors of ``batch`` that ``model`` reads, checked, in the layout its hooks will see.

    All are of type long. A missing attention mask becomes all ones; the padding of an encoder's
    rows moves to the right. Raises as `forward`.
    """
    if not hasattr(batch, "keys") or "input_ids" not in batch:
        given = sorted(batch) if hasattr(batch, "keys") else type(batch).__name__
        raise InputError(
            f"batch: no input_ids; found {given}; expected a dict of tokenizer outputs"
        )
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: as_tensor(name, batch[name]) for name in names if batch.get(name) is not None}
    ids = inputs["input_ids"]
    if ids.ndim != 2 or 0 in ids.shape:
        raise InputError(
            f"batch: input_ids has shape {tuple(ids.shape)}; expected [batch, pos], not empty"
        )
    for name, tensor in inputs.items():
        if tensor.shape != ids.shape:
            raise InputError(
                f"batch: {name} has shape {tuple(tensor.shape)}, input_ids {tuple(ids.shape)}; "
                "expected equal shapes"
            )
    inputs = {name: whole_numbers(name, tensor) for name, tensor in inputs.items()}
    pad_id, in_texts = padding_token(model)
    ids = inputs["input_ids"]
    mask = real_tokens(ids, inputs.get("attention_mask"), pad_id, in_texts=in_texts)
    inputs["attention_mask"] = mask
    for name in UNREAD:
        check_unread(name, batch.get(name))
    check_vocabulary_size(ids, n_tokens(model), name_of(model))
    _check_steady(ids, model)
    if "token_type_ids" in inputs and (known := n_token_types(model)):
        inputs["token_type_ids"] = known_types(inputs["token_type_ids"], mask != 0, known)
    if not is_causal(model):
        inputs, _ = real_tokens_first(inputs, mask)
    device = device_of(model)
    return {name: sent(tensor, device) for name, tensor in inputs.items()}


def padding_token(model: Any) -> tuple[int | None, bool]:
    """The token that rows are padded with, and whether texts may begin or end with it."""
    config = getattr(weights_of(model), "config", model.cfg)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    ids: dict[str, list[Any]] = {}
    for name in ("pad", "eos", "bos", "sep", "cls", "unk"):
        known = getattr(config, f"{name}_token_id", None)
        if known is None:
            known = getattr(getattr(model, "tokenizer", None), f"{name}_token_id", None)
        ids[name] = known if isinstance(known, list) else [known]
    pad_id = next((i for i in (*ids.pop("pad"), *ids["eos"]) if i is not None), None)
    return pad_id, any(pad_id in several for several in ids.values())


def _check_steady(ids: Tensor, model: Any) -> None:
    """Refuse batches so long that the answers to their shorter texts change."""
    family = _family(model)
    steady = family.steady_length if family else None
    if steady is not None and ids.shape[1] > steady:
        raise InputError(
            f"batch: rows have {ids.shape[1]} tokens, padding included; expected at most {steady}: "
            f"{name_of(model)} has rotations (longrope or dynamic in its config.json) that change "
            "for all texts of a batch if one is longer, so answers would depend on the "
            "batch; cut texts (--max-length, max_length in Python), or remove longer ones"
        )


def longest_input(model: Any) -> int:
    """Maximum number of tokens for which positions are the same in every batch."""
    family = _family(model)
    return family.longest_text if family else int(model.cfg.n_ctx)


def last_real_position(mask: Int[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """Index of every row's last real token, with padding on either side."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return (positions * (mask != 0)).argmax(1)


def read_position(model: Any, inputs: Mapping[str, Tensor]) -> Int[Tensor, " batch"]:
    """Position in every row whose last state gives the logits of the answer.

    It is the first of an encoder and the last real one of a language model. A decoder's
    classification head reads the last token other than the padding token, which may end a text.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if not is_causal(model):
        return ids.new_zeros(len(ids))
    if is_classifier(model):
        pad_id = getattr(model.original_model.config.get_text_config(), "pad_token_id", None)
        mask = mask if pad_id is None else mask * (ids != pad_id)
    return last_real_position(mask)


def check_hooks(model: Any, names: Iterable[str]) -> None:
    """Raise `InputError` for missing hook points; a bridge would ignore unknown names."""
    known = model.hook_dict  # a bridge builds it every time
    missing = [name for name in names if name not in known]
    if missing:
        raise InputError(
            f"model: {type(model).__name__} has no hook point {missing[0]}; mechcore needs "
            "attn.hook_z and hook_mlp_out in every layer"
        )


def check_patterns(wanted: Iterable[int], seen: Iterable[int]) -> None:
    """Raise `InputError` unless all ``wanted`` layers gave attention patterns."""
    if missing := set(wanted) - set(seen):
        raise InputError(
            f"model: ran without computing the attention pattern of layer {min(missing)}; "
            "expected eager attention: load the checkpoint with mechcore.load_model"
        )
