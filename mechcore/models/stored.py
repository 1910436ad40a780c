"""Number types in the files of a checkpoint; quantized numbers are not usable as weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from transformers.quantizers.auto import AutoHfQuantizer

from mechcore.errors import InputError, first_names, reason

Stored: TypeAlias = dict[str, tuple[int, str]]
"""How many numbers there are of each weight, and of which type."""

_PLAIN = {"float64", "float32", "bfloat16", "float16"}
_LETTERS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "C": "complex"}


def stored_in(name: str, files: Iterable[Path]) -> Stored:
    """What files hold; nothing if some are not here, or are pickles that cannot be looked into.

    Args:
        name: of the checkpoint.
        files: safetensors or pickles.

    Raises:
        InputError: a file of safetensors is none, or damaged.
    """
    stored: Stored = {}
    for path in files:
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt") as file:
                    for key in file.keys():  # noqa: SIM118
                        part = file.get_slice(key)
                        stored[key] = prod(part.get_shape()), _type_name(part.get_dtype())
            else:
                weights = torch.load(path, map_location="meta", weights_only=True, mmap=True)
                stored |= {key: (each.numel(), _type_of(each)) for key, each in weights.items()}
        except SafetensorError as error:
            raise InputError(
                f"checkpoint {name}: its {path.name} is damaged or no safetensors file "
                f"({reason(error)}; it has {path.stat().st_size} bytes); download or copy it "
                "again, or save the model again"
            ) from error
        except Exception:  # where it matters, transformers fails, too
            return {}
    return stored


def packed_weights(stored: Stored, names: Iterable[str] | None = None) -> str:
    """The weights, of ``names`` or all, that are no plain numbers, with their types."""
    chosen = stored if names is None else {name: stored[name] for name in names}
    packed = sorted(
        f"{name} ({dtype})" for name, (_, dtype) in chosen.items() if dtype not in _PLAIN
    )
    return first_names(packed, 3, 400)


def refuse_packed(name: str, model: Any, config: Any, stored: Stored) -> None:
    """Refuse quantized numbers that were read as if they were the weights themselves.

    Args:
        name: of the checkpoint.
        model: as transformers loaded it.
        config: its configuration.
        stored: what its files hold.

    Raises:
        InputError: there are some.
    """
    if getattr(model, "is_quantized", False):
        return
    quantization = getattr(config, "quantization_config", None)
    undone = isinstance(quantization, dict) and AutoHfQuantizer.supports_quant_method(quantization)
    prefix = f"{model.base_model_prefix}."
    read_as = {key: _type_of(weight) for key, weight in model.named_parameters()}
    if undone:
        read_as = {key: dtype for key, dtype in read_as.items() if dtype not in _PLAIN}
    read = [key for key in stored if {key, f"{prefix}{key}", key.removeprefix(prefix)} & {*read_as}]
    if packed := packed_weights(stored, read):
        why = "was not applied" if quantization else "is missing in its config.json"
        raise InputError(
            f"checkpoint {name}: its files hold the weights {packed}; expected float32, bfloat16 "
            f"or float16, as a quantization_config {why}: take the checkpoint as it was before it "
            "was quantized"
        )


def _type_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _type_name(code: str) -> str:
    """A type of numbers nearly as torch calls it, from its name in safetensors, such as F8_E4M3."""
    return re.sub(r"^(BF|[FIUC])(?=\d)", lambda letter: _LETTERS[letter[0]], code).lower()
