"""Errors and warnings: they name the thing, what was found, what was expected, what to do."""

import sys
import warnings
from collections.abc import Collection
from numbers import Integral, Real


class MechcoreError(Exception):
    """Base of every error that mechcore raises on purpose."""


class InputError(MechcoreError, ValueError):
    """Something the user passed cannot be used; the command line exits with code 2."""


class MismatchError(InputError):
    """Two things that must belong together (model, mask, means) do not."""


class NotFiniteError(InputError):
    """A model's outputs are NaN or infinite, so no result can be computed."""


class MechcoreWarning(UserWarning):
    """A result is usable but needs the reader's attention."""


def warn(message: str) -> None:
    """Issue a `MechcoreWarning` at the line of the user's own code that led to it."""
    level, frame = 1, sys._getframe()
    # A context manager used as a decorator calls the function from contextlib.
    while (
        frame.f_globals.get("__name__", "").partition(".")[0] in ("mechcore", "contextlib")
        and frame.f_back is not None
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, MechcoreWarning, stacklevel=level)


def shown(text: object, longest: int = 80) -> str:
    """A text for a message, truncated if long."""
    text = str(text)
    return text if len(text) <= longest else f"{text[:longest]}..."


def first_names(names: Collection[object], most: int = 20, longest: int = 40) -> str:
    """A comma-separated list of names for a message: the first of many, long ones truncated.

    >>> first_names(["id", "premise", "label"], most=2, longest=4)
    'id, prem... and 1 more'
    """
    listed = ", ".join(shown(name, longest) for name in [*names][:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def check_seed(seed: object) -> None:
    """Raise `InputError` for a negative seed, or one that is not a whole number."""
    whole = isinstance(seed, Integral)
    if isinstance(seed, (str, Real)) and not (whole and seed >= 0):  # type: ignore[operator]
        raise InputError(f"seed {seed!r}: expected a whole number from 0")


def reason(error: BaseException) -> str:
    """The message of another package's error, on one line of limited length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announced = bool(lines) and lines[0].endswith(":")
    return shown(" ".join(lines[: 1 + announced]), 400) or type(error).__name__
