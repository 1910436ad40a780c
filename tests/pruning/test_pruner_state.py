"""Trainings that are interrupted go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from pruning.oracles import QUICK, Steps, Subject, some_examples

from mechcore.data.encoding import encode
from mechcore.errors import MechcoreWarning
from mechcore.masking.means import MeanActivations
from mechcore.pruning import PruningError, Subnetwork

SAVING = replace(QUICK, save_every=3)
"""Eight steps, saved after 3, 6 and 8 of them."""

LONGER = replace(QUICK, save_every=3, steps=4, steps_per_percent=0.1)
"""6 steps at 20 % and 10 at 60 %, saved after 3, 6, 9 and 10 of them."""


Run = Callable[..., list[Subnetwork]]


@pytest.fixture
def run(loud: Subject) -> Run:
    """Prune two seeds and two targets, with changes."""
    return partial(loud.prune, preset=SAVING, target_sparsities=[0.2, 0.6], seeds=[5, 6])


def assert_equal(subnetworks: list[Subnetwork], expected: list[Subnetwork]) -> None:
    """Bit for bit."""
    assert [a.name for a in subnetworks] == [b.name for b in expected]
    for a, b in zip(subnetworks, expected, strict=True):
        assert torch.equal(a.scores, b.scores)
        assert a.mask == b.mask
        assert a.history.equals(b.history)
        assert len(a.history) > 0


@pytest.mark.parametrize(
    ("sparsity", "stop_at", "left"), [("sampled", 2, 8), ("expected", 3, 5), ("sampled", 7, 2)]
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    run: Run, steps: Steps, tmp_path: Path, sparsity: Any, stop_at: int, left: int
) -> None:
    settings = replace(SAVING, sparsity=sparsity)
    whole = run(preset=settings)
    path = tmp_path / "state"
    steps.until(stop_at)
    with pytest.raises(KeyboardInterrupt):
        run(preset=settings, state=path)
    assert path.exists() == (stop_at >= 3)
    steps.until(None)
    assert_equal(run(preset=settings, state=path), whole)
    assert len(steps.masks) == left


def test_saved_runs_are_the_same_and_only_read(run: Run, steps: Steps, tmp_path: Path) -> None:
    whole = run()
    path = tmp_path / "state"
    assert_equal(run(state=path), whole)
    (file,) = path.iterdir()
    content = file.read_bytes()
    steps.allowed = False
    assert_equal(run(state=str(path)), whole)
    assert file.read_bytes() == content


def test_a_run_that_missed_its_target_says_so_again(run: Run, steps: Steps, tmp_path: Path) -> None:
    settings = replace(SAVING, lr_lambda=0.0, log_alpha_mean=10.0, tolerance=0.3)
    path = tmp_path / "state"
    failures = []
    for allowed in (True, False):
        steps.allowed = allowed
        with pytest.raises(PruningError, match="2 of 4 masks failed: the sparsity of") as failure:
            run(preset=settings, state=path)
        failures.append(failure.value)
    assert str(failures[0]) == str(failures[1])
    assert [subnetwork.target_sparsity for subnetwork in failures[0].finished] == [0.2, 0.2]
    assert_equal(failures[1].finished, failures[0].finished)
    # What does not enter into the training may change: the masks are there, only not accepted.
    looser = replace(settings, tolerance=1, save_every=5, discretisation="threshold")
    subnetworks = run(preset=looser, state=path)
    assert [subnetwork.target_sparsity for subnetwork in subnetworks] == [0.2, 0.2, 0.6, 0.6]
    for again, before in zip(subnetworks, failures[0].finished, strict=False):
        assert torch.equal(again.scores, before.scores)


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
@pytest.mark.parametrize(("preset", "spoilt_at"), [(SAVING, 0), (LONGER, 4)])
def test_a_mask_that_diverged_stays_failed(
    run: Run, steps: Steps, tmp_path: Path, preset: Any, spoilt_at: int
) -> None:
    steps.spoilt = (spoilt_at, 2)
    with pytest.raises(PruningError) as whole:
        run(preset=preset)
    path = tmp_path / "state"
    steps.until(7)
    with pytest.raises(KeyboardInterrupt):
        run(preset=preset, state=path)
    steps.spoilt = None
    steps.until(None)
    with pytest.raises(PruningError) as resumed:
        run(preset=preset, state=path)
    expected = (
        "pruning: 1 of 4 masks failed: the training of target 0.6, seed 5 diverged: its loss "
    )
    assert str(whole.value) == str(resumed.value)
    assert str(whole.value).startswith(
        f"{expected}or scores are not finite after step {spoilt_at};"
    )
    assert [(mask.target_sparsity, mask.seed) for mask in resumed.value.finished] == [
        (0.2, 5), (0.2, 6), (0.6, 6)
    ]  # fmt: skip
    assert_equal(resumed.value.finished, whole.value.finished)


def test_other_runs_take_nothing_from_a_state(
    run: Run, steps: Steps, tmp_path: Path, loud: Subject, planted: Subject
) -> None:
    run(state=tmp_path)
    other = encode(some_examples(seed=4), helpers.word_tokenizer(), max_length=48)
    with pytest.warns(MechcoreWarning, match="were cut"):
        cut = encode(some_examples(), helpers.word_tokenizer(), max_length=6)
    others: list[dict[str, Any]] = [
        {"seeds": [5, 7]},
        {"seeds": [6, 5]},
        {"target_sparsities": [0.2, 0.6, 0.7]},
        {"preset": replace(SAVING, lr=0.2)},
        {"preset": "fast"},
        {"data_seed": 1},
        *({"data": data} for data in (other, loud.data.part(range(40)), cut)),
        {"means": MeanActivations.compute(loud.model, loud.data, n_samples=0, per_position=True)},
        {"means": MeanActivations.compute(loud.model, other, n_samples=0)},
        {"model": planted.model, "means": planted.means},
    ]
    content = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for changes in others:
        steps.until(0)
        with pytest.raises(KeyboardInterrupt):
            run(state=tmp_path, **changes)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == content
    steps.until(None)
    steps.allowed = False
    assert len(run(state=tmp_path)) == 4
