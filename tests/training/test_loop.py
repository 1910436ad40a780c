"""The Trainer against a plain loop in torch, and what it must leave as it was."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from training.builders import SETTINGS, encoder, pairs, train_classifier, train_encoder

from mechcore.errors import InputError
from mechcore.training import TrainSettings
from mechcore.training.loop import BatchOrder
from mechcore.worlds import tiny_world

PLAIN = replace(SETTINGS, steps=12, warmup_steps=3, evaluate_every=50, checkpoint_every=50)


def plain_loop(settings: TrainSettings, model: Any, rows_per_step: int) -> dict[str, Tensor]:
    """The oracle: shuffled passes without their incomplete last batch, AdamW, a linear rate."""
    data, tokenizer = pairs().frame, tiny_world.encoder_tokenizer()
    labels = torch.tensor([model.config.label2id[name] for name in data["label"]])
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    queue: list[list[int]] = []
    model.train()
    for step in range(settings.steps):
        rise, fall = step / settings.warmup_steps, settings.steps - step
        rate = min(rise, fall / (settings.steps - settings.warmup_steps))
        optimizer.param_groups[0]["lr"] = settings.learning_rate * rate
        while len(queue) * settings.batch_size < rows_per_step:
            order = torch.randperm(len(data), generator=generator)
            batches = order[: len(data) // settings.batch_size * settings.batch_size]
            queue += batches.view(-1, settings.batch_size).tolist()
        n = rows_per_step // settings.batch_size
        rows, queue = [row for batch in queue[:n] for row in batch], queue[n:]
        chosen = data.iloc[rows]
        batch = tokenizer(
            list(chosen["text_a"]), list(chosen["text_b"]), padding=True, return_tensors="pt"
        )
        torch.nn.functional.cross_entropy(model(**batch).logits, labels[rows]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


def weights(path: Path) -> dict[str, Tensor]:
    return load_file(path / "final" / "model.safetensors")


def test_the_weights_are_those_of_a_plain_loop_to_the_last_bit(tmp_path: Path) -> None:
    train_encoder(tmp_path / "run", PLAIN)
    expected = plain_loop(PLAIN, encoder(), PLAIN.batch_size)
    trained = weights(tmp_path / "run")
    assert trained.keys() == expected.keys()
    assert all(torch.equal(trained[name], expected[name]) for name in trained)


def test_accumulated_batches_are_averaged(tmp_path: Path) -> None:
    # Ten batches of four each make two steps of twenty examples, beyond the end of the first pass.
    settings = replace(PLAIN, batch_size=4, accumulate=5)
    train_encoder(tmp_path / "run", settings)
    expected = plain_loop(settings, encoder(), 20)
    trained = weights(tmp_path / "run")
    # Adam's first steps turn the rounding of tiny gradients into whole steps. Biases of keys move
    # by nothing else: all scores of a query change by the same amount.
    for name, tensor in expected.items():
        if name.endswith("key.bias"):
            continue
        assert torch.allclose(trained[name], tensor, atol=2e-4), name


def test_the_order_is_a_sequence_of_permutations() -> None:
    rows = list(BatchOrder([1] * 10, 4, n_batches=5, seed=3, by_length=False))
    generator = torch.Generator().manual_seed(3)
    passes = [torch.randperm(10, generator=generator)[:8] for _ in range(3)]
    assert rows == torch.cat(passes)[:20].tolist()


def test_batches_by_length_hold_similar_lengths_in_random_order() -> None:
    lengths = torch.randint(5, 50, (3200,), generator=torch.Generator().manual_seed(0)).tolist()
    order = BatchOrder(lengths, 32, n_batches=150, seed=0, by_length=True)
    rows = list(order)
    assert rows == list(order)  # the same whenever it is asked
    assert rows != list(BatchOrder(lengths, 32, n_batches=150, seed=1, by_length=True))
    batches = [rows[i : i + 32] for i in range(0, len(rows), 32)]
    assert len(batches) == 150
    assert set(Counter(rows[:3200]).values()) == {1}  # every row once in a pass
    spread = [max(lengths[r] for r in batch) - min(lengths[r] for r in batch) for batch in batches]
    assert max(spread) <= 4  # of 45: a fiftieth of a mega-batch of 1600
    means = [sum(lengths[r] for r in batch) / 32 for batch in batches[:100]]
    rising = sum(a < b for a, b in pairwise(means))
    assert 30 < rising < 70


def test_half_precision_trains_float32_weights_and_is_evaluated_in_float32(tmp_path: Path) -> None:
    settings = replace(PLAIN, steps=4, precision="bfloat16")
    model = encoder()
    history = train_encoder(tmp_path / "run", settings, model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    full = train_encoder(tmp_path / "full", replace(settings, precision="float32"))
    assert history["loss"][0] != full["loss"][0]
    assert history["loss"][0] == pytest.approx(full["loss"][0], rel=0.02)
    # The model computes in float32 again: its logits are finer than bfloat16's.
    with torch.no_grad():
        logits = model.eval()(torch.arange(5, 25)[None]).logits
    assert not torch.equal(logits, logits.bfloat16().float())


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    def refused(message: str, settings: TrainSettings = PLAIN, **options: Any) -> None:
        model, tokenizer = options.pop("model", None) or encoder(), tiny_world.encoder_tokenizer()
        with pytest.raises(InputError, match=message):
            train_classifier(model, tokenizer, pairs(), {}, tmp_path / "run", settings, **options)

    half = replace(PLAIN, precision="float16")
    refused("precision is 'float16', which needs a CUDA GPU", half)
    refused(r"weights of torch\.bfloat16", model=encoder().to(torch.bfloat16))
    refused("device meta: training runs on", device="meta")
    assert not (tmp_path / "run").exists()


def test_random_numbers_and_the_model_are_left_as_they_were(tmp_path: Path) -> None:
    model = encoder()
    attributes, config = set(vars(model)), model.config.to_dict()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    expected = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    train_encoder(tmp_path / "run", replace(PLAIN, steps=4, precision="bfloat16"), model)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002
    assert set(vars(model)) == attributes
    saved = {"architectures": ["BertForSequenceClassification"], "dtype": "float32"}
    assert model.config.to_dict() == {**config, **saved}  # as save_pretrained sets them
