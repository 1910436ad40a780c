from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from papers.extractive.tiny import Decoder, facts, hf_matrices
from torch import Tensor

from mechcore.errors import InputError, MechcoreError
from mechcore.models.protocol import named_weights
from mechcore.papers.extractive.encoded import EncodedFacts
from mechcore.papers.extractive.weights import (
    TuneSettings,
    completion_loss,
    linear_maps,
    restored,
    snapshot,
    trainable_names,
    tune,
    tuned,
)

RATE = 1e-3
Row = tuple[tuple[int, ...], tuple[int, ...]]


def rows(data: EncodedFacts) -> list[Row]:
    return list(zip(data.prompt_ids, data.completion_ids, strict=True))


def plain_loss(model: Any, given: Sequence[Row]) -> Tensor:
    """Mean over the completions' tokens of all rows, each row run alone."""
    losses = []
    for prompt, completion in given:
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
        for i, token in enumerate(completion):
            losses.append(-logits[len(prompt) - 1 + i, token])
    return torch.stack(losses).mean()


def plain_matrices(model: Any) -> list[Tensor]:
    return [
        weight
        for name, weight in model.named_parameters()
        if (".h." in name or ".layers." in name) and weight.ndim == 2
    ]


def test_the_loss_is_of_all_tokens_of_completions(tiny: Decoder, data: EncodedFacts) -> None:
    with torch.no_grad():
        for given in (rows(data), rows(data)[2:3], rows(data)[:2]):
            loss = completion_loss(tiny.model, given)
            expected = plain_loss(tiny.reference, given)
            assert float(loss) == pytest.approx(float(expected), rel=1e-9 if tiny.exact else 1e-5)


def test_a_step_is_that_of_adam_on_the_plain_model(tiny: Decoder, data: EncodedFacts) -> None:
    plain = copy.deepcopy(tiny.reference).requires_grad_(False)
    matrices = [weight.requires_grad_(True) for weight in plain_matrices(plain)]
    adam = torch.optim.Adam(matrices, lr=RATE)
    losses = []
    for _ in range(2):
        loss = plain_loss(plain, rows(data))
        losses.append(float(loss.detach()))
        adam.zero_grad()
        loss.backward()
        adam.step()
    settings = TuneSettings(learning_rate=RATE, epochs=2, batch_size=5)
    with restored(tiny.model):
        history = tune(tiny.model, data, settings)
        after = snapshot(tiny.model)
    assert history["epoch"].tolist() == [1, 2]
    assert history["loss"].tolist() == pytest.approx(losses, rel=1e-8 if tiny.exact else 1e-5)
    assert losses[1] < losses[0]
    expected = {layer: hf_matrices(plain, layer) for layer in (0, 1)}
    for a_map in linear_maps(tiny.model):
        by_head = a_map.by_head(after[a_map.weight])
        matrix = expected[a_map.layer][a_map.part]
        axis = 0 if a_map.part == "O" else 1
        for head, part in zip(by_head, matrix.chunk(a_map.n_heads, dim=axis), strict=True):
            difference = (head - part).abs().max()
            assert difference < (1e-6 if tiny.exact else 2e-5), a_map


def test_nothing_but_the_chosen_matrices_changes(tiny: Decoder, data: EncodedFacts) -> None:
    before = snapshot(tiny.model)
    for layers, chosen in ((None, [0, 1]), ([1], [1]), (iter([0]), [0])):
        with restored(tiny.model):
            tune(tiny.model, data, TuneSettings(RATE, epochs=1, batch_size=2), layers=layers)
            after = snapshot(tiny.model)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {*trainable_names(tiny.model, chosen)}


def watched(monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """The rows of every step that is taken from here on."""
    steps: list[list[Row]] = []

    def loss(model: Any, given: Sequence[Row]) -> Tensor:
        steps.append(list(given))
        return completion_loss(model, given)

    monkeypatch.setattr("mechcore.papers.extractive.weights.completion_loss", loss)
    return steps


def test_an_epoch_has_every_fact_once(
    tiny_bridge: Decoder, data: EncodedFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(monkeypatch)
    tuned(tiny_bridge.model, data, TuneSettings(RATE, epochs=3, batch_size=2))
    assert [len(step) for step in steps] == [2, 2, 1] * 3
    orders = [
        [row for step in steps[start : start + 3] for row in step] for start in range(0, 9, 3)
    ]
    assert all(sorted(order) == sorted(rows(data)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_sets_are_shuffled_together_and_replayed_rows_added_to_every_step(
    tiny_bridge: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, model = watched(monkeypatch), tiny_bridge.model
    one, two = facts((0, 1)), facts((2, 3, 4))
    tuned(model, [one, two], TuneSettings(RATE, epochs=8, batch_size=5))
    assert all(sorted(step) == sorted([*rows(one), *rows(two)]) for step in steps)
    assert any({*step[:2]} != {*rows(one)} for step in steps)
    steps.clear()
    with restored(model):
        tune(model, two, TuneSettings(RATE, epochs=8, batch_size=2, replay=3), replay=one)
    assert [len(step) for step in steps] == [5, 4] * 8
    assert {row for step in steps for row in step[-3:]} == {*rows(one)}
    assert not {*rows(one)} & {row for step in steps for row in step[:-3]}


def test_what_cannot_be_trained(tiny_bridge: Decoder, data: EncodedFacts) -> None:
    model, names = tiny_bridge.model, tiny_bridge.names
    for options, message in (
        ({"learning_rate": 1.0}, "learning_rate is 1.0; expected a number above 0 and below 1"),
        ({"epochs": 0}, "epochs is 0; expected a whole number from 1"),
        ({"replay": -1}, "replay is -1; expected a whole number from 0"),
    ):
        with pytest.raises(InputError, match=message):
            TuneSettings(**options)
    with pytest.raises(InputError, match="layers names no layer; expected at least one"):
        tune(model, data, TuneSettings(RATE, epochs=1), layers=[])
    with restored(model):
        with torch.no_grad():
            named_weights(model)[names[-1]].fill_(torch.nan)
        with pytest.raises(MechcoreError, match="the loss is nan in epoch 1; use a learning rate"):
            tune(model, data, TuneSettings())
