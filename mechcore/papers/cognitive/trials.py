"""The cognitive task: context-dependent decision making, written as text.

After Mante et al. (2013, doi 10.1038/nature12742); see docs/concepts/cognitive-task.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.data.tokens import single_tokens
from mechcore.errors import InputError
from mechcore.papers.cognitive.text import (
    ANSWERS,
    CHOICES,
    LANDMARKS,
    MODALITIES,
    NUMBERS,
    PROMPT,
    SIDES,
    Rendering,
    Split,
    evidence,
    number_draw,
    render,
    token_ranges,
    turns,
)
from mechcore.showing import Shown

CONDITIONS = tuple(map("/".join, product(MODALITIES, CHOICES, CHOICES)))
"""Names of the 8 conditions: context, side of motion, side of colour (``motion/right/left``)."""

HELD_OUT_SEED = 0
"""Of the development and test trials of every study."""

_COLUMNS = ("text", "label", "context", "motion", "color", "first", "congruent", "condition")
_CONTEXTS = {"motion": 1, "color": -1}


@dataclass(frozen=True, eq=False, repr=False)
class Trials(Shown):
    """Trials of the cognitive task.

    Attributes:
        frame: one row per trial. ``text``, the prompt; ``label``, the right answer (`CHOICES`);
            ``context``, ``"motion"`` or ``"color"``; ``motion`` and ``color``, the evidence, right
            positive: right number minus left number for ``"two_sided"``, coherence (-1 to 1) for
            ``"signed"``; ``first``, the modality shown first; ``congruent``; ``condition``.
        places: the first character of every landmark in the text and the one after its last, in the
            order of `LANDMARKS`.
    """

    frame: pd.DataFrame
    places: Int[np.ndarray, "trial landmark 2"]
    rendering: Rendering
    split: Split
    seed: int

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Names of the landmarks, in order."""
        return LANDMARKS[self.rendering]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numbers, in order."""
        return NUMBERS[self.rendering]

    @property
    def codes(self) -> pd.DataFrame:
        """The variables of every trial as numbers: 1 for motion or right, -1 for color or left."""
        frame = self.frame
        return pd.DataFrame(
            {
                "context": frame["context"].map(_CONTEXTS),
                "motion": np.sign(frame["motion"]).astype(int),
                "color": np.sign(frame["color"]).astype(int),
                "choice": frame["label"].map(SIDES),
                "motion_evidence": frame["motion"].astype(float),
                "color_evidence": frame["color"].astype(float),
                "congruent": frame["congruent"],
            }
        )

    @property
    def pairs(self) -> pd.DataFrame:
        """The numbers of every trial as its prompt writes them.

        Columns: ``motion`` and ``color`` (34 71: left and right, or one signed coherence), and
        ``choice``, the numbers of the cued modality after its name.
        """
        texts = self.frame["text"]
        pairs = pd.DataFrame(index=self.frame.index)
        for modality in MODALITIES:
            which = [self.landmarks.index(n) for n in self.numbers if n.startswith(modality)]
            spans = self.places[:, which].tolist()
            pairs[modality] = [
                " ".join(text[start:end] for start, end in places)
                for text, places in zip(texts, spans, strict=True)
            ]
        cued = self.frame["context"]
        numbers = pairs["motion"].where(cued == "motion", pairs["color"])
        return pairs.assign(choice=cued + " " + numbers)

    def examples(self, name: str | None = None) -> Examples:
        """The prompts as examples, called as the split by default; their subsets are conditions."""
        frame = self.frame.rename(columns={"text": "text_a", "condition": "subset"})
        return Examples(name or self.split, frame.assign(text_b=""))

    def rows(self, rows: Sequence[int] | Sequence[bool] | pd.Series | np.ndarray) -> Trials:
        """These trials only: indices, in the order wanted, or one bool per trial."""
        index = np.arange(len(self))[np.asarray(rows)]
        frame = self.frame.iloc[index].reset_index(drop=True)
        return replace(self, frame=frame, places=self.places[index])


def generate(
    n: int,
    seed: int,
    *,
    rendering: Rendering = "two_sided",
    split: Split = "train",
    random_order: bool = False,
    differences: Sequence[int] | None = None,
) -> Trials:
    """Draw ``n`` trials; the same for the same arguments on every machine.

    The 8 conditions take turns in a shuffled order, so that in the first trials of any number their
    counts differ by at most 1. A smaller draw is the beginning of a larger one. Splits share no
    pair of numbers, and those of one seed are drawn independently. With ``random_order`` colour is
    shown first in half of the trials of each condition instead of in none. ``differences`` are the
    strengths of evidence to draw from, by default all: differences of the two numbers, 1 to 89, for
    ``"two_sided"``; coherences in percent, 1 to 99, for ``"signed"``.

    Raises:
        InputError: an argument is out of its range, or the split has no numbers of such
            differences.
    """
    if n < 1:
        raise InputError(f"cognitive task: n is {n}; ask for at least 1 trial")
    rng = random.Random(f"cognitive {rendering} {split} {seed}")
    draw = number_draw(rendering, split, differences, rng)
    rows, places = [], []
    for context, motion, color, swapped in islice(turns(rng), n):
        first = MODALITIES[swapped and random_order]
        numbers = draw(SIDES[motion], SIDES[color])
        text, of_landmarks = render(rendering, context, numbers, first)
        label = motion if context == "motion" else color
        graded = evidence(rendering, numbers)
        condition = f"{context}/{motion}/{color}"
        rows.append((text, label, context, *graded, first, motion == color, condition))
        places.append(list(of_landmarks.values()))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return Trials(frame, np.array(places), rendering, split, seed)


@dataclass(frozen=True)
class Task:
    """How trials are worded and drawn, see `generate`."""

    rendering: Rendering = "two_sided"
    random_order: bool = False
    differences: tuple[int, ...] | None = None

    def trials(self, n: int, seed: int, split: Split = "train") -> Trials:
        """Draw ``n`` of its trials."""
        return generate(n, seed, split=split, **vars(self))

    def held_out(self, n: int) -> Trials:
        """The first ``n`` of the test trials that results are on."""
        return self.trials(n, HELD_OUT_SEED, "test")


def encode_trials(
    trials: Trials, tokenizer: PreTrainedTokenizerBase, *, max_length: int, words: bool = False
) -> EncodedExamples:
    """Tokenize the prompts, answers ``" left"`` and ``" right"``; see `mechcore.data.encoding`."""
    _ranges(trials, tokenizer)
    encoded = encode(
        trials.examples(),
        tokenizer,
        max_length=max_length,
        prompt=PROMPT,
        answers=ANSWERS,
        words=words,
    )
    assert encoded.answers is not None
    single_tokens(ANSWERS, encoded.answers)
    return encoded


def token_positions(
    trials: Trials, tokenizer: PreTrainedTokenizerBase
) -> Int[Tensor, "trial landmark"]:
    """Index of the last token of every landmark in `encode_trials`, in the order of `LANDMARKS`."""
    return torch.from_numpy(_ranges(trials, tokenizer)[..., 1] - 1)


def number_tokens(
    trials: Trials, tokenizer: PreTrainedTokenizerBase
) -> Bool[Tensor, "trial number pos"]:
    """Which tokens are a number's, its sign and point included, in the order of `NUMBERS`."""
    ranges = torch.from_numpy(_ranges(trials, tokenizer))
    which = [trials.landmarks.index(name) for name in trials.numbers]
    first, end = ranges[:, which].unsqueeze(-1).unbind(2)
    positions = torch.arange(int(ranges.max()))
    return (first <= positions) & (positions < end)


def _ranges(
    trials: Trials, tokenizer: PreTrainedTokenizerBase
) -> Int[np.ndarray, "trial landmark 2"]:
    return token_ranges(trials.frame["text"].tolist(), trials.places, tokenizer)
