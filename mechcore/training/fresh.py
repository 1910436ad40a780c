"""Models to train: a pretrained body with a new head, or random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from mechcore.data.labels import are_generic, check_agree, names_in, normal_name
from mechcore.errors import InputError, reason, warn
from mechcore.models.architectures.base import ARCHITECTURES, architecture_of
from mechcore.models.checkpoint_files import check_padding
from mechcore.models.loading import read_config
from mechcore.models.tokenizers import load_tokenizer
from mechcore.models.weights import check_sizes, lacking, left_out, not_read, read_weights
from mechcore.session import plain_session
from mechcore.training.loop import device_of


@plain_session()
def new_model(
    base: str | Path,
    *,
    classes: Sequence[str] | None = None,
    prompt: str | None = None,
    from_scratch: bool = False,
    seed: int,
    revision: str | None = None,
    allow_pickle: bool = False,
    device: str | torch.device = "cpu",
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model to fine-tune, in float32 and in training mode, and its tokenizer, which can pad.

    Without a prompt it is a classifier: a pretrained body with a new, random head, unless the base
    is a classifier with the same class names, whose head and class order are kept. With a prompt it
    is the base as a causal language model.

    Args:
        base: checkpoint directory or hub id, with any head or none.
        classes: names of the classes to learn, in the order of a new head; None for those of a
            base that is a classifier.
        prompt: prompt of language models, which need no classes; see `answering`.
        from_scratch: use only the configuration and the tokenizer; all weights are random.
        seed: seed of random weights.
        revision: branch, tag or commit of a hub id.
        allow_pickle: see `mechcore.load_model`.
        device: device of the weights.

    Raises:
        InputError: the base is unusable, lacks weights other than the head's, has an architecture
            that mechcore cannot read, or the classes are invalid.
    """
    name, place = str(base), device_of(device)
    if name.endswith(".gguf"):
        raise InputError(f"checkpoint {name}: found a GGUF file; expected Hugging Face format")
    config = read_config(name, revision)
    tokenizer = load_tokenizer(name, revision=revision)
    own_classes = _classes_of(config, name)
    if prompt is None:
        wanted = _check_classes(name, classes, own_classes)
        same = {*map(normal_name, wanted)} == {*map(normal_name, own_classes or ())}
        keeps = same and not from_scratch
        if keeps:
            check_agree(config, f"checkpoint {name}")
        names = cast(Sequence[str], own_classes) if keeps else wanted
        config.id2label = dict(enumerate(names))
        config.label2id = {class_name: i for i, class_name in enumerate(names)}
        config.problem_type = None  # a base may be made for regression
    elif classes is not None:
        raise InputError(
            "classes are for classifiers, and a prompt is for language models, whose classes are "
            "their answers; give only one of them"
        )
    loader = _loader(name, config, prompt)
    _fit_tokenizer(name, config, tokenizer, from_scratch)
    check_padding(name, config)
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        if from_scratch:
            try:
                model = loader.from_config(config, dtype=torch.float32, trust_remote_code=False)
            except Exception as error:  # transformers raises any kind for a bad configuration
                raise InputError(f"checkpoint {name}: cannot be built: {reason(error)}") from error
        else:
            new_head = prompt is None and not keeps
            model = _pretrained(name, loader, config, revision, allow_pickle, new_head)
            if new_head and _named(config).endswith((_CLASSIFIER, _OF_TOKENS)):
                _renew_head(name, model, own_classes)
    config.architectures = [type(model).__name__]
    nn.Module.to(model, place)
    return model.train(), tokenizer


_CLASSIFIER, _OF_TOKENS = "ForSequenceClassification", "ForTokenClassification"


def _named(config: Any) -> str:
    """The class that a checkpoint was saved from, ``none`` if unknown."""
    return str((config.architectures or ["none"])[0])


def _classes_of(config: Any, base: str) -> list[str] | None:
    """The names of a classifier's classes in index order; None if it has none."""
    if not _named(config).endswith(_CLASSIFIER):
        return None
    names = names_in(config, f"checkpoint {base}")
    return None if are_generic(names) else names


def _check_classes(
    base: str, classes: Sequence[str] | None, own: Sequence[str] | None
) -> Sequence[str]:
    if classes is None and own is None:
        raise InputError(
            f"checkpoint {base}: names no classes; give the classes to learn (classes= in Python, "
            "--class-names on the command line)"
        )
    wanted = list(classes if classes is not None else own or ())
    if len(wanted) < 2 or len({normal_name(name) for name in wanted} - {""}) < len(wanted):
        raise InputError(
            f"classes {', '.join(map(repr, wanted))}: expected at least two different names"
        )
    if are_generic(wanted):
        raise InputError(
            f"classes {', '.join(wanted)}: numbers have no agreed meaning; name the labels of the "
            "data with --label-map (label_map= in Python), for example "
            '"0=entailment,1=neutral,2=contradiction"'
        )
    return wanted


def _loader(base: str, config: Any, prompt: str | None) -> Any:
    kind = config.model_type
    if prompt is None:
        architecture = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(kind, "")
        if architecture_of(config).adapter(architecture, kind) is None:
            raise InputError(
                f"checkpoint {base}: mechcore reads no classifiers of the family {kind!r}; "
                f"expected one of {', '.join(ARCHITECTURES)}, or a decoder whose "
                "language model TransformerLens bridges"
            )
        return AutoModelForSequenceClassification
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise InputError(
            f"checkpoint {base}: the family {kind!r} has no causal language model; leave "
            "out the prompt to train a classifier"
        )
    return AutoModelForCausalLM


def _fit_tokenizer(
    base: str, config: Any, tokenizer: PreTrainedTokenizerBase, from_scratch: bool
) -> None:
    # RoBERTa's positions are counted from the padding token of its pretraining.
    if (
        getattr(config, "pad_token_id", None) is None
        or from_scratch
        or not architecture_of(config).encoder
    ):
        config.pad_token_id = tokenizer.pad_token_id
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        raise InputError(
            f"checkpoint {base}: its tokenizer has token {largest}, its model only "
            f"{config.vocab_size} tokens, counted from 0; resize its embeddings and save it again"
        )


def _pretrained(
    base: str,
    loader: Any,
    config: Any,
    revision: str | None,
    allow_pickle: bool,
    new_head: bool,
) -> PreTrainedModel:
    architecture = _named(config)
    model, report = read_weights(
        base,
        loader,
        config,
        architecture,
        revision=revision,
        allow_pickle=allow_pickle,
        pretrained_model_name_or_path=base,
        config=config,
        dtype=torch.float32,
    )
    check_sizes(base, report, except_for=lambda key: new_head and _is_new(key, model))
    missing = report["missing_keys"]
    if lost := sorted(key for key in missing if not (new_head and _is_new(key, model))):
        remedy = f"expected all{' except a classification head' * new_head}; or train from scratch"
        raise lacking(base, lost, report, type(model).__name__, remedy)
    if unread := left_out(model, architecture, report):
        problem = not_read(base, model, unread)
        if architecture == type(model).__name__:
            raise InputError(
                f"{problem}: take the config.json that was saved with them, or train from scratch"
            )
        warn(f"{problem}; if so, take the one that was saved with them")
    return model


def _is_head(key: str, model: PreTrainedModel) -> bool:
    return not key.startswith(f"{model.base_model_prefix}.")


def _is_new(key: str, model: PreTrainedModel) -> bool:
    """Whether a pretrained body may lack a weight: the head's, or those of a pooler before it."""
    return _is_head(key, model) or key.split(".", 1)[-1].startswith("pooler.")


def _renew_head(base: str, model: PreTrainedModel, own: Sequence[str] | None) -> None:
    """Replace a base's own head, which is for other classes, by a new one."""
    wanted = cast(dict[int, str], model.config.id2label).values()
    old = ", ".join(own) if own else "classes without names"
    if _named(model.config).endswith(_OF_TOKENS):
        old = "tokens"
    warn(
        f"checkpoint {base}: its classification head is for {old}, and is replaced by a new one "
        f"for {', '.join(wanted)}"
    )
    fresh = type(model)(model.config)
    new = {key: value for key, value in fresh.state_dict().items() if _is_head(key, model)}
    model.load_state_dict(new, strict=False)
