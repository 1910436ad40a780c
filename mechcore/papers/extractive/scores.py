"""Extractive scores of arXiv 2412.04614, section 4; see docs/concepts/extractive-structures.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechcore import progress
from mechcore.errors import InputError, MechcoreError
from mechcore.papers.extractive.encoded import EncodedFacts, prompt_batch
from mechcore.papers.extractive.passes import (
    Question,
    Sites,
    Trace,
    covered_names,
    hooks_needed,
    informative,
    look,
    look_back,
    rewards_of,
)
from mechcore.papers.extractive.results import KINDS, ExtractiveScores, Scores, align, places
from mechcore.papers.extractive.weights import WeightDelta, applied, check_fits, differentiable
from mechcore.session import plain_session

BATCH_SIZE = 8

_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-4}
_COARSE = 0.05
"""Shares of the scores' absolute sum that rounding may make; Llama's norms are always float32."""


@plain_session()
def extractive_scores(
    model: Any,
    data: EncodedFacts,
    delta: WeightDelta,
    *,
    counterfactuals: int | Sequence[Sequence[int]] = 10,
    seed: int = 0,
    compat: Literal["paper"] | None = None,
    check: bool = True,
    batch_size: int = BATCH_SIZE,
) -> ExtractiveScores:
    """Informative, upstream and downstream scores of all components.

    Args:
        model: a causal language model of TransformerLens, with the weights W0; it stays as it is.
        data: the prompts with their right answers, of one wording; usually implications.
        delta: W1 - W0, what fine-tuning changed.
        counterfactuals: how many prompts of ``data`` with another answer to draw for each, or all
            if there are fewer; or which, as rows of ``data``. With 0 upstream scores are missing.
        seed: seed of that draw.
        compat: ``"paper"`` for the informative scores of MLPs as the published code has them:
            those of W_out twice, and of no other matrix. They do not sum to the gradient then.
        check: whether to compute ``gradient``, and make sure that informative scores sum to it.
        batch_size: prompts per forward.

    Raises:
        InputError: the model's layers are of another kind, the delta is another model's, or a
            prompt has no counterfactual.
        MechcoreError: the scores do not sum to the gradient, so that they would be wrong.
    """
    if compat not in (None, "paper"):
        raise InputError(f'extractive scores: compat is {compat!r}; expected "paper" or None')
    check_fits(model, delta)
    sites = Sites.of(model)
    chosen = _counterfactuals(data, counterfactuals, seed)
    rest = delta.only(set(delta) - covered_names(sites))
    starts = range(0, len(data), batch_size)
    parts = []
    with progress.bar("extractive scores", len(starts)) as advance:
        for start in starts:
            rows = list(range(start, min(start + batch_size, len(data))))
            parts.append(_batch(model, sites, data, rows, chosen, delta, compat))
            advance()
    scores, before, after = zip(*parts, strict=True)
    joined = {kind: _joined([part[kind] for part in scores]) for kind in KINDS}
    missing = torch.full((len(data),), torch.nan, dtype=torch.float64)
    result = ExtractiveScores(
        sites.shape,
        **joined,
        other=weight_effects(model, data, rest),
        rewards_before=torch.cat(before),
        rewards_after=torch.cat(after),
        gradient=weight_effects(model, data, delta) if check else missing,
        places=places(data.prompt_ids, data.tokens),
    )
    if check and compat is None:
        _check_sums(result, sites.dtype)
    return result


def _check_sums(scores: ExtractiveScores, dtype: torch.dtype) -> None:
    total = scores.informative.total + scores.other
    size = scores.informative.size + scores.other.abs() + scores.gradient.abs()
    off = (total - scores.gradient).abs()
    if not bool((off <= _ROUNDING.get(dtype, _COARSE) * size + 1e-9).all()):  # nor if it is NaN
        worst = int(off.argmax())
        raise MechcoreError(
            f"extractive scores: those of prompt {worst} sum to {float(total[worst]):.6g} logits, "
            f"the derivatives of the weights to {float(scores.gradient[worst]):.6g}; expected the "
            "same: the model has a part that extractive scores do not know"
        )


def weight_effects(model: Any, data: EncodedFacts, delta: WeightDelta) -> Float[Tensor, " point"]:
    """<grad R, delta> of every prompt, from derivatives with respect to the weights, in float64."""
    check_fits(model, delta)
    if not delta:
        return torch.zeros(len(data), dtype=torch.float64)
    effects = []
    with differentiable(model, delta) as weights:
        for row in range(len(data)):
            reward = rewards_of(model, _question(data, [row])).sum()
            gradients = torch.autograd.grad(
                reward, weights, materialize_grads=True, allow_unused=True
            )
            products = [
                (gradient.double() * change.to(gradient).double()).sum().cpu()
                for gradient, change in zip(gradients, delta.values(), strict=True)
            ]
            effects.append(torch.stack(products).sum())
    return torch.stack(effects)


def _batch(
    model: Any,
    sites: Sites,
    data: EncodedFacts,
    rows: Sequence[int],
    counterfactuals: Sequence[Sequence[int]],
    delta: WeightDelta,
    compat: str | None,
) -> tuple[dict[str, Scores], Tensor, Tensor]:
    question = _question(data, rows)
    old = look_back(model, question, sites, *hooks_needed(sites), by_head=True)
    stored = informative(model, sites, old, delta, paper=compat == "paper")
    with applied(model, delta):
        new = look_back(model, question, sites, sites.outputs, sites.inputs)
    moved = look(model, question, sites.outputs, {name: new.values[name] for name in sites.inputs})
    others = _mean_outputs(model, sites, data, rows, counterfactuals, old)

    def downstream(name: str) -> Tensor:
        return (moved.values[name] - old.values[name]) * old.gradients[name]

    def upstream(name: str) -> Tensor:
        turned = new.gradients[name] - old.gradients[name]
        return turned * (old.values[name] - others[name])

    scores = {
        "informative": stored,
        "downstream": _summed(sites, downstream),
        "upstream": _summed(sites, upstream),
    }
    return scores, old.rewards.cpu(), new.rewards.cpu()


def _summed(sites: Sites, products: Callable[[str], Tensor]) -> Scores:
    summed = [products(name).sum(-1).cpu() for name in sites.outputs]
    n_layers = sites.shape.n_layers
    heads = torch.stack(summed[:n_layers], dim=1).transpose(2, 3)
    if not sites.shape.has_mlps:
        return Scores(heads, heads.new_zeros(heads[:, :, 0].shape))
    return Scores(heads, torch.stack(summed[n_layers:], dim=1))


def _mean_outputs(
    model: Any,
    sites: Sites,
    data: EncodedFacts,
    rows: Sequence[int],
    counterfactuals: Sequence[Sequence[int]],
    old: Trace,
) -> dict[str, Tensor]:
    """Mean outputs for the counterfactual prompts, each run once, at each row's tokens."""
    total = {name: torch.zeros_like(old.values[name]) for name in sites.outputs}
    wanted = sorted({other for row in rows for other in counterfactuals[row]})
    for start in range(0, len(wanted), len(rows)):
        running = wanted[start : start + len(rows)]
        seen = look(model, _question(data, running), sites.outputs).values
        for i, row in enumerate(rows):
            for other in counterfactuals[row]:
                if other not in running:
                    continue
                at = align(data.prompt_ids[row], data.prompt_ids[other])
                for name, sums in total.items():
                    sums[i, : len(at)] += seen[name][running.index(other), at]
    for i, row in enumerate(rows):
        for sums in total.values():
            sums[i] /= len(counterfactuals[row]) or torch.nan  # missing without any
    return total


def _counterfactuals(
    data: EncodedFacts, wanted: int | Sequence[Sequence[int]], seed: int
) -> list[list[int]]:
    if not isinstance(wanted, int):
        return [list(rows) for rows in wanted]
    if wanted == 0:
        return [[] for _ in range(len(data))]
    rng = np.random.default_rng(seed)
    drawn = []
    for row, (prompt, answer) in enumerate(zip(data.prompt_ids, data.answers, strict=True)):
        others = [
            other
            for other in range(len(data))
            if data.answers[other] != answer and data.prompt_ids[other] != prompt
        ]
        if not others:
            raise InputError(
                f"extractive scores: {data.facts.prompts[row]!r} has no counterfactual; expected "
                "another prompt with another answer among the data: give more"
            )
        drawn.append(rng.choice(others, size=min(wanted, len(others)), replace=False).tolist())
    return drawn


def _question(data: EncodedFacts, rows: Sequence[int]) -> Question:
    batch = prompt_batch([data.prompt_ids[row] for row in rows])
    return Question(batch, data.option_ids, data.answers[list(rows)], rows)


def _joined(parts: Sequence[Scores]) -> Scores:
    """Batches one after another, padded with zeros to the longest prompt."""
    longest = max(part.mlps.shape[-1] for part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(tensor, (0, longest - tensor.shape[-1])) for tensor in tensors])

    return Scores(join([part.heads for part in parts]), join([part.mlps for part in parts]))
