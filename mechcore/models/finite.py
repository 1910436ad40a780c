"""Logits that are not finite are refused: no accuracy, mean or score is computed from them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.errors import NotFiniteError


def check_finite(
    logits: Float[Tensor, "*masks example cls"],
    examples: Iterable[int] | Tensor,
    dtype: torch.dtype | None = None,
    *,
    never: bool = False,
) -> None:
    """Raise `NotFiniteError` unless logits are finite: even NaN has an argmax.

    ``examples`` are the numbers of the examples, ``dtype`` the precision of computation, if not
    that of the logits; ``never`` allows minus infinity for classes that have it in every example.
    """
    if bool(logits.isfinite().all()):
        return
    bad = ~logits.isfinite()
    if never:
        unsaid = (logits == -torch.inf).all(-2, keepdim=True)
        bad &= ~unsaid | unsaid.all(-1, keepdim=True)
    rows = bad.any(-1)
    if not bool(rows.any()):
        return
    values = " and ".join(
        name
        for name, where in (("NaN", logits.isnan()), ("infinity", logits.isinf()))
        if bool((bad & where).any())
    )
    masks = rows.reshape(-1, rows.shape[-1])
    numbers = [int(number) for number in examples]
    wrong = sorted(numbers[row] for row in masks.any(0).nonzero().flatten().tolist())
    shown = ", ".join(map(str, wrong[:5])) + ", ..." * (len(wrong) > 5)
    under = f" under {int(masks.any(1).sum())} of {len(masks)} masks" if rows.ndim > 1 else ""
    kind = str(dtype or logits.dtype).removeprefix("torch.")
    raise NotFiniteError(
        f"logits: not finite ({values}, {kind}) for {len(wrong)} of {len(numbers)} examples run "
        f"together, number{'s' * (len(wrong) > 1)} {shown}{under}; {not_finite_advice(kind)}"
    )


def not_finite_advice(dtype: str) -> str:
    """Why a model of this precision computes NaN or infinity, and what to do."""
    if dtype == "float16":
        return (
            "it overflows in float16, or its weights are damaged: load it in float32 or bfloat16, "
            "and if that does not help, use another checkpoint"
        )
    return (
        "the model's weights are damaged, or too large: use another checkpoint, such as one from "
        "before its training diverged"
    )
