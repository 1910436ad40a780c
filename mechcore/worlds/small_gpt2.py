"""Small decoders to train from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from mechcore.session import plain_session

SMALL_LAYERS = 4


def widen(model: PreTrainedModel) -> None:
    """Widen the embeddings of an untrained model.

    With the usual 0.02, AdamW would move all words the same way before they are told apart.
    """
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
    """The order of floating-point sums, and so the result, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
