"""Hostile masks, subnetworks, means, sets of components, and accuracies."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from fuzz.artefacts import copies
from fuzz.harness import check_all
from helpers import Cases, padded, texts

from mechcore.components import Mask, ModelShape
from mechcore.errors import MismatchError
from mechcore.identity import Identity
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
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


def test_foreign_masks(cases: Cases, tmp_path: Path, work: Path) -> None:
    """Of this model, of another one, of another shape, of none, and damaged: none goes unseen."""
    bert, roberta = cases.get("bert").model, cases.get("roberta").model
    own, other = (ModelIdentity.of(model) for model in (bert, roberta))
    mask = Mask.full(SHAPE).without("L0.H1", "L1.MLP")
    known: dict[str, tuple[Mask, bool]] = {
        "own": (mask.with_identity(own), True),
        "batched": (Mask.stack([mask, ~mask]).with_identity(own), True),
        "none": (mask, True),
        "other": (mask.with_identity(other), False),
        "dtype": (mask.with_identity(replace(own, dtype="bfloat16")), False),
        "wide": (Mask.full(ModelShape(2, 5)).with_identity(own), False),
        "deep": (Mask.full(ModelShape(3, 4)), False),
        "bare": (Mask.full(ModelShape(2, 5, has_mlps=False)), False),
    }
    for name, (each, _) in known.items():
        each.save(tmp_path / f"{name}.safetensors")
        if not each.is_batched:
            each.save(tmp_path / f"{name}.json")
    originals = sorted(tmp_path.glob("*.*"))
    damage = copies(originals)

    def write_mask(rng: random.Random, folder: Path) -> Path:
        if rng.random() < 0.5:
            return damage(rng, folder)
        return Path(shutil.copy(rng.choice(originals), folder))

    def read(path: Path) -> None:
        found, free = Mask.load(path), Mask.load(path, any_model=True)
        assert found == free
        assert free.identity is None
        is_original = path.read_bytes() == (tmp_path / path.name).read_bytes()
        for each, fits in ((found, True), (free, known[path.stem][0].shape == SHAPE)):
            try:
                with masked(bert, each, fill="zero"):
                    used = True
            except MismatchError:
                used = False
            if is_original:
                assert used == (known[path.stem][1] if each is found else fits)
            elif used:
                assert each.shape == SHAPE
                assert each.identity is None or not own.differences(each.identity)

    check_all(work, 100, write_mask, read)


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
