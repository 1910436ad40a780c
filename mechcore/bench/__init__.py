"""Models of known truth, and how well methods recover it."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.bench.case import Case as Case
    from mechcore.bench.case import Truth as Truth

attach(__name__)
