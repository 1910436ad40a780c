"""Byte-level tokenizers that learn from a few texts, as GPT-2's did from many."""

from __future__ import annotations

from collections.abc import Iterable

import transformers as hf
from tokenizers import Tokenizer, decoders, processors
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from tokenizers.trainers import BpeTrainer


def byte_level(
    texts: Iterable[str], size: int, split_digits: bool = False
) -> hf.PreTrainedTokenizerFast:
    """Byte pairs, numbers whole or digit by digit; no special token is added."""
    tokenizer, pieces = Tokenizer(BPE()), ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = Sequence([Digits(True), pieces]) if split_digits else pieces
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=split_digits)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
