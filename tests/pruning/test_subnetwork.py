"""Subnetworks, their names and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from pruning.oracles import Subject

from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.files import write_safetensors
from mechcore.pruning import METHODS, Subnetwork, subnetwork_name

HISTORY = ["kl", "sparsity", "wanted_sparsity", "lambda1", "lambda2"]
KEPT = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
SCORES = torch.tensor([[0.25, -1e-9, 3.0], [-2.5, 1 / 3, 7.0]])


def subnetwork(**changes: Any) -> Subnetwork:
    return Subnetwork(
        **{"mask": Mask(KEPT), "target_sparsity": 0.3, "seed": 42, "scores": SCORES} | changes
    )


def test_names_are_short_and_distinct() -> None:
    assert subnetwork(target_sparsity=0.5).name == "s0.50-seed42"
    assert subnetwork(target_sparsity=0.0, seed=0).name == "s0.00-seed0"
    assert subnetwork(target_sparsity=0.12).name != subnetwork(target_sparsity=0.125).name
    assert subnetwork(target_sparsity=0.125).name == "s0.125-seed42"
    assert subnetwork(target_sparsity=0.5, method="random").name == "random-s0.50-seed42"
    assert subnetwork_name(0.7, 3, "layer-matched") == "layer-matched-s0.70-seed3"
    assert len({subnetwork_name(0.5, 1, method) for method in METHODS}) == len([*METHODS])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("has_mlps", [True, False])
def test_a_subnetwork_comes_back_from_its_file(tmp_path: Path, has_mlps: bool, method: Any) -> None:
    mask = Mask(KEPT, has_mlps=has_mlps)
    rows = [[0.1, 0.2, 1 / 3, -4.0, 5.5], [1e-9, 0.25, 0.5, -3.0, 6e6]]
    history = pd.DataFrame(rows[: 2 if method == "l0" else 0], columns=HISTORY, dtype="float32")
    saved = subnetwork(mask=mask, target_sparsity=1 / 3, seed=2**40, method=method, history=history)
    path = tmp_path / "a.safetensors"
    saved.save(path)
    back = Subnetwork.load(path)
    for name in ("mask", "target_sparsity", "seed", "name"):
        assert getattr(back, name) == getattr(saved, name)
    assert (back.mask.shape, back.method) == (mask.shape, method)
    assert torch.equal(back.scores, SCORES)
    assert_frame_equal(back.history, history)
    assert Mask.load(path) == saved.mask


def test_targets_and_seeds_of_numpy_are_numbers(tmp_path: Path) -> None:
    target_sparsity, seed = np.linspace(0, 1, 4)[1], np.arange(3)[2]
    saved = subnetwork(target_sparsity=target_sparsity, seed=seed)
    saved.save(tmp_path / "a.safetensors")
    back = Subnetwork.load(tmp_path / "a.safetensors")
    assert (back.target_sparsity, back.seed) == (1 / 3, 2)
    assert saved.name == back.name == "s0.3333333333333333-seed2"


def test_other_files_are_refused(tmp_path: Path, loud: Subject) -> None:
    loud.means.save(tmp_path / "means.safetensors")
    Mask.full(loud.model).save(tmp_path / "mask.safetensors")
    (tmp_path / "text.safetensors").write_text("not a tensor")
    for name, message in (
        ("missing.safetensors", "no such file"),
        ("means.safetensors", "not a mask"),
        ("mask.safetensors", "mask.safetensors: found a mask without its target"),
        ("text.safetensors", "text.safetensors"),
    ):
        with pytest.raises(InputError, match=message):
            Subnetwork.load(tmp_path / name)


FACTS = {"target_sparsity": "0.5", "seed": "3", "method": "l0", "has_mlps": "true"}
TENSORS = {"mask": KEPT, "scores": SCORES, "history": torch.zeros(2, 5)}


@pytest.mark.parametrize(
    ("facts", "left_out", "message"),
    [
        ({"method": "Magic!"}, "", "method 'Magic!', expected a name in small letters"),
        ({"method": None}, "", "'method'"),
        ({"target_sparsity": "much"}, "", "could not convert string to float: 'much'"),
        ({"seed": "1.5"}, "", "invalid literal for int"),
        ({"target_sparsity": "nan"}, "", "target sparsity nan, expected a share"),
        ({"target_sparsity": "1.5"}, "", "target sparsity 1.5, expected a share"),
        ({}, "scores", "scores"),
        ({}, "history", "history"),
    ],
)
def test_incomplete_files_are_refused(
    tmp_path: Path, facts: dict[str, Any], left_out: str, message: str
) -> None:
    path = tmp_path / "a.safetensors"
    stored = {name: value for name, value in (FACTS | facts).items() if value is not None}
    write_safetensors(path, {n: t for n, t in TENSORS.items() if n != left_out}, stored)
    expected = rf"a\.safetensors: found a mask without its .*{message}.*; expected a mask of"
    with pytest.raises(InputError, match=expected):
        Subnetwork.load(path)


@pytest.mark.parametrize("name", ["mask", "scores"])
def test_scores_must_be_those_of_a_single_mask(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {**TENSORS, name: torch.ones(1, *KEPT.shape)}, FACTS)
    with pytest.raises(InputError, match=r"expected \[layer, component\] for both"):
        Subnetwork.load(path)
