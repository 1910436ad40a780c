"""A few examples as the models of `helpers` read them."""

from __future__ import annotations

from typing import Any

import helpers
import pandas as pd

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.masking.means import MeanActivations

ANSWERS = {"entailment": "yes", "contradiction": "no", "neutral": "never"}
PAIRS = [
    ("the cat saw a dog", "the cat saw", "entailment"),
    ("a bird ran", "the bird ran quickly , and a cat saw the dog", "neutral"),
    ("never", "often", "contradiction"),
    ("the dog who saw a cat ran here", "no", "non-entailment"),
    ("if a bird ran the dog saw a cat", "the cat never ran", "neutral"),
    ("yes", "no , not here", "entailment"),
    ("a dog ran", "a dog ran", "contradiction"),
]


def encoded(name: str = "bert") -> EncodedExamples:
    """Seven examples as a model of `helpers` reads them."""
    first, second, labels = zip(*PAIRS, strict=True)
    subsets = ["u", "v", "u", "v", "v", "v", "u"]
    frame = pd.DataFrame({"text_a": first, "text_b": second, "label": labels, "subset": subsets})
    options: dict[str, Any] = {}
    if name == "gpt2-lm":
        options = {"prompt": "{a} , {b} .", "answers": ANSWERS}
    tokenizer = helpers.word_tokenizer(segments=name == "bert")
    return encode(Examples("few", frame), tokenizer, max_length=48, **options)


def means_of(model: Any, data: EncodedExamples, **options: Any) -> MeanActivations:
    return MeanActivations.compute(model, data, **{"n_samples": 0, **options})
