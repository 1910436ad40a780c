"""The embedded decoder of the tiny world, and the training settings it shares with the encoder.

It is a GPT-2-architecture language model (4 layers of 8 heads, width 128), trained from scratch.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from transformers import GPT2LMHeadModel

from mechcore.data.examples import Examples
from mechcore.training import TrainSettings, answering, train
from mechcore.worlds import tiny_world
from mechcore.worlds.small_gpt2 import one_thread, small_gpt2

DECODER_STEPS = 2500
SEED = 0
BATCH_SIZE = 64
TRAINING_PAIRS = 200_000
EVALUATION_SEED = 1
EVALUATION_PAIRS = {"id": 1500, "ood": 1200}


def tiny_decoder_model(seed: int) -> GPT2LMHeadModel:
    """An untrained decoder (0.8 M parameters) with untied embeddings."""
    tokenizer = tiny_world.decoder_tokenizer()
    return small_gpt2(tokenizer, seed, width=128, n_heads=8, end=tokenizer.sep_token_id)


def train_tiny_decoder(
    out: Path, steps: int = DECODER_STEPS, seed: int = SEED, pairs: int = TRAINING_PAIRS
) -> pd.DataFrame:
    """Train the decoder, by default that in ``data/tiny_decoder``; return its history."""
    model, tokenizer = tiny_decoder_model(seed), tiny_world.decoder_tokenizer()
    prompt, answers = tiny_world.DECODER_PROMPT, tiny_world.DECODER_ANSWERS
    with one_thread():
        return train(
            model,
            answering(model, tokenizer, prompt, answers),
            tiny_world.generate("train", pairs, seed),
            evaluations(),
            out,
            settings_for(steps, seed),
        )


def settings_for(steps: int, seed: int) -> TrainSettings:
    """Settings shared by both models of the tiny world; only the last checkpoint is kept."""
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
    """In-domain pairs, and out-of-domain pairs where the heuristic fails."""
    n_id, n_ood = (EVALUATION_PAIRS[split] for split in ("id", "ood"))
    both = tiny_world.generate("ood", 2 * n_ood, EVALUATION_SEED)
    return {
        "id": tiny_world.generate("id", n_id, EVALUATION_SEED),
        "ood": both.labelled(tiny_world.NON_ENTAILMENT),
    }
