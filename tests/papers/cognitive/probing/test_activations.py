"""Activations at chosen tokens against plain torch hooks on Hugging Face's own modules."""

from collections.abc import Sequence
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from helpers import PAD, Case, Cases, captured, texts
from torch import Tensor

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.models.protocol import hook_mlp_out, hook_z
from mechcore.papers.cognitive.probing import activations_at, hook_resid_post

D, H, L = helpers.D_MODEL, helpers.N_HEADS, helpers.N_LAYERS
HOOKS = [hook_resid_post(0), hook_z(1), hook_mlp_out(0), hook_z(0)]
POSITIONS = torch.tensor([[0, -1], [3, -4], [1, 1], [-1, -2], [8, 2]])  # LENGTHS are 9, 4, 6, 2, 9


@torch.no_grad()
def after_layer(model: Any, layer: int, row: Tensor) -> Tensor:
    """What a plain Hugging Face layer returns for one unpadded text, [pos, d_model]."""
    kept: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0])

    handle = helpers._layers(model)[layer].register_forward_hook(keep)
    try:
        model(input_ids=row[None])
    finally:
        handle.remove()
    return kept[0]


def expected(reference: Any, rows: Sequence[Tensor], positions: Tensor) -> dict[str, Tensor]:
    """The values at `HOOKS`, one unpadded text after the other."""
    values: dict[str, list[Tensor]] = {name: [] for name in HOOKS}
    for row, wanted in zip(rows, positions.tolist(), strict=True):
        z, mlp = captured(reference, row)
        wholes = (after_layer(reference, 0, row), z[1], mlp[0], z[0])  # as HOOKS has them
        for name, whole in zip(HOOKS, wholes, strict=True):
            values[name].append(torch.stack([whole[p] for p in wanted]))
    return {name: torch.stack(parts).float() for name, parts in values.items()}


def encoded(rows: Sequence[Tensor]) -> EncodedExamples:
    frame = pd.DataFrame({"text_a": "", "text_b": "", "label": "x", "subset": "all"}, index=[0])
    examples = Examples("random", pd.concat([frame] * len(rows)))
    return EncodedExamples(examples, [r.tolist() for r in rows], None, None, None, None, PAD)


def check(measured: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(measured) == HOOKS
    for name, values in wanted.items():
        assert measured[name].dtype == torch.float32
        torch.testing.assert_close(measured[name], values, rtol=0, atol=1e-5)


def test_values_are_those_of_plain_torch_hooks_in_the_order_of_the_data(case: Case) -> None:
    rows = texts()
    wanted = expected(case.reference, rows, POSITIONS)
    assert wanted[hook_z(1)].shape == (5, 2, H, case.model.cfg.d_head)
    assert wanted[hook_resid_post(0)].std(0).min() > 1e-2  # texts do differ
    for batch_size in (1, 2, 64):
        check(
            activations_at(case.model, encoded(rows), HOOKS, POSITIONS, batch_size=batch_size),
            wanted,
        )
    last = activations_at(case.model, encoded(rows), HOOKS)
    check(last, expected(case.reference, rows, torch.full((5, 1), -1)))


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gpt2-lm"])
def test_causal_models_know_nothing_of_later_tokens(cases: Cases, architecture: str) -> None:
    model, rows = cases.get(architecture).model, torch.stack(texts((7,) * 6))
    others = rows.clone()
    others[:, 4:] = (rows[:, 4:] - PAD) % (helpers.VOCABULARY - PAD - 1) + PAD + 1
    assert (others[:, 4:] != rows[:, 4:]).all()
    positions = torch.arange(7).expand(6, 7)
    hooks = [hook_resid_post(layer) for layer in range(L)]
    before, after = (activations_at(model, encoded(r), hooks, positions) for r in (rows, others))
    for name in hooks:
        assert torch.equal(before[name][:, :4], after[name][:, :4])
        assert (before[name][:, 4:] != after[name][:, 4:]).any(-1).all()


def test_what_cannot_be_read_is_refused(cases: Cases) -> None:
    model, long, short = cases.get("bert").model, POSITIONS.clone(), POSITIONS.clone()
    long[2, 0], short[3, 1] = 6, -3
    read: list[tuple[list[str], Tensor | None, str]] = [
        (HOOKS, long, r"row 2: position 6 was asked for, but the row has 6 tokens; .* -6 to 5"),
        (HOOKS, short, r"row 3: position -3 was asked for, but the row has 2 tokens"),
        (["blocks.0.hook_resid_pots"], None, r"no hook point blocks\.0\.hook_resid_pots"),
        (["pooler.hook_out"], None, r"pooler.hook_out is \(5, 16\) for a batch of \(5, 9\)"),
    ]
    for hooks, positions, message in read:
        with pytest.raises(InputError, match=message):
            activations_at(model, encoded(texts()), hooks, positions)
