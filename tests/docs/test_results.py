"""The tables of a published study are those that its own tables give."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITTEN = ("| base |", "| claim |")
"""Tables of words: what was trained on what, and the verdicts."""


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find what they share, as when they are run."""
    monkeypatch.syspath_prepend(str(DOCS / "results"))


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "results" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tables(page: str) -> list[str]:
    return re.findall(r"(?:^\|.*\|\n)+", page, re.M)


@pytest.mark.parametrize("name", ["cognitive", "extractive"])
def test_every_table_of_a_page_is_made_from_the_tables_of_its_studies(name: str) -> None:
    module = _module(f"{name}_tables")
    studies = [DOCS / "tables" / f"{name}-{base}" for base in ("tiny", "smollm2")]
    made = [table for study in studies for table in module.tables(study).values()]
    page = (DOCS / "results" / f"{name}.md").read_text()
    assert sorted(table.strip() for table in _tables(page)) == sorted(made)
    assert len(made) > 6


def test_every_table_of_the_page_is_made_from_the_tables_of_the_study() -> None:
    made = _module("minilm_mnli_hans").tables(DOCS / "tables" / "minilm-mnli-hans")
    page = (DOCS / "results" / "minilm-mnli-hans.md").read_text()
    shown = [table.strip() for table in _tables(page) if not any(w in table for w in WRITTEN)]
    assert sorted(shown) == sorted(made.values())
    assert len(_tables(page)) == len(made) + len(WRITTEN)


def test_every_table_of_known_truth_is_made_from_the_tables_of_the_benchmark() -> None:
    module, folder = _module("known_truth"), DOCS / "tables" / "known-truth"
    found, calibration = module.tables(folder), module.calibration(folder)
    page = (DOCS / "results" / "known-truth.md").read_text()
    shown = [table.strip() for table in _tables(page) if not table.startswith("| circuit |")]
    assert sorted(shown) == sorted([*found.values(), *calibration.values()])
    concept = (DOCS / "concepts" / "numbers.md").read_text()
    for table in calibration.values():
        assert table in concept
