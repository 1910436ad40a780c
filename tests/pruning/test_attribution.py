"""Attribution rankings against finite differences through plain torch, and written-out numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import helpers
import pytest
import torch
from helpers import Case, Cases
from pruning.oracles import (
    PLANTED,
    assert_same,
    encoded_for,
    full_logits,
    inputs_of_row,
    names,
    plain_kl,
    plain_logits,
    slopes,
    snapshot,
)

from mechcore.bench.gradients import eap_ig_scores, gradient_drop_scores, integrated_scores
from mechcore.components import Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MismatchError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.counterfactual import paired
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import forward, weights_of
from mechcore.pruning import attribute
from mechcore.pruning.attribution import attribution_scores, margin_slopes

ARCHITECTURES = ["bert", "gpt2", "gpt2-lm"]
ONES = torch.ones(2, 5, dtype=torch.float64)
N = 6


def prepared(
    cases: Cases, architecture: str, per_position: bool = False
) -> tuple[Case, EncodedExamples, MeanActivations]:
    """A tiny float64 model with data and means."""
    case = cases.get(architecture, torch.float64)
    data = encoded_for(architecture, N)
    assert len({len(ids) for ids in data.input_ids}) > 3  # batches are padded
    means = MeanActivations.compute(case.model, data, n_samples=0, per_position=per_position)
    return case, data, means


def close(found: torch.Tensor, expected: torch.Tensor, share: float = 1e-5) -> None:
    """Equal up to a share of the largest value."""
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=share * largest)


# -- the slope of the chosen class's log-odds -----------------------------------------------------


def mean_slopes(case: Case, data: EncodedExamples, means: MeanActivations) -> torch.Tensor:
    """Mean over examples of |d log-odds of the chosen class / d mask value|, by differences."""
    total = torch.zeros_like(ONES)
    for row in range(len(data)):

        def logits(z: torch.Tensor, row: int = row) -> torch.Tensor:
            return plain_logits(case.reference, means, z, data, row)

        with torch.no_grad():
            chosen = int(logits(ONES).argmax())

        def log_odds(z: torch.Tensor, chosen: int = chosen, logits: Any = logits) -> torch.Tensor:
            p = logits(z).softmax(-1)[chosen]
            return (p / (1 - p)).log()

        total += slopes(log_odds, ONES).abs()
    return total / len(data)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attribution_is_the_mean_size_of_finite_differences(
    cases: Cases, architecture: str, per_position: bool
) -> None:
    case, data, means = prepared(cases, architecture, per_position)
    expected = mean_slopes(case, data, means)
    assert float(expected.min()) > 1e-3
    found = attribution_scores(case.model, data, means)
    assert found.shape == (2, 5)
    close(found, expected)


@pytest.mark.parametrize("scores", [attribution_scores, integrated_scores])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_batches_and_padding_change_nothing(
    cases: Cases, architecture: str, scores: Callable[..., torch.Tensor]
) -> None:
    case, data, means = prepared(cases, architecture)
    alone = scores(case.model, data, means, batch_size=1)
    for batch_size in (3, 32):
        close(scores(case.model, data, means, batch_size=batch_size), alone)


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_slopes_with_other_means_differ_by_the_effect_of_the_difference(
    cases: Cases, architecture: str
) -> None:
    """By the gradient of a share of it, added to the outputs of a Hugging Face model."""
    case, data, means = prepared(cases, architecture)
    z, mlp = (torch.randn(each.shape, dtype=torch.float64) for each in (means.z, means.mlp))
    other = replace(means, z=means.z - z, mlp=means.mlp - mlp)
    assert set(data.examples.frame["label"]) == {"entailment"}
    share = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(N, 2, 5)
    with helpers.torch_hooks(
        case.reference,
        lambda layer, x: x + share[layer, :4, None] * z[layer],
        lambda layer, x: x + share[layer, 4] * mlp[layer],
    ):
        for row in range(N):
            logits = case.reference(**inputs_of_row(data, row)).logits[0]
            margin = logits[1] - logits[[0, 2]].logsumexp(0)
            (expected[row],) = torch.autograd.grad(margin, share)
    found = [margin_slopes(case.model, data, each, batch_size=4) for each in (other, means)]
    close(found[0] - found[1], expected)


# -- the path from everything at its mean to the full model ---------------------------------------


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integrated_attribution_is_the_mean_slope_along_the_path(
    cases: Cases, architecture: str, per_position: bool
) -> None:
    case, data, means = prepared(cases, architecture, per_position)

    full = full_logits(case.reference, means, data, range(N))

    def kl(z: torch.Tensor) -> torch.Tensor:
        return plain_kl(case.reference, means, z, data, range(N), full)

    # The midpoints of three pieces.
    expected = -sum(slopes(kl, point * ONES) for point in (1 / 6, 3 / 6, 5 / 6)) / 3
    assert float(expected.abs().max()) > 5e-4
    found = integrated_scores(case.model, data, means, n_points=3)
    assert found.shape == (2, 5)
    close(found, expected, 1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_eap_ig_is_the_mean_slope_along_the_path_from_the_pairs(
    cases: Cases, architecture: str
) -> None:
    case, data, means = prepared(cases, architecture)
    pairs = data.part([*range(2, N), 0, 1])
    full = full_logits(case.reference, means, data, range(N))

    def kl(z: torch.Tensor) -> torch.Tensor:
        return plain_kl(case.reference, means, z, data, range(N), full, pairs)

    expected = -sum(slopes(kl, point * ONES) for point in (1 / 4, 3 / 4)) / 2
    assert float(expected.abs().max()) > 5e-4
    found = eap_ig_scores(case.model, data, means, pairs=pairs, n_points=2, batch_size=4)
    close(found, expected, 1e-4)


def test_eap_ig_makes_pairs_of_another_label_by_itself(cases: Cases) -> None:
    case, data, means = prepared(cases, "bert")
    labels = ["entailment", "neutral", "entailment"] * (N // 3)
    data = replace(data, examples=Examples("x", data.examples.frame.assign(label=labels)))
    found = eap_ig_scores(case.model, data, means, seed=2, n_points=1)
    expected = eap_ig_scores(case.model, data, means, pairs=paired(data, 2), n_points=1)
    assert torch.equal(found, expected)
    alike = data.part([0, 2])
    with pytest.raises(InputError, match="at least two labels; found 'entailment'"):
        eap_ig_scores(case.model, alike, means)
    assert torch.isfinite(eap_ig_scores(case.model, alike, means, pairs=alike, n_points=1)).all()


# -- gradients through one layer after the other dropped ------------------------------------------


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A GPT-2 of three layers, loaded by the package and by Hugging Face alone."""
    path = tmp_path_factory.mktemp("deep")
    model = helpers.gpt2_language_model(n_layer=3)
    model.save_pretrained(path)
    return load_model(path, dtype=torch.float64), model.double()


def test_gradient_drop_is_a_loop_over_layers_whose_outputs_are_detached(
    deep: tuple[Any, Any],
) -> None:
    model, reference = deep
    data = encoded_for("gpt2-lm", N)
    means = MeanActivations.compute(model, data, n_samples=0)
    expected, plain = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, 5)
    for row in range(N):
        for dropped in (None, 0, 1, 2):
            z = torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
            p = plain_logits(reference, means, z, data, row, dropped=dropped).softmax(-1).max()
            (gradient,) = torch.autograd.grad((p / (1 - p)).log(), z)
            if dropped is None:
                plain += gradient.abs() / N
            else:
                assert not gradient[dropped].any()
                expected += gradient.abs() / 2 / N  # L - 1 = 2
    found = gradient_drop_scores(model, data, means, batch_size=4)
    close(found, expected)
    close(attribution_scores(model, data, means), plain)
    assert float((found - plain).abs().max()) > 1e-3
    # The last layer acts directly alone: its score is the plain one.
    close(found[2], plain[2])


@pytest.mark.hooked
def test_gradient_drop_needs_two_layers() -> None:
    model, data = adding_model(), two_words([[0, 1]])
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])}, n_samples=0)
    with pytest.raises(InputError, match="the model has one layer"):
        gradient_drop_scores(model, data, means)


# -- written-out numbers --------------------------------------------------------------------------


@pytest.mark.hooked
def test_hand_computed_scores() -> None:
    model = adding_model()
    # Means over the text "A": z = (1 | 0), x = A + (1, 0) = (2, 0), mlp = 3 relu(1, -1) = (3, 0).
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])}, n_samples=0)

    # "A B" at B: z = (.5 | .5), x = B + z = (.5, 1.5), mlp = (0, 1.5); the logits are (.5, 3), so
    # B is chosen. Their slopes: head 0 moves x by (.5 - 1, 0) = (-.5, 0), which the MLP does not
    # see; head 1 by (0, .5), which the MLP adds three times again: (0, 2); the MLP's own value by
    # (0, 1.5) - (3, 0) = (-3, 1.5). The slopes of logit B - logit A are .5, 2 and 4.5.
    found = attribution_scores(model, two_words([[0, 1]]), means)
    assert found.tolist() == [[0.5, 2.0, 4.5]]
    # "B A" at A: x = A + (.5, .5) = (1.5, .5), mlp = (1.5, 0); the logits are (3, .5), so A is
    # chosen. Head 0 moves the logits by (-.5 - 1.5, 0), head 1 by (0, .5), the MLP's own value by
    # (1.5, 0) - (3, 0) = (-1.5, 0): -2, -.5 and -1.5. The scores are means of sizes.
    found = attribution_scores(model, two_words([[0, 1], [1, 0]]), means)
    assert found.tolist() == [[1.25, 1.25, 3.0]]

    # "A B" with every mask value at 1/2, the only midpoint: z = (.75 | .25), x = (.75, 1.25),
    # mlp = (3, 0) + ((0, .75) - (3, 0)) / 2 = (1.5, .375): the logits are (2.25, 1.625), their
    # softmax q = (.651355, .348645). That of (.5, 3) is p = (.075858, .924142). The slope of the
    # KL by the logits is q - p = (.575497, -.575497). Slopes of the logits: head 0 (-.5, 0),
    # head 1 (0, .5 + 1.5 / 2) = (0, 1.25), the MLP's own (0, .75) - (3, 0) = (-3, .75).
    found = integrated_scores(model, two_words([[0, 1]]), means, n_points=1)
    expected = [0.575497 * 0.5, 0.575497 * 1.25, 0.575497 * 3.75]
    assert found[0].tolist() == pytest.approx(expected, abs=2e-6)


def adding_model(attn_only: bool = False) -> Any:
    """Head 0 averages the first coordinate of what it sees, head 1 the second; no norms."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    model = HookedTransformer(
        HookedTransformerConfig(
            n_layers=1, n_heads=2, d_model=2, d_head=1, d_mlp=2, d_vocab=2, n_ctx=2,
            act_fn="relu", normalization_type=None, attn_only=attn_only, device="cpu",
        )
    )  # fmt: skip
    eye = torch.eye(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # no queries and keys: attention is uniform over what is seen
        model.embed.W_E.copy_(eye)  # A = (1, 0), B = (0, 1)
        attn = model.blocks[0].attn
        attn.W_V[0, 0, 0] = attn.W_O[0, 0, 0] = 1
        attn.W_V[1, 1, 0] = attn.W_O[1, 0, 1] = 1
        if not attn_only:
            mlp = model.blocks[0].mlp
            mlp.W_in.copy_(eye)
            mlp.b_in.fill_(-1)
            mlp.W_out.copy_(3 * eye)  # mlp(x) = 3 relu(x - 1)
        model.unembed.W_U.copy_(eye)
    return model


def two_words(input_ids: list[list[int]]) -> EncodedExamples:
    """Texts of the words A (0) and B (1), which are the answers, too."""
    plain = encoded_for("bert", len(input_ids))
    return EncodedExamples(
        plain.examples, input_ids, None, None, None, None, 0, {"a": (0,), "b": (1,)}
    )


@pytest.mark.hooked
def test_models_without_mlps_have_scores_of_heads() -> None:
    model, data = adding_model(attn_only=True), two_words([[0, 1]])
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])}, n_samples=0)
    # As above, without the MLP: the logits are x = (.5, 1.5), their slopes (-.5, 0) and (0, .5).
    assert attribution_scores(model, data, means).tolist() == [[0.5, 0.5]]
    (found,) = attribute(model, data, means, sparsity=0.5)
    assert found.mask.shape == ModelShape(1, 2, has_mlps=False)
    assert len(found.mask.kept) == 1


# -- what it finds --------------------------------------------------------------------------------


def test_the_planted_components_come_out_on_top(
    planted: Any, planted_means: MeanActivations, data: EncodedExamples
) -> None:
    (found,) = attribute(planted, data, planted_means, sparsity=0.7)
    assert names(found.mask) == PLANTED
    loud = found.mask.values == 1
    assert float(found.scores[loud].min()) > 1e-2
    # The others write their mean, whatever they read.
    assert float(found.scores[~loud].abs().max()) < 1e-6


# -- the model stays as it is ---------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_is(
    trainable: Any,
    data: EncodedExamples,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    means = MeanActivations.compute(trainable, data, n_samples=0)
    batch = data.rows([0, 1, 2])
    before, logits = snapshot(trainable), forward(trainable, batch).detach()
    real, calls = torch.autograd.grad, []

    def grad(*args: Any, **options: Any) -> Any:
        calls.append(args)
        assert not any(p.requires_grad for p in weights_of(trainable).parameters())
        if fails and len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            attribute(trainable, data, means, sparsity=0.5)
    else:
        attribute(trainable, data, means, sparsity=0.5)
    assert len(calls) == 2  # 48 examples are two batches
    assert_same(before, snapshot(trainable))
    assert torch.equal(forward(trainable, batch).detach(), logits)


# -- what cannot be done --------------------------------------------------------------------------


def test_rankings_that_make_no_sense(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.autograd, "grad", None)  # refused before any work
    arguments = (loud[0], data, loud_means)
    for options, message in [
        ({"sparsity": 1.0}, r"sparsity 1\.0: expected a share"),
        ({"sparsity": [0.5, 0.96]}, "sparsity 0.96: keeps none of the model's 10 components"),
        ({"sparsity": [0.5, math.nan]}, "sparsity nan: expected a share"),
        ({"sparsity": [0.5, 0.5]}, r"sparsities \[0\.5, 0\.5\]: expected at least one, each once"),
        ({"sparsity": []}, r"sparsities \[\]: expected at least one"),
        ({"sparsity": 0.5, "seed": -1}, "seed -1: expected a whole number"),
        (
            {"sparsity": 0.5, "method": "gradient"},
            "attribution: method is 'gradient'; expected attribution or ugs",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            attribute(*arguments, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n_points is 0; expected at least 1"):
        integrated_scores(*arguments, n_points=0)


@pytest.mark.parametrize("scores", [attribution_scores, integrated_scores])
def test_what_has_no_scores(
    cases: Cases,
    planted: Any,
    loud_means: MeanActivations,
    data: EncodedExamples,
    scores: Callable[..., torch.Tensor],
) -> None:
    with pytest.raises(MismatchError, match="computed on another model"):
        scores(planted, data, loud_means)
    language_model = cases.get("gpt2-lm").model
    plain = encoded_for("gpt2")
    means = MeanActivations.compute(language_model, plain, n_samples=0)
    with pytest.raises(InputError, match="a language model needs answer words"):
        scores(language_model, plain, means)
    assert helpers.hook_counts(language_model) == helpers.hook_counts(
        load_model(cases.path("gpt2-lm"))
    )


@pytest.mark.parametrize("scores", [attribution_scores, integrated_scores])
def test_batches_without_examples_are_refused(
    loud: tuple[Any, Any],
    loud_means: MeanActivations,
    data: EncodedExamples,
    scores: Callable[..., torch.Tensor],
) -> None:
    with pytest.raises(InputError, match=r"expected (at least|a whole number from) 1"):
        scores(loud[0], data, loud_means, batch_size=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integrated_attribution_adds_up_to_the_kl_of_the_means(
    cases: Cases, architecture: str
) -> None:
    case, data, means = prepared(cases, architecture)
    nothing = Mask.full(case.model).only()
    full = evaluate(case.model, data, in_domain=False).logits.double().log_softmax(-1)
    bare = evaluate(case.model, data, mask=nothing, means=means).logits.double().log_softmax(-1)
    kl = float((full.exp() * (full - bare)).sum(-1).mean())
    assert kl == pytest.approx(
        plain_kl(case.reference, means, 0 * ONES, data, range(N)).item(), rel=1e-4
    )
    assert kl > 1e-3
    sums = [
        float(integrated_scores(case.model, data, means, n_points=n).double().sum())
        for n in (4, 64)
    ]
    assert sums[1] == pytest.approx(kl, rel=1e-3)
    # Midpoints leave an error that falls with the square of their number.
    assert abs(sums[1] - kl) < abs(sums[0] - kl) / 20
