"""What the embedded models of the tiny world share in training, and the decoder.

The decoder is a GPT-2-architecture language model (4 layers, 8 heads a layer, width 128), trained
from scratch. The encoder has a module of its own, ``tiny_encoder``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from mechcore.data.examples import Examples
from mechcore.session import plain_session
from mechcore.training import TrainSettings, train_answering
from mechcore.worlds import tiny_world

DECODER_STEPS = 2500
SMALL_LAYERS = 4
"""Of `small_gpt2`."""
SEED = 0
BATCH_SIZE = 64
TRAINING_PAIRS = 200_000
EVALUATION_SEED = 1
EVALUATION_PAIRS = {"id": 1500, "ood": 1200}


def widen(model: PreTrainedModel) -> None:
    """Widen the embeddings of an untrained model.

    The usual 0.02 suits a width of 768 and much data: here AdamW would move all words the same way
    before they are told apart, and the matching of equal words is not found for thousands of steps.
    """
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name or "wte" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif "_embeddings" in name or "wpe" in name:
            torch.nn.init.normal_(parameter, std=0.1)


def tiny_decoder_model(seed: int) -> GPT2LMHeadModel:
    """An untrained decoder (0.8 M parameters) with untied embeddings."""
    tokenizer = tiny_world.decoder_tokenizer()
    return small_gpt2(tokenizer, seed, width=128, n_heads=8, end=tokenizer.sep_token_id)


@plain_session()
@torch.random.fork_rng([])
def small_gpt2(
    tokenizer: PreTrainedTokenizerBase, seed: int, *, width: int, n_heads: int, end: int
) -> GPT2LMHeadModel:
    """An untrained GPT-2 of 4 layers and 48 positions, untied embeddings, without dropout.

    ``end`` is the id of the token that ends a text.
    """
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


def train_tiny_decoder(
    out: str | Path,
    steps: int = DECODER_STEPS,
    seed: int = SEED,
    minority: float = tiny_world.DEFAULT_MINORITY,
    progress: bool = True,
) -> pd.DataFrame:
    """Train the decoder, by default that in ``data/tiny_decoder``; see ``train_tiny_encoder``."""
    with one_thread():
        return train_answering(
            tiny_decoder_model(seed),
            tiny_world.decoder_tokenizer(),
            tiny_world.generate("train", TRAINING_PAIRS, seed, minority),
            evaluations(),
            out,
            settings_for(steps, seed),
            prompt=tiny_world.DECODER_PROMPT,
            answers=tiny_world.DECODER_ANSWERS,
            progress=progress,
        )


def settings_for(steps: int, seed: int) -> TrainSettings:
    """Settings that both models of the tiny world share; there are no checkpoints but the last."""
    return TrainSettings(
        steps=steps,
        learning_rate=5e-4,
        batch_size=BATCH_SIZE,
        warmup_steps=min(100, steps - 1),
        evaluate_every=100,
        checkpoint_every=100 * steps,
        checkpoint_dtype="float16",
        seed=seed,
    )


def evaluations() -> dict[str, Examples]:
    """In-domain pairs, and out-of-domain pairs in which the heuristic fails."""
    n_id, n_ood = (EVALUATION_PAIRS[split] for split in ("id", "ood"))
    both = tiny_world.generate("ood", 2 * n_ood, EVALUATION_SEED)
    return {
        "id": tiny_world.generate("id", n_id, EVALUATION_SEED),
        "ood": both.labelled(tiny_world.NON_ENTAILMENT),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """The order of floating-point sums, and so the result, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
