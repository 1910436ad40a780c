"""Categories of (query, key) pairs on hand-written tables; labels of heads."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import BertTokenizerFast

from mechcore.attention import (
    Thresholds,
    TokenInfo,
    categories,
    categorise,
    partition,
    register_category,
    unregister_category,
)
from mechcore.errors import InputError
from mechcore.tasks.encoding import encode
from mechcore.tasks.examples import Examples

LETTERS = {
    "first": "F",
    "separator": "S",
    "self": "=",
    "previous": "P",
    "next": "N",
    "repeated": "R",
    "induction": "I",
    "other": "o",
}


def tokens_of(ids: str, segments: str, words: str | None = None, causal: bool = False) -> TokenInfo:
    """One row: a letter per token, ``.`` for padding; segments ``0``, ``1`` or ``-``.

    Equal letters are equal words unless ``words`` says otherwise (``-`` for no word); a token
    written ``|`` is a separator.
    """
    names = words or "".join("-" if s == "-" else i for i, s in zip(ids, segments, strict=True))
    return TokenInfo(
        ids=torch.tensor([[ord(i) for i in ids]]),
        real=torch.tensor([[i != "." for i in ids]]),
        segments=torch.tensor([[-1 if s == "-" else int(s) for s in segments]]),
        words=torch.tensor([[-1 if w == "-" else ord(w) for w in names]]),
        separators=torch.tensor([[i == "|" for i in ids]]),
        causal=causal,
    )


def table(tokens: TokenInfo) -> list[str]:
    """A letter per (query, key) pair, ``.`` where the key is out of reach."""
    size = tokens.ids.shape[1]
    rows = [["."] * size for _ in range(size)]
    for name, members in partition(tokens).items():
        for _, query, key in members.nonzero().tolist():
            assert rows[query][key] == ".", "categories are disjoint"
            rows[query][key] = LETTERS.get(name, name[0])
    return ["".join(row) for row in rows]


def test_two_segments() -> None:
    # "[CLS] a b [SEP] b a [SEP]" and padding
    assert table(tokens_of("^ab|ba|.", "-00-11--")) == [
        "FNoSooS.",
        "F=NSoRS.",
        "FP=SRoS.",
        "FoPSNoS.",
        "FoRS=NS.",
        "FRoSP=S.",
        "FooSoPS.",
        "........",
    ]


def test_a_word_repeated_within_a_segment_does_not_count_when_there_are_two() -> None:
    assert table(tokens_of("^aba|b|", "-000-1-"))[1] == "F=NoSoS"


def test_one_segment_counts_the_word_elsewhere() -> None:
    assert table(tokens_of("^abca|", "-0000-")) == [
        "FNoooS",
        "F=NoRS",
        "FP=NoS",
        "FoP=NS",
        "FRoP=S",
        "FoooPS",
    ]


def test_pieces_of_one_occurrence_are_not_repetitions_of_each_other() -> None:
    # one word of the three pieces p, q, r, twice
    rows = table(tokens_of("^pqrxpqr|", "-0000000-", words="-wwwxwww-"))
    assert rows[1] == "F=NooRRRS"
    assert rows[3] == "FoP=NRRRS"


def test_adjacent_occurrences_are_told_apart() -> None:
    # "had had x", and then a word of two pieces twice in a row
    assert table(tokens_of("^aax|", "-000-"))[1] == "F=NoS"  # the neighbour is next, not repeated
    assert table(tokens_of("^pqpq|", "-0000-", words="-wwww-"))[1] == "F=NRRS"
    assert tokens_of("^pqpq|", "-0000-", words="-wwww-").occurrences.tolist() == [
        [1, 2, 2, 3, 3, 4]
    ]


def test_causal_model_sees_no_later_keys_and_has_induction() -> None:
    assert table(tokens_of("abcab", "00000", causal=True)) == [
        "F....",
        "F=...",
        "FP=..",
        "FIP=.",
        "FRIP=",
    ]


def test_induction_follows_whole_words_and_tokens_that_are_no_words() -> None:
    # "^ Had x , had": another token of the same word; then "," again
    rows = table(tokens_of("^Hx,h,", "-00-0-", words="-hx-h-", causal=True))
    assert rows[4] == "FRIP=."
    assert rows[5] == "FoooP="  # what follows the first "," is the previous token
    # "playing x playing": inside the word the piece decides, at its end the word
    rows = table(tokens_of("^pixyzpi", "-0000000", words="-wwxyzww", causal=True))
    assert rows[6] == "FRRooP=."
    assert rows[7] == "FRRIooP="


def test_empty_second_segments_make_a_row_one_segment() -> None:
    pair, single = tokens_of("^aba|b|", "-000-1-"), tokens_of("^aba||.", "-000---")
    both = TokenInfo(
        *(
            torch.cat([getattr(pair, name), getattr(single, name)])
            for name in ("ids", "real", "segments", "words", "separators")
        ),
        causal=False,
    )
    repeated = partition(both)["repeated"]
    assert not repeated[0, 1].any()
    assert repeated[1, 1].nonzero().flatten().tolist() == [3]


def test_a_repeated_word_split_into_pieces_counts_whole(tmp_path: Path) -> None:
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog play ##ing s ! is"
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary.split()))
    tokenizer = BertTokenizerFast.from_pretrained(tmp_path)
    frame = pd.DataFrame(
        [("The dog playing !", "Playing is the dog !", "x", "s")],
        columns=["text_a", "text_b", "label", "subset"],
    )
    data = encode(Examples("pieces", frame), tokenizer, max_length=20, words=True)
    batch = next(data.batches())
    # 0 [CLS] 1 the 2 dog 3 play 4 ##ing 5 ! 6 [SEP] 7 play 8 ##ing 9 is 10 the 11 dog 12 ! 13 [SEP]
    assert batch["input_ids"].shape == (1, 14)
    repeated = partition(TokenInfo.of(batch, causal=False))["repeated"][0]
    keys = {q: repeated[q].nonzero().flatten().tolist() for q in range(14) if repeated[q].any()}
    assert keys == {
        1: [10],
        2: [11],
        3: [7, 8],
        4: [7, 8],
        7: [3, 4],
        8: [3, 4],
        10: [1],
        11: [2],
    }


def test_batch_without_words_is_an_error() -> None:
    ids = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(InputError, match=r"no segments and no words and no separators.*words=True"):
        TokenInfo.of({"input_ids": ids, "attention_mask": ids}, causal=False)


# -- registering ----------------------------------------------------------------------------------


@pytest.fixture
def clean_registry() -> Iterator[None]:
    before = categories(causal=True)
    yield
    for category in categories(causal=True):
        if category not in before:
            unregister_category(category.name)


@pytest.mark.usefixtures("clean_registry")
def test_registered_category_takes_from_other_only() -> None:
    register_category("two_back", lambda tokens: tokens.at_distance(2))
    assert [c.name for c in categories(causal=False)][-1] == "two_back"
    assert table(tokens_of("^abca|", "-0000-"))[4] == "FRtP=S"
    assert table(tokens_of("^abcb|", "-0000-"))[4] == "FoRP=S"


@pytest.mark.usefixtures("clean_registry")
def test_registered_category_can_come_before_others() -> None:
    register_category("behind", lambda tokens: tokens.at_distance(1), before="first")
    assert table(tokens_of("^ab|", "-00-")) == ["FNoS", "b=NS", "Fb=S", "FobS"]
    register_category("behind", lambda tokens: tokens.at_distance(2), before="first")
    assert table(tokens_of("^ab|", "-00-"))[2:] == ["bP=S", "FbPS"]
    register_category(
        "last", lambda tokens: tokens.at_distance(0), before="first", causal_only=True
    )
    assert [c.name for c in categories(causal=False)][:2] == ["behind", "first"]
    assert [c.name for c in categories(causal=True)][:3] == ["behind", "last", "first"]


@pytest.mark.usefixtures("clean_registry")
def test_registering_refuses_what_cannot_work() -> None:
    for name in ("previous", "other", "mixed", ""):
        with pytest.raises(InputError, match="taken by mechcore"):
            register_category(name, lambda tokens: tokens.allowed)
    with pytest.raises(InputError, match="before='nothing' is not one of first, "):
        register_category("mine", lambda tokens: tokens.allowed, before="nothing")
    with pytest.raises(InputError, match=r"'first': not registered.*found none"):
        unregister_category("first")
    register_category("mine", lambda tokens: tokens.real)
    with pytest.raises(InputError, match=r"'mine'.*shape \(1, 4\); expected.*\(1, 4, 4\)"):
        partition(tokens_of("^ab|", "-00-"))
    register_category("mine", lambda tokens: tokens.allowed.float())
    with pytest.raises(InputError, match=r"'mine'.*torch\.float32"):
        partition(tokens_of("^ab|", "-00-"))


# -- labels ---------------------------------------------------------------------------------------


def scores(**columns: list[float]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_label_is_the_largest_mass_that_passes_both_thresholds() -> None:
    nan = float("nan")
    given = scores(
        mass_first=[0.3, 0.3, 0.3, 0.1, 0.2, 0.4],
        ratio_first=[5.0, 2.9, 5.0, 5.0, 5.0, 5.0],
        mass_repeated=[0.4, 0.4, 0.5, 0.1, nan, 0.4],
        ratio_repeated=[6.0, 6.0, 2.0, 9.0, nan, 6.0],
        mass_other=[0.3, 0.3, 0.2, 0.8, 0.8, 0.2],
        ratio_other=[9.0] * 6,
    )
    labelled = categorise(given, Thresholds(mass=0.25, ratio=3))
    assert labelled["category"].tolist() == [
        "repeated",
        "repeated",
        "first",
        "mixed",
        "mixed",
        "first",
    ]
    assert "category" not in given.columns
    pd.testing.assert_frame_equal(labelled.drop(columns="category"), given)


def test_values_at_the_thresholds_pass() -> None:
    given = scores(mass_next=[0.5], ratio_next=[2.0])
    assert categorise(given, Thresholds(0.5, 2.0))["category"].tolist() == ["next"]
    assert categorise(given, Thresholds(0.51, 2.0))["category"].tolist() == ["mixed"]


def test_other_tables_are_errors() -> None:
    with pytest.raises(InputError, match="no column ratio_next"):
        categorise(scores(mass_next=[0.5]))
    with pytest.raises(InputError, match=r"no column mass_\.\.\."):
        categorise(scores(layer=[0]))


@pytest.mark.parametrize("mass", [0.0, -0.1, 1.01, float("nan")])
def test_mass_threshold_is_a_share(mass: float) -> None:
    with pytest.raises(InputError, match="mass is"):
        Thresholds(mass=mass)


@pytest.mark.parametrize("ratio", [0.99, -1.0, float("inf"), float("nan")])
def test_ratio_threshold_is_at_least_one(ratio: float) -> None:
    with pytest.raises(InputError, match="ratio is"):
        Thresholds(ratio=ratio)
