from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest

from mechcore.models import load_model
from mechcore.papers.cognitive import ArmTraining, CognitiveSettings
from mechcore.papers.cognitive.text import tiny_tokenizer


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder of 2 layers with 2 heads, as a checkpoint."""
    tokenizer = tiny_tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id")}
    ids |= {"eos_token_id": tokenizer.eos_token_id, "vocab_size": len(tokenizer)}
    path = tmp_path_factory.mktemp("checkpoints") / "random base"
    helpers.gpt2_language_model(n_head=2, **ids).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny(base: Path) -> tuple[Any, Any]:
    """The base as a bridge, and its tokenizer; not to be changed."""
    return load_model(base), tiny_tokenizer()


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
        permutations=99,
        projection="pca",
        decoded_layers=(1,),
    )
