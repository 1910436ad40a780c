"""Figures and the report page of a finished run; computes nothing new."""

from mechcore.report.page import REPORT_FILES, build_report

__all__ = ["REPORT_FILES", "build_report"]
