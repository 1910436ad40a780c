"""Checkpoints and data for studies: as plans see them, by content, and tiny ones that run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import CLASSES

from mechcore.steps.config import DataConfig

HEADER = "text_a,text_b,label,subset"


def checkpoint_like(folder: Path, content: str = "") -> Path:
    """What looks like a checkpoint as long as nobody loads it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "model.safetensors").write_text(f"weights {content}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_data(path: Path, n: int = 12, words: Sequence[str] = ("cat", "dog", "bird")) -> Path:
    """Labelled pairs for the tiny classifiers of the test suite."""
    rows = [
        f"the {words[i % len(words)]} ran,a {words[i % 2]} saw,{CLASSES[i % 3]},{'xy'[i % 2]}"
        for i in range(n)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def data_config(folder: Path) -> DataConfig:
    """Data files in a folder, made if need be."""
    paths = {split: folder / f"{split}-data.csv" for split in ("train", "id", "ood")}
    for n, path in enumerate(paths.values()):
        if not path.exists():
            write_data(path, 12 + n)
    return DataConfig(**{split: str(path) for split, path in paths.items()}, max_id=9)


def leave_out_code(patch: pytest.MonkeyPatch) -> None:
    """Plans without it; it takes most of their time."""
    patch.setattr("mechcore.study.step.code_digests", lambda things: {})
    patch.setattr("mechcore.steps.bench.architecture_code", lambda *_: [])
