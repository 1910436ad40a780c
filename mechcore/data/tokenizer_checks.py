"""Checks of tokenizers: unknown words, and differences from the tokenizer's file."""

from __future__ import annotations

import unicodedata
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from mechcore.data.examples import Examples
from mechcore.errors import reason, shown, warn

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
    """Warn of texts whose tokens differ from those of the checkpoint's ``tokenizer.json``.

    transformers 5 rebuilds many tokenizers from the vocabulary, ignoring the rest of the file.
    """
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
