"""What the tests of studies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import undrawn
from main_study.small_study import CONFIG

from mechcore.study.run import run_study


@pytest.fixture(scope="module", autouse=True)
def no_drawings() -> Iterator[None]:
    """Reports are written, with pictures of one pixel."""
    with undrawn():
        yield


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small study, done in one go in this process; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with undrawn():
        run_study(CONFIG, out)
    return out
