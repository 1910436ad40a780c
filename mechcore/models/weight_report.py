"""What transformers says of a checkpoint's weights: which it left out, which are of other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mechcore.errors import InputError, first_names

_HARMLESS = re.compile(
    r"(^|\.)(pooler\..*|position_ids|token_type_ids|num_batches_tracked|inv_freq|embed_positions|causal_mask"
    r"|attn\.(attention\.)?(masked_)?bias|(self_)?attention\.(masked_)?bias)$"
)
"""A pooler that the class has no use for, and what older versions saved that is no weight."""

_OTHER_HEADS = {
    *("cls", "predictions", "lm_head", "lm_predictions", "mask_predictions", "sop_classifier"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "generator_predictions"),
    *("generator_lm_head", "discriminator_predictions", "qa_outputs", "score", "v_head"),
}
"""Heads of pretraining and of other tasks, which may have stayed in the files of a checkpoint."""

_PEFT = "peft: merge the adapter into its model (merge_and_unload)"
_WRAPPERS = {
    "_orig_mod": "torch.compile: take the model inside (model._orig_mod)",
    "module": "DataParallel: take the model inside (model.module)",
    "_fsdp_wrapped_module": "FSDP: take the model inside",
    "_checkpoint_wrapped_module": "checkpointing of activations: take the model inside",
    **dict.fromkeys(("base_model", "base_layer", "modules_to_save", "original_module"), _PEFT),
    "qweight": "quantization (GPTQ, AWQ): take the model as it was before",
    "weight_orig": "torch.nn.utils.prune: make it permanent (prune.remove)",
}
"""Parts of names that are in no model itself: where they come from, and what to save instead."""


def check_sizes(
    name: str, report: Mapping[str, Any], but: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse weights of other sizes than the configuration asks for.

    Args:
        name: of the checkpoint.
        report: of transformers.
        but: which weights may have any size, by name.

    Raises:
        InputError: there are some.
    """
    mismatched = sorted(each for each in report["mismatched_keys"] if not but(each[0]))
    if not mismatched:
        return
    found = [f"{key} has {[*there]}, not {[*asked]}" for key, there, asked in mismatched]
    raise InputError(
        f"checkpoint {name}: its weights do not have the shapes that its config.json asks for: "
        f"{first_names(found, 3, 400)}; expected the config.json that was saved with them: correct "
        "it (id2label gives the rows of a head, or num_labels, 2 without both; vocab_size those of "
        "the embedding), or save the model again"
    )


def left_out(model: Any, architecture: str, report: Mapping[str, Any]) -> list[str]:
    """The weights of a checkpoint that the model would need to be the same network.

    Where its class is the one that the checkpoint was saved from, those are all; where the head is
    another one, or none, they are those of the body.

    Args:
        model: as transformers loaded it.
        architecture: the name of the class that the checkpoint was saved from.
        report: of transformers.
    """
    prefix, body = f"{model.base_model_prefix}.", dict(model.base_model.named_children())
    same = type(model).__name__ == architecture
    parts, buffers = dict(model.named_children()), {name for name, _ in model.named_buffers()}

    def is_needed(key: str) -> bool:
        first = key.partition(".")[0]
        if _HARMLESS.search(key) or {key, f"{prefix}{key}", key.removeprefix(prefix)} & buffers:
            return False
        if key.startswith(prefix) or first in body:
            return True
        return same and (first in parts or first not in _OTHER_HEADS)

    return sorted(filter(is_needed, report["unexpected_keys"]))


def lacking(
    name: str, missing: list[str], report: Mapping[str, Any], kind: str, remedy: str
) -> InputError:
    """The error for files that lack weights, with what they have in their place.

    Args:
        name: of the checkpoint.
        missing: names of the weights.
        report: of transformers.
        kind: the class whose weights they are.
        remedy: what to do where the names do not say it.
    """
    others = sorted(report["unexpected_keys"])
    parts = {part for key in missing for part in key.split(".")}
    strange = (part for key in others for part in key.split(".") if part not in parts)
    ends = [f".{key}" for key in missing]
    around = [key.removesuffix(end) for key in others[:1] for end in ends if key.endswith(end)]
    if left := next((part for part in strange if part in _WRAPPERS), None):
        remedy = f"{left!r} in names is left by {_WRAPPERS[left]} and save that"
    elif around:
        remedy = f"save {around[0]!r} of the saved model alone (model.{around[0]}.save_pretrained)"
    instead = f", and have {first_names(others, 2, 400)} instead" if others else ""
    return InputError(
        f"checkpoint {name}: its files lack the weights {first_names(missing, 3, 400)} of "
        f"{kind}{instead}; {remedy}"
    )


def not_read(name: str, model: Any, keys: list[str]) -> str:
    """What is wrong where weights are left out."""
    return (
        f"checkpoint {name}: the {type(model).__name__} that its config.json describes does not "
        f"read the weights {first_names(keys, 4, 400)} of its files, and would be another network; "
        "the config.json may name fewer layers, or another kind of positions, than the weights have"
    )
