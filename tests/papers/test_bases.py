from __future__ import annotations

from pathlib import Path

import helpers
import pytest

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.papers.bases import Checkpoint, model_facts
from mechcore.study.step import hash_file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "base"
    helpers.gpt2_language_model(vocab_size=11).save_pretrained(path)
    return path


def test_a_checkpoint_is_what_its_files_hold(base: Path, tmp_path: Path) -> None:
    content = Checkpoint(str(base)).content(hash_file)
    assert content["config.json"] == hash_file(base / "config.json")
    assert content["model.safetensors"] == hash_file(base / "model.safetensors")
    with pytest.raises(InputError, match="nothing here"):
        Checkpoint(str(tmp_path / "nothing here")).content(hash_file)


def test_facts_about_a_base(base: Path) -> None:
    known = helpers.gpt2_language_model(vocab_size=11)
    facts = model_facts(load_model(str(base), task="language-model"), "mine")
    assert facts["source"] == "mine"
    assert (facts["n_layers"], facts["d_model"]) == (known.config.n_layer, known.config.n_embd)
    assert facts["n_parameters"] == sum(weight.numel() for weight in known.parameters())
