"""Partial results: what interrupted work saves in a folder to resume from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, warn
from mechcore.files import check_can_write, tensors_digest, write_safetensors
from mechcore.masking.counterfactual import pairs_of
from mechcore.masking.fills import FILLS
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import kind_of
from mechcore.source_code import PACKAGE, code_digests

SECONDS_BETWEEN_SAVES = 30.0


class Partial:
    """Tensors of unfinished work, in a file of ``folder``, if any, named by what they depend on."""

    def __init__(self, folder: str | Path | None, kind: str, **depends_on: Any) -> None:
        self.path: Path | None = None
        if folder is not None:
            check_can_write(folder)
            versions = [torch.__version__, version(PACKAGE)]
            text = json.dumps([versions, depends_on], default=_plain)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.path = Path(folder) / f"{kind}-{digest}.safetensors"

    def save(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        """Write them atomically; ``notes`` are JSON values."""
        if self.path is not None:
            text = json.dumps(dict(notes or {}))
            digest = tensors_digest(tensors, text.encode())
            write_safetensors(self.path, tensors, {"notes": text, "digest": digest})

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and notes saved last; None if there are none or, with a warning, damaged."""
        if self.path is None or not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                stored = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if stored["digest"] != tensors_digest(tensors, stored["notes"].encode()):
                raise ValueError("its checksum differs")
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            warn(f"{self.path}: damaged ({error}); repeating its work")
            return None
        return tensors, json.loads(stored["notes"])


class Steps:
    """Tensors filled step by step, saved periodically and at the end; ``done`` are its steps."""

    def __init__(self, partial: Partial, tensors: Mapping[str, Tensor]) -> None:
        self.partial, self.tensors = partial, tensors
        tensors_before, notes = partial.restore() or ({}, {"done": []})
        for name, before in tensors_before.items():
            tensors[name].copy_(before)
        self.done = {tuple(step) for step in notes["done"]}
        self._n_saved, self._saved_at = len(self.done), time.monotonic()

    def finish(self, *step: int) -> None:
        """Record that a step is done."""
        self.done.add(step)
        if time.monotonic() - self._saved_at > SECONDS_BETWEEN_SAVES:
            self._save()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        if len(self.done) > self._n_saved:
            self._save()

    def _save(self) -> None:
        self.partial.save(self.tensors, {"done": sorted(self.done)})
        self._n_saved, self._saved_at = len(self.done), time.monotonic()


def known_fill(fill: Any) -> Any:
    """The name of a fill, with its code if it is not mechcore's; raises `InputError` if unnamed."""
    pairs = pairs_of(fill)
    if pairs is not None:
        return pairs
    if not isinstance(fill, str):
        raise InputError(
            "sweep: partial results need a registered fill; register it in "
            "mechcore.masking.fills.FILLS, or leave state out"
        )
    kind = FILLS[fill]
    code = code_digests([kind])
    own = {name: digest for name, digest in code.items() if name.partition(".")[0] != PACKAGE}
    return [fill, f"{kind.__module__}.{kind.__qualname__}", sorted(own.items())]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tensors_digest({"": value})
    if isinstance(value, EncodedExamples):
        own = [value.correct, value.wrong, value.pairs]  # of prompts
        more = own if any(part is not None for part in own) else []
        return [value.input_ids, value.token_type_ids, value.answers, *more]
    if isinstance(value, MeanActivations):
        kinds = ("z", "mlp", "samples_z", "samples_mlp")
        return tensors_digest({name: getattr(value, name) for name in kinds})
    config = (
        value.original_model.config.to_dict() if kind_of(value) == "bridge" else vars(value.cfg)
    )
    settings = {name: setting for name, setting in config.items() if name not in _PLACES}
    return [ModelIdentity.of(value).weights, json.dumps(settings, default=str)]


_PLACES = ("_name_or_path", "model_name", "tokenizer_name", "device", "n_devices")
