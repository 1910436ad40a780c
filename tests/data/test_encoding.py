"""Token ids, segments, words and separators, on tokenizers small enough to write out."""

import itertools

import pytest
import transformers as hf
from helpers import examples_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase, Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, Split
from tokenizers.processors import TemplateProcessing

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreWarning

VOCABULARY = {
    token: i
    for i, token in enumerate(
        [
            *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "bake", "##r", "##rs"),
            *("slept", ".", ",", "cat", "yes", "no", "a", "b", "say"),
        ]
    )
}
PAD, CLS, SEP = 0, 2, 3


@pytest.fixture(scope="module")
def wordpiece() -> hf.PreTrainedTokenizerFast:
    """BERT's layout over a vocabulary in which ``baker`` is ``bake ##r``."""
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def examples(*pairs: tuple[str, str]) -> Examples:
    return examples_of(pairs, name="data")


def ids(text: str) -> list[int]:
    return [VOCABULARY[token] for token in text.split()]


def test_pairs_are_laid_out_as_the_tokenizer_does(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = encode(examples(("The baker slept .", "the cat"), ("a", "b")), wordpiece, max_length=32)
    first = "[CLS] the bake ##r slept . [SEP] the cat [SEP]"
    assert data.input_ids == [ids(first), ids("[CLS] a [SEP] b [SEP]")]
    assert data.token_type_ids == [[0] * 7 + [1] * 3, [0] * 3 + [1] * 2]
    assert data.pad_id == PAD
    assert (data.segments, data.words, data.separators, data.answers) == (None, None, None, None)
    assert len(data) == 2
    assert data.fingerprint == data.examples.fingerprint


def test_words_segments_and_separators_of_word_pieces(
    wordpiece: hf.PreTrainedTokenizerFast,
) -> None:
    pair = ("The baker, the bakers slept.", "the Baker slept")
    data = encode(examples(pair, ("slept", "say cat")), wordpiece, max_length=32, words=True)
    tokens = "[CLS] the bake ##r , the bake ##rs slept . [SEP] the bake ##r slept [SEP]"
    assert data.input_ids[0] == ids(tokens)
    assert data.segments is not None
    assert data.segments[0] == [-1, *[0] * 9, -1, 1, 1, 1, 1, -1]
    assert data.separators is not None
    assert data.separators[0] == [*[0] * 10, 1, *[0] * 4, 1]
    # Equal numbers for equal words, pieces of a word alike, case ignored; -1 for punctuation.
    the, baker, bakers, slept, say, cat = range(6)
    assert data.words is not None
    assert data.words[0] == [
        *(-1, the, baker, baker, -1, the, bakers, bakers, slept, -1, -1),
        *(the, baker, baker, slept, -1),
    ]
    assert data.words[1] == [-1, slept, -1, say, cat, -1]  # the numbering is that of the data set
    # Words and marks where they stand: the pieces of one share a number that nothing else has.
    assert data.spans is not None
    assert data.spans[0] == [-1, 0, 1, 1, 2, 3, 4, 4, 5, 6, -1, 7, 8, 8, 9, -1]
    assert data.part([1]).spans == [[-1, 0, -1, 1, 2, -1]]


SENTENCE_PIECES = {
    # What each calls a word: the whole text (Llama 2, Gemma), or all from space to space (ALBERT).
    "llama": (Normalizers([Prepend("\u2581"), Replace(" ", "\u2581")]), None),
    "gemma": (Replace(" ", "\u2581"), Split(" ", "merged_with_previous")),
    "albert": (None, Metaspace()),
}


@pytest.mark.parametrize("kind", SENTENCE_PIECES)
def test_words_of_sentence_pieces_end_at_spaces_and_punctuation(kind: str) -> None:
    pieces = ["<unk>", "_the", "the", "_cat", "_saw", "_ba", "ker", "_", '"', ",", "."]
    scores = [(piece.replace("_", "\u2581"), -1.0) for piece in pieces]
    tokenizer = Tokenizer(Unigram(scores, unk_id=0))
    normalizer, pre_tokenizer = SENTENCE_PIECES[kind]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    text = 'the cat saw "the baker", the cat.'
    data = encode(examples((text, "")), fast, max_length=32, words=True)
    expected = 'the _cat _saw _ " the _ba ker " , _the _cat .'
    tokens = fast.convert_ids_to_tokens(data.input_ids[0])
    assert " ".join(tokens).replace("\u2581", "_").removeprefix("_") == expected
    the, cat, saw, baker = range(4)
    assert data.words == [[the, cat, saw, -1, -1, the, baker, baker, -1, -1, the, cat, -1]]


def test_unknown_words_are_distinguished(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = encode(examples(("zebra okapi", "okapi")), wordpiece, max_length=32, words=True)
    assert data.input_ids[0] == [CLS, 1, 1, SEP, 1, SEP]
    assert data.words is not None
    zebra, okapi, again = (data.words[0][i] for i in (1, 2, 4))
    assert zebra != okapi == again


def test_words_are_equal_as_the_tokenizer_normalises_them(
    wordpiece: hf.PreTrainedTokenizerFast,
) -> None:
    text = "caf\u00e9 cafe cafe\u0301 CAF\u00c9"
    uncased = hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(wordpiece.backend_tokenizer.to_str()),
        unk_token="[UNK]",
    )
    uncased.backend_tokenizer.normalizer = BertNormalizer(lowercase=True, strip_accents=True)
    data = encode(examples((text, "")), uncased, max_length=32, words=True)
    assert data.words == [[-1, 0, 0, 0, 0, -1]]
    # One that only lower-cases keeps the accent; the two encodings of it are one word all the same.
    data = encode(examples((text, "")), wordpiece, max_length=32, words=True)
    assert data.words == [[-1, 0, 1, 0, 0, -1]]


def test_a_separator_token_in_a_text_is_no_separator(
    wordpiece: hf.PreTrainedTokenizerFast,
) -> None:
    data = encode(examples(("a [SEP] b", "cat")), wordpiece, max_length=32, words=True)
    assert data.input_ids[0] == ids("[CLS] a [SEP] b [SEP] cat [SEP]")
    assert data.separators == [[0, 0, 0, 0, 1, 0, 1]]


# -- batches --------------------------------------------------------------------------------------


@pytest.fixture
def five(wordpiece: hf.PreTrainedTokenizerFast) -> EncodedExamples:
    pairs = [("a", "b"), ("the cat slept .", "a"), ("a b", "b"), ("the baker", "no"), ("b", "a")]
    return encode(examples(*pairs), wordpiece, max_length=32, words=True)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_batches_hold_every_example_once_and_no_needless_padding(
    five: EncodedExamples, batch_size: int
) -> None:
    lengths = [5, 8, 6, 7, 5]
    assert [len(row) for row in five.input_ids] == lengths
    seen: list[int] = []
    for batch in five.batches(batch_size):
        rows = batch["index"].tolist()
        seen += rows
        width = max(lengths[i] for i in rows)
        assert len(rows) <= batch_size
        for j, i in enumerate(rows):
            n = lengths[i]
            padding = width - n
            assert batch["attention_mask"][j].tolist() == [1] * n + [0] * padding
            for name, filler in (
                ("input_ids", PAD),
                ("token_type_ids", 0),
                ("segments", -1),
                ("words", -1),
                ("separators", 0),
                ("spans", -1),
            ):
                expected = [*getattr(five, name)[i], *[filler] * padding]
                assert batch[name][j].tolist() == expected
    assert seen == [1, 3, 2, 0, 4]


def of_lengths(lengths: list[int]) -> EncodedExamples:
    ids = [[1] * n for n in lengths]
    texts = examples(*[("a", "b")] * len(lengths))
    return EncodedExamples(texts, ids, None, None, None, None, PAD)


def test_a_batch_ends_where_others_would_be_padded_too_much() -> None:
    data = of_lengths([100] * 4 + [200] + [180] * 3)
    cut = [batch["index"].tolist() for batch in data.batches(64)]
    # Three of 180 and one of 100 have 3 * 20 + 100 of padding, another of 100 would make it 260.
    assert cut == [[4, 5, 6, 7, 0], [1, 2, 3]]
    assert data.n_batches(64) == 2
    # In a batch of 20 * 200 tokens, a tenth is more than that: 400.
    many = of_lengths([200] * 16 + [100] * 5)
    assert [len(batch["index"]) for batch in many.batches(64)] == [20, 1]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=90), st.integers(1, 64))
def test_batches_by_length_have_little_padding(lengths: list[int], batch_size: int) -> None:
    data = of_lengths(lengths)
    cut = [batch["index"].tolist() for batch in data.batches(batch_size)]
    assert len(cut) == data.n_batches(batch_size)
    in_order = [lengths[i] for rows in cut for i in rows]
    assert in_order == sorted(lengths, reverse=True)
    for rows, more in itertools.zip_longest(cut, cut[1:]):
        longest, real = lengths[rows[0]], sum(lengths[i] for i in rows)
        padding = longest * len(rows) - real
        assert padding <= max(256, 0.1 * longest * len(rows))
        if more and len(rows) < batch_size:  # one more would have been too much
            padding += longest - lengths[more[0]]
            assert padding > max(256, 0.1 * longest * (len(rows) + 1))


def test_a_batch_size_must_be_positive(five: EncodedExamples) -> None:
    with pytest.raises(InputError, match="batch size 0: expected at least 1"):
        next(five.batches(0))


# -- length ---------------------------------------------------------------------------------------


def test_texts_that_are_cut_are_counted(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = examples(("the cat slept the cat slept", "a"), ("a", "b"), ("a a a a a", "b b b"))
    message = r"'data': 2 of 3 texts are longer than 7 tokens \(the longest has 11 and begins 'a a "
    with pytest.warns(MechcoreWarning, match=message) as seen:
        encoded = encode(data, wordpiece, max_length=7, words=True)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert [len(row) for row in encoded.input_ids] == [7, 5, 7]
    assert encoded.segments is not None
    assert [len(row) for row in encoded.segments] == [7, 5, 7]
    assert encoded.n_cut == 2


def test_texts_are_not_cut_without_leave(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = examples(("the cat slept the cat slept", "a"), ("a", "b"))
    with pytest.raises(InputError, match=r"1 of 2 texts are longer than 7 .* --max-length 7"):
        encode(data, wordpiece, max_length=7, truncate=False)
    assert encode(data, wordpiece, max_length=20, truncate=False).n_cut == 0


@pytest.mark.parametrize("prompt", [None, "{a}"])
def test_a_text_without_any_token_is_refused(prompt: str | None) -> None:
    plain = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]")
    texts = examples(("the cat", ""), ("\u200d", ""), ("a", ""))
    with pytest.raises(InputError) as caught:
        encode(texts, tokenizer, max_length=7, prompt=prompt)
    start = r"examples 'data': 1 of 3 texts have no token, the first '\u200d' in row 2, because "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("max_length", [1, 2, 3, 4])
def test_a_length_without_room_for_both_texts_is_refused(
    wordpiece: hf.PreTrainedTokenizerFast, max_length: int
) -> None:
    data = examples(("the cat " * 20_000, "a"))
    message = rf"max_length {max_length}: expected at least 5.* 3 special tokens to a pair"
    with pytest.raises(InputError, match=message):
        encode(data, wordpiece, max_length=max_length)
    if max_length < 3:
        message = rf"max_length {max_length}: expected at least 3.* 2 special tokens to a te"
        with pytest.raises(InputError, match=message):
            encode(examples(("the cat " * 20_000, "")), wordpiece, max_length=max_length)


def test_prompts_are_never_cut(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = examples(("the cat slept the cat", "a"), ("a", "b"))
    with pytest.raises(InputError, match=r"1 of 2 prompts are longer than 6 tokens.*--max-length"):
        encode(data, wordpiece, max_length=6, prompt="{a} , {b} say")
    # Where the limit is the model's own, no option raises it.
    with pytest.raises(InputError, match=r"6 tokens.*the place of the answer; remove them$"):
        encode(data, wordpiece, max_length=6, truncate=False, prompt="{a} , {b} say")


# -- prompts and answers --------------------------------------------------------------------------


def test_a_prompt_holds_the_texts_and_nothing_else(wordpiece: hf.PreTrainedTokenizerFast) -> None:
    data = encode(
        examples(("the baker", "a {a} cat"), ("b", "a")),
        wordpiece,
        max_length=32,
        prompt="[CLS] say {b} , {a} [SEP]",
        words=True,
    )
    # Braces in a text stay what they are (unknown tokens here).
    first = [CLS, *ids("say a"), 1, VOCABULARY["a"], 1, *ids("cat , the bake ##r [SEP]")]
    assert data.input_ids == [first, ids("[CLS] say a , b [SEP]")]
    assert data.token_type_ids is None
    assert data.segments == [[-1, -1, 1, 1, 1, 1, 1, -1, 0, 0, 0, -1], [-1, -1, 1, -1, 0, -1]]
    assert data.separators == [[0] * 11 + [1], [0] * 5 + [1]]
    a, cat, the, baker, b = range(5)
    assert data.words == [
        [-1, -1, a, -1, a, -1, cat, -1, the, baker, baker, -1],
        [-1, -1, a, -1, b, -1],
    ]


def test_a_space_before_a_segment_may_belong_to_its_first_token() -> None:
    """Byte-level tokenizers, as GPT-2's, read ``" cat"`` as one token."""
    vocabulary = {"[UNK]": 0, "say": 1, "\u0120the": 2, "\u0120cat": 3, "\u0120.": 4, "cat": 5}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[UNK]"
    )
    data = encode(
        examples(("cat", "the cat")), fast, max_length=9, prompt="say {a} .{b} .", words=True
    )
    # "say", " cat", " .", "the", " cat", " ." - where "the" without its space is unknown
    assert data.input_ids == [[1, 3, 4, 0, 3, 4]]
    assert data.segments == [[-1, 0, -1, 1, 1, -1]]
    cat, the = range(2)
    assert data.words == [[-1, cat, -1, the, cat, -1]]


PAIRS_WANTED = r"expected the places \{a\} and \{b\}, each once, for pairs of texts \(--prompt\)"
SINGLE_WANTED = r"expected the place \{a\} once, for single texts \(--prompt\)"


@pytest.mark.parametrize(
    ("prompt", "second", "message"),
    [
        *((prompt, "b", PAIRS_WANTED) for prompt in ("{a} only", "none", "{a} {b} {a}")),
        *((prompt, "", SINGLE_WANTED) for prompt in ("{a} {b}", "{b}")),
        (None, "b", "answer words need a prompt"),
    ],
)
def test_prompts_without_their_places(
    wordpiece: hf.PreTrainedTokenizerFast, prompt: str | None, second: str, message: str
) -> None:
    answers = None if prompt else {"x": "yes", "y": "no"}
    with pytest.raises(InputError, match=message):
        encode(examples(("a", second)), wordpiece, max_length=9, prompt=prompt, answers=answers)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"x": "yes", "y": "zebra"}, r"answer 'zebra' of label 'y': its tokens are \['\[UNK\]'\]"),
        ({"x": "yes", "y": "no zebra"}, r"answer 'no zebra' .*'\[UNK\]'\]; expected known ones"),
        ({"x": "yes", "y": ""}, r"its tokens are \[\]; expected known ones"),
        ({"x": "yes", "y": "Yes"}, "at least two of different tokens"),
        ({"x": "yes"}, "at least two of different tokens"),
        ({"x": "baker", "y": "bake"}, "the tokens of 'baker' begin with those of 'bake', so it"),
    ],
)
def test_answers_that_cannot_be_distinguished_or_read(
    wordpiece: hf.PreTrainedTokenizerFast, answers: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        encode(examples(("a", "b")), wordpiece, max_length=9, prompt="{a} {b}", answers=answers)
