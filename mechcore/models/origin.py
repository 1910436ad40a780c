"""Which checkpoint a model came from."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechcore.models.running import weights_of


@dataclass(frozen=True)
class Origin:
    """Where a model came from: a directory, a hub id with its revision, or a GGUF file."""

    source: str
    revision: str | None = None


_origins: weakref.WeakKeyDictionary[Any, Origin] = weakref.WeakKeyDictionary()


def remember_origin(model: Any, source: str, revision: str | None) -> None:
    """Note which checkpoint a model came from, wherever the process goes."""
    place = str(Path(source).resolve()) if Path(source).exists() else source
    _origins[model] = Origin(place, revision)


def origin_of(model: Any) -> Origin | None:
    """The checkpoint that a model came from; None where it is not known.

    Of models that others loaded, the configuration of the Hugging Face model may tell.
    """
    named = getattr(getattr(weights_of(model), "config", None), "name_or_path", None)
    return _origins.get(model) or (Origin(str(named)) if named else None)
