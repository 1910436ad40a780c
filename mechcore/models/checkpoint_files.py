"""Checks of a checkpoint's other files: no code, no stand-ins, a usable configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import CONFIG_NAME
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from mechcore.errors import InputError, first_names, shown
from mechcore.models.architectures.base import architecture_of

_CODE = "auto_map"
"""The configuration key under which a checkpoint names its own Python classes."""

_ADAPTER = "adapter_config.json"
_MERGE = "merge it into its model (merge_and_unload of peft) and save the whole model"
_STAND_INS = {
    rb"\Z": "empty",
    rb"version https://git-lfs": "a Git LFS pointer (`git lfs pull` gets the file)",
    rb"<(!doctype|html|head|\?xml)": "a web page",
}
"""Beginnings of files that are not what their names say."""


def place_of(name: str) -> dict[str, str]:
    """Arguments with which transformers finds a checkpoint."""
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": name}


def file_of(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a checkpoint, downloaded if necessary; None if missing or unreachable."""
    path = cached_file(
        name,
        file,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars inside the block."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


# -- configurations -------------------------------------------------------------------------------


def check_config(name: str, revision: str | None) -> None:
    """Refuse a configuration that is not an object, or names its own code."""
    refuse_stand_in(name, Path(name) / CONFIG_NAME)
    config, _ = PretrainedConfig.get_config_dict(name, revision=revision)
    _refuse_code(name, CONFIG_NAME, config)


def check_padding(name: str, config: Any) -> None:
    """Refuse a padding token without a row in the embedding, or none where positions need one."""
    pad = getattr(config, "pad_token_id", None)
    rows: int = getattr(config.get_text_config(), "vocab_size", None) or 0
    needed = architecture_of(config).needs_padding
    if rows and (needed if pad is None else not 0 <= pad < rows):
        null = "" if needed else ", or to null if it has none"
        raise InputError(
            f"checkpoint {name}: its config.json has {json.dumps(pad)} as pad_token_id; expected a "
            f"row of the embedding, 0 to {rows - 1}: set it to the id of its tokenizer's padding "
            f"token{null}"
        )


def refuse_tokenizer_code(name: str, revision: str | None) -> None:
    """Refuse a tokenizer whose files are stand-ins, or whose configuration names code."""
    files = ["tokenizer_config.json", "tokenizer.json"]
    if not (Path(name) / files[1]).is_file():
        files += ["vocab.txt", "vocab.json", "merges.txt"]
    for file in files:
        refuse_stand_in(name, Path(name) / file)
    _refuse_code(name, files[0], get_tokenizer_config(name, revision=revision))


def _refuse_code(name: str, file: str, config: Any) -> None:
    if not isinstance(config, dict):
        raise InputError(
            f"checkpoint {name}: its {file} holds a {type(config).__name__}; expected an object"
        )
    if config.get(_CODE):
        raise InputError(
            f"checkpoint {name}: its {file} names Python code to run ({_CODE}: "
            f"{shown(config[_CODE])}), and mechcore never runs code from checkpoints; if a class "
            f"of transformers itself reads it, remove {_CODE} from a copy of {file}"
        )


def refuse_adapter(name: str, revision: str | None) -> None:
    """Refuse an adapter, which has its own configuration, and may lack a model's."""
    if file_of(name, _ADAPTER, revision) is not None:
        raise InputError(f"checkpoint {name}: found an adapter ({_ADAPTER}); {_MERGE}")


# -- files and folders that are not a checkpoint --------------------------------------------------


def refuse_stand_in(name: str, path: Path) -> None:
    """Refuse a file of checkpoint ``name`` that is empty, a Git LFS pointer or a web page."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(200).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for beginning, what in _STAND_INS.items():
        if re.match(beginning, start):
            raise InputError(
                f"checkpoint {name}: its {path.name} is {what}; download or copy the file again"
            )


def no_checkpoint(name: str, lack: str) -> InputError:
    """The error for a folder that lacks a file: its contents, and the remedy."""
    folder = Path(name)
    start = f"checkpoint {name}: no {lack} in this directory"
    inner = {path.parent.relative_to(folder) for path in folder.glob("*/config.json")}
    if names := sorted(map(str, inner), key=lambda path: (len(path), path)):  # numbers in order
        return InputError(
            f"{start}; the checkpoints are in its folders {first_names(names, 12)}: name one of "
            f"them, such as {folder / names[-1]}"
        )
    names = sorted(path.name for path in folder.iterdir())
    return InputError(
        f"{start}; found {first_names(names, 12) or 'nothing'}; expected one in Hugging Face "
        "format (config.json, model.safetensors, tokenizer files): save the model with "
        "save_pretrained"
    )
