from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mechcore.papers.cognitive import ArmTraining, CognitiveSettings
from mechcore.papers.cognitive.text import tiny_tokenizer


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder of 2 layers with 2 heads, as a checkpoint."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=24,
            initializer_range=0.3,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    path = tmp_path_factory.mktemp("checkpoints") / "random base"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def small(base: Path) -> CognitiveSettings:
    """The smallest study that has every step."""
    training = ArmTraining(
        (1e-3, 1e-2), steps=4, batch_size=8, warmup_steps=0, evaluate_every=2, patience=2
    )
    return CognitiveSettings(
        str(base),
        sizes=(8, 16),
        seeds=(3, 4),
        fine_tuned=training,
        scratch=training,
        n_dev=16,
        n_test=48,
        n_analysis=40,
        n_resamples=50,
        shuffles=19,
        permutations=100,
        projection="pca",
    )
