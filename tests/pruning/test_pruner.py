"""Pruning against planted subnetworks, a second implementation, and its own promises."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import helpers
import pytest
import torch
from helpers import Cases
from pruning.oracles import (
    CLOSE,
    PLANTED,
    QUICK,
    assert_same,
    encoded_for,
    names,
    plain_pruning,
    recorded,
    snapshot,
)

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MechcoreWarning, MismatchError
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import forward, weights_of
from mechcore.pruning import (
    PruneSettings,
    PruningError,
    Subnetwork,
    hard_concrete,
    prune,
)
from mechcore.pruning.attribution import attribution_scores
from mechcore.pruning.subnetwork import HISTORY
from mechcore.pruning.teacher import Teacher

# -- what it finds --------------------------------------------------------------------------------


def test_the_planted_components_are_found(
    planted: Any, planted_means: MeanActivations, data: EncodedExamples
) -> None:
    settings = PruneSettings(
        steps=150, warmup=5, batch_size=12, lr=0.1, lr_lambda=0.5, log_alpha_mean=2.0
    )
    found = prune(
        planted, data, planted_means, seeds=[1, 2], target_sparsities=[0.7], preset=settings
    )
    assert [names(each.mask) for each in found] == [PLANTED, PLANTED]
    # The planted ones stand clear of all others.
    for each in found:
        flags = torch.tensor([str(c) in PLANTED for c in ModelShape.of(planted).components])
        flags = flags.reshape(2, 5)
        assert each.log_alpha[flags].min() > each.log_alpha[~flags].max() + 0.5


@pytest.mark.parametrize("ranked", [1000, 5])
def test_scores_start_from_the_attribution_ranking(
    planted: Any,
    planted_means: MeanActivations,
    data: EncodedExamples,
    monkeypatch: pytest.MonkeyPatch,
    ranked: int,
) -> None:
    monkeypatch.setattr("mechcore.pruning.pruner.RANKED", ranked)
    settings = PruneSettings(
        steps=1, lr=0.0, log_alpha_mean=1.0, log_alpha_std=0.0, attribution=2.25, tolerance=1
    )
    found = prune(
        planted, data, planted_means, seeds=[1, 2], target_sparsities=0.5, preset=settings
    )
    some = data if ranked == 1000 else data.part(range(0, len(data), -(-len(data) // 5)))
    order = attribution_scores(planted, some, planted_means).flatten().argsort(stable=True)
    for each in found:
        steps = [1 - 2.25 + 0.5 * i for i in range(10)]  # ten components
        assert each.log_alpha.flatten()[order].tolist() == pytest.approx(steps, abs=1e-6)


def test_targets_are_hit_up_to_one_component(
    planted: Any, planted_means: MeanActivations, data: EncodedExamples
) -> None:
    target_sparsities = [0.5, 0.0, 0.25, 0.33, 0.94, 0.8]
    found = prune(
        planted,
        data,
        planted_means,
        seeds=[7, 3],
        target_sparsities=target_sparsities,
        preset=QUICK,
    )
    assert [(each.target_sparsity, each.seed) for each in found] == [
        (t, s) for t in target_sparsities for s in (7, 3)
    ]
    for each in found:
        assert each.mask.is_discrete
        assert abs(len(each.mask.ablated) - 10 * each.target_sparsity) <= 0.5
    assert [len(each.mask.kept) for each in found[2:4]] == [10, 10]
    assert [len(each.mask.kept) for each in found[8:10]] == [1, 1]


def test_the_paper_preset_runs_as_named(
    planted: Any,
    planted_means: MeanActivations,
    data: EncodedExamples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only until the first loss: the whole of it takes 9300 steps.
    asked: list[Any] = []

    def stop(self: Any, values: Any, means: Any, examples: Any, *, dropout_seeds: Any) -> None:
        asked.append((values, len(examples)))
        assert len(set(dropout_seeds)) == 3
        raise KeyboardInterrupt

    monkeypatch.setattr(Teacher, "kl_gradients", stop)
    with pytest.raises(KeyboardInterrupt):
        prune(planted, data, planted_means, target_sparsities=0.5, preset="paper")
    ((values, n_examples),) = asked
    assert values.shape == (3, 4, 2, 5)  # seeds 42, 43 and 44, four micro-batches
    assert n_examples == 128
    assert bool((values == 1).all())  # at log_alpha 10 nothing is pruned
    with pytest.raises(InputError, match="unknown preset 'slow'"):
        prune(planted, data, planted_means, target_sparsities=0.5, preset="slow")


@pytest.mark.parametrize("architecture", ["gpt2-lm", "gpt2"])
def test_causal_models(cases: Cases, architecture: str) -> None:
    check_causal(cases.get(architecture).model, architecture)


@pytest.mark.hooked
def test_a_hooked_transformer_is_pruned_as_a_bridge(cases: Cases) -> None:
    hooked = check_causal(helpers.hooked_transformer(cases.path("gpt2-lm")), "gpt2-lm")
    bridge = check_causal(cases.get("gpt2-lm").model, "gpt2-lm")
    for a, b in zip(hooked, bridge, strict=True):
        assert names(a.mask) == names(b.mask)
        torch.testing.assert_close(a.log_alpha, b.log_alpha, rtol=0, atol=0.02)


def check_causal(model: Any, architecture: str) -> list[Subnetwork]:
    encoded = encoded_for(architecture)
    means = MeanActivations.compute(model, encoded, n_samples=0)
    settings = replace(QUICK, steps=15)
    found = prune(model, encoded, means, seeds=[1], target_sparsities=[0.2, 0.5], preset=settings)
    assert [len(each.mask.kept) for each in found] == [8, 5]
    assert bool((found[0].log_alpha - 2).abs().max() > 0.1)
    return found


# -- reproducibility and independence -------------------------------------------------------------


def test_the_same_seed_gives_the_same_masks(
    loud: tuple[Any, Any], loud_means: MeanActivations, data: EncodedExamples
) -> None:
    runs = [
        prune(loud[0], data, loud_means, seeds=[5, 6], target_sparsities=[0.4], preset=QUICK)
        for _ in range(2)
    ]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.log_alpha, b.log_alpha)
        assert a.history.equals(b.history)
        assert a.mask == b.mask
    first, second = runs[0]
    assert not torch.equal(first.log_alpha, second.log_alpha)
    other = prune(
        loud[0], data, loud_means, seeds=[5], target_sparsities=[0.4], preset=QUICK, data_seed=1
    )
    assert not torch.equal(other[0].log_alpha, first.log_alpha)


@pytest.fixture(scope="module")
def alone(
    loud: tuple[Any, Any], loud_means: MeanActivations, data: EncodedExamples
) -> Callable[[PruneSettings, float, int], Subnetwork]:
    """A mask of the loud model that is trained alone."""

    @cache
    def run(settings: PruneSettings, target_sparsity: float, seed: int) -> Subnetwork:
        (found,) = prune(
            loud[0],
            data,
            loud_means,
            seeds=seed,
            target_sparsities=target_sparsity,
            preset=settings,
        )
        return found

    return run


def assert_as_alone(each: Subnetwork, alone: Any, settings: PruneSettings) -> None:
    alone = alone(settings, each.target_sparsity, each.seed)
    torch.testing.assert_close(each.log_alpha, alone.log_alpha, rtol=0, atol=CLOSE)
    assert len(each.history) == len(alone.history) == settings.total_steps(each.target_sparsity)
    difference = (each.history - alone.history).abs().to_numpy().max()
    assert difference < CLOSE
    assert each.mask == alone.mask


@pytest.mark.parametrize("masks_per_pass", [2, 64])
def test_masks_trained_together_are_those_trained_alone(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    alone: Any,
    masks_per_pass: int,
) -> None:
    settings = replace(QUICK, masks_per_pass=masks_per_pass)
    together = prune(
        loud[0], data, loud_means, seeds=[5, 6, 9], target_sparsities=[0.2, 0.6], preset=settings
    )
    for each in together:
        assert_as_alone(each, alone, QUICK)


def count_masks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many masks every step evaluates, once steps are taken."""
    counts: list[int] = []
    real = Teacher.kl_gradients

    def counting(self: Teacher, values: torch.Tensor, *rest: Any, **options: Any) -> Any:
        counts.append(len(values))
        return real(self, values, *rest, **options)

    monkeypatch.setattr(Teacher, "kl_gradients", counting)
    return counts


def test_bfloat16_stays_near_float32(
    planted: Any, planted_means: MeanActivations, data: EncodedExamples
) -> None:
    plain = PruneSettings(
        steps=60, warmup=5, batch_size=12, lr=0.1, lr_lambda=0.5, log_alpha_mean=2.0, tolerance=1
    )
    found = [
        prune(planted, data, planted_means, seeds=[1], target_sparsities=[0.7], preset=settings)[0]
        for settings in (replace(plain, precision=p) for p in ("float32", "bfloat16"))
    ]
    assert found[0].mask == found[1].mask
    assert found[1].log_alpha.dtype == torch.float32
    difference = (found[0].log_alpha - found[1].log_alpha).abs().max()
    assert 0 < difference < 0.5  # it did run in another precision; scores move by several units


# -- the algorithm, implemented a second time -----------------------------------------------------

# Gates at log_alpha 0.5 are mostly inside (0, 1), so that every component has a gradient.
SECOND = PruneSettings(
    steps=5,
    warmup=2,
    batch_size=6,
    lr=0.2,
    lr_lambda=3.0,
    log_alpha_mean=0.5,
    log_alpha_std=0.1,
    tolerance=1,
)


@pytest.mark.parametrize(
    ("sparsity", "steps", "draws"), [("expected", 5, 1), ("sampled", 5, 4), ("expected", 1, 4)]
)
def test_the_steps_are_those_of_a_second_implementation(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    sparsity: Any,
    steps: int,
    draws: int,
) -> None:
    settings = replace(
        SECOND, draws=draws, steps=steps, warmup=2 if steps > 2 else 0, sparsity=sparsity
    )
    watched = recorded(data)
    found = prune(
        loud[0], watched, loud_means, seeds=[4, 8], target_sparsities=[0.6], preset=settings
    )
    batches = watched.asked[-steps:]
    assert all(len(rows) == 6 for rows in batches)
    for each in found:
        expected = plain_pruning(
            loud[1], loud_means, data, batches, settings, each.target_sparsity, each.seed
        )
        assert float((expected.log_alpha - 0.5).abs().max()) > 0.1 * steps**0.5
        torch.testing.assert_close(each.log_alpha, expected.log_alpha, rtol=0, atol=CLOSE)
        assert list(each.history.columns) == list(HISTORY)
        history = torch.tensor(each.history.to_numpy())
        torch.testing.assert_close(history, torch.tensor(expected.history), rtol=1e-3, atol=1e-5)
        assert float(history[:, HISTORY.index("kl")].min()) > 5e-4


def test_clipping_is_that_of_a_second_implementation(
    loud: tuple[Any, Any], loud_means: MeanActivations, data: EncodedExamples
) -> None:
    # Gradients' norms differ between steps by several times, so a clip below the larger and above
    # the smaller ones changes what Adam remembers of them.
    watched = recorded(data)
    settings = replace(SECOND, clip=0.08)
    (found,) = prune(loud[0], watched, loud_means, seeds=4, target_sparsities=0.6, preset=settings)
    batches = watched.asked[-settings.steps :]
    expected, free = (
        plain_pruning(loud[1], loud_means, data, batches, s, 0.6, 4)
        for s in (settings, replace(settings, clip=0.0))
    )
    bites = [norm > settings.clip for norm in expected.norms]
    assert any(bites)
    assert not all(bites)
    assert float((expected.log_alpha - free.log_alpha).abs().max()) > 10 * CLOSE
    torch.testing.assert_close(found.log_alpha, expected.log_alpha, rtol=0, atol=CLOSE)
    # A clip above all norms is none.
    settings = replace(SECOND, clip=1e6)
    (same,) = prune(loud[0], data, loud_means, seeds=4, target_sparsities=0.6, preset=settings)
    (plain,) = prune(loud[0], data, loud_means, seeds=4, target_sparsities=0.6, preset=SECOND)
    assert torch.equal(same.log_alpha, plain.log_alpha)


# -- the model stays as it is ---------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_is(
    trainable: Any, data: EncodedExamples, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = MeanActivations.compute(trainable, data, n_samples=0)
    batch = data.rows([0, 1, 2])
    before, logits = snapshot(trainable), forward(trainable, batch).detach()
    draws = itertools.count()
    real = hard_concrete.sample

    def sample(log_alpha: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        if fails and next(draws) == 2:
            raise KeyboardInterrupt
        assert not any(p.requires_grad for p in weights_of(trainable).parameters())
        return real(log_alpha, uniform)

    monkeypatch.setattr(hard_concrete, "sample", sample)
    options: dict[str, Any] = {"seeds": [1, 2], "target_sparsities": [0.5], "preset": QUICK}
    if fails:
        with pytest.raises(KeyboardInterrupt):
            prune(trainable, data, means, **options)
    else:
        prune(trainable, data, means, **options)
    assert_same(before, snapshot(trainable))
    assert torch.equal(forward(trainable, batch).detach(), logits)


# -- what cannot be done --------------------------------------------------------------------------


def test_means_of_another_model_are_refused(
    planted: Any, loud_means: MeanActivations, data: EncodedExamples
) -> None:
    with pytest.raises(MismatchError, match="computed on another model"):
        prune(planted, data, loud_means, seeds=[1], target_sparsities=[0.5], preset=QUICK)


def test_a_target_that_is_not_reached_is_an_error(
    loud: tuple[Any, Any], loud_means: MeanActivations, data: EncodedExamples
) -> None:
    # Without multipliers nothing pulls towards a target: at log_alpha 10 nothing is pruned.
    settings = replace(QUICK, lr_lambda=0.0, log_alpha_mean=10.0, tolerance=0.2)
    with pytest.raises(PruningError) as failure:
        prune(loud[0], data, loud_means, seeds=[1], target_sparsities=[0.1, 0.6], preset=settings)
    assert not isinstance(failure.value, InputError)
    # The target is 0.6 * step / 4.8.
    assert str(failure.value) == (
        "pruning: 1 of 2 masks failed: the sparsity of target 0.6, seed 1 ended at 0.000 "
        "(accepted: 0.2 away from the target), so its ranking means little. It was 0.00 at step 2 "
        "(wanted 0.25), 0.00 at step 4 (wanted 0.50), 0.00 at step 5 (wanted 0.60); use more steps "
        "(now 8: --prune-steps 16) or a larger lr_lambda (now 0: --prune-settings lr_lambda=0.12): "
        "the multipliers react too late"
    )
    (other,) = failure.value.finished
    assert (other.target_sparsity, other.seed) == (0.1, 1)
    (near,) = prune(loud[0], data, loud_means, seeds=[1], target_sparsities=[0.1], preset=settings)
    assert near.mask.sparsity == pytest.approx(0.1)
    torch.testing.assert_close(other.log_alpha, near.log_alpha, rtol=0, atol=CLOSE)


# -- trainings that diverge -----------------------------------------------------------------------


def poison(monkeypatch: pytest.MonkeyPatch, row: int, step: int) -> list[int]:
    """Make one row's gradient NaN at one step; the number of warnings before every step."""
    caught: list[int] = []
    real = Teacher.kl_gradients
    seen: list[Any] = []
    monkeypatch.setattr(warnings, "warn", counted(warnings.warn, seen))

    def poisoned(self: Teacher, values: torch.Tensor, *rest: Any, **options: Any) -> Any:
        losses, gradients = real(self, values, *rest, **options)
        if len(caught) == step:
            gradients[row] = math.nan
        caught.append(len(seen))
        return losses, gradients

    monkeypatch.setattr(Teacher, "kl_gradients", poisoned)
    return caught


def counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if args[1:] == (MechcoreWarning,):
            calls.append(args)
        return function(*args, **(options | {"stacklevel": options.get("stacklevel", 1) + 1}))

    return call


DIVERGED = (
    r"the training of target 0\.6, seed 6 diverged: its loss or scores are not finite after "
    r"step 3; lower lr or lr_lambda, or set clip \(such as --prune-settings clip=1\)"
)


def test_a_mask_that_diverges_does_not_disturb_the_others(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    alone: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = count_masks(monkeypatch)
    warned = poison(monkeypatch, row=1, step=3)
    with (
        pytest.warns(MechcoreWarning, match=f"pruning: {DIVERGED}") as caught,
        pytest.raises(PruningError, match=f"^pruning: 1 of 3 masks failed: {DIVERGED}$") as failure,
    ):
        prune(loud[0], data, loud_means, seeds=[5, 6, 9], target_sparsities=0.6, preset=QUICK)
    assert not isinstance(failure.value, InputError)
    assert caught[0].filename == __file__
    # It is said before the next step, and that step goes on without it.
    assert warned == [0, 0, 0, 0, 1, 1, 1, 1]
    assert counts == [3, 3, 3, 3, 2, 2, 2, 2]
    monkeypatch.undo()
    finished = failure.value.finished
    assert [each.seed for each in finished] == [5, 9]
    for each in finished:
        assert_as_alone(each, alone, QUICK)


def test_masks_that_are_trained_for_less_drop_out(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    alone: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(QUICK, steps=4, steps_per_percent=0.1, ramp_per_percent=0.1)
    counts = count_masks(monkeypatch)
    together = prune(
        loud[0], data, loud_means, seeds=[5, 6], target_sparsities=[0.6, 0.2], preset=settings
    )
    # 4 + 0.1 * 60 = 10 steps and 4 + 0.1 * 20 = 6.
    assert counts == [4] * 6 + [2] * 4
    assert [len(each.history) for each in together] == [10, 10, 6, 6]
    for each in together:
        assert_as_alone(each, alone, settings)
