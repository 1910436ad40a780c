"""Figures and the report page of a finished run; computes nothing new."""

from mechcore.report.page import build_report

__all__ = ["build_report"]
