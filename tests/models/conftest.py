from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import Cases
from models.families import Families


@pytest.fixture
def bert(cases: Cases, tmp_path: Path) -> Path:
    """A copy of the BERT checkpoint to damage."""
    return Path(shutil.copytree(cases.path("bert"), tmp_path / "bert"))


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    """Tiny classifiers of every family, built when first asked for."""
    return Families(tmp_path_factory.mktemp("families"))
