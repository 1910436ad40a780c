"""The made-up run whose pages the tests of analyses read."""

from pathlib import Path

import pytest

from mechcore.report.run_folder import RunFolder, read_run


@pytest.fixture(scope="session")
def run(rich_run: Path) -> RunFolder:
    return read_run(rich_run)
