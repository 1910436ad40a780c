"""One model with its data, and every question that can be asked of it in a line."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.lab.answers import Answer as Answer
    from mechcore.lab.opening import open as open
    from mechcore.lab.questions import Lab as Lab

attach(__name__)
