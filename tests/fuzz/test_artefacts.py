"""Hostile masks, subnetworks, means, sets of components, and accuracies."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from fuzz.artefacts import copies
from fuzz.harness import check_all
from helpers import Cases, padded, texts

from mechcore.components import Mask, ModelShape
from mechcore.identity import Identity
from mechcore.masking.means import MeanActivations
from mechcore.pruning.subnetwork import HISTORY, Subnetwork

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
    mask = mask.with_identity(Identity(2, 4, 4, 16, "float32", "a" * 64))
    for path, each in zip(paths, (mask, mask, Mask.stack([mask, ~mask])), strict=True):
        each.save(path, {"note": "x"})
    return paths


def test_masks(masks: list[Path], work: Path) -> None:
    check_all(work, 120, copies(masks), lambda path: repr(Mask.load(path)))


def test_subnetworks(tmp_path: Path, work: Path) -> None:
    history = pd.DataFrame([[0.0] * len(HISTORY)] * 2, columns=list(HISTORY))
    mask = Mask.full(SHAPE).without("L0.H1")
    path = tmp_path / "subnetwork.safetensors"
    Subnetwork(mask, 0.5, 42, torch.randn(2, 5), "l0", history).save(path)
    check_all(work, 80, copies([path]), lambda path: Subnetwork.load(path).name)


def test_means(cases: Cases, tmp_path: Path, work: Path) -> None:
    model = cases.get("bert").model
    path = tmp_path / "means.safetensors"
    MeanActivations.compute(model, padded(texts(), "right"), n_samples=2).save(path)
    check_all(work, 80, copies([path]), lambda path: MeanActivations.load(path, model))
