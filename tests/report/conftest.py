"""Run folders to report on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_run import World, write_run

from mechcore.report import build_report


@pytest.fixture(scope="session")
def rich_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 layers x 8 heads with a core of four, and every table."""
    world = World(
        sweep=True,
        found=("L0.H3+L1.H5", "L1.H2+L3.MLP"),
        checkpoints=(100, 500),
        training=(100, 200, 500),
        balance=True,
        groups={"main text": ("so_swap", "preposition"), "rare": ("so_swap", "absent")},
        n_cut=12,
        roles=True,
        paths=True,
        smallest=True,
        stability=True,
    )
    return write_run(tmp_path_factory.mktemp("report") / "rich", world)


@pytest.fixture(scope="session")
def rich_page(rich_run: Path) -> Path:
    """Its report."""
    return build_report(rich_run)


@pytest.fixture(scope="session")
def new_run() -> Callable[..., Path]:
    """Write a run: ``new_run(path, **fields_of_world)``."""
    return lambda path, **fields: write_run(path, World(**fields))
