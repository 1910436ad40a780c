"""What a checkpoint may hold: no code, no pickle unless asked for, nothing outside its folder."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from mechcore.data.labels import check_id2label
from mechcore.errors import InputError, first_names, reason, shown
from mechcore.models.architectures.base import ARCHITECTURES, architecture_of
from mechcore.models.folders import ADAPTER, MERGE, no_checkpoint, refuse_stand_in
from mechcore.models.stored import Stored, packed_weights, refuse_packed, stored_in

CODE = "auto_map"
"""Where a checkpoint names Python classes of its own."""


MOST = {
    "num_hidden_layers": 2000,
    "n_layer": 2000,
    "num_labels": 10**6,
}
"""What no configuration has more of: making so many takes hours, whatever the weights are."""

SPARE = 10**8
"""By how many numbers a model may be larger than twice its weights, which quantization packs."""


@dataclass(frozen=True)
class Weights:
    """Which weights of a checkpoint to load.

    Attributes:
        safetensors: transformers' ``use_safetensors``; None takes pickles where there are none.
        files: those of a folder, or of safetensors on the hub, which may have to be downloaded.
    """

    safetensors: bool | None
    files: tuple[Path, ...] = ()


def place_of(name: str) -> dict[str, str]:
    """What transformers needs to find a checkpoint."""
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": name}


def check_config(name: str, revision: str | None) -> None:
    """Refuse a configuration that is none, names code of its own or no classes, or is a monster.

    Raises:
        InputError: it does.
        Exception: whatever transformers raises where there is no configuration to read.
    """
    refuse_stand_in(name, Path(name) / CONFIG_NAME)
    config, _ = PretrainedConfig.get_config_dict(name, revision=revision)
    _refuse_classes(name, CONFIG_NAME, config)
    if (id2label := config.get("id2label")) is not None:
        check_id2label(id2label, f"checkpoint {name}")
    for key, most in MOST.items():
        value = config.get(key)
        if isinstance(value, (int, float)) and not value <= most:
            raise InputError(
                f"checkpoint {name}: its config.json has {shown(value)} as {key}; expected at "
                f"most {most}"
            )


def check_padding(name: str, config: Any) -> None:
    """Refuse a padding token that the model has no row of its embedding for.

    Raises:
        InputError: it has none, or lacks a padding token and counts positions by it.
    """
    pad = getattr(config, "pad_token_id", None)
    rows: int = getattr(config.get_text_config(), "vocab_size", None) or 0
    needed = isinstance(architecture_of(config), ARCHITECTURES["roberta"])
    if rows and (needed if pad is None else not 0 <= pad < rows):
        null = "" if needed else ", or, where that has none, to null"
        raise InputError(
            f"checkpoint {name}: its config.json has {json.dumps(pad)} as pad_token_id; expected a "
            f"row of the embedding, 0 to {rows - 1}: set it to the id of its tokenizer's padding "
            f"token{null}"
        )


def check_size(name: str, kind: Any, config: Any, stored: Stored) -> None:
    """Refuse a configuration of a model that is much larger than the weights that are there.

    What the files lack would be made up, and could fill the memory.

    Raises:
        InputError: it is one.
        Exception: whatever transformers raises where it cannot make the model.
    """
    if not stored:
        return
    with torch.device("meta"):
        model = kind.from_config(config, attn_implementation="eager", trust_remote_code=False)
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    present = sum(size for size, _ in stored.values())
    if needed > 2 * present + SPARE:
        raise InputError(
            f"checkpoint {name}: its config.json describes a model of {needed} numbers, but its "
            f"weights are {present}; expected the configuration of these weights"
        )


def refuse_tokenizer_code(name: str, revision: str | None) -> None:
    """Refuse a tokenizer whose files are others, or whose configuration names code of its own."""
    files = ["tokenizer_config.json", "tokenizer.json"]
    if not (Path(name) / files[1]).is_file():
        files += ["vocab.txt", "vocab.json", "merges.txt"]
    for file in files:
        refuse_stand_in(name, Path(name) / file)
    _refuse_classes(name, files[0], get_tokenizer_config(name, revision=revision))


def _refuse_classes(name: str, file: str, config: Any) -> None:
    if not isinstance(config, dict):
        raise InputError(
            f"checkpoint {name}: its {file} holds a {type(config).__name__}; expected an object"
        )
    if config.get(CODE):
        raise InputError(
            f"checkpoint {name}: its {file} names Python code to run ({CODE}: "
            f"{shown(config[CODE])}), and mechcore never runs code from checkpoints; if a class "
            f"of transformers itself reads it, remove {CODE} from a copy of {file}"
        )


def find_weights(
    name: str, architecture: str, config: Any, revision: str | None, *, allow_pickle: bool
) -> Weights:
    """Which weights to load.

    Raises:
        InputError: there are no weights, they are a pickle that is not allowed, or are outside
            the checkpoint's folder.
    """
    explicit = getattr(config, "transformers_weights", None)
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME) if explicit is None else (explicit,)
    for file in names:
        _check_inside(name, "config.json", file, (".safetensors", ".safetensors.index.json"))
        if (path := file_of(name, file, revision)) is not None:
            return Weights(True, _parts(name, path, ".safetensors"))
    if not Path(name).is_dir():
        return Weights(None if allow_pickle else True)
    pickles = [file for file in (WEIGHTS_NAME, WEIGHTS_INDEX_NAME) if (Path(name) / file).is_file()]
    if not pickles:
        raise no_checkpoint(name, f"weights ({names[0]})")
    if not allow_pickle:
        raise pickle_refused(name, pickles[0], architecture)
    return Weights(False, _parts(name, Path(name) / pickles[0], ".bin"))


def pickle_refused(name: str, file: str, architecture: str) -> InputError:
    """The error for a checkpoint without safetensors, with what to do."""
    kind = "AutoModel" if architecture == "none" else architecture
    return InputError(
        f"checkpoint {name}: has no safetensors, and {file} is a pickle, which can run any code "
        "when it is read; if you trust its author, allow it with allow_pickle=True (on the "
        "command line --allow-pickle), or convert it once with the two lines `from transformers "
        f"import {kind}` and `{kind}.from_pretrained({name!r}).save_pretrained({name!r})`"
    )


def read_weights(
    name: str,
    loader: Any,
    config: Any,
    architecture: str,
    weights: Weights,
    revision: str | None,
    /,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """The model as transformers builds it, and its report, for `mechcore.models.weight_report`.

    Weights that are missing, or of another size than the configuration asks for, are random.

    Args:
        name: of the checkpoint.
        loader: the class of transformers that makes the model.
        config: its configuration.
        architecture: the name of the model's class.
        weights: from `find_weights`.
        revision: branch, tag or commit of a hub id.
        **options: further arguments of ``from_pretrained``.

    Raises:
        InputError: the checkpoint cannot be loaded.
    """
    stored = stored_in(name, weights.files)
    try:
        with without_bars(), _without_conversion():
            check_size(name, loader, config, stored)
            model, report = loader.from_pretrained(
                **options,
                revision=revision,
                trust_remote_code=False,
                use_safetensors=weights.safetensors,
                weights_only=True,
                ignore_mismatched_sizes=True,  # for `check_sizes`, which names them
                output_loading_info=True,
            )
        refuse_packed(name, model, config, stored_in(name, weights.files))
        return model, report
    except pickle.UnpicklingError as error:
        raise InputError(
            f"checkpoint {name}: its pickle is damaged, or holds something else than tensors, "
            "which mechcore never reads; convert it to safetensors where you trust it"
        ) from error
    except InputError:
        raise
    except Exception as error:  # what transformers makes of a bad checkpoint is of any kind
        if weights.safetensors and "use_safetensors" in str(error):
            raise pickle_refused(name, "its pytorch_model.bin", architecture) from error
        packed = packed_weights(stored) if getattr(config, "quantization_config", None) else ""
        held = f"its files hold the weights {packed}, which " if packed else ""
        before = "; or take the checkpoint as it was before it was quantized" if packed else ""
        raise InputError(
            f"checkpoint {name}: {held}cannot be loaded: {reason(error)}{before}"
        ) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars inside the block."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _without_conversion() -> Iterator[None]:
    """Keep transformers from having pickles on the hub converted, with a pull request there."""
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


def file_of(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a checkpoint, downloaded if need be; None where it has none, or none is reached."""
    found = cached_file(
        name,
        file,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def refuse_adapter(name: str, revision: str | None) -> None:
    """Refuse an adapter, which has a configuration of its own, and may have none of a model.

    Raises:
        InputError: the checkpoint is one.
    """
    if file_of(name, ADAPTER, revision) is not None:
        raise InputError(f"checkpoint {name}: is an adapter (it has {ADAPTER}); {MERGE}")


def _parts(name: str, path: Path, ending: str) -> tuple[Path, ...]:
    """The files of weights that an index names, all of the checkpoint; or the one file given."""
    refuse_stand_in(name, path)
    if path.suffix != ".json":
        return (path,)
    try:
        parts = list(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"checkpoint {name}: {path.name} is no index of weights ({error!r}); expected an "
            "object whose weight_map has a file for every weight: save the model again"
        ) from error
    for part in parts:
        _check_inside(name, path.name, part, (ending,))
    files = tuple(path.parent / part for part in dict.fromkeys(parts))
    if Path(name).is_dir() and (lost := [file.name for file in files if not file.is_file()]):
        raise InputError(
            f"checkpoint {name}: {path.name} names {first_names(lost, 3)} as weights, which "
            f"{'is' if len(lost) == 1 else 'are'} not there; copy or download all of its files"
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
