"""Errors and warnings a user can act on.

Every message names the thing, what was found, what was expected and what to do.
"""


class MechcoreError(Exception):
    """Base of every error that mechcore raises on purpose."""


class InputError(MechcoreError, ValueError):
    """Something the user passed cannot be used; the command line exits with code 2."""


class MismatchError(InputError):
    """Two things that must belong together (model, mask, means) do not."""


class MechcoreWarning(UserWarning):
    """A result is usable but needs the reader's attention."""
