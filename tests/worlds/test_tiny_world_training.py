"""Dropping whole heads and MLPs while the tiny encoder is trained."""

from __future__ import annotations

import copy

import torch

from mechcore.worlds import tiny_world_training

IDS = torch.arange(5, 25).reshape(4, 5)


def test_nothing_is_dropped_in_evaluation_mode() -> None:
    model = tiny_world_training.tiny_encoder_model(0).eval()
    plain = copy.deepcopy(model)
    for layer in plain.bert.encoder.layer:
        layer.attention.output.dense._forward_pre_hooks.clear()
        layer.output.dense._forward_hooks.clear()
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, plain(IDS).logits)
        # A copy in evaluation mode drops nothing, even while the model it was made of trains.
        copied = copy.deepcopy(model)
        model.train()
        assert torch.equal(copied(IDS).logits, plain(IDS).logits)
        assert not torch.equal(model(IDS).logits, plain(IDS).logits)


def test_whole_heads_and_mlps_of_single_examples_are_dropped() -> None:
    model = tiny_world_training.tiny_encoder_model(0)
    seen: dict[str, torch.Tensor] = {}
    layer = model.bert.encoder.layer[2]
    dense = layer.attention.output.dense
    dense.register_forward_pre_hook(lambda module, inputs: seen.update(heads=inputs[0]))
    layer.output.dense.register_forward_hook(lambda module, inputs, out: seen.update(mlp=out))
    ids = torch.arange(5, 105).repeat(8).reshape(200, 4)
    with torch.no_grad():
        model.train()(ids)
    dropped = (seen["heads"].unflatten(-1, (8, -1)) == 0).all(-1)  # [example, pos, head]
    assert torch.equal(dropped.all(1), dropped.any(1))  # at all positions or none
    share = float(dropped.float().mean())
    assert abs(share - tiny_world_training.HEAD_DROPOUT) < 0.04  # 4 standard errors of 1600
    gone = (seen["mlp"] == 0).all(-1)
    assert torch.equal(gone.all(1), gone.any(1))
    assert abs(float(gone.float().mean()) - tiny_world_training.MLP_DROPOUT) < 0.09
