"""Pruning against planted subnetworks, a second implementation, and its own promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import helpers
import pytest
import torch
from helpers import Cases
from pruning import oracles
from pruning.oracles import (
    CLOSE,
    PLANTED,
    QUICK,
    Steps,
    Subject,
    encoded_for,
    names,
    plain_pruning,
    recorded,
)

from mechcore.components import ModelShape
from mechcore.errors import InputError, MechcoreWarning, MismatchError
from mechcore.masking.means import MeanActivations
from mechcore.pruning import PruneSettings, PruningError, Subnetwork, prune
from mechcore.pruning.subnetwork import HISTORY
from mechcore.pruning.teacher import Teacher

LONG = PruneSettings(steps=150, warmup=5, batch_size=12, lr=0.1, lr_lambda=0.5, log_alpha_mean=2.0)

# -- what it finds --------------------------------------------------------------------------------


def test_the_planted_components_are_found(planted: Subject) -> None:
    subnetworks = planted.prune(LONG, seeds=[1, 2], target_sparsities=0.7)
    assert [names(subnetwork.mask) for subnetwork in subnetworks] == [PLANTED, PLANTED]
    # The planted ones stand clear of all others.
    for subnetwork in subnetworks:
        flags = torch.tensor([str(c) in PLANTED for c in ModelShape.of(planted.model).components])
        flags = flags.reshape(2, 5)
        assert subnetwork.scores[flags].min() > subnetwork.scores[~flags].max() + 0.5


def test_the_paper_preset_runs_as_named(planted: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only until the first loss: the whole of it takes 9300 steps.
    asked: list[Any] = []

    def stop(self: Any, values: Any, means: Any, examples: Any, *, dropout_seeds: Any) -> None:
        asked.append((values, len(examples)))
        assert len(set(dropout_seeds)) == 3
        raise KeyboardInterrupt

    monkeypatch.setattr(Teacher, "kl_gradients", stop)
    given = (planted.model, planted.data, planted.means)
    with pytest.raises(KeyboardInterrupt):
        prune(*given, target_sparsities=0.5, preset="paper")
    ((values, n_examples),) = asked
    assert values.shape == (3, 4, 2, 5)  # seeds 42, 43 and 44, four micro-batches
    assert n_examples == 128
    assert bool((values == 1).all())  # at log_alpha 10 nothing is pruned
    with pytest.raises(InputError, match="unknown preset 'slow'"):
        planted.prune("slow")


@pytest.mark.parametrize("architecture", ["gpt2-lm", "gpt2"])
def test_causal_models(cases: Cases, architecture: str) -> None:
    check_causal(cases.get(architecture).model, architecture)


@pytest.mark.hooked
def test_a_hooked_transformer_is_pruned_as_a_bridge(cases: Cases) -> None:
    hooked = check_causal(helpers.hooked_transformer(cases.path("gpt2-lm")), "gpt2-lm")
    bridge = check_causal(cases.get("gpt2-lm").model, "gpt2-lm")
    for a, b in zip(hooked, bridge, strict=True):
        assert names(a.mask) == names(b.mask)
        torch.testing.assert_close(a.scores, b.scores, rtol=0, atol=0.02)


def check_causal(model: Any, architecture: str) -> list[Subnetwork]:
    encoded = encoded_for(architecture)
    means = MeanActivations.compute(model, encoded, n_samples=0)
    settings = replace(QUICK, steps=15)
    pruned = prune(model, encoded, means, seeds=[1], target_sparsities=[0.2, 0.5], preset=settings)
    assert [len(subnetwork.mask.kept) for subnetwork in pruned] == [8, 5]
    assert bool((pruned[0].scores - 2).abs().max() > 0.1)
    return pruned


def test_the_same_seed_gives_the_same_masks(loud: Subject) -> None:
    runs = [loud.prune(seeds=[5, 6], target_sparsities=[0.4]) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.scores, b.scores)
        assert a.history.equals(b.history)
        assert a.mask == b.mask
    first, second = runs[0]
    assert not torch.equal(first.scores, second.scores)
    (other,) = loud.prune(seeds=5, target_sparsities=0.4, data_seed=1)
    assert not torch.equal(other.scores, first.scores)


@pytest.fixture(scope="module")
def alone(loud: Subject) -> Callable[[PruneSettings, float, int], Subnetwork]:
    """A mask of the loud model that is trained alone."""

    @cache
    def run(settings: PruneSettings, target_sparsity: float, seed: int) -> Subnetwork:
        return loud.prune(settings, seeds=seed, target_sparsities=target_sparsity)[0]

    return run


def assert_as_alone(pruned: Subnetwork, alone: Any, settings: PruneSettings) -> None:
    alone = alone(settings, pruned.target_sparsity, pruned.seed)
    torch.testing.assert_close(pruned.scores, alone.scores, rtol=0, atol=CLOSE)
    assert len(pruned.history) == len(alone.history) == settings.total_steps(pruned.target_sparsity)
    difference = (pruned.history - alone.history).abs().to_numpy().max()
    assert difference < CLOSE
    assert pruned.mask == alone.mask


@pytest.mark.parametrize("masks_per_pass", [2, 64])
def test_masks_trained_together_are_those_trained_alone(
    loud: Subject, alone: Any, masks_per_pass: int
) -> None:
    settings = replace(QUICK, masks_per_pass=masks_per_pass)
    for subnetwork in loud.prune(settings, seeds=[5, 6, 9], target_sparsities=[0.2, 0.6]):
        assert_as_alone(subnetwork, alone, QUICK)


# -- the algorithm, implemented a second time -----------------------------------------------------

# Gates at log_alpha 0.5 are mostly inside (0, 1), so that every component has a gradient.
SECOND = replace(QUICK, steps=5, lr=0.2, lr_lambda=3.0, log_alpha_mean=0.5, log_alpha_std=0.1)


@pytest.mark.parametrize(
    ("sparsity", "steps", "draws"), [("expected", 5, 1), ("sampled", 5, 4), ("expected", 1, 4)]
)
def test_the_steps_are_those_of_a_second_implementation(
    loud: Subject, sparsity: Any, steps: int, draws: int
) -> None:
    settings = replace(
        SECOND, draws=draws, steps=steps, warmup=2 if steps > 2 else 0, sparsity=sparsity
    )
    watched = recorded(loud.data)
    subnetworks = loud.prune(settings, data=watched, seeds=[4, 8])
    batches = watched.asked[-steps:]
    assert all(len(rows) == 6 for rows in batches)
    for mask in subnetworks:
        expected = plain_pruning(
            loud.plain, loud.means, loud.data, batches, settings, mask.target_sparsity, mask.seed
        )
        assert float((expected.log_alpha - 0.5).abs().max()) > 0.1 * steps**0.5
        torch.testing.assert_close(mask.scores, expected.log_alpha, rtol=0, atol=CLOSE)
        assert list(mask.history.columns) == list(HISTORY)
        history = torch.tensor(mask.history.to_numpy())
        torch.testing.assert_close(history, torch.tensor(expected.history), rtol=1e-3, atol=1e-5)
        assert float(history[:, HISTORY.index("kl")].min()) > 5e-4


def test_clipping_is_that_of_a_second_implementation(loud: Subject) -> None:
    # Gradients' norms differ between steps by several times, so a clip below the larger and above
    # the smaller ones changes what Adam remembers of them.
    watched = recorded(loud.data)
    settings = replace(SECOND, clip=0.08)
    (subnetwork,) = loud.prune(settings, data=watched, seeds=4)
    batches = watched.asked[-settings.steps :]
    expected, free = (
        plain_pruning(loud.plain, loud.means, loud.data, batches, s, 0.6, 4)
        for s in (settings, replace(settings, clip=0.0))
    )
    bites = [norm > settings.clip for norm in expected.norms]
    assert any(bites)
    assert not all(bites)
    assert float((expected.log_alpha - free.log_alpha).abs().max()) > 10 * CLOSE
    torch.testing.assert_close(subnetwork.scores, expected.log_alpha, rtol=0, atol=CLOSE)
    # A clip above all norms is none.
    same, plain = (loud.prune(replace(SECOND, clip=clip), seeds=4)[0] for clip in (1e6, 0.0))
    assert torch.equal(same.scores, plain.scores)


# -- what cannot be done --------------------------------------------------------------------------


def test_means_of_another_model_are_refused(planted: Subject, loud: Subject) -> None:
    with pytest.raises(MismatchError, match="computed on another model"):
        planted.prune(means=loud.means)


def test_a_target_that_is_not_reached_is_an_error(loud: Subject) -> None:
    # Without multipliers nothing pulls towards a target: at log_alpha 10 nothing is pruned.
    settings = replace(QUICK, lr_lambda=0.0, log_alpha_mean=10.0, tolerance=0.2)
    # The target is 0.6 * step / 4.8.
    message = (
        r"^pruning: 1 of 2 masks failed: the sparsity of target 0.6, seed 1 ended at 0.000 .* It "
        r"was 0.00 at step 2 \(wanted 0.25\), 0.00 at step 4 \(wanted 0.50\), 0.00 at step 5 "
        r"\(wanted 0.60\); use more steps .* lr_lambda=0.12\): the multipliers react too late$"
    )
    with pytest.raises(PruningError, match=message) as failure:
        loud.prune(settings, target_sparsities=[0.1, 0.6])
    assert not isinstance(failure.value, InputError)
    (other,) = failure.value.finished
    assert (other.target_sparsity, other.seed) == (0.1, 1)
    (near,) = loud.prune(settings, target_sparsities=0.1)
    assert near.mask.sparsity == pytest.approx(0.1)
    torch.testing.assert_close(other.scores, near.scores, rtol=0, atol=CLOSE)


DIVERGED = (
    r"the training of target 0\.6, seed 6 diverged: its loss or scores are not finite after "
    r"step 3; lower lr or lr_lambda, or set clip \(such as --prune-settings clip=1\)"
)


def test_a_mask_that_diverges_does_not_disturb_the_others(
    loud: Subject, alone: Any, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.spoilt = (3, 1)
    with (
        pytest.warns(MechcoreWarning, match=f"pruning: {DIVERGED}") as steps.warnings,
        pytest.raises(PruningError, match=f"^pruning: 1 of 3 masks failed: {DIVERGED}$") as failure,
    ):
        loud.prune(seeds=[5, 6, 9])
    assert not isinstance(failure.value, InputError)
    assert steps.warnings[0].filename == oracles.__file__
    # It is said before the next step, and that step goes on without it.
    assert steps.n_warnings == [0, 0, 0, 0, 1, 1, 1, 1]
    assert steps.masks == [3, 3, 3, 3, 2, 2, 2, 2]
    monkeypatch.undo()
    finished = failure.value.finished
    assert [subnetwork.seed for subnetwork in finished] == [5, 9]
    for subnetwork in finished:
        assert_as_alone(subnetwork, alone, QUICK)


def test_masks_that_are_trained_for_less_drop_out(loud: Subject, alone: Any, steps: Steps) -> None:
    settings = replace(QUICK, steps=4, steps_per_percent=0.1, ramp_per_percent=0.1)
    together = loud.prune(settings, seeds=[5, 6], target_sparsities=[0.6, 0.2])
    # 4 + 0.1 * 60 = 10 steps and 4 + 0.1 * 20 = 6.
    assert steps.masks == [4] * 6 + [2] * 4
    assert [len(subnetwork.history) for subnetwork in together] == [10, 10, 6, 6]
    for subnetwork in together:
        assert_as_alone(subnetwork, alone, settings)
