"""What a tokenizer makes of texts: their words, answers to prompts, and checks of the tokenizer."""

from __future__ import annotations

import re
import string
import unicodedata
import weakref
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from mechcore.data.examples import Examples
from mechcore.errors import InputError, reason, shown, warn

SPECIAL = -1
"""Segment and word id of special tokens, of prompt text around the segments, and of padding."""


def whole_words(
    encoding: Any,
    places: Sequence[int],
    texts: tuple[str, str],
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: dict[str, int],
) -> tuple[list[int], list[int]]:
    """Numbers of every token's word in ``vocabulary``, and of its occurrence; else `SPECIAL`.

    ``places`` are the segments of tokens. Words also end at white space and at punctuation, which
    are no words but occur, since SentencePiece words may extend from space to space.
    """
    spans: list[list[int]] = []  # segment, start and end of every word
    owners: list[int | None] = []
    last: tuple[int, int | None, bool] | None = None
    for segment, word, (start, end) in zip(
        places, encoding.word_ids, encoding.offsets, strict=True
    ):
        if segment == SPECIAL or word is None:
            owners.append(None)
            last = None
            continue
        text = texts[segment]
        key = segment, word, _is_punctuation(text[start:end])
        reached = spans[-1][2] if key == last else start
        if key != last or text[min(start, reached) : end][:1].isspace():
            spans.append([segment, start, end])
        else:
            spans[-1][2] = max(reached, end)
        owners.append(len(spans) - 1)
        last = key
    numbers = []
    for segment, start, end in spans:
        written = texts[segment][start:end].strip().strip(_AROUND)
        if any(character.isalnum() for character in written):
            numbers.append(vocabulary.setdefault(_name(written, tokenizer), len(vocabulary)))
        else:
            numbers.append(SPECIAL)
    occurrences = [SPECIAL if owner is None else owner for owner in owners]
    return [*map([*numbers, SPECIAL].__getitem__, occurrences)], occurrences


def _name(word: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The key of equal words: the same to the model, or except for case and encoding (NFKC)."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    read = word if normalizer is None else normalizer.normalize_str(word)
    return unicodedata.normalize("NFKC", read).casefold()


_AROUND = string.punctuation.replace("'", "")
"""Characters that may surround a word in one piece; contractions keep their apostrophe."""


def _is_punctuation(piece: str) -> bool:
    """Whether a piece is not part of a word; a single space belongs to the word after it."""
    marks = piece.lstrip(" ")
    return bool(marks) and all(
        c.isspace() or c in string.punctuation or unicodedata.category(c).startswith("P")
        for c in marks
    )


MOST_UNKNOWN = (5, 0.05)
"""Unknown tokens and dropped words that are always accepted, and their maximum share beyond."""

MOST_COMPARED = 1000
"""Number of texts to compare with the tokenizer's file, evenly spaced if there are more."""

_files: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, Path] = weakref.WeakKeyDictionary()


def remember_file(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Record the ``tokenizer.json`` of a checkpoint, for `check_file`."""
    _files[tokenizer] = path


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def check_file(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Any,
    texts: Sequence[Any],
    *,
    special: bool,
    max_length: int,
) -> None:
    """Warn of texts whose tokens differ from those of ``tokenizer.json``, as in transformers 5."""
    path = _files.get(tokenizer)
    if path is None or not path.is_file():  # such as after loading from a temporary folder
        return
    own = _read(path, path.stat().st_mtime_ns)
    own.no_padding()
    own.enable_truncation(max_length, direction=tokenizer.truncation_side)
    own.encode_special_tokens = bool(tokenizer.split_special_tokens)
    rows = range(0, len(texts), -(-len(texts) // MOST_COMPARED))
    name = f"{type(tokenizer).__name__} of transformers {transformers.__version__}"
    try:
        encodings = own.encode_batch([texts[row] for row in rows], add_special_tokens=special)
    except Exception as error:  # tokenizers raises errors without a type of their own
        warn(
            f"examples {examples.name!r}: {path} cannot encode them ({reason(error)}), but "
            f"{name}, which is used, can: check that the file is that of the model"
        )
        return
    typed = "token_type_ids" in encoded
    differ = [
        (row, encoding)
        for row, encoding in zip(rows, encodings, strict=True)
        if encoding.ids != encoded["input_ids"][row]
        or (typed and encoding.type_ids != encoded["token_type_ids"][row])
    ]
    if not differ:
        return
    row, other = differ[0]
    sides = encoded.encodings[row].tokens, other.tokens
    at = next((i for i, pair in enumerate(zip(*sides, strict=False)) if pair[0] != pair[1]), 0)
    used, filed = (shown(side[at : at + 4], 120) for side in sides)
    warn(
        f"examples {examples.name!r}: {len(differ)} of {len(rows)} texts compared have different "
        f"tokens (or ids or types) in {name}, which is used, and in {path}: row {row}, "
        f"{shown(_text(texts[row]), 60)!r}, has {used} from token {at} on, in the file {filed}; "
        "if the model was trained with the file, as usual with transformers 4, set "
        '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json, and remove entries '
        "that contradict the file; else make them agree with "
        "mechcore.load_tokenizer(folder).save_pretrained(folder)"
    )


def check_unknown(
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Any,
    texts: Sequence[Any],
    *,
    special: bool,
) -> None:
    """Warn of many unknown or dropped words (`MOST_UNKNOWN`), or of a text with only such words."""
    unknown = _unknown(tokenizer)
    pairs = bool(texts) and not isinstance(texts[0], str)
    added = tokenizer.num_special_tokens_to_add(pairs) if special else 0
    n_unknown, n_dropped, n_tokens, lost = 0, 0, 0, []
    for row, (text, encoding) in enumerate(zip(texts, encoded.encodings, strict=True)):
        ids = encoding.ids
        n_tokens += len(ids) - added
        several = text if pairs else (text,)
        if any(token in part for part in several for token in unknown.values()):
            continue  # it is written there
        n_unknown += sum(map(ids.count, unknown))
        places = encoding.sequence_ids
        known = {p for i, p in zip(ids, places, strict=True) if i not in unknown}
        lost += [(row, part) for p, part in enumerate(several) if part.strip() and p not in known]
        if not encoding.overflowing:
            spans = [*zip(places, encoding.offsets, strict=True)]
            for p, part in enumerate(several):
                n_dropped += _dropped(part, [span for place, span in spans if place == p])
    problems = []
    free, share = MOST_UNKNOWN
    n_lost, n_all = n_unknown + n_dropped, n_tokens + n_dropped
    if n_lost > max(free, share * n_all):
        dropped = " or dropped by it" * bool(n_dropped)
        problems.append(f"{n_lost / n_all:.1%} of all tokens are unknown to the tokenizer{dropped}")
    if lost:
        row, text = lost[0]
        rows = len({row for row, _ in lost})
        problems.append(
            f"in {rows} of {len(texts)} examples a text has no known token (row {row}: "
            f"{shown(text, 60)!r})"
        )
    if problems:
        warn(
            f"examples {examples.name!r}: {', and '.join(problems)}: the model cannot distinguish "
            "such words; expected few: check that the tokenizer is the model's own, and that the "
            "texts are in its language, alphabet and case"
        )


def _unknown(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The tokens for unknown words, by id."""
    names = {tokenizer.unk_token, getattr(tokenizer.backend_tokenizer.model, "unk_token", None)}
    ids = {name: tokenizer.backend_tokenizer.token_to_id(name) for name in names if name}
    return {i: name for name, i in ids.items() if i is not None}


def _dropped(text: str, spans: Sequence[tuple[int, int]]) -> int:
    """How many runs of letters or digits of a text are in no token; tokens are in text order."""
    if not unicodedata.is_normalized("NFKC", text):
        return 0  # characters joined by normalisers have the position of the first
    n = end = 0
    for start, stop in [*spans, (len(text), len(text))]:
        n += any(map(str.isalnum, text[end:start]))
        end = max(end, stop)
    return n


def _text(text: Any) -> str:
    return text if isinstance(text, str) else " / ".join(text)


_DATE = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")

TODAY = date(2024, 7, 26)
"""Fixed date for chat templates that write one, so that results are reproducible."""


def chat_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """A prompt as the first turn of a chat, in the tokenizer's template, before the answer."""
    if prompt is None:
        raise InputError("chat template: needs a prompt (--prompt) to put into it")
    if not tokenizer.chat_template:
        raise InputError(
            f"chat template: the tokenizer of {tokenizer.name_or_path or 'the model'} has none; "
            "expected an instruct model; leave --chat-template out (chat_template in files)"
        )
    try:
        template = tokenizer.get_chat_template()
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            chat_template=_DATE.sub(lambda now: repr(TODAY.strftime(now[2])), template),
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:  # templates raise errors of any kind
        raise InputError(f"chat template: cannot hold the prompt: {reason(error)}") from error
    return str(chat)


def answer_ids(
    answers: Mapping[str, str], tokenizer: PreTrainedTokenizerBase, prompt: str | None
) -> dict[str, tuple[int, ...]]:
    """The tokens of every label's answer; `InputError` for unknown or indistinguishable ones."""
    if prompt is None:
        raise InputError("answers: answer words need a prompt that they complete (--prompt)")
    ids: dict[str, tuple[int, ...]] = {}
    for label, words in answers.items():
        tokens = tokenizer(words, add_special_tokens=False)["input_ids"]
        if not tokens or tokenizer.unk_token_id in tokens:
            raise InputError(
                f"answer {words!r} of label {label!r}: its tokens are "
                f"{tokenizer.convert_ids_to_tokens(tokens)}; expected known ones: choose other "
                "words (--answers)"
            )
        ids[label] = tuple(tokens)
    if len(set(ids.values())) < len(ids) or len(ids) < 2:
        raise InputError(
            f"answers {dict(answers)}: expected at least two of different tokens (--answers "
            "LABEL=WORD,LABEL=WORD)"
        )
    for label, tokens in ids.items():
        for other, longer in ids.items():
            if label != other and longer[: len(tokens)] == tokens:
                raise InputError(
                    f"answers {dict(answers)}: the tokens of {answers[other]!r} begin with those "
                    f"of {answers[label]!r}, so it can never be likelier; expected answers none of "
                    "which begins with another: end both alike, for example with a full stop"
                )
    return ids


def single_tokens(answers: Mapping[str, str], ids: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The answers' tokens, one each; raises `InputError` if an answer has several."""
    for label, tokens in ids.items():
        if len(tokens) > 1:
            raise InputError(
                f"answer {answers[label]!r} of label {label!r}: found {len(tokens)} tokens; "
                "expected one: check the leading space, or choose another word"
            )
    return tuple(token for (token,) in ids.values())


def check_continues(
    answers: Mapping[str, str],
    tokens: Mapping[str, tuple[int, ...]],
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Check that a prompt with its answer has the tokens of the prompt, then the answer's.

    For an answer of one token it only warns, since that token is scored regardless. No token
    extends beyond a word with the space before it, so one prompt is checked per ending.
    """
    endings: dict[str, int] = {}
    for row, prompt in enumerate(prompts):
        endings.setdefault(_ending(prompt), row)
    for label, answer in tokens.items():
        together = [prompts[row] + answers[label] for row in endings.values()]
        joined = tokenizer(together, add_special_tokens=False, verbose=False)["input_ids"]
        for text, whole, row in zip(together, joined, endings.values(), strict=True):
            if whole == [*ids[row], *answer]:
                continue
            end = tokenizer.convert_ids_to_tokens(whole[-len(answer) - 1 :])
            pieces = tokenizer.convert_ids_to_tokens(list(answer))
            message = (
                f"answer {answers[label]!r} of label {label!r}: is {pieces} alone, but "
                f"{text[-60:]!r} ends in {end}; expected the same tokens: move the space from "
                "the prompt to the answer, or the other way round"
            )
            if len(answer) > 1:
                raise InputError(message)
            warn(f"{message}; otherwise the scored token differs from that of the text")
            break


def _ending(text: str) -> str:
    """The last word, the space before it and what follows it."""
    words = text.split()
    return text[max(text.rstrip().rfind(words[-1]) - 1, 0) :] if words else text
