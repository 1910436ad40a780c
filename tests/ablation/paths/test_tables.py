"""Tables of paths are those of ablations, with both ends of each path."""

import pandas as pd
import pytest
from ablation.few import encoded, means_of
from helpers import Cases

from mechcore.ablation import Ablations, ablate, ablation_table, information_table
from mechcore.ablation.paths import path_information_table, path_table
from mechcore.ablation.paths.tables import ENDS, PATHS
from mechcore.errors import InputError

SETS = ("L0.H1+L0.H2>L1.H3", "L0.H1>L1.H0.q", "L0.MLP>L1.MLP", "L1.H1>answer")
EXPECTED = (
    ("L0.H1+L0.H2", "L1.H3", "all"),
    ("L0.H1", "L1.H0", "q"),
    ("L0.MLP", "L1.MLP", "all"),
    ("L1.H1", "answer", "all"),
)


def test_paths_have_both_ends_and_the_figures_of_ablations(cases: Cases) -> None:
    model, data = cases.get("bert").model, encoded()
    swept = ablate(model, [*SETS, "L1.H3"], data, means_of(model, data), split="ood")
    table = path_table(swept, n_resamples=10)
    PATHS.check(table)
    whole = table[table["subset"] == "all"]
    assert whole["set"].tolist() == list(SETS)  # not the component among them
    assert whole[["senders", "receiver", "input"]].to_numpy().tolist() == [*map(list, EXPECTED)]
    assert set(whole["kind"]) == {"path"}
    assert whole["size"].tolist() == [2, 1, 1, 1]
    nothing = Ablations(swept.full, {}, swept.data, swept.split)
    assert path_table(nothing).empty
    PATHS.check(path_table(nothing))
    assert path_information_table(nothing).empty
    both = ablate(model, ["L0.H1>L1.H3+L1.MLP"], data, fill="zero", split="ood")
    with pytest.raises(InputError, match=r"paths L0.H1>L1.H3\+L1.MLP: found 2 receivers; expected"):
        path_table(both)
    names, ends = list(SETS), [column.name for column in ENDS]
    kinds = {cut: "path" for cut in swept.without if str(cut) in names}
    expected = ablation_table(swept, kinds, n_resamples=10)
    pd.testing.assert_frame_equal(path_table(swept, n_resamples=10).drop(columns=ends), expected)
    table = path_information_table(swept, n_resamples=10)
    expected = information_table(swept, n_resamples=10)
    expected = expected[expected["set"].isin(names)].reset_index(drop=True)
    corrected = [name for name in expected if str(name).endswith("adjusted")]  # for other sets
    table, expected = table.drop(columns=[*ends, *corrected]), expected.drop(columns=corrected)
    pd.testing.assert_frame_equal(table, expected)
