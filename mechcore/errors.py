"""Errors and warnings a user can act on.

Every message names the thing, what was found, what was expected and what to do.
"""


class MechcoreError(Exception):
    """Base of every error that mechcore raises on purpose."""


class InputError(MechcoreError, ValueError):
    """Something the user passed cannot be used; the command line exits with code 2."""


class MismatchError(InputError):
    """Two things that must belong together (model, mask, means) do not."""


class NotFiniteError(InputError):
    """What a model computes is NaN or infinite, so that no number can be made of it."""


class MechcoreWarning(UserWarning):
    """A result is usable but needs the reader's attention."""


def shown(text: object, longest: int = 80) -> str:
    """A text for a message, cut where it is long."""
    text = str(text)
    return text if len(text) <= longest else f"{text[:longest]}..."


def reason(error: BaseException) -> str:
    """What another package's error says, in one line that is not too long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announced = bool(lines) and lines[0].endswith(":")
    return shown(" ".join(lines[: 1 + announced]), 400) or type(error).__name__
