"""Attribution rankings against gradients of plain torch, and written-out numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import helpers
import pytest
import torch
from helpers import Case, Cases
from pruning.oracles import (
    PLANTED,
    QUICK,
    Subject,
    encoded_for,
    inputs_of_row,
    names,
    plain_logits,
    slopes,
)

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, MismatchError
from mechcore.masking.means import MeanActivations
from mechcore.pruning import METHODS, Request, Subnetwork
from mechcore.pruning.attribution import attribution_scores, margin_slopes

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


def by_attribution(model: Any, data: Any, means: MeanActivations, sparsity: float) -> Subnetwork:
    """The subnetwork of the ranking."""
    (subnetwork,) = METHODS["attribution"](Request(model, data, means, [sparsity], [1], QUICK))
    return subnetwork


def close(scores: torch.Tensor, expected: torch.Tensor, share: float = 1e-5) -> None:
    """Equal up to a share of the largest value."""
    largest = float(expected.abs().max())
    torch.testing.assert_close(scores.double(), expected.double(), rtol=0, atol=share * largest)


def mean_slopes(case: Case, data: EncodedExamples, means: MeanActivations) -> torch.Tensor:
    """Mean over examples of |d log-odds of the chosen class / d mask value|."""
    total = torch.zeros_like(ONES)
    for row in range(len(data)):

        def log_odds(z: torch.Tensor, row: int = row) -> torch.Tensor:
            p = plain_logits(case.reference, means, z, data, row).softmax(-1).max()
            return (p / (1 - p)).log()

        total += slopes(log_odds, ONES).abs()
    return total / len(data)


@pytest.mark.parametrize(
    ("architecture", "per_position"), [("bert", False), ("gpt2-lm", False), ("bert", True)]
)
def test_attribution_is_the_mean_slope(cases: Cases, architecture: str, per_position: bool) -> None:
    case, data, means = prepared(cases, architecture, per_position)
    expected = mean_slopes(case, data, means)
    assert float(expected.min()) > 1e-3
    for batch_size in (1, 4, 64):
        scores = attribution_scores(case.model, data, means, batch_size=batch_size)
        assert scores.shape == (2, 5)
        close(scores, expected)


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_slopes_with_other_means_differ_by_their_effect(cases: Cases, architecture: str) -> None:
    """By the gradient of a share of it, added to the outputs of a Hugging Face model."""
    case, data, means = prepared(cases, architecture)
    z, mlp = (torch.randn(part.shape, dtype=torch.float64) for part in (means.z, means.mlp))
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
    both = [margin_slopes(case.model, data, fill, batch_size=4) for fill in (other, means)]
    close(both[0] - both[1], expected)


@pytest.mark.hooked
def test_hand_computed_scores() -> None:
    model = adding_model()
    # Means over the text "A": z = (1 | 0), x = A + (1, 0) = (2, 0), mlp = 3 relu(1, -1) = (3, 0).
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])}, n_samples=0)

    # "A B" at B: z = (.5 | .5), x = B + z = (.5, 1.5), mlp = (0, 1.5); the logits are (.5, 3), so
    # B is chosen. Their slopes: head 0 moves x by (.5 - 1, 0) = (-.5, 0), which the MLP does not
    # see; head 1 by (0, .5), which the MLP adds three times again: (0, 2); the MLP's own value by
    # (0, 1.5) - (3, 0) = (-3, 1.5). The slopes of logit B - logit A are .5, 2 and 4.5.
    scores = attribution_scores(model, two_words([[0, 1]]), means)
    assert scores.tolist() == [[0.5, 2.0, 4.5]]
    # "B A" at A: x = A + (.5, .5) = (1.5, .5), mlp = (1.5, 0); the logits are (3, .5), so A is
    # chosen. Head 0 moves the logits by (-.5 - 1.5, 0), head 1 by (0, .5), the MLP's own value by
    # (1.5, 0) - (3, 0) = (-1.5, 0): -2, -.5 and -1.5. The scores are means of sizes.
    scores = attribution_scores(model, two_words([[0, 1], [1, 0]]), means)
    assert scores.tolist() == [[1.25, 1.25, 3.0]]


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
    subnetwork = by_attribution(model, data, means, 0.5)
    assert subnetwork.mask.shape == ModelShape(1, 2, has_mlps=False)
    assert len(subnetwork.mask.kept) == 1


def test_the_planted_components_come_out_on_top(planted: Subject) -> None:
    subnetwork = by_attribution(planted.model, planted.data, planted.means, 0.7)
    assert names(subnetwork.mask) == PLANTED
    loud = subnetwork.mask.values == 1
    assert float(subnetwork.scores[loud].min()) > 1e-2
    # The others write their mean, whatever they read.
    assert float(subnetwork.scores[~loud].abs().max()) < 1e-6


def test_rankings_that_make_no_sense(cases: Cases, planted: Subject, loud: Subject) -> None:
    with pytest.raises(InputError, match=r"sparsity 0\.96: keeps none of the model's 10 comp"):
        by_attribution(loud.model, loud.data, loud.means, 0.96)
    with pytest.raises(MismatchError, match="computed on another model"):
        attribution_scores(planted.model, loud.data, loud.means)
    language_model, plain = cases.get("gpt2-lm").model, encoded_for("gpt2")
    means = MeanActivations.compute(language_model, plain, n_samples=0)
    before = helpers.hook_counts(language_model)
    with pytest.raises(InputError, match="a language model needs answer words"):
        attribution_scores(language_model, plain, means)
    assert helpers.hook_counts(language_model) == before
