"""One model with its data, and a one-line method for each question about it."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.lab.answers import Answer as Answer
    from mechcore.lab.questions import Lab as Lab
    from mechcore.lab.questions import open as open

attach(__name__)
