"""Tokenizers of checkpoints: their token types, and whether a model has their ids."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples
from mechcore.data.tokens import remember_file
from mechcore.errors import InputError, reason, warn
from mechcore.models.checkpoint_files import file_of, place_of, refuse_tokenizer_code, without_bars
from mechcore.models.protocol import n_tokens, name_of

_TYPES = "token_type_ids"
_REMEDY = (
    'use the tokenizer that the model was trained with, or set "tokenizer_class": '
    '"PreTrainedTokenizerFast" in tokenizer_config.json, which reads tokenizer.json unchanged'
)
_doubtful: weakref.WeakSet[PreTrainedTokenizerBase] = weakref.WeakSet()
"""Tokenizers for which it is unknown if their models were trained with token types."""


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The checkpoint's own tokenizer; padding falls back to the end-of-text token.

    If its model distinguishes the texts of a pair, it gives ``token_type_ids``, even if its class
    omits them in transformers 5, unless ``model_input_names`` in its ``tokenizer_config.json``
    does.

    Raises:
        InputError: there is none, or it contains code.
    """
    where = place_of(str(source))
    try:
        if "gguf_file" not in where:
            refuse_tokenizer_code(str(source), revision)
        with without_bars():
            tokenizer = AutoTokenizer.from_pretrained(
                **where, revision=revision, trust_remote_code=False
            )
            tokenizer("a")  # some load, but fail when used
    except InputError:
        raise
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(
            f"checkpoint {source}: no usable tokenizer: {reason(error)}; {_REMEDY}"
        ) from error
    if not tokenizer.is_fast:
        raise InputError(
            f"checkpoint {source}: found a slow tokenizer ({type(tokenizer).__name__}); mechcore "
            "needs a fast one (tokenizer.json) to know which pieces form a word"
        )
    # Without tokenizer files, transformers invents a tokenizer with only special tokens.
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
        raise InputError(
            f"checkpoint {source}: no usable tokenizer: found only special tokens; save "
            "its tokenizer there"
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"checkpoint {source}: the tokenizer has neither a padding nor an end token; "
                "set tokenizer.pad_token and save it again"
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = int(tokenizer.model_max_length)
    if "gguf_file" not in where:
        _settle(tokenizer, str(source), revision)
    return tokenizer


def _settle(tokenizer: PreTrainedTokenizerBase, source: str, revision: str | None) -> None:
    """Remember the tokenizer's file, and have it give the token types that its model reads."""
    if (path := file_of(source, "tokenizer.json", revision)) is not None:
        remember_file(tokenizer, path)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except Exception:  # a tokenizer may stand alone
        return
    types = tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"]
    known = known_types(config)
    if 0 < max(types) < known and _says_nothing(tokenizer):
        names = [*tokenizer.model_input_names, _TYPES]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
        # Up to transformers 4, tokenizers without model_input_names gave token types.
        if not str(config.transformers_version or "4.").startswith(("1.", "2.", "3.", "4.")):
            _doubtful.add(tokenizer)


def known_types(config: Any) -> int:
    """Number of token types of a model, from its configuration."""
    return getattr(config, "type_vocab_size", 0) or 0


def read_pair(source: str, revision: str | None, config: Any) -> dict[str, Tensor] | None:
    """A pair of texts as a model reads it; None without token types or a tokenizer."""
    if known_types(config) < 2:
        return None
    try:
        tokenizer = load_tokenizer(source, revision=revision)
        pair = {**tokenizer("it is so", "no it is not", return_tensors="pt")}
        return pair if _TYPES not in pair or pair[_TYPES].max() < known_types(config) else None
    except Exception:  # errors are reported where the tokenizer is needed
        return None


def _says_nothing(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether token types are omitted only by the class's default, not by a setting."""
    names = tokenizer.model_input_names
    return (
        _TYPES not in names
        and names == type(tokenizer).model_input_names
        and "model_input_names" not in tokenizer.init_kwargs
    )


def as_read(
    encoded: EncodedExamples, tokenizer: PreTrainedTokenizerBase, known: int, reader: str
) -> EncodedExamples:
    """Examples with the token types that their model (``reader``) reads, if any."""
    types = encoded.token_type_ids
    if types is None or not any(map(any, types)):
        return encoded
    given, nothing_said = _TYPES in tokenizer.model_input_names, _says_nothing(tokenizer)
    without = replace(encoded, token_type_ids=None)
    kind = f"examples {encoded.examples.name!r}: {type(tokenizer).__name__}"
    if known < 2:
        return without
    if not given and (not nothing_said or max(map(max, types)) >= known):
        warn(
            f"{kind} gives no token types, but {reader} distinguishes {known}, so it reads "
            "both texts of a pair as the same type; if it was trained with token types, add "
            '"token_type_ids" to model_input_names in tokenizer_config.json'
        )
        return without
    if nothing_said or tokenizer in _doubtful:
        warn(
            f"{kind} does not specify token types, but {reader} distinguishes {known}; "
            "using those of its layout, as up to transformers 4; if the model was "
            'trained without them, as by transformers 5, set "model_input_names": '
            '["input_ids", "attention_mask"] in tokenizer_config.json; else add "token_type_ids"'
        )
    return encoded


def check_vocabulary(source: str, tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raise `InputError` unless the embedding has a row for every id that a text can have.

    Special tokens count if the tokenizer adds them to texts; others, such as a padding token that
    no batch may need, are checked when they occur in a batch.
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special -= {*tokenizer("a")["input_ids"]}
    ids = {i: token for token, i in tokenizer.get_vocab().items() if i not in special}
    largest, rows = max(ids), n_tokens(model)
    if largest >= rows:
        raise InputError(
            f"checkpoint {source}: its tokenizer ({type(tokenizer).__name__}) has the token "
            f"{ids[largest]!r} with id {largest}; expected ids from 0 to {rows - 1}, the rows of "
            f"the embedding of {name_of(model)}: save the model's own tokenizer with it"
        )
