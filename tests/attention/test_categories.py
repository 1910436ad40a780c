"""Categories of (query, key) pairs on hand-written tables; the registry of categories."""

import pytest
import torch
from attention.planted import CAUSAL, stacked, token_infos, tokens_of
from hypothesis import given, settings

from mechcore.attention import (
    TokenInfo,
    categories,
    claims,
    partition,
    register_category,
    unregister_category,
)
from mechcore.attention.categories import OF_TEXTS
from mechcore.errors import InputError

LETTERS = dict(zip(CAUSAL, "FS=PNRIo", strict=True))


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


def test_texts_of_a_pair_are_for_knockouts_alone() -> None:
    tokens = tokens_of("^ab|ba|.", "-00-11--")
    pairs = claims(tokens, OF_TEXTS)
    other, same = (pairs[name][0].int().tolist() for name in ("other_text", "same_text"))
    first, second, none = [0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0], [0] * 8
    assert same == [none, first, first, none, second, second, none, none]
    assert other == [none, second, second, none, first, first, none, none]
    assert not {"other_text", "same_text"} & {*claims(tokens), *partition(tokens)}
    alone = claims(tokens_of("^abab", "-0000"), OF_TEXTS)
    assert not alone["other_text"].any()
    with pytest.raises(InputError, match="mechcore's own"):
        register_category("same_text", lambda tokens: tokens.allowed)


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


def test_adjacent_occurrences_are_distinguished() -> None:
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
    both = stacked(tokens_of("^aba|b|", "-000-1-"), tokens_of("^aba||.", "-000---"))
    repeated = partition(both)["repeated"]
    assert not repeated[0, 1].any()
    assert repeated[1, 1].nonzero().flatten().tolist() == [3]


def test_batch_without_words_is_an_error() -> None:
    ids = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(InputError, match=r"no segments and no words and no separators.*words=True"):
        TokenInfo.of({"input_ids": ids, "attention_mask": ids}, causal=False)


def claimed(tokens: TokenInfo) -> dict[str, list[str]]:
    """For each category a row per query: ``x`` where the key belongs to it."""
    return {
        name: ["".join("x" if hit else "." for hit in row) for row in pairs[0].tolist()]
        for name, pairs in claims(tokens).items()
    }


def test_claims_of_two_segments_overlap() -> None:
    # "[CLS] a [SEP] a a [SEP]" and padding: the first a of the second text comes just after [SEP]
    rows = claimed(tokens_of("^a|aa|.", "-0-11--"))
    assert rows == {
        "first": ["x......"] * 6 + ["......."],
        "separator": ["..x..x."] * 6 + ["......."],
        "self": ["x......", ".x.....", "..x....", "...x...", "....x..", ".....x.", "......."],
        "previous": [".......", "x......", ".x.....", "..x....", "...x...", "....x..", "......."],
        "next": [".x.....", "..x....", "...x...", "....x..", ".....x.", ".......", "......."],
        "repeated": [".......", "...xx..", ".......", ".x.....", ".x.....", ".......", "......."],
    }


def test_claims_of_a_causal_model() -> None:
    # What follows the last b is b itself: the third query attends to itself by induction, too.
    rows = claimed(tokens_of("abbab", "00000", causal=True))
    assert rows == {
        "first": ["x...."] * 5,
        "separator": ["....."] * 5,
        "self": ["x....", ".x...", "..x..", "...x.", "....x"],
        "previous": [".....", "x....", ".x...", "..x..", "...x."],
        "next": ["....."] * 5,
        "repeated": [".....", ".....", ".x...", "x....", ".xx.."],
        "induction": [".....", ".....", "..x..", ".x...", "..xx."],
    }


@given(token_infos())
@settings(max_examples=20)
def test_the_partition_gives_every_pair_to_the_first_that_claims_it(tokens: TokenInfo) -> None:
    claimed_by, parts = claims(tokens), partition(tokens)
    assert list(parts) == [*claimed_by, "other"]
    for row, query, key in torch.cartesian_prod(
        *(torch.arange(n) for n in tokens.allowed.shape)
    ).tolist():
        place = (row, query, key)
        owners = [name for name, pairs in parts.items() if pairs[place]]
        claimants = [name for name, pairs in claimed_by.items() if pairs[place]]
        if tokens.allowed[place]:
            assert owners == [*claimants, "other"][:1]
        else:
            assert owners == claimants == []


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_category_takes_from_other_only_and_within_reach() -> None:
    register_category("two_back", lambda tokens: tokens.at_distance(2))
    assert [c.name for c in categories(causal=False)][-1] == "two_back"
    assert table(tokens_of("^abca|", "-0000-"))[4] == "FRtP=S"
    assert table(tokens_of("^abcb|", "-0000-"))[4] == "FoRP=S"
    register_category("all", lambda tokens: torch.ones_like(tokens.allowed))
    tokens = tokens_of("ab.", "00-", causal=True)
    assert claimed(tokens)["all"] == ["x..", "xx.", "..."]
    assert torch.equal(claims(tokens)["all"], tokens.allowed)
    register_category("capital_a", lambda tokens: tokens.key_is(tokens.ids == ord("A")))
    assert claimed(tokens_of("bAcA", "0000"))["capital_a"] == [".x.x"] * 4


@pytest.mark.usefixtures("clean_registry")
def test_registering_refuses_what_cannot_work() -> None:
    for name in ("previous", "other", "mixed"):
        with pytest.raises(InputError, match="is mechcore's own; choose another name than first, "):
            register_category(name, lambda tokens: tokens.allowed)
    for name in ("", "two back", "2back", "a,b"):
        with pytest.raises(InputError, match="expected a name of letters"):
            register_category(name, lambda tokens: tokens.allowed)
    for name in ("first", "yours"):
        with pytest.raises(InputError, match=f"category '{name}': unknown"):
            unregister_category(name)
    register_category("mine", lambda tokens: tokens.real)
    with pytest.raises(InputError, match=r"'mine'.*shape \(1, 4\); expected.*\(1, 4, 4\)"):
        claims(tokens_of("^ab|", "-00-"))
    register_category("mine", lambda tokens: tokens.allowed.float(), causal_only=True)
    claims(tokens_of("^ab|", "-00-"))
    with pytest.raises(InputError, match=r"'mine'.*torch\.float32.*expected torch\.bool"):
        partition(tokens_of("^ab|", "-00-", causal=True))
