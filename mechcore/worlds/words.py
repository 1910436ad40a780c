"""Tokenizers and texts of made-up languages, whose words stand between spaces."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mechcore.data.examples import Examples

SPECIALS = ("[PAD]", "[BOS]", "[EOS]")


def word_tokenizer(words: Iterable[str], *, begins: bool = False) -> PreTrainedTokenizerFast:
    """A token for every word; none for unknown ones: a text with another word is an error.

    Ids begin after the special tokens. With ``begins`` every text begins with ``[BOS]``.
    """
    pad, bos, eos = SPECIALS
    vocabulary = dict.fromkeys((*SPECIALS, *words))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if begins:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_input_names=["input_ids", "attention_mask"],
    )


def texts_of(name: str, rows: Iterable[tuple[str, str, str]]) -> Examples:
    """Texts up to their last word, that word, which is the label, and the subset, one row each."""
    frame = pd.DataFrame(list(rows), columns=["text_a", "label", "subset"])
    return Examples(name, frame.assign(text_b=""))
