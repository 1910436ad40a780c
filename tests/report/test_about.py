"""All that a run says of one component."""

from pathlib import Path

import pandas as pd
import pytest

from mechcore.report.about import facts
from mechcore.report.run_folder import RunFolder

NAN = float("nan")


@pytest.mark.parametrize(
    ("low", "examples", "shown"),
    [(0.4, 12, "[40.0, 60.0]"), (NAN, 9, "none: 9 examples"), (NAN, 1, "none: 1 example")],
)
def test_a_mass_without_an_interval_says_of_how_few_examples_it_is(
    low: float, examples: int, shown: str
) -> None:
    row = {"component": "L0.H0", "category": "self", "n_examples": 12, "entropy": 1.0}
    masses = {"mass_self": 0.5, "low_self": low, "high_self": low + 0.2, "ratio_self": 3.0}
    table = pd.DataFrame([{**row, **masses, "examples_self": examples}])
    found = facts(RunFolder(Path("run"), {}, {"head_categories": table}))
    (part,) = [p for p in found.about["L0.H0"].parts if p.title.startswith("Attention")]
    assert part.rows[0] == ["self", "50.0", shown, "3.0"]
