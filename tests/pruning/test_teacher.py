"""The loss against plain torch, its precision, and the order of the examples."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import Cases
from pruning.oracles import Subject, encoded_for, full_logits, plain_kl, slopes

from mechcore.ablation import ablate
from mechcore.errors import InputError
from mechcore.evaluation.metrics import as_metric
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.models.protocol import frozen, weights_of
from mechcore.pruning import PruneSettings, prune
from mechcore.pruning.teacher import POOL, Teacher, example_order

VALUES = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
EXAMPLES = [7, 0, 11, 3]

# -- the loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "gpt2-lm"])
def test_losses_and_gradients_are_those_of_plain_torch(cases: Cases, architecture: str) -> None:
    case = cases.get(architecture, torch.float64)
    data = encoded_for(architecture, 12)
    means = MeanActivations.compute(case.model, data, n_samples=0)
    teacher = Teacher(case.model, data, PruneSettings(batch_size=5, masks_per_pass=2))
    full = full_logits(case.reference, means, data, range(len(data)))
    torch.testing.assert_close(teacher.logits.double(), full, rtol=0, atol=1e-5)
    with frozen(case.model):
        losses, gradients = teacher.kl_gradients(VALUES, means, EXAMPLES)
    assert gradients.shape == (3, 2, 5)
    for values, loss, gradient in zip(VALUES, losses, gradients, strict=True):

        def kl(z: torch.Tensor) -> torch.Tensor:
            return plain_kl(case.reference, means, z, data, EXAMPLES, full[EXAMPLES])

        assert float(loss) == pytest.approx(kl(values).item(), rel=1e-4)
        expected = slopes(kl, values)
        largest = float(expected.abs().max())
        assert largest > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4 * largest)


@pytest.mark.parametrize("metric", ["kl", "margin", "logprob", "rank"])
def test_a_metric_stands_in_place_of_kl(cases: Cases, metric: str) -> None:
    """By values from sweeps, and by finite differences; more of a margin is a smaller loss."""
    case = cases.get("gpt2-lm", torch.float64)
    rows = [{"prompt": [5, 6 + i, 9], "correct": 4 + i} for i in range(12)]
    data = as_encoded(case.model, rows)
    means = MeanActivations.compute(case.model, data, n_samples=0)
    teacher = Teacher(case.model, data, PruneSettings(batch_size=3), as_metric(metric))
    sign = -1 if metric in ("margin", "logprob") else 1
    whole = torch.ones(1, 2, 5, dtype=torch.float64)
    whole[0, 1, 2] = 0
    swept = ablate(case.model, ["L1.H2"], rows, means, metric=metric)
    [values] = (of.by_example for of in swept.without.values())
    losses = teacher.divergences(whole, means, EXAMPLES)
    expected = sign * torch.as_tensor(values)[EXAMPLES]
    torch.testing.assert_close(losses[0].double(), expected, rtol=0, atol=1e-5)
    if metric == "rank":
        with pytest.raises(InputError, match="metric 'rank' has no gradient; expected"):
            teacher.kl_gradients(VALUES, means, EXAMPLES)
        return
    _, gradients = teacher.kl_gradients(VALUES, means, EXAMPLES)
    step = torch.zeros_like(VALUES)
    step[:, 0, 3] = 1e-2
    ends = [teacher.divergences(VALUES + way * step, means, EXAMPLES).mean(1) for way in (1, -1)]
    slope = (ends[0] - ends[1]) / 2e-2
    torch.testing.assert_close(gradients[:, 0, 3].double(), slope.double(), rtol=1e-2, atol=1e-5)


def test_metrics_that_no_mask_can_be_trained_by(cases: Cases) -> None:
    model, data = cases.get("gpt2-lm").model, [{"prompt": [5, 6]}]
    means = MeanActivations.compute(model, data, n_samples=0)
    for metric, message in (
        ("loss", "metric 'loss' reads all positions"),
        (len, "metric 'len' does not say whether more is better"),
        ("margin", "the data have no correct answers"),
    ):
        with pytest.raises(InputError, match=message):
            prune(model, data, means, target_sparsities=0.5, metric=metric)


@pytest.mark.parametrize("architecture", ["bert", "gpt2-lm", "several tokens"])
def test_draws_are_masks_for_a_share_of_the_examples(cases: Cases, architecture: str) -> None:
    """Two draws for seven examples: the first four and the last three, as if run apart."""
    several = architecture == "several tokens"
    case = cases.get("gpt2-lm" if several else architecture)
    data = encoded_for("gpt2-lm" if several else architecture, 12)
    if several:
        data = replace(data, answers={name: (*ids, 3) for name, ids in data.answers.items()})
    means = MeanActivations.compute(case.model, data, n_samples=0)
    teacher = Teacher(case.model, data, PruneSettings(batch_size=7, masks_per_pass=2))
    draws = torch.stack([VALUES, VALUES.flip(0)], 1).float()
    rows = [7, 0, 11, 3, 2, 5, 8]
    with frozen(case.model):
        losses, gradients = teacher.kl_gradients(draws, means, rows)
        first, last = (
            teacher.kl_gradients(draws[:, i], means, part)
            for i, part in enumerate((rows[:4], rows[4:]))
        )
    torch.testing.assert_close(losses, (4 * first[0] + 3 * last[0]) / 7, rtol=1e-4, atol=1e-6)
    expected = torch.stack([4 * first[1], 3 * last[1]], 1) / 7
    largest = float(expected.abs().max())
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-4 * largest)


def test_dropout_is_that_of_the_seed_and_of_the_mask_alone(loud: Subject) -> None:
    model = loud.model
    modules = [m for m in weights_of(model).modules() if isinstance(m, torch.nn.Dropout)]
    assert {module.p for module in modules} == {0.1}
    teacher = Teacher(model, loud.data, PruneSettings())
    values = VALUES.float()
    before = torch.get_rng_state()

    def gradients(values: torch.Tensor, *seeds: int) -> Any:
        with frozen(model):
            return teacher.kl_gradients(values, loud.means, EXAMPLES, dropout_seeds=seeds)

    losses, slopes_ = gradients(values, 1, 2, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in weights_of(model).modules())
    alone = gradients(values[1:2], 2)
    assert torch.equal(alone[0][0], losses[1])
    assert torch.equal(alone[1][0], slopes_[1])
    assert float(gradients(values[1:2], 4)[0]) != float(losses[1])
    # Without any to drop, training mode is evaluation mode.
    for module in modules:
        module.p = 0.0
    none, plainly = gradients(values, 1, 2, 3), gradients(values)
    for module in modules:
        module.p = 0.1
    torch.testing.assert_close(none[0], plainly[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(none[1], plainly[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_auto_is_bfloat16_in_wide_models_where_the_processor_has_it(
    loud: Subject, supported: bool, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    width = loud.model.cfg.d_model
    monkeypatch.setattr("mechcore.pruning.teacher.WIDE", width if wide else width + 1)
    gradients, answers = {}, {}
    for precision in ("auto", "bfloat16", "float32"):
        teacher = Teacher(loud.model, loud.data, PruneSettings(precision=precision))
        with frozen(loud.model):
            gradients[precision] = teacher.kl_gradients(VALUES.float(), loud.means, EXAMPLES)
        assert gradients[precision][0].dtype == gradients[precision][1].dtype == torch.float32
        answers[precision] = teacher.logits
    assert torch.equal(answers["bfloat16"], answers["float32"])  # the full model's
    names = ("bfloat16", "float32")
    same, other = names if supported and wide else names[::-1]
    for i in (0, 1):
        assert torch.equal(gradients["auto"][i], gradients[same][i])
        assert not torch.equal(gradients["auto"][i], gradients[other][i])


# -- the order of the examples --------------------------------------------------------------------

LENGTHS = [3 + (7 * i) % 23 for i in range(100)]


def batches(n: int, batch_size: int, seed: int, lengths: list[int] = LENGTHS) -> list[list[int]]:
    return list(itertools.islice(example_order(lengths, batch_size, seed), n))


def test_a_pools_batches_have_similar_lengths_in_random_order() -> None:
    pool = [[LENGTHS[i] for i in rows] for rows in batches(POOL, 5, seed=2)]
    ordered = sorted(pool)
    # Sorted, the batches cut the lengths of the pool into consecutive pieces.
    flat = sorted(itertools.chain(*pool))
    assert [sorted(rows) for rows in ordered] == [flat[5 * k : 5 * k + 5] for k in range(POOL)]
    assert pool != ordered


@pytest.mark.parametrize(
    ("n", "batch_size"), [(100, 5), (100, 7), (100, 25), (100, 32), (40, 32), (33, 32), (32, 32)]
)
def test_no_batch_holds_an_example_twice(n: int, batch_size: int) -> None:
    a_pool = min(POOL, n // batch_size)
    drawn = batches(n * a_pool, batch_size, seed=1, lengths=LENGTHS[:n])
    assert all(len(set(rows)) == len(rows) == batch_size for rows in drawn)
    # So many whole pools are so many whole passes.
    assert sorted(itertools.chain(*drawn)) == sorted([*range(n)] * (a_pool * batch_size))


@pytest.mark.parametrize(("n", "batch_size"), [(31, 32), (5, 32), (3, 5), (2, 7), (1, 4)])
def test_fewer_examples_than_a_batch_repeat_evenly(n: int, batch_size: int) -> None:
    drawn = batches(12 * n, batch_size, seed=1, lengths=LENGTHS[:n])
    for rows in drawn:
        counts = [rows.count(i) for i in range(n)]
        assert sum(counts) == batch_size
        assert max(counts) - min(counts) <= 1
    assert set(Counter(itertools.chain(*drawn)).values()) == {12 * batch_size}


def test_examples_of_one_pass_come_in_the_order_of_the_seed_alone() -> None:
    """As they have come since masks were first published: 4000 examples, 400 steps of 8."""
    lengths = [5 + (11 * i) % 31 for i in range(4000)]
    generator, expected = torch.Generator().manual_seed(6), []
    order = torch.randperm(4000, generator=generator).tolist()
    for start in range(0, 3200, POOL * 8):
        pool = sorted(order[start : start + POOL * 8], key=lambda i: lengths[i])
        shuffled = torch.randperm(POOL, generator=generator).tolist()
        expected += [pool[8 * k : 8 * k + 8] for k in shuffled]
    assert batches(400, 8, seed=6, lengths=lengths) == expected
