"""Masks that miss their target: the others go on, each that is missing is named, nothing is lost.

Targets are missed by a tolerance between the distances that trainings end at, as their histories
have them.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers import undrawn
from safetensors import safe_open

import mechcore
from mechcore.ablation.effects.roles import verdict
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.cli import main
from mechcore.cli.study import show_run
from mechcore.errors import MechcoreError, MechcoreWarning
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.pruning import PruneSettings
from mechcore.steps.config import DataConfig
from mechcore.study.run import run_study
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints

pytestmark = pytest.mark.usefixtures("no_drawings")

SEEDS = (42, 43, 44)
LOW, HIGH = 0.02, 0.5
PRUNE = PruneSettings(steps=3, warmup=1, batch_size=4, tolerance=1, log_alpha_std=1.0)
CONFIG = StudyConfig(
    data=DataConfig(max_train=16, max_id=20, max_ood=12),
    prune=PRUNE,
    seeds=SEEDS,
    target_sparsities=(LOW, HIGH),
    n_resamples=10,
    analyses=Analyses(heads=None, ablation=None, paths=None, dose=None),
)


def with_tolerance(tolerance: float) -> StudyConfig:
    return replace(CONFIG, prune=replace(PRUNE, tolerance=tolerance))


def histories(masks: Path) -> dict[str, float]:
    """How far from its target each training ended, by mask; without the package's own reader."""
    gaps = {}
    for path in masks.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            target_sparsity = float(file.metadata()["target_sparsity"])
            gaps[path.stem] = abs(float(file.get_tensor("history")[-1, 1]) - target_sparsity)
    return gaps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study without a missing mask; not to be changed. It says at once what it cannot judge."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with undrawn(), pytest.warns(MechcoreWarning) as caught:
        run_study(CONFIG, out)
    texts = [
        str(warning.message) for warning in caught if "too few examples" in str(warning.message)
    ]
    assert texts[0].startswith(
        "describe: in domain: too few examples: 10 of the rarest label, at least 50"
    )
    assert texts[0].endswith("draw or add more examples (--max-id)")
    assert texts[1].startswith("describe: out of domain: too few examples: 6 of the rarest label")
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "out")


def manifests(out: Path) -> set[str]:
    """Keys of what pruning has trained."""
    paths = (out / "store" / "objects").glob("*/*/manifest.json")
    made = [json.loads(path.read_text()) for path in paths]
    return {manifest["key"] for manifest in made if manifest["kind"] == "prune"}


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


@pytest.mark.everyday
def test_one_mask_off_its_target_costs_only_itself(
    whole: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranked = sorted((distance, name) for name, distance in histories(whole / "masks").items())
    # The low target is nearly reached by every seed, the high one by none.
    assert [name[:5] for _, name in ranked] == ["s0.02"] * 3 + ["s0.50"] * 3
    *others, (missed, lost) = ranked
    trained = manifests(out)
    with pytest.warns(MechcoreWarning, match=rf"{lost} is missing: the sparsity of target 0\.5"):
        (report,) = run_study(with_tolerance((others[-1][0] + missed) / 2), out)
    assert manifests(out) == trained, "nothing is trained again"
    there = {name for _, name in others}
    assert {path.stem for path in (out / "masks").iterdir()} == there
    assert set(table(out, "subnetworks")["subnetwork"]) == there
    assert set(table(out, "accuracy")["subnetwork"]) == {"full", *there}
    assert table(out, "core")["n_subnetworks"].tolist() == [5]
    frequency = table(out, "head_frequency").groupby("target_sparsity")["n_seeds"].first()
    assert frequency.to_dict() == {LOW: 3, HIGH: 2}
    # What the others are does not depend on it.
    before, after = (
        table(at, "accuracy").set_index(["subnetwork", "subset"]) for at in (whole, out)
    )
    pd.testing.assert_frame_equal(after, before.drop(lost))
    missing = table(out, "missing_masks")
    assert missing["subnetwork"].tolist() == [lost]
    assert missing["seed"].tolist() == [int(lost.rpartition("seed")[2])]
    assert missing["target_sparsity"].tolist() == [HIGH]
    assert f"seed {missing['seed'][0]} ended at" in missing["reason"][0]
    assert "more steps (now 3: --prune-steps 6)" in missing["reason"][0]
    text = report.read_text()
    assert f"Training failed for 1 of 6 masks ({lost});" in text
    assert missing["reason"][0].split(".")[0] in text
    with pytest.raises(SystemExit) as end:
        main(["study", "status", str(out)])
    assert end.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"missing: {lost}: the sparsity", printed)
    # A raised tolerance brings it back.
    run_study(with_tolerance(0.9), out)
    assert manifests(out) == trained
    assert not (out / "tables" / "missing_masks.csv").exists()
    same_tables(out, whole)


def same_tables(out: Path, whole: Path) -> None:
    for name in ("accuracy", "core", "subnetworks"):
        pd.testing.assert_frame_equal(table(out, name), table(whole, name))


def seen(report: Path) -> str:
    """The words of a page, without the marks around its terms."""
    return re.sub(r"<[^>]+>", "", report.read_text(encoding="utf-8"))


def test_without_any_mask_the_report_is_about_the_full_model(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = manifests(out)
    with pytest.warns(MechcoreWarning) as caught:
        (report,) = run_study(with_tolerance(0.0), out)
    messages = [str(warning.message) for warning in caught]
    assert any("no mask reached its target, so there is no core" in line for line in messages)
    assert manifests(out) == trained
    assert set(table(out, "accuracy")["subnetwork"]) == {"full"}
    assert len(table(out, "roles")) == 28
    assert len(table(out, "core")) == 0
    reasons = table(out, "missing_masks")["reason"]
    text = seen(report)
    for seed in SEEDS:
        for target_sparsity in (LOW, HIGH):
            assert reasons.str.contains(f"target {target_sparsity}, seed {seed} ended at").any()
            assert f"target {target_sparsity}, seed {seed} ended at" in text
    assert "Training failed for 6 of 6 masks (s0.02-seed42" in text
    assert "Not run" not in text.split("What can go?")[0]
    show_run(out)
    shown = capsys.readouterr().out
    assert verdict(table(out, "roles")) in shown
    lab = mechcore.open("embedded", store=out / "store", settings=with_tolerance(0.0))
    with pytest.raises(MechcoreError, match=r"^no mask reached its target: the sparsity of target"):
        lab.subnetworks()


def test_effective_sizes_of_the_masks_that_there_are(tmp_path: Path) -> None:
    (early, path), *_, (last, final) = encoder_checkpoints()
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "id", "ood")}
    for split, file in files.items():
        tiny_world.generate(split, 16, 3).frame.to_csv(file, index=False)  # type: ignore[arg-type]
    config = replace(
        with_tolerance(0.1),
        model=replace(CONFIG.model, source=str(final)),
        data=DataConfig(**files),
        checkpoints=(str(path), str(final)),
        seeds=(42, 43),
        target_sparsities=(),
        analyses=replace(CONFIG.analyses, effective_size=EffectiveSize((LOW, HIGH))),
    )
    out = tmp_path / "out"
    with pytest.warns(MechcoreWarning, match="is missing"):
        (report,) = run_study(config, out)
    # The low target is nearly reached by every seed, the high one by none.
    missing, grid = table(out, "missing_grid_masks"), table(out, "grid")
    columns = ["checkpoint", "target_sparsity", "seed"]
    for rows, share in ((missing, HIGH), (grid, LOW)):
        masks = {*rows[columns].itertuples(index=False, name=None)}
        assert masks == {(step, share, seed) for step in (early, last) for seed in (42, 43)}
    assert set(table(out, "mean_effective_size")["checkpoint"]) == {early, last}
    assert "among its remaining masks, so it can be too large" in seen(report)
