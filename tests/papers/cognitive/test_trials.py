"""The cognitive task: texts, balance, what shortcuts score, the hold-out, places of tokens."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.byte_level import byte_level
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import WhitespaceSplit

from mechcore.errors import InputError
from mechcore.papers.cognitive.text import LANDMARKS, WORDS, render, split_of, tiny_tokenizer
from mechcore.papers.cognitive.trials import (
    CONDITIONS,
    Trials,
    encode_trials,
    generate,
    number_tokens,
    token_positions,
)

RENDERINGS = ("two_sided", "signed")
SPLITS: Any = ("train", "dev", "test")
PATTERNS = {
    "two_sided": re.compile(
        r"context (?P<context>motion|color) \. (?P<first>motion|color) left (\d\d) right (\d\d) \. "
        r"(?P<second>motion|color) left (\d\d) right (\d\d) \. choice is"
    ),
    "signed": re.compile(
        r"Context: (?P<context>motion|color)\. (?P<first>Motion|Color) coherence: (-?0\.\d\d)\. "
        r"(?P<second>Motion|Color) coherence: (-?0\.\d\d)\. Choice:"
    ),
}


def read(rendering: str, text: str) -> dict[str, Any]:
    """What a prompt says, from its text alone: context, first, and the numbers of each modality."""
    match = PATTERNS[rendering].fullmatch(text)
    assert match is not None, text
    numbers = [group for group in match.groups() if group[-1].isdigit()]
    half = len(numbers) // 2
    first, second = match["first"].lower(), match["second"].lower()
    assert {first, second} == {"motion", "color"}
    return {
        "context": match["context"],
        "first": first,
        first: tuple(map(float, numbers[:half])),
        second: tuple(map(float, numbers[half:])),
    }


def pairs(trials: Trials) -> set[frozenset[float]]:
    """The pairs that are held out: a modality's numbers, or the sizes of a prompt's coherences."""
    prompts = [read(trials.rendering, text) for text in trials.frame["text"]]
    if trials.rendering == "signed":
        return {frozenset(map(abs, prompt["motion"] + prompt["color"])) for prompt in prompts}
    return {frozenset(prompt[modality]) for prompt in prompts for modality in ("motion", "color")}


def spanned(trials: Trials) -> list[dict[str, str]]:
    """The words at the landmarks of each trial."""
    texts = trials.frame["text"]
    rows: list[dict[str, str]] = [{} for _ in texts]
    for row, text, places in zip(rows, texts, trials.places, strict=True):
        row |= {name: text[a:b] for name, (a, b) in zip(trials.landmarks, places, strict=True)}
    return rows


SIDES = {"context": (8, 13), "motion_left": (53, 55), "motion_right": (62, 64)}
SIDES |= {"color_left": (27, 29), "color_right": (36, 38), "answer": (74, 76)}
SIGNED = {"context": (9, 14), "motion": (34, 39), "color": (58, 62), "answer": (64, 71)}


@pytest.mark.parametrize(
    ("trial", "text", "spans"),
    [
        (
            ("two_sided", "color", (34, 71, 50, 12), "color"),
            "context color . color left 50 right 12 . motion left 34 right 71 . choice is",
            SIDES,
        ),
        (
            ("signed", "color", (-35, 12), "motion"),
            "Context: color. Motion coherence: -0.35. Color coherence: 0.12. Choice:",
            SIGNED,
        ),
    ],
)
def test_prompts_and_spans_written_out(trial: Any, text: str, spans: Any) -> None:
    assert render(*trial) == (text, spans)
    assert tuple(spans) == LANDMARKS[trial[0]]
    assert text[spans["answer"][0] :] == text.split()[-1]


@pytest.mark.parametrize("rendering", RENDERINGS)
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("random_order", [False, True])
def test_every_column_is_what_the_text_says(rendering: Any, split: Any, random_order: bool) -> None:
    trials = generate(96, 3, rendering=rendering, split=split, random_order=random_order)
    assert (trials.rendering, trials.split, trials.seed) == (rendering, split, 3)
    assert len(trials) == 96
    for row, words in zip(trials.frame.to_dict("records"), spanned(trials), strict=True):
        parsed = read(rendering, row["text"])
        assert tuple(words) == trials.landmarks == LANDMARKS[rendering]
        assert words["context"] == parsed["context"]
        assert words["answer"] == row["text"].split()[-1]
        numbers = [float(words[name]) for name in trials.numbers]
        assert numbers == [*parsed["motion"], *parsed["color"]]
        evidence = {}
        for modality in ("motion", "color"):
            numbers = parsed[modality]
            evidence[modality] = numbers[0] if rendering == "signed" else numbers[1] - numbers[0]
            assert row[modality] == evidence[modality] != 0
        side = {name: "right" if value > 0 else "left" for name, value in evidence.items()}
        assert row["context"] == parsed["context"]
        assert row["first"] == parsed["first"]
        assert row["label"] == side[parsed["context"]]
        assert row["congruent"] == (side["motion"] == side["color"])
        assert row["condition"] == f"{parsed['context']}/{side['motion']}/{side['color']}"
    assert set(trials.frame["first"]) == ({"motion", "color"} if random_order else {"motion"})


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(0, 5))
def test_conditions_are_balanced_whatever_the_number(n: int, seed: int) -> None:
    trials = generate(n, seed, random_order=True)
    counts = trials.frame["condition"].value_counts().reindex(CONDITIONS, fill_value=0)
    assert len(CONDITIONS) == 8
    assert counts.sum() == n
    assert counts.max() - counts.min() <= 1
    order = pd.crosstab(trials.frame["condition"], trials.frame["first"])
    order = order.reindex(columns=["motion", "color"], fill_value=0)
    assert (order["motion"] - order["color"]).abs().max() <= 1
    if n % 4 == 0:
        for column in ("context", "label", "congruent"):
            assert (trials.frame[column].value_counts() == n // 2).all()
        assert (trials.frame["motion"] > 0).sum() == (trials.frame["color"] > 0).sum() == n // 2
    if n % 8 == 0:
        assert (order.sum() == n // 2).all()


# -- the draw -------------------------------------------------------------------------------------


KNOWN = {
    "two_sided": ("a79d13dcae70daa7", "fae35798cc3321db", "5ab7b5785057ea7b"),
    "signed": ("429eb3208a5bfd12", "ffdd4986166eb766", "c15ef2a98d33d133"),
}
"""Results are known by this data: a new fingerprint means that they are void."""


@pytest.mark.parametrize("rendering", RENDERINGS)
def test_the_data_of_a_seed_never_changes(rendering: Any) -> None:
    for split, fingerprint in zip(SPLITS, KNOWN[rendering], strict=True):
        trials = generate(1000, 0, rendering=rendering, split=split, random_order=True)
        assert trials.examples().fingerprint[:16] == fingerprint


@pytest.mark.parametrize("rendering", RENDERINGS)
def test_seeds_splits_and_orders(rendering: Any) -> None:
    first, again, other = (generate(50, seed, rendering=rendering) for seed in (7, 7, 8))
    pd.testing.assert_frame_equal(first.frame, again.frame)
    np.testing.assert_array_equal(first.places, again.places)
    larger = generate(123, 7, rendering=rendering)
    mixed = generate(50, 7, rendering=rendering, random_order=True)
    known = first.examples().fingerprint
    assert again.examples().fingerprint == larger.rows(range(50)).examples().fingerprint == known
    assert known not in (other.examples().fingerprint, mixed.examples().fingerprint)
    same = ["label", "context", "motion", "color", "congruent", "condition"]
    pd.testing.assert_frame_equal(mixed.frame[same], first.frame[same])


@settings(max_examples=25)
@given(st.sampled_from(RENDERINGS), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_no_pair_of_a_prompt_is_in_a_prompt_of_another_split(
    rendering: Any, seed: int, other_seed: int, random_order: bool
) -> None:
    train, *held_out = (
        pairs(generate(n, seed, rendering=rendering, split=split, random_order=random_order))
        for n, seed, split in zip((300, 100, 100), (seed, other_seed, seed), SPLITS, strict=True)
    )
    assert not train & held_out[0]
    assert not train & held_out[1]
    assert not held_out[0] & held_out[1]


def test_two_tenths_of_all_pairs_are_held_out_whatever_their_order() -> None:
    for numbers in (range(10, 100), range(1, 100)):
        splits = {(a, b): split_of(a, b) for a in numbers for b in numbers}
        for split in ("dev", "test"):
            share = np.mean([part == split for part in splits.values()])
            assert share == pytest.approx(0.1, abs=0.01)
        assert all(splits[a, b] == splits[b, a] for a, b in splits)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n is 0; ask for at least 1 trial"),
        ({"differences": ()}, r"differences \[\]; expected .* from 1 to 89 for 'two_sided'"),
        ({"differences": (90,)}, r"differences \[90\]; expected"),
        ({"differences": (5, 5)}, r"differences \[5, 5\]; expected different"),
        ({"differences": (5.0,)}, r"differences \[5.0\]; expected different whole numbers"),
        ({"differences": (100,), "rendering": "signed"}, "from 1 to 99 for 'signed'"),
        # 10 and 99 alone have this difference, and are in training.
        ({"differences": (5, 89), "split": "test"}, "no two numbers with the difference 89; ask"),
        (
            {"differences": (50,), "rendering": "signed", "split": "test"},
            "the test split has no two such coherences; ask for others",
        ),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(**({"n": 8, "seed": 0} | arguments))


def test_rows_take_their_spans_along() -> None:
    trials = generate(40, 0, random_order=True)
    rows, chosen = [7, 0, 31, 7], trials.rows([7, 0, 31, 7])
    assert chosen.frame["text"].tolist() == trials.frame["text"].iloc[rows].tolist()
    assert spanned(chosen) == [spanned(trials)[row] for row in rows]
    assert (chosen.rendering, chosen.split, chosen.seed) == ("two_sided", "train", 0)
    incongruent = trials.rows(~trials.frame["congruent"]).frame["congruent"]
    assert incongruent.tolist() == [False] * 20


# -- tokens ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bytes", "digits"])
def tokenizer(request: pytest.FixtureRequest) -> hf.PreTrainedTokenizerFast:
    """Whole words are for `test_positions_of_a_word_level_tokenizer_written_out`."""
    prompts = (generate(200, 9, rendering=name).frame["text"] for name in RENDERINGS)
    texts = [text for frame in prompts for text in frame]
    texts += [f" {n} 0.{n}" for n in range(10, 100) for _ in range(50)]
    return byte_level(texts, 1000, split_digits=request.param == "digits")


def ends(tokenizer: hf.PreTrainedTokenizerFast, text: str) -> list[int]:
    """How many characters of the text each first so many tokens say, from decoding alone."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = [tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    assert decoded[-1] == text
    return [len(start) for start in decoded]


@pytest.mark.parametrize("rendering", RENDERINGS)
@pytest.mark.parametrize("random_order", [False, True])
def test_positions_and_number_tokens_against_decoding(
    tokenizer: hf.PreTrainedTokenizerFast, rendering: Any, random_order: bool
) -> None:
    """A landmark's last token completes its words; a number's tokens are those that say it."""
    trials = generate(24, 0, rendering=rendering, random_order=random_order)
    positions = token_positions(trials, tokenizer)
    numbers = number_tokens(trials, tokenizer)
    encoded = [ends(tokenizer, text) for text in trials.frame["text"]]
    longest = max(map(len, encoded))
    assert positions.shape == (24, len(trials.landmarks))
    assert numbers.shape == (24, len(trials.numbers), longest)
    for trial, until in enumerate(encoded):
        since = [0, *until[:-1]]
        for place, name in enumerate(trials.landmarks):
            start, stop = trials.places[trial, place]
            last = next(i for i, end in enumerate(until) if end >= stop)
            assert positions[trial, place] == last
            if name in trials.numbers:
                first = next(i for i, end in enumerate(until) if end > start)
                assert since[first] <= start
                expected = [first <= i <= last for i in range(longest)]
                assert numbers[trial, trials.numbers.index(name)].tolist() == expected
        assert positions[trial, -1] == len(until) - 1


def test_positions_of_a_word_level_tokenizer_written_out() -> None:
    trials = generate(8, 0, random_order=True)
    #       0       1      2 3      4    5  6     7  8 9     10   11 12    13 14 15     16
    # context motion . motion left 34 right 71 . color left 50 right 12 . choice is
    expected = {"motion": [1, 5, 7, 11, 13, 16], "color": [1, 11, 13, 5, 7, 16]}
    tokenizer = tiny_tokenizer()
    positions = token_positions(trials, tokenizer).tolist()
    assert set(trials.frame["first"]) == {"motion", "color"}
    assert positions == [expected[first] for first in trials.frame["first"]]
    numbers = number_tokens(trials, tokenizer)
    assert numbers.shape == (8, 4, 17)
    assert numbers.int().argmax(-1).tolist() == [row[1:5] for row in positions]
    assert (numbers.sum(-1) == 1).all()


def test_encoded_trials_of_the_tiny_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    trials = generate(8, 0)
    data = encode_trials(trials, tokenizer, max_length=17)
    words = [tokenizer.convert_ids_to_tokens(row) for row in data.input_ids]
    assert [" ".join(row) for row in words] == trials.frame["text"].tolist()
    left, right = tokenizer.convert_tokens_to_ids(["left", "right"])
    assert data.answers == {"left": (left,), "right": (right,)}
    assert data.pad_id == tokenizer.pad_token_id == 0
    assert data.words is None
    with pytest.raises(InputError, match="8 of 8 prompts are longer than 16 tokens"):
        encode_trials(trials, tokenizer, max_length=16)


def word_level(**parts: Any) -> hf.PreTrainedTokenizerFast:
    """A word-level tokenizer with a token for unknown words."""
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def test_tokenizers_that_cannot_write_a_prompt_are_refused() -> None:
    signed, trials = generate(4, 0, rendering="signed"), generate(4, 0)
    with pytest.raises(InputError, match=r"cannot write .*'Context: .*\(WordLevel error.*use one"):
        encode_trials(signed, tiny_tokenizer(), max_length=32)
    with pytest.raises(InputError, match="a word is unknown to it"):
        encode_trials(signed, word_level(), max_length=32)
    without_numbers = word_level(normalizer=Replace(Regex("[0-9]"), ""))
    with pytest.raises(InputError, match=r"no token stands for '\d\d'"):
        token_positions(trials, without_numbers)
    with pytest.raises(InputError, match=r"ByT5Tokenizer does not say .* expected a fast tok"):
        number_tokens(trials, hf.ByT5Tokenizer())
