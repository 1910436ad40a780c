"""Fine-tuning a TransformerLens model on facts, in place, in evaluation mode.

As in arXiv 2412.04614: Adam at a constant rate, the loss on the completion's tokens alone, and
only the matrices of attention and MLPs trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechcore.errors import InputError, MechcoreError
from mechcore.papers.extractive.encoded import EncodedFacts, EncodedOrdering
from mechcore.papers.extractive.ranks import full, next_token_logits, prompt_batch
from mechcore.papers.extractive.settings import TuneSettings
from mechcore.papers.extractive.weights import (
    WeightDelta,
    applied,
    delta_from,
    differentiable,
    restored,
    trainable_names,
)
from mechcore.session import plain_session

_IGNORED = -100


@plain_session()
def tune(
    model: Any,
    data: EncodedFacts | Sequence[EncodedFacts],
    settings: TuneSettings,
    *,
    layers: Iterable[int] | None = None,
    replay: EncodedFacts | None = None,
) -> pd.DataFrame:
    """Fine-tune a causal language model of TransformerLens on facts, changing its weights.

    Several sets of facts are shuffled together. The matrices of ``layers`` are trained, by default
    of all. Every step gets ``settings.replay`` rows of ``replay``, other data, drawn at random.

    Returns:
        One row per epoch: epoch, loss (mean over its steps of the mean over target tokens, nats).

    Raises:
        InputError: there is no such layer, or none at all.
        MechcoreError: the loss is no longer finite.
    """
    sets = [data] if isinstance(data, EncodedFacts) else list(data)
    rows = [row for facts in sets for row in _rows(facts)]
    spare = _rows(replay) if replay is not None else []
    generator = torch.Generator().manual_seed(settings.seed)
    history = []
    names = trainable_names(model, layers)
    if not names:
        raise InputError(
            "fine-tuning: layers names no layer; expected at least one, or None for all"
        )
    with differentiable(model, names) as weights:
        adam = torch.optim.Adam(weights, lr=settings.learning_rate)
        for epoch in range(1, settings.epochs + 1):
            losses = []
            order = torch.randperm(len(rows), generator=generator)
            for chosen in order.split(settings.batch_size):
                drawn = torch.randint(max(1, len(spare)), (settings.replay,), generator=generator)
                step = [*(rows[i] for i in chosen.tolist()), *(spare[i] for i in drawn.tolist())]
                loss = completion_loss(model, step)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise MechcoreError(
                        f"fine-tuning: the loss is {losses[-1]} in epoch {epoch}; use a learning "
                        f"rate lower than {settings.learning_rate:g}"
                    )
                adam.zero_grad()
                loss.backward()
                adam.step()
            history.append({"epoch": epoch, "loss": sum(losses) / len(losses)})
    return pd.DataFrame(history)


def tuned(model: Any, data: EncodedFacts, settings: TuneSettings) -> WeightDelta:
    """The change of weights that `tune` makes; the model itself stays as it is."""
    with restored(model, trainable_names(model)) as before:
        tune(model, data, settings)
        return delta_from(model, before)


def facts_then_implications(
    model: Any, task: EncodedOrdering, settings: TuneSettings
) -> tuple[WeightDelta, WeightDelta]:
    """What training the facts, then the implications changes; the model itself stays as it is."""
    facts = tuned(model, task.facts, settings)
    with applied(model, facts):
        return facts, tuned(model, task.implications, settings)


Row = tuple[tuple[int, ...], tuple[int, ...]]


def completion_loss(model: Any, rows: Sequence[Row]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the completions' tokens, nats."""
    batch = prompt_batch([[*prompt, *completion] for prompt, completion in rows])
    targets = torch.full_like(batch["input_ids"], _IGNORED)
    for row, (prompt, completion) in enumerate(rows):
        places = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        targets[row, places] = torch.tensor(completion)
    logits = next_token_logits(model, batch).flatten(0, 1)
    targets = targets.flatten().to(logits.device)
    return F.cross_entropy(full(logits), targets, ignore_index=_IGNORED)


def _rows(data: EncodedFacts) -> list[Row]:
    return list(zip(data.prompt_ids, data.completion_ids, strict=True))
