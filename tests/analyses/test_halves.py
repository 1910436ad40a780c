"""Subnetworks of halves of the training data: what a study does for them, and what comes of it."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers import load_inputs
from main_study.small_study import CONFIG

from mechcore.analyses.halves import Halves
from mechcore.components import Mask, ModelShape
from mechcore.masking.means import MeanActivations
from mechcore.pruning import METHODS, Request
from mechcore.study.run import run_study
from mechcore.subnetworks.halves import common_masks

pytestmark = [
    pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning"),
    pytest.mark.usefixtures("no_drawings"),
]

ANALYSES = replace(CONFIG.analyses, halves=Halves())
FULL = Mask.full(ModelShape(2, 2))


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


def test_random_masks_do_not_depend_on_the_data(tmp_path: Path) -> None:
    only = ("halves", "core")
    run_study(replace(CONFIG, method="random", analyses=ANALYSES, only=only), tmp_path)
    overlap = table(tmp_path, "half_overlap").set_index(["compared", "target_sparsity"])["jaccard"]
    for target_sparsity in CONFIG.target_sparsities:
        for compared in ("two halves, one seed", "all data and a half, one seed"):
            assert overlap[compared, target_sparsity] == 1
        assert overlap["one half, two seeds", target_sparsity] < 1
    cores = table(tmp_path, "half_cores")
    assert cores["n_subnetworks"].tolist() == [4] * 3
    assert cores["jaccard"].tolist() == [1] * 3
    whole = table(tmp_path, "core")["heads"].item()
    assert cores["first_core"].tolist() == cores["second_core"].tolist() == [whole] * 3
    assert len(list((tmp_path / "masks").iterdir())) == 4  # of all data alone


def test_cores_of_halves_are_those_of_their_examples(tmp_path: Path) -> None:
    of_one_seed = replace(CONFIG, method="attribution", seeds=(42,))
    config = replace(of_one_seed, analyses=ANALYSES, only=("halves",))
    run_study(config, tmp_path)
    inputs = load_inputs(config.model, config.data, ("train",))
    halves = inputs.data["train"].examples.halves(config.data.seed)
    cores = table(tmp_path, "half_cores").set_index(["first", "second"])
    for i, side in enumerate(("first_core", "second_core")):
        data = inputs.encode(halves[i])
        assert len(data) == 8
        means = MeanActivations.compute(inputs.model, data)
        more = config.target_sparsities, (42,), config.prune, config.data.seed
        request = Request(inputs.model, data, means, *more)
        kept = [set(subnetwork.mask.kept) for subnetwork in METHODS["attribution"](request)]
        heads = sorted(c for c in set.intersection(*kept) if c.is_head)
        assert cores.loc[("half 1", "half 2"), side] == " ".join(map(str, heads))


def test_what_one_lacks_is_left_out_of_all() -> None:
    one, two, three = ((0.5, seed) for seed in (1, 2, 3))
    masks = {
        "all data": {three: FULL, one: FULL, two: FULL},
        "half 1": {one: FULL, three: FULL},
        "half 2": {one: FULL, two: FULL, three: FULL},
    }
    common = common_masks(masks)
    assert list(common) == list(masks)
    assert all(list(kept) == [one, three] for kept in common.values())
    assert common_masks({**masks, "half 2": {two: FULL}})["all data"] == {}
