"""Small decoders to train from scratch; tokenizers and texts of made-up languages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from mechcore.data.examples import Examples
from mechcore.session import plain_session

SMALL_LAYERS = 4


def widen(model: PreTrainedModel) -> None:
    """Widen the embeddings of an untrained model; AdamW would at first move all words alike."""
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name or "wte" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif "_embeddings" in name or "wpe" in name:
            torch.nn.init.normal_(parameter, std=0.1)


@plain_session()
@torch.random.fork_rng([])
def small_gpt2(
    tokenizer: PreTrainedTokenizerBase, seed: int, *, width: int, n_heads: int, end: int
) -> GPT2LMHeadModel:
    """An untrained GPT-2 of 4 layers and 48 positions, untied embeddings, without dropout."""
    torch.default_generator.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=48,
            n_embd=width,
            n_layer=SMALL_LAYERS,
            n_head=n_heads,
            activation_function="gelu_new",
            initializer_range=0.08,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=end,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    widen(model)
    return model


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the block: the number of threads changes the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


SPECIALS = ("[PAD]", "[BOS]", "[EOS]")


def word_tokenizer(words: Iterable[str], *, begins: bool = False) -> PreTrainedTokenizerFast:
    """One token per word; other words are errors. With ``begins`` texts start with ``[BOS]``."""
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
    """Examples from rows of a text without its last word, that word as label, and subset."""
    frame = pd.DataFrame(list(rows), columns=["text_a", "label", "subset"])
    return Examples(name, frame.assign(text_b=""))
