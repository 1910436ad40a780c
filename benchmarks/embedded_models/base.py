"""Texts to pretrain the tiny decoder of the cognitive task on, and that decoder.

The texts teach general skills of a language model, and nothing about the task itself: to copy, look
up a key, compare numbers, and name the side of the larger or smaller one. They contain no
instructions, nor the words context, motion, color and choice.

===========  ====================================================================
``copy``     b 41 k 17 . b 41 k (17)
``recall``   f 34 . d 71 . b 50 . d 71 . f (34)
``look_up``  f 34 . d 71 . item d is 71 . item f is (34)
``compare``  the larger of 34 and 71 is 71 . the smaller of 12 and 80 is (12)
``side``     left 34 right 71 . the larger is right . left 80 right 12 . the smaller is (right)
===========  ====================================================================

A text ends with the answer in brackets; earlier questions are answered too, and training is on all
words (`WholeTexts`). Copying is learned first, and with it the heads that the other skills need:
without ``copy`` and ``recall``, looking up stayed at chance.

Pairs of numbers that the task holds out (`mechcore.papers.cognitive.trials`) are never compared
in training texts; the other splits compare their own pairs, and no others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from mechcore.data.examples import Examples
from mechcore.papers.cognitive.arms import tiny_base_model
from mechcore.papers.cognitive.text import (
    CHOICES,
    LARGEST,
    PROMPT,
    SMALLEST,
    Split,
    split_of,
    tiny_tokenizer,
)
from mechcore.training import Objective, TrainSettings, answering, train
from mechcore.worlds.draws import pick
from mechcore.worlds.small_gpt2 import one_thread, texts_of

BASE_STEPS = 5000
SEED = 0
TRAINING_TEXTS = 200_000
EVALUATION_TEXTS = 2000
EVALUATION_SEED = 1

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NUMBERS = tuple(map(str, range(SMALLEST, LARGEST + 1)))
_QUESTIONS = 3
ANSWER_WORDS = {word: f" {word}" for word in (*CHOICES, *_LETTERS, *_NUMBERS)}
"""Possible last words of a text."""

Sentences = Iterator[str]


def generate_texts(n: int, seed: int, split: Split = "train") -> Examples:
    """Draw ``n`` texts of alternating kinds; a smaller draw is a prefix of a larger one.

    Splits compare different pairs of numbers.

    Returns:
        The text up to its last word, that word as label, its kind as subset.
    """
    rng = random.Random(f"cognitive pretraining {split} {seed}")
    kinds = list(_KINDS)
    rows = []
    for row in range(n):
        kind = kinds[row % len(kinds)]
        prompt, _, label = " . ".join(_KINDS[kind](rng, split)).rpartition(" ")
        rows.append((prompt, label, kind))
    return texts_of(split, rows)


def _copy(rng: random.Random, split: Split) -> Sentences:
    words = [pick(pick((_LETTERS, _NUMBERS), rng), rng) for _ in range(_between(5, 10, rng))]
    yield from [" ".join(words)] * 2


def _recall(rng: random.Random, split: Split) -> Sentences:
    items = _items(rng)
    yield from (f"{key} {value}" for key, value in items.items())
    for key in (pick(list(items), rng) for _ in range(_QUESTIONS + 2)):
        yield f"{key} {items[key]}"


def _look_up(rng: random.Random, split: Split) -> Sentences:
    items = _items(rng)
    yield from (f"{key} {value}" for key, value in items.items())
    for key in (pick(list(items), rng) for _ in range(_QUESTIONS)):
        yield f"item {key} is {items[key]}"


def _compare(rng: random.Random, split: Split) -> Sentences:
    for _ in range(_QUESTIONS):
        (one, other), (word, index) = _pair(rng, split), pick(_EXTREMES, rng)
        yield f"the {word} of {one} and {other} is {sorted((one, other))[index]}"


def _side(rng: random.Random, split: Split) -> Sentences:
    for _ in range(_QUESTIONS):
        pair, (word, index) = _pair(rng, split), pick(_EXTREMES, rng)
        number = sorted(pair)[index]
        side = CHOICES[pair.index(number)]
        yield f"left {pair[0]} right {pair[1]}"
        if rng.random() < 0.5:
            yield f"the {word} item is {number}"
            yield f"item {number} is {side}"
        else:
            yield f"the {word} is {side}"


_EXTREMES = (("smaller", 0), ("larger", 1))
_KINDS: Mapping[str, Callable[[random.Random, Split], Sentences]] = {
    "copy": _copy,
    "recall": _recall,
    "look_up": _look_up,
    "compare": _compare,
    "side": _side,
}


def _between(low: int, high: int, rng: random.Random) -> int:
    return low + int(rng.random() * (high - low + 1))


def _items(rng: random.Random) -> dict[str, str]:
    """Two to four keys with different values."""
    items: dict[str, str] = {}
    size = _between(2, 4, rng)
    while len(items) < size:
        key, value = pick(_LETTERS, rng), pick(_NUMBERS, rng)
        if key not in items and value not in items.values():
            items[key] = value
    return items


def _pair(rng: random.Random, split: Split) -> tuple[int, int]:
    while True:
        one, other = (int(pick(_NUMBERS, rng)) for _ in range(2))
        if one != other and split_of(one, other) == split:
            return one, other


# -- the decoder ----------------------------------------------------------------------------------


class WholeTexts(Objective):
    """The loss is over all tokens of prompt and answer except the first."""

    def loss(
        self, model: PreTrainedModel, batch: Mapping[str, Tensor], targets: Int[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over tokens, in nats; texts are padded on the right."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        following = ids.roll(-1, dims=1)
        following[torch.arange(len(ids)), mask.sum(dim=1) - 1] = targets
        real = mask != 0
        logits = model(input_ids=ids, attention_mask=mask).logits
        return nn.functional.cross_entropy(logits[real], following[real])


def train_tiny_base(
    out: Path, steps: int = BASE_STEPS, seed: int = SEED, pairs: int = TRAINING_TEXTS
) -> pd.DataFrame:
    """Pretrain the decoder, write its run directory with the final checkpoint, return its history.

    With the defaults this is the run under ``data/tiny_base``. The seed determines the weights, the
    texts and their order.

    Raises:
        InputError: ``out`` contains other files, or an argument is out of range.
    """
    settings = TrainSettings(
        steps=steps,
        learning_rate=1e-3,
        batch_size=128,
        warmup_steps=min(100, steps - 1),
        evaluate_every=250,
        checkpoint_every=250 * steps,
        seed=seed,
    )
    with one_thread():
        model = tiny_base_model(seed)
        return train(
            model,
            WholeTexts(**vars(answering(model, tiny_tokenizer(), PROMPT, ANSWER_WORDS))),
            generate_texts(pairs, seed),
            {"test": generate_texts(EVALUATION_TEXTS, EVALUATION_SEED, "test")},
            out,
            settings,
        )
