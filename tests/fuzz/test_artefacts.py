"""Hostile masks, subnetworks, means, sets of components, and accuracies."""

import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from fuzz.artefacts import accuracies, copies, write_sets
from fuzz.harness import check_all
from fuzz.tables import write_examples
from helpers import Cases, padded, texts

from mechcore.ablation.reading import read_components, read_sets
from mechcore.components import Mask, ModelShape
from mechcore.files import write_csv
from mechcore.masking.means import MeanActivations
from mechcore.pruning.subnetwork import HISTORY, Subnetwork
from mechcore.subnetworks.effective_size import read_full, read_grid

SHAPE = ModelShape(2, 4)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def masks(tmp_path: Path) -> list[Path]:
    """A mask in each of its formats, and several masks in one file."""
    mask = Mask.full(SHAPE).without("L0.H1", "L1.MLP")
    paths = [tmp_path / name for name in ("one.json", "one.safetensors", "two.safetensors")]
    for path, each in zip(paths, (mask, mask, Mask.stack([mask, ~mask])), strict=True):
        each.save(path, {"note": "x"})
    return paths


def test_masks(masks: list[Path], work: Path) -> None:
    check_all(work, 250, copies(masks), lambda path: repr(Mask.load(path)))


def test_subnetworks(tmp_path: Path, work: Path) -> None:
    history = pd.DataFrame([[0.0] * len(HISTORY)] * 2, columns=list(HISTORY))
    mask = Mask.full(SHAPE).without("L0.H1")
    path = tmp_path / "subnetwork.safetensors"
    Subnetwork(mask, 0.5, 42, torch.randn(2, 5), "l0", history).save(path)
    check_all(work, 150, copies([path]), lambda path: Subnetwork.load(path).name)


def test_means(cases: Cases, tmp_path: Path, work: Path) -> None:
    model = cases.get("bert").model
    path = tmp_path / "means.safetensors"
    MeanActivations.compute(model, padded(texts(), "right"), n_samples=2).save(path)
    check_all(work, 150, copies([path]), lambda path: MeanActivations.load(path, model))


def test_sets(masks: list[Path], work: Path) -> None:
    masked = copies(masks[1:])

    def write_sets_or_masks(rng: random.Random, folder: Path) -> Path:
        return (masked if rng.random() < 0.2 else write_sets)(rng, folder)

    check_all(work, 250, write_sets_or_masks, lambda path: [str(each) for each in read_sets(path)])


def test_core_tables(tmp_path: Path, work: Path) -> None:
    path = tmp_path / "core.csv"
    write_csv(path, pd.DataFrame({"component": ["L0.H1", "L1.H2"], "layer": [0, 1]}))
    core = copies([path])

    def write_core_or_examples(rng: random.Random, folder: Path) -> Path:
        return (write_examples if rng.random() < 0.1 else core)(rng, folder)

    check_all(work, 100, write_core_or_examples, read_components)


@pytest.mark.parametrize("grid", [False, True])
def test_accuracies(work: Path, grid: bool) -> None:
    check_all(work, 150, accuracies(grid), read_grid if grid else read_full)
