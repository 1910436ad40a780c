"""Loading checkpoints into TransformerLens models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from mechcore.components import ModelShape
from mechcore.errors import InputError, reason
from mechcore.models import Backend
from mechcore.models.architectures.adapters import register
from mechcore.models.architectures.base import ARCHITECTURES, architecture_of
from mechcore.models.architectures.trial import Trial
from mechcore.models.checkpoint_files import (
    check_config,
    check_padding,
    no_checkpoint,
    place_of,
    refuse_adapter,
)
from mechcore.models.devices import DeviceMap, DtypeName, as_dtype, check_in_memory, check_placing
from mechcore.models.encoded import remember_origin
from mechcore.models.hooked import hooked_transformer
from mechcore.models.protocol import check_hooks, devices_of, kind_of, output_hooks, weights_of
from mechcore.models.tokenizers import load_tokenizer, read_pair
from mechcore.models.weights import Report, check_sizes, lacking, left_out, not_read, read_weights
from mechcore.session import plain_session

_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
CLASSIFICATION, LANGUAGE_MODEL, BODY = "classification", "language-model", "body"
_LOADERS = {
    CLASSIFICATION: AutoModelForSequenceClassification,
    LANGUAGE_MODEL: AutoModelForCausalLM,
    BODY: AutoModel,
}


@plain_session()
def load_model(
    source: Any,
    *,
    backend: Backend = "bridge",
    device: str | torch.device | None = None,
    dtype: torch.dtype | DtypeName = torch.float32,
    device_map: DeviceMap | None = None,
    revision: str | None = None,
    task: Literal["classification", "language-model"] | None = None,
    head: bool = True,
    allow_pickle: bool = False,
) -> Any:
    """A TransformerLens model that every part of mechcore accepts.

    Args:
        source: a directory in Hugging Face format, a hub id, a GGUF file (which the package
            ``gguf`` reads), or an already built HookedTransformer, HookedEncoder or
            TransformerBridge, which is checked and returned unchanged.
        backend: ``"bridge"`` wraps the Hugging Face model in a TransformerBridge;
            ``"hooked"`` builds a HookedTransformer (TransformerLens 3, GPT-2 only), without
            weight processing, so that activations stay those of the checkpoint.
        device: device of the weights; the CPU if neither this nor ``device_map`` is given.
        dtype: precision of the weights.
        device_map: instead of ``device``, how accelerate spreads a bridge over devices:
            ``"auto"``, ``"balanced"``, ``"cpu"`` or the device of every module by name. All
            weights must fit in their memory; see docs/how-to/large-models.md.
        revision: branch, tag or commit of a hub id.
        task: required kind of checkpoint; None takes it from the configuration.
        head: whether a head is required. If not, encoders without a head that mechcore reads
            (such as pretrained BERT and RoBERTa) give hidden states [batch, pos, d_model], which
            is enough to see what heads attend to.
        allow_pickle: read ``pytorch_model.bin`` if there are no safetensors. A pickle can run code
            when it is read; torch's check that it contains only tensors stays on.

    Returns:
        A model in evaluation mode, with frozen weights and eager attention, so every hook point
        fires.

    Raises:
        InputError: the checkpoint is missing or damaged, contains code, is a pickle that is not
            allowed, has no head that mechcore can read, or its architecture has no adapter; or
            the devices do not exist on this machine, or cannot hold all weights.
    """
    check_placing(source, backend, device, device_map)
    if not isinstance(source, (str, Path)):
        kind_of(source)
        check_in_memory("model", weights_of(source))
        _check_hook_points(source)
        source.eval()
        return source
    name = str(source)
    where = place_of(name)
    precision = as_dtype(dtype)
    config = read_config(name, revision)
    architecture = _architecture(config, where)
    head_kind = _head_of(name, architecture, config, head)
    if task is not None and task != head_kind:
        wanted = "a sequence-classification" if task == "classification" else "a language-model"
        raise InputError(
            f"checkpoint {name}: its architecture is {architecture}; expected {wanted} head; "
            "fine-tune the model for the task first"
        )
    check_padding(name, config)
    hf_model, report = read_weights(
        name,
        _LOADERS[head_kind],
        config,
        architecture,
        revision=revision,
        allow_pickle=allow_pickle,
        **where,
        dtype=precision,
        device_map=device_map if isinstance(device_map, str | None) else {**device_map},
        attn_implementation="eager",
        **(architecture_of(config).body_options if head_kind == BODY else {}),
    )
    _check_weights(name, hf_model, architecture, report)
    check_in_memory(f"checkpoint {name}", hf_model)
    if device_map is None:
        hf_model = hf_model.to(device or "cpu")
    hf_model = hf_model.eval()
    architecture = type(hf_model).__name__
    if backend == "hooked":
        trial = Trial(hf_model)
        model = hooked_transformer(name, architecture, hf_model, device or "cpu", precision)
        trial.check(name, model)
    else:
        model = _bridge(name, architecture, hf_model, revision)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    _check_hook_points(model)
    remember_origin(model, name, revision)
    return model


def _check_weights(name: str, hf_model: Any, architecture: str, report: Report) -> None:
    """Raise `InputError` unless the weights of the model and the checkpoint are the same."""
    check_sizes(name, report)
    if missing := sorted(report["missing_keys"]):
        remedy = "what is missing would be random: save the whole fine-tuned model again"
        raise lacking(name, missing, report, architecture, remedy)
    if unread := left_out(hf_model, architecture, report):
        raise InputError(
            f"{not_read(name, hf_model, unread)}: take the config.json that was saved with them"
        )


def _architecture(config: Any, where: dict[str, str]) -> str:
    """The name of the model's class; GGUF files lack it, and contain language models."""
    if "gguf_file" in where:
        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "none"))
    named = config.architectures
    return str(named[0]) if isinstance(named, list) and named else "none"


def read_config(name: str, revision: str | None = None) -> Any:
    """The configuration of a checkpoint, with ``_commit_hash`` of a hub id, or `InputError`."""
    where = place_of(name)
    path = Path(name)
    if path.is_file() and "gguf_file" not in where:
        raise InputError(
            f"checkpoint {name}: found a file; expected a directory, hub id or .gguf file: name "
            f"its folder, {path.parent}"
        )
    local = path.is_absolute() or name.startswith(".") or name.count("/") > 1
    if not path.exists() and (local or path.suffix == ".gguf"):
        kind = "file" if path.suffix == ".gguf" else "directory"
        raise InputError(f"checkpoint {name}: no such {kind}")
    try:
        if "gguf_file" not in where:
            refuse_adapter(name, revision)
            if path.is_dir() and not (path / "config.json").is_file():
                raise no_checkpoint(name, "config.json")
            check_config(name, revision)
        config = AutoConfig.from_pretrained(**where, revision=revision, trust_remote_code=False)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"checkpoint {name}: {reason(error)}") from error
    except Exception as error:  # a bad configuration can cause any kind of error
        problem = (
            "its configuration cannot be used"
            if path.exists()
            else "neither a local checkpoint nor a reachable hub id"
        )
        do = "; take the config.json that was saved with its weights" * path.is_dir()
        raise InputError(
            f"checkpoint {name}: {problem}: {reason(error).rstrip('.')}{do}"
        ) from error
    return config


_NO_CLASSES = {
    "multi_label_classification": "any number of its labels can apply to a text",
    "regression": "its outputs are quantities, not classes",
}
"""Outputs of classification heads that are not classes."""


def _head_of(name: str, architecture: str, config: Any, head: bool) -> str:
    if architecture.endswith("ForSequenceClassification"):
        kind = "regression" if config.num_labels == 1 else config.problem_type
        if outputs := _NO_CLASSES.get(kind):
            raise InputError(
                f"checkpoint {name}: its problem_type is {kind} (num_labels is "
                f"{config.num_labels}): {outputs}; expected classes of which exactly one applies: "
                "fine-tune it as a classifier"
                + ", or, if only one ever applies, set problem_type to single_label_classification "
                "in its config.json" * (config.num_labels > 1)
            )
        return CLASSIFICATION
    if architecture.endswith(_LANGUAGE_MODELS) and architecture != "BertLMHeadModel":
        return LANGUAGE_MODEL
    encoder = architecture_of(config).encoder
    if not head and encoder:
        return BODY
    if architecture == "none" and not name.endswith(".gguf"):
        kind = config.model_type
        known = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(kind) or (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, "BertForSequenceClassification")
        )
        raise InputError(
            f"checkpoint {name}: its config.json has {json.dumps(config.architectures)} as "
            "architectures; expected a list with the class that the weights were saved from, such "
            f'as ["{known}"]: add it, or save the model again with save_pretrained'
        )
    raise InputError(
        f"checkpoint {name}: its architecture is {architecture}, which has no classification or "
        "causal language-model head; expected a ...ForSequenceClassification or ...ForCausalLM "
        "checkpoint: fine-tune the model for the task first"
        + ", or leave the head out (head=False), which shows what heads attend to"
        * encoder
    )


def _bridge(name: str, architecture: str, hf_model: Any, revision: str | None) -> Any:
    config = hf_model.config
    family = architecture_of(config)
    if adapter := family.adapter(architecture, config.model_type):
        register({architecture: adapter})
        classifier = architecture.endswith("ForSequenceClassification")
        if classifier and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = load_tokenizer(name, revision=revision).pad_token_id
    if architecture not in ArchitectureAdapterFactory._adapters:
        raise InputError(
            f"checkpoint {name}: no TransformerBridge adapter for {architecture}; classifiers that "
            f"can be loaded are those of {', '.join(ARCHITECTURES)} and of the decoders whose "
            "language models TransformerLens bridges; docs/extend.md explains how to add a family"
        )
    trial = Trial(hf_model, read_pair(name, revision, config))
    try:
        model = build_bridge_from_module(hf_model, architecture, hf_config=config, model_name=name)
    except InputError:
        raise
    except Exception as error:  # an architecture can cause any kind of error
        raise InputError(
            f"checkpoint {name}: TransformerLens cannot bridge {architecture}: {reason(error)}"
        ) from error
    model.cfg.n_devices = len(devices_of(model))
    trial.check(name, model)
    return model


def _check_hook_points(model: Any) -> None:
    check_hooks(model, [name for _, _, name in output_hooks(ModelShape.of(model))])
