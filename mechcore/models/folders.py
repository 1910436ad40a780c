"""What a folder or file holds where a checkpoint of Hugging Face is expected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from mechcore.errors import InputError, first_names

ADAPTER = "adapter_config.json"
_WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
_ARCHIVE = r".*\.(zip|tar|tgz|7z|rar|tar\.\w+)"
MERGE = "merge it into its model (merge_and_unload of peft) and save the whole model"
_SAVE = "save the model with save_pretrained"

_FORMATS = {
    r"adapter_model\..*|adapter_config\.json": f"it is an adapter: {MERGE}",
    r"model-\d+-of-\d+\.safetensors": "its index is missing: copy model.safetensors.index.json too",
    r"global_step\d+|zero_to_fp32\.py": "it is DeepSpeed's: join its parts with zero_to_fp32.py",
    r".*\.distcp|pytorch_model_fsdp.*|__\d+_\d+": "it is FSDP's: join its parts with `accelerate "
    "merge-weights`",
    r"tf_model.*\.h5|.*\.ckpt\.index|flax_model.*\.msgpack": "it is TensorFlow's or Flax's: load "
    "it with transformers 4 (from_tf=True or from_flax=True), and save it with save_pretrained",
    r"onnx|openvino|.*\.onnx|openvino_model\..*": "it is an export for inference: take the "
    "checkpoint that it was made from",
    r".*\.ckpt": f"it is Lightning's: load it there, and {_SAVE}",
    r".*\.gguf": "name the .gguf file itself",
    _ARCHIVE: "unpack the archive",
    r"(?!model\.safetensors).*\.safetensors": "name it model.safetensors if it has all "
    "weights of the model",
}
"""Names in the folders of what is no checkpoint, and what to do with it."""

_STAND_INS = {
    rb"\Z": "empty",
    rb"version https://git-lfs": "a pointer of Git LFS, which stands for the file (`git lfs pull` "
    "gets it)",
    rb"<(!doctype|html|head|\?xml)": "a web page",
}
"""How files begin that came in place of others."""


def refuse_stand_in(name: str, path: Path) -> None:
    """Refuse a file that is empty, or came in place of the one that was meant.

    Args:
        name: of the checkpoint.
        path: of the file, which need not exist.

    Raises:
        InputError: it is such a file.
    """
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
    """The error for a folder that lacks a file, with what is there instead, and what to do.

    Args:
        name: of the folder.
        lack: what it lacks.
    """
    folder = Path(name)
    start = f"checkpoint {name}: no {lack} in this directory"
    if inner := [*_checkpoints_in(folder)]:
        return InputError(
            f"{start}; the checkpoints are in its folders {first_names(inner, 12)}: name one of "
            f"them, such as {folder / inner[-1]}"
        )
    if _is_checkpoint(parent := folder.resolve().parent):
        return InputError(f"{start}, which is a part of a checkpoint: name {parent}")
    names = sorted(path.name for path in folder.iterdir())
    found = first_names(names, 12) or "nothing"
    remedies = [do for pattern, do in _FORMATS.items() if _any_is(pattern, names)]
    if remedies:
        return InputError(f"{start}; found {found}; {remedies[0]}")
    return InputError(
        f"{start}; found {found}; expected one in Hugging Face format (config.json, "
        f"model.safetensors, tokenizer files): {_SAVE}"
    )


def no_folder(name: str) -> InputError:
    """The error for a file in place of a folder, with what to do."""
    path = Path(name)
    do = "unpack it" if _any_is(_ARCHIVE, [path.name]) else f"name its folder, {path.parent}"
    return InputError(
        f"checkpoint {name}: is a file; expected a directory, a hub id or a .gguf file: {do}"
    )


def _any_is(pattern: str, names: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name, re.IGNORECASE) for name in names)


def _is_checkpoint(folder: Path) -> bool:
    weights = (folder / CONFIG_NAME).is_file() and any((folder / w).is_file() for w in _WEIGHTS)
    return weights or (folder / ADAPTER).is_file()


def _checkpoints_in(folder: Path) -> Iterable[Path]:
    """The folders in a folder, or in its snapshots, that are checkpoints; numbers in order."""
    inner = [path for path in (*folder.glob("*/"), *folder.glob("snapshots/*/")) if path.is_dir()]
    names = [path.relative_to(folder) for path in inner if _is_checkpoint(path)]
    return sorted(names, key=lambda path: [*map(_as_number, re.split(r"(\d+)", str(path)))])


def _as_number(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)
