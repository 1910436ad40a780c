"""The weights of a checkpoint: finding, reading and checking them."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from mechcore.errors import InputError, first_names, reason, shown
from mechcore.models.checkpoint_files import file_of, no_checkpoint, refuse_stand_in, without_bars

Report: TypeAlias = Mapping[str, Any]
"""Transformers' report on a checkpoint's weights (``output_loading_info``)."""

_PLAIN = {"F64", "F32", "BF16", "F16", "float64", "float32", "bfloat16", "float16"}
"""Number types of unquantized weights, by their names in safetensors and in torch."""

_HARMLESS = re.compile(
    r"(^|\.)(pooler\..*|position_ids|token_type_ids|num_batches_tracked|inv_freq|embed_positions|causal_mask"
    r"|attn\.(attention\.)?(masked_)?bias|(self_)?attention\.(masked_)?bias)$"
)
"""A pooler that the class does not use, and buffers that older versions saved."""

_OTHER_HEADS = {
    *("cls", "predictions", "lm_head", "lm_predictions", "mask_predictions", "sop_classifier"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector", "generator_predictions"),
    *("generator_lm_head", "discriminator_predictions", "qa_outputs", "score", "v_head"),
}
"""Heads of pretraining and other tasks, which may remain in the files of a checkpoint."""


def read_weights(
    name: str,
    loader: Any,
    config: Any,
    architecture: str,
    /,
    *,
    revision: str | None,
    allow_pickle: bool,
    **options: Any,
) -> tuple[Any, Report]:
    """The model as transformers builds it, and its report on the weights, see `check_sizes`.

    ``options`` are further ones of ``from_pretrained``. Raises `InputError` if there are no
    weights, or they are a pickle that is not allowed, outside the checkpoint's folder, or damaged.
    """
    safetensors, files = None, tuple[Path, ...]()
    if "gguf_file" not in options:
        safetensors, files = _find(name, architecture, config, revision, allow_pickle)
    stored = _stored_in(name, files)
    try:
        with without_bars(), _without_conversion():
            model, report = loader.from_pretrained(
                **options,
                revision=revision,
                trust_remote_code=False,
                use_safetensors=safetensors,
                weights_only=True,
                ignore_mismatched_sizes=True,  # for `check_sizes`, which names them
                output_loading_info=True,
            )
        _refuse_packed(name, model, config, _stored_in(name, files))  # downloaded by now
        return model, report
    except pickle.UnpicklingError as error:
        raise InputError(
            f"checkpoint {name}: its pickle is damaged, or holds objects other than tensors, "
            "which mechcore never reads; if you trust it, convert it to safetensors"
        ) from error
    except InputError:
        raise
    except Exception as error:  # a bad checkpoint can cause any kind of error
        if safetensors and "use_safetensors" in str(error):
            raise _pickle_refused(name, "its pytorch_model.bin", architecture) from error
        packed = _packed(stored) if getattr(config, "quantization_config", None) else ""
        held = f"its files hold the weights {packed}, which " if packed else ""
        before = "; or use the checkpoint from before quantization" if packed else ""
        raise InputError(
            f"checkpoint {name}: {held}cannot be loaded: {reason(error)}{before}"
        ) from error


@contextmanager
def _without_conversion() -> Iterator[None]:
    """Keep transformers from requesting conversion of pickles on the hub, in a pull request."""
    variable = "DISABLE_SAFETENSORS_CONVERSION"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


# -- files ----------------------------------------------------------------------------------------


def _find(
    name: str, architecture: str, config: Any, revision: str | None, allow_pickle: bool
) -> tuple[bool | None, tuple[Path, ...]]:
    """Transformers' ``use_safetensors`` (None: fall back to pickles), and the files."""
    explicit = getattr(config, "transformers_weights", None)
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME) if explicit is None else (explicit,)
    for file in names:
        _check_inside(name, "config.json", file, (".safetensors", ".safetensors.index.json"))
        if (path := file_of(name, file, revision)) is not None:
            return True, _parts(name, path, ".safetensors")
    if not Path(name).is_dir():
        return (None if allow_pickle else True), ()
    pickles = [file for file in (WEIGHTS_NAME, WEIGHTS_INDEX_NAME) if (Path(name) / file).is_file()]
    if not pickles:
        raise no_checkpoint(name, f"weights ({names[0]})")
    if not allow_pickle:
        raise _pickle_refused(name, pickles[0], architecture)
    return False, _parts(name, Path(name) / pickles[0], ".bin")


def _pickle_refused(name: str, file: str, architecture: str) -> InputError:
    kind = "AutoModel" if architecture == "none" else architecture
    return InputError(
        f"checkpoint {name}: no safetensors, and {file} is a pickle, which can run any code "
        "when it is read; if you trust its author, allow it with allow_pickle=True (on the "
        "command line --allow-pickle), or convert it once with the two lines `from transformers "
        f"import {kind}` and `{kind}.from_pretrained({name!r}).save_pretrained({name!r})`"
    )


def _parts(name: str, path: Path, ending: str) -> tuple[Path, ...]:
    """The weight files named in an index, all inside the checkpoint; or the given file itself."""
    refuse_stand_in(name, path)
    if path.suffix != ".json":
        return (path,)
    try:
        parts = list(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"checkpoint {name}: {path.name} is not an index of weights ({error!r}); expected an "
            "object whose weight_map has a file for every weight: save the model again"
        ) from error
    for part in parts:
        _check_inside(name, path.name, part, (ending,))
    files = tuple(path.parent / part for part in dict.fromkeys(parts))
    if Path(name).is_dir() and (lost := [file.name for file in files if not file.is_file()]):
        raise InputError(
            f"checkpoint {name}: {path.name} names {first_names(lost, 3)} as weights, which "
            f"{'is' if len(lost) == 1 else 'are'} missing; copy or download all of its files"
        )
    for file in files:
        refuse_stand_in(name, file)
    return files


def _check_inside(name: str, source: str, file: Any, endings: tuple[str, ...]) -> None:
    base = os.path.join(os.path.abspath(name), "")
    inside = (
        isinstance(file, str)
        and file.endswith(endings)
        and "\\" not in file
        and os.path.abspath(os.path.join(base, file)).startswith(base)
    )
    if not inside:
        raise InputError(
            f"checkpoint {name}: {source} names {shown(file)!r} as weights; expected a file "
            f"inside the checkpoint that ends in {' or '.join(endings)}"
        )


# -- number types ---------------------------------------------------------------------------------


def _stored_in(name: str, files: Iterable[Path]) -> dict[str, str]:
    """Number types of the weights in files; empty if some are missing or unreadable."""
    stored: dict[str, str] = {}
    for path in files:
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt") as file:
                    for key in file.keys():  # noqa: SIM118
                        stored[key] = file.get_slice(key).get_dtype()
            else:
                weights = torch.load(path, map_location="meta", weights_only=True, mmap=True)
                stored |= {key: _type_of(weight) for key, weight in weights.items()}
        except SafetensorError as error:
            raise InputError(
                f"checkpoint {name}: its {path.name} is damaged or not a safetensors file "
                f"({reason(error)}; it has {path.stat().st_size} bytes); download or copy it "
                "again, or save the model again"
            ) from error
        except Exception:  # transformers also fails where it matters
            return {}
    return stored


def _packed(stored: Mapping[str, str]) -> str:
    """The weights that are not plain numbers, with their types."""
    names = sorted(f"{name} ({dtype})" for name, dtype in stored.items() if dtype not in _PLAIN)
    return first_names(names, 3, 400)


def _refuse_packed(name: str, model: Any, config: Any, stored: Mapping[str, str]) -> None:
    """Refuse quantized numbers that were read as if they were weights."""
    if getattr(model, "is_quantized", False):
        return
    quantization = getattr(config, "quantization_config", None)
    undone = isinstance(quantization, dict) and AutoHfQuantizer.supports_quant_method(quantization)
    prefix = f"{model.base_model_prefix}."
    read_as = {key: _type_of(weight) for key, weight in model.named_parameters()}
    if undone:
        read_as = {key: dtype for key, dtype in read_as.items() if dtype not in _PLAIN}
    read = {
        key: dtype
        for key, dtype in stored.items()
        if {key, f"{prefix}{key}", key.removeprefix(prefix)} & {*read_as}
    }
    if packed := _packed(read):
        why = "was not applied" if quantization else "is missing in its config.json"
        raise InputError(
            f"checkpoint {name}: its files hold the weights {packed}; expected float32, bfloat16 "
            f"or float16, because a quantization_config {why}: use the checkpoint from before "
            "quantization"
        )


def _type_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# -- what transformers reports --------------------------------------------------------------------


def check_sizes(
    name: str, report: Report, except_for: Callable[[str], bool] = lambda _: False
) -> None:
    """Raise `InputError` for weights whose sizes differ from the configuration's."""
    mismatched = sorted(row for row in report["mismatched_keys"] if not except_for(row[0]))
    if not mismatched:
        return
    sizes = [f"{key} has {[*stored]}, not {[*asked]}" for key, stored, asked in mismatched]
    raise InputError(
        f"checkpoint {name}: its weights do not have the shapes in its config.json: "
        f"{first_names(sizes, 3, 400)}; expected the config.json that was saved with them: correct "
        "it (id2label gives the rows of a head, or num_labels, 2 without both; vocab_size those of "
        "the embedding), or save the model again"
    )


def left_out(model: Any, architecture: str, report: Report) -> list[str]:
    """Unread weights of a checkpoint without which the model is a different network.

    If its class is the one that the checkpoint was saved from (``architecture``), all count; with
    another head, or none, only those of the body do.
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


def lacking(name: str, missing: list[str], report: Report, kind: str, remedy: str) -> InputError:
    """The error for files that lack weights of class ``kind``, naming what they have instead."""
    others = sorted(report["unexpected_keys"])
    instead = f", and have {first_names(others, 2, 400)} instead" if others else ""
    return InputError(
        f"checkpoint {name}: its files lack the weights {first_names(missing, 3, 400)} of "
        f"{kind}{instead}; {remedy}"
    )


def not_read(name: str, model: Any, keys: list[str]) -> str:
    """The message for unread weights."""
    return (
        f"checkpoint {name}: the {type(model).__name__} that its config.json describes does not "
        f"read the weights {first_names(keys, 4, 400)} of its files, and would be another network; "
        "the config.json may name fewer layers, or another kind of positions, than the weights have"
    )
