"""The page of a run."""

from pathlib import Path

import pytest

from mechcore.report import build_report


@pytest.fixture(scope="session")
def rich_page(rich_run: Path) -> Path:
    """Its report, with figures of one format."""
    return build_report(rich_run, figures=("svg",))
