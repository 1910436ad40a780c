"""Batches of encoded examples, or given batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from mechcore import progress
from mechcore.data.encoding import EncodedExamples

BATCH_SIZE = 64

Batches: TypeAlias = EncodedExamples | Iterable[Mapping[str, Any]]


def as_batches(data: Batches, batch_size: int = BATCH_SIZE) -> Iterator[Mapping[str, Any]]:
    """Batches of encoded examples, or the given ones; a lone dict is one batch."""
    if isinstance(data, EncodedExamples):
        return data.batches(batch_size)
    return iter([data] if hasattr(data, "keys") else data)  # type: ignore[list-item]


def batch_bar(
    title: str, data: Batches, batch_size: int = BATCH_SIZE
) -> AbstractContextManager[Callable[[], None]]:
    """Progress over the batches of `as_batches`; none if their number is unknown."""
    if isinstance(data, EncodedExamples) and batch_size > 0:
        return progress.bar(title, data.n_batches(batch_size))
    return nullcontext(lambda: None)
