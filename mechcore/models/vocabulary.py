"""Whether a tokenizer is that of a model: each of its ids needs a row of the embedding."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from mechcore.errors import InputError
from mechcore.models.running import n_tokens, name_of


def check_vocabulary(source: str, tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Make sure that the model's embedding has a row for every id that a text can give.

    Special tokens count where the tokenizer puts them around texts; what else it has of them, such
    as a padding token that no batch may need, is looked at when a batch has it.

    Args:
        source: the checkpoint, for the error.
        tokenizer: its tokenizer.
        model: the TransformerLens model of it.

    Raises:
        InputError: there is an id without a row.
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special -= {*tokenizer("a")["input_ids"]}
    ids = {i: token for token, i in tokenizer.get_vocab().items() if i not in special}
    largest, rows = max(ids), n_tokens(model)
    if largest >= rows:
        raise InputError(
            f"checkpoint {source}: its tokenizer ({type(tokenizer).__name__}) has the token "
            f"{ids[largest]!r} with id {largest}; expected ids from 0 to {rows - 1}, the rows of "
            f"the embedding of {name_of(model)}: save the model's own tokenizer beside it"
        )
