"""A head that copies what another wrote is found, through the input it was planted in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mechcore.ablation import ablate, sets
from mechcore.ablation.paths import path_table
from mechcore.data.examples import ALL
from mechcore.masking.means import MeanActivations

pytest.importorskip("transformer_lens.HookedTransformer")

WIDTH, D_HEAD, N_TOKENS = 24, 4, 4
VALUE, CONSTANT, CLUE, ANSWER, PLACES = 0, 1, 2, 3, 4
"""Directions of the stream: a token's value, 1 everywhere, what the writer writes, what the answer
reads, and from 4 on one for each position."""
WRITER, READER = (0, 1), (2, 3)
SHARP = 12.0
NOISE = 0.02
MINUS, PLUS, ASK = range(3)


def rotation(generator: torch.Generator) -> Tensor:
    """A random basis of the stream, one of its directions that of ones, which norms take out."""
    start = torch.randn(WIDTH, WIDTH, generator=generator)
    start[:, -1] = 1
    basis, _ = torch.linalg.qr(start.flip(1))
    return basis.flip(1).T  # [direction, d_model]; the last is that of ones, and not used


def planted(what: str, norm: str | None) -> Any:
    """Three layers of four heads, in which the reader sees the clue by one of its inputs.

    The token values are +1 and -1. By ``v`` and ``q`` the writer, at the last position, copies the
    value of the first token to the clue. The reader copies the clue to the answer (v), or attends
    to position 1 or 2 by it, whose places it reads as +1 and -1 (q). By ``k`` the writer copies
    every token's own value, and the reader attends to that of positions 1 and 2 that has +1.
    """
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=3,
        n_heads=4,
        d_model=WIDTH,
        d_head=D_HEAD,
        d_mlp=16,
        act_fn="gelu",
        d_vocab=3,
        n_ctx=N_TOKENS,
        normalization_type=norm,
        device="cpu",
        seed=0,
    )
    model = HookedTransformer(cfg)
    generator = torch.Generator().manual_seed(0)
    basis = rotation(generator)
    places = basis[PLACES : PLACES + N_TOKENS]
    last = places[-1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(NOISE * torch.randn(parameter.shape, generator=generator))
        model.embed.W_E[[MINUS, PLUS]] += torch.stack([-basis[VALUE], basis[VALUE]])
        model.pos_embed.W_pos += places + basis[CONSTANT]
        model.unembed.W_U[:, PLUS] += basis[ANSWER]
        model.unembed.W_U[:, MINUS] -= basis[ANSWER]
        model.unembed.b_U[ASK] = -10
        writer, reader = (model.blocks[layer].attn for layer, _ in (WRITER, READER))
        _, head = WRITER
        writer.W_V[head, :, 0] += basis[VALUE]
        writer.W_O[head, 0] += basis[CLUE]
        if what == "k":  # every position attends to itself
            writer.W_Q[head] += SHARP * places.T
            writer.W_K[head] += places.T
        else:
            writer.W_Q[head, :, 0] += SHARP * basis[CONSTANT]
            writer.W_K[head, :, 0] += places[0]
        _, head = READER
        reader.W_O[head, 0] += 2 * basis[ANSWER]
        reader.W_V[head, :, 0] += basis[CLUE] if what == "v" else places[1] - places[2]
        if what == "v":
            reader.W_Q[head, :, 0] += SHARP * basis[CONSTANT]
            reader.W_K[head, :, 0] += last
        elif what == "q":
            reader.W_Q[head, :, 0] += SHARP * basis[CLUE]
            reader.W_K[head, :, 0] += places[1] - places[2]
        else:
            reader.W_Q[head, :, :2] += SHARP * basis[CONSTANT][:, None]
            reader.W_K[head, :, 0] += basis[CLUE]
            reader.W_K[head, :, 1] += 2 * (places[1] + places[2])
    return model


def examples() -> list[dict[str, Tensor]]:
    """All texts whose answer is the value of the first token and of the second, not the third."""
    rows = [(PLUS, PLUS, MINUS, ASK), (MINUS, MINUS, PLUS, ASK)]
    ids = torch.tensor(rows)
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0]}]


@pytest.mark.parametrize("norm", [None, "LNPre"])
@pytest.mark.parametrize("what", ["q", "k", "v"])
def test_a_reader_is_found_by_the_input_that_was_planted(what: str, norm: str | None) -> None:
    model, data = planted(what, norm), examples()
    means = MeanActivations.compute(model, data, n_samples=0)
    cuts = sets.paths("all", "all", model, inputs="qkv", together=False)
    found = ablate(model, cuts, data, means, split="id")
    assert found.full.correct.all()
    table = path_table(found, n_resamples=20)
    changes = table[table["subset"] == ALL].set_index("set")["margin_change"]
    truth = {f"L0.H1>L2.H3.{what}", "L2.H3>answer"}
    assert truth <= set(changes.index)
    sizes = changes.abs()
    assert sizes[[*truth]].min() > sizes.drop([*truth]).max()  # a perfect ranking
    assert changes[list(truth)].max() < -1
