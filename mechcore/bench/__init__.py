"""Models of known truth, and how well methods recover it."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.bench.case import Case as Case
    from mechcore.bench.case import Truth as Truth
    from mechcore.bench.trained import trained_case as trained_case

attach(__name__)
