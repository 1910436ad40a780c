"""What the tests of studies share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import undrawn
from main_study.small_study import CONFIG

from mechcore.study.run import run_study
from mechcore.study.store import Store


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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.create()
    return made


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A folder with the files of the study of sums."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for i, number in enumerate((1, 2, 4)):
        (folder / str(i)).write_text(str(number))
    return folder
