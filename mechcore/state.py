"""The file of an interruptible run: tensors, and the facts that must be the same to go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.files import check_can_write, tensors_digest, write_safetensors
from mechcore.masking.counterfactual import pairs_of
from mechcore.masking.fills import FILLS
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.running import kind_of
from mechcore.source_code import PACKAGE, code_digests

T = TypeVar("T")


def encoded_inputs(data: EncodedExamples) -> list[Any]:
    """What a model reads of encoded examples, as JSON values."""
    return [data.input_ids, data.token_type_ids, data.answers]


def input_facts(model: Any, inputs: Any, means: MeanActivations | None) -> dict[str, str | None]:
    """Digests of what a run works on; ``inputs`` are JSON values."""
    fills = None
    if means is not None:
        kinds = (means.z, means.mlp, means.samples_z, means.samples_mlp)
        fills = b"".join(each.numpy().tobytes() for each in kinds)
    return {
        "model": ModelIdentity.of(model).weights,
        "configuration": _configuration(model),
        "data": _digest_of(inputs),
        "means": None if fills is None else hashlib.sha256(fills).hexdigest(),
        "torch": torch.__version__,
    }


def fill_facts(fill: Any) -> dict[str, Any]:
    """What tells a fill from another: its name and its code, where that is not mechcore's own.

    Raises:
        InputError: the fill has no name to go by.
    """
    pairs = pairs_of(fill)
    if pairs is not None:
        return {"fill": _digest_of(encoded_inputs(pairs)), "code of the fill": {}}
    if not isinstance(fill, str):
        raise InputError(
            "sweep: a state file tells fills by their names; register the fill in "
            "mechcore.masking.fills.FILLS, or leave state out"
        )
    kind = FILLS[fill]
    code = code_digests([kind])
    own = {name: each for name, each in code.items() if name.partition(".")[0] != PACKAGE}
    return {"fill": [fill, f"{kind.__module__}.{kind.__qualname__}"], "code of the fill": own}


def _configuration(model: Any) -> str:
    """Digest of a model's settings, but for its name and place."""
    config = (
        model.original_model.config.to_dict() if kind_of(model) == "bridge" else vars(model.cfg)
    )
    return _digest_of({name: each for name, each in config.items() if name not in _PLACES})


_PLACES = ("_name_or_path", "model_name", "tokenizer_name", "device", "n_devices")


def _digest_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()


class StateError(InputError):
    """A state file is damaged, or that of another run."""


class StateFile:
    """Saves and restores the state of one run.

    Args:
        path: the file; None keeps nothing.
        kind: the kind of run, in a word, for messages and the file's format.
        facts: everything that decides the results, by name; JSON values.

    Raises:
        InputError: the file could not be written.
    """

    def __init__(self, path: str | Path | None, kind: str, facts: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.kind, self.facts = kind, json.loads(json.dumps(dict(facts)))
        self._format = f"mechcore-{kind}-1"
        if self.path is not None:
            check_can_write(self.path.parent)

    def save(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        """Write the state atomically; ``notes`` are JSON values."""
        if self.path is None:
            return
        texts = {
            "format": self._format,
            "facts": json.dumps(self.facts),
            "notes": json.dumps(dict(notes or {})),
        }
        digest = _digest(tensors, texts)
        write_safetensors(self.path, dict(tensors), {**texts, "digest": digest})

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and notes as saved last, or None if there are none.

        Raises:
            StateError: the file is damaged, something else, or that of another run.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                stored = file.metadata() or {}
                if stored.get("format") != self._format:
                    raise ValueError(f"format {stored.get('format')!r}, expected {self._format!r}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if stored.pop("digest", None) != _digest(tensors, stored):
                raise ValueError("its checksum differs")
            facts, notes = json.loads(stored["facts"]), json.loads(stored["notes"])
        except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
            raise self._unreadable(error) from error
        names = [name for name in self.facts if facts.get(name) != self.facts[name]]
        if names:
            raise StateError(
                f"{self.kind} state {self.path}: is that of another run: {', '.join(names)} "
                "differ; go on with the same ones, or remove it to begin anew"
            )
        return tensors, notes

    def restore_by(self, take: Callable[[dict[str, Tensor], dict[str, Any]], T]) -> T | None:
        """What ``take`` makes of tensors and notes as saved last; None if there are none.

        Raises:
            StateError: see `restore`, or tensors are missing or of other shapes.
        """
        stored = self.restore()
        try:
            return None if stored is None else take(*stored)
        except (KeyError, RuntimeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StateError:
        return StateError(
            f"{self.kind} state {self.path}: not a state written by mechcore ({error}); remove it "
            "to begin anew"
        )


def _digest(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """Of everything in a file."""
    return tensors_digest(tensors, json.dumps(dict(texts), sort_keys=True).encode())
