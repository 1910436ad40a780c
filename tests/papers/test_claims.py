"""Sections of studies of papers: the verdicts they are about, and what was not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from mechcore.papers.claims import Claims
from mechcore.report.blocks import Block, Paragraph, Section
from mechcore.report.drawing import draw_over_seeds
from mechcore.report.run_folder import RunFolder

CLAIMS = Claims("verdicts", {1: "heads", 2: "layers"})
VERDICTS = pd.DataFrame(
    {"claim": [1, 2], "title": ["It holds.", "So does it"], "verdict": "supported", "figure": ""}
)


@CLAIMS.section("heads", "Heads", "the heads", "changes", "means")
def heads(run: RunFolder, changes: pd.DataFrame, means: pd.DataFrame | None) -> Iterator[Block]:
    yield Paragraph(f"{len(changes)} and {means if means is None else len(means)}")


@CLAIMS.section("layers", "Layers", "", "changes")
def layers(run: RunFolder, changes: pd.DataFrame | None) -> Iterator[Block]:
    yield Paragraph(f"{changes is None}")


def texts(section: Section) -> list[str]:
    return [block.text for block in section.blocks if isinstance(block, Paragraph)]


def run_of(**tables: pd.DataFrame) -> RunFolder:
    return RunFolder(Path("run"), {}, {"verdicts": VERDICTS, **tables})


@pytest.mark.parametrize("empty", [{}, {"changes": pd.DataFrame({"a": []})}])
def test_without_its_first_table_a_section_was_not_run(empty: dict[str, pd.DataFrame]) -> None:
    run = run_of(means=pd.DataFrame({"a": [1]}), **empty)
    assert texts(heads(run)) == ["Not run: the heads."]
    assert texts(layers(run)) == [
        "Claim 2: So does it. Verdict: supported.",
        "True",  # it says so itself
    ]


def test_a_section_has_its_verdicts_first_and_offers_its_tables() -> None:
    section = heads(run_of(changes=pd.DataFrame({"a": [1, 2]})))
    assert texts(section) == ["Claim 1: It holds. Verdict: supported.", "2 and None"]
    assert (section.id, section.title) == ("heads", "Heads")
    assert list(section.files) == ["changes.csv", "means.csv"]


def test_a_quick_study_says_so_before_its_verdicts() -> None:
    quick = RunFolder(Path("run"), {"origins": {"epochs": "--quick"}}, {"verdicts": VERDICTS})
    other = RunFolder(Path("run"), {"origins": {"epochs": "file"}}, {"verdicts": VERDICTS})
    assert [finding.text for finding in CLAIMS.findings(quick)] == [
        "Made with --quick, a test of all steps: these results are not meaningful.",
        "Supported: It holds.",
        "Supported: So does it.",
    ]
    assert len([*CLAIMS.findings(other)]) == 2


@pytest.mark.parametrize(
    ("seeds", "lines", "name"), [([0], 1, "loss"), ([0, 1], 3, "loss, mean of 2 seeds")]
)
def test_lines_are_the_mean_over_seeds_and_several_seeds(
    seeds: list[int], lines: int, name: str
) -> None:
    values = {0: [1.0, 2.0], 1: [3.0, 6.0]}
    rows = pd.DataFrame(
        [(seed, x, y) for seed in seeds for x, y in zip((10, 20), values[seed], strict=True)],
        columns=["seed", "n", "y"],
    )
    ax = Figure().subplots()
    drawn = draw_over_seeds(ax, rows.sample(frac=1, random_state=0), "n", "y", "loss", "red", "o")
    assert list(drawn) == [name]
    mean = {1: [1.0, 2.0], 3: [2.0, 4.0]}[lines]
    np.testing.assert_array_equal(drawn[name].get_ydata(), mean)
    np.testing.assert_array_equal(drawn[name].get_xdata(), [10, 20])
    assert len(ax.lines) == lines
