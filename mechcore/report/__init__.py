"""Figures and the report page of a finished run; computes nothing new."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.report.page import REPORT_FILE, build_report

attach(__name__)

__all__ = ["REPORT_FILE", "build_report"]
