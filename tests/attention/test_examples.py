"""Attention of chosen heads on single examples, and which heads and examples are chosen."""

import copy
from dataclasses import replace
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from attention.builders import byte_level
from transformers import AutoModelForSequenceClassification

from mechcore.attention import attention_examples, clearest_heads, telling_example
from mechcore.attention.examples import readable_tokens
from mechcore.data.encoding import EncodedExamples
from mechcore.data.tokens import SPECIAL
from mechcore.errors import InputError, NotFiniteError
from mechcore.models import load_model
from mechcore.models.protocol import weights_of
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_decoder_dir, tiny_encoder_dir

PAIRS = [
    ("the baker slept because the cook sang", "the pilot slept"),
    ("the baker slept", "the baker slept"),
    ("the cook sang", "a pilot slept"),
]


def encoded(pairs: list[tuple[str, str]], words: bool = True) -> EncodedExamples:
    return helpers.encoded_of(pairs, tokenizer=tiny_world.encoder_tokenizer(), words=words)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(tiny_encoder_dir())


def test_patterns_are_those_of_hugging_face(model: Any) -> None:
    data, tokenizer = encoded(PAIRS), tiny_world.encoder_tokenizer()
    table = pd.DataFrame({"component": ["L1.H2", "L3.H0"], "category": ["next", "mixed"]})
    shown = attention_examples(model, data, tokenizer, ["L3.H0", "1.2"], row=1, categories=table)
    assert [(view.component, view.category) for view in shown] == [
        ("L3.H0", "mixed"),
        ("L1.H2", "next"),
    ]
    plain: Any = AutoModelForSequenceClassification.from_pretrained(
        tiny_encoder_dir(), attn_implementation="eager", dtype=torch.float32
    )
    inputs = tokenizer("the baker slept", "the baker slept", return_tensors="pt")
    with torch.no_grad():
        attentions = plain.eval()(**inputs, output_attentions=True).attentions
    slept = ["the", "baker", "slept"]
    for example, (layer, head) in zip(shown, [(3, 0), (1, 2)], strict=True):
        assert example.tokens == ["[CLS]", *slept, "[SEP]", *slept, "[SEP]"]
        assert example.segments == [-1, 0, 0, 0, -1, 1, 1, 1, -1]
        assert not example.causal
        expected = attentions[layer][0, head].numpy()
        np.testing.assert_allclose(example.pattern, expected, atol=1e-4)


def test_heads_of_decoders_are_causal() -> None:
    decoder = load_model(tiny_decoder_dir())
    tokenizer = tiny_world.decoder_tokenizer()
    ask = {"prompt": tiny_world.DECODER_PROMPT, "answers": tiny_world.DECODER_ANSWERS}
    data = helpers.encoded_of(PAIRS, tokenizer=tokenizer, words=True, **ask)
    (example,) = attention_examples(decoder, data, tokenizer, ["L0.H1"])
    assert example.causal
    assert example.category == ""
    pattern = np.array(example.pattern)
    assert (np.triu(pattern, 1) == 0).all()
    np.testing.assert_allclose(pattern.sum(1), 1, atol=1e-2)


def test_errors(model: Any) -> None:
    tokenizer = tiny_world.encoder_tokenizer()
    data = encoded(PAIRS)
    with pytest.raises(InputError, match=r"row 3; expected 0 to 2"):
        attention_examples(model, data, tokenizer, ["L0.H0"], row=3)
    shape = helpers.embedded_shape()
    size = f"{shape.n_layers} layers of {shape.n_heads}"
    with pytest.raises(InputError, match=rf"L9\.H0 is no head of the model, which has {size}"):
        attention_examples(model, data, tokenizer, ["L0.H0", "L9.H0"])
    with pytest.raises(InputError, match=r"L1\.MLP is no head"):
        attention_examples(model, data, tokenizer, ["L1.MLP"])
    with pytest.raises(InputError, match=r"without segments.*words=True"):
        attention_examples(model, encoded(PAIRS, words=False), tokenizer, ["L0.H0"])


def test_attention_that_is_not_finite_is_no_picture(model: Any) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        weights_of(broken).bert.encoder.layer[1].attention.self.query.bias[0] = float("nan")
    with pytest.raises(NotFiniteError, match=r"^attention of layer 1: not finite \(float32\); "):
        attention_examples(broken, encoded(PAIRS), tiny_world.encoder_tokenizer(), ["L1.H0"])


def test_tokens_of_byte_level_tokenizers_are_readable() -> None:
    tokenizer = byte_level()
    ids = tokenizer("a cat\n saw\tcaf\u00e9 <s>", add_special_tokens=False)["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    readable = dict(zip(pieces, readable_tokens(tokenizer, ids), strict=True))
    assert readable["\u010a"] == "\u23ce"
    assert readable["\u0109"] == "\u21e5"
    assert readable["<s>"] == "<s>"
    assert all(text == text.strip() and text for text in readable.values())
    assert not any("\u0120" in text for text in readable.values())


def heads() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "component": ["L0.H0", "L0.H1", "L0.H2", "L1.H0", "L1.H1", "L1.H2"],
            "category": ["next", "mixed", "next", "next", "mixed", "self"],
            "entropy": [0.1, 0.5, 0.1, 0.1, 0.9, 0.1],
            "mass_self": [0.1, 0.1, 0.2, 0.1, 0.1, 0.9],
            "mass_next": [0.4, 0.1, 0.8, 0.6, 0.1, 0.1],
            "mass_other": [0.5, 0.8, 0.0, 0.3, 0.8, 0.0],
        }
    )


def test_the_clearest_heads_have_the_largest_mass_and_mixed_ones_the_largest_entropy() -> None:
    assert clearest_heads(heads(), 2) == {
        "self": ["L1.H2"],
        "next": ["L0.H2", "L1.H0"],
        "mixed": ["L1.H1", "L0.H1"],
    }
    assert list(clearest_heads(heads(), 2)) == ["self", "next", "mixed"]


def test_the_telling_example_repeats_most_words_among_the_short_ones() -> None:
    assert telling_example(encoded(PAIRS)) == 1
    long = ("the baker slept and the cook sang and the pilot slept", "the baker and the cook slept")
    assert telling_example(encoded([*PAIRS, long])) == 1
    assert telling_example(encoded([long])) == 0  # all are longer: the shortest are taken


def test_the_pieces_of_one_word_repeat_nothing() -> None:
    data = encoded([("the baker slept", ""), ("the cook slept", "")])
    rest = [SPECIAL] * (len(data.input_ids[0]) - 3)
    words, segments = [[SPECIAL, 5, 5, *rest]] * 2, [[SPECIAL, 0, 0, *rest]] * 2
    spans = [[SPECIAL, 0, 0, *rest], [SPECIAL, 0, 1, *rest]]
    assert telling_example(replace(data, words=words, segments=segments, spans=spans)) == 1
    assert telling_example(replace(data, words=words, segments=segments, spans=None)) == 0
