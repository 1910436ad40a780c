"""Hostile checkpoints: configurations, tokenizers and weights that were changed at random."""

import json
import random
import shutil
from pathlib import Path

import helpers
from fuzz.artefacts import as_json, changed_tensors
from fuzz.harness import ODD_VALUES, Maker, changed, check_all, damaged
from helpers import Cases

from mechcore.models import load_model, load_tokenizer
from mechcore.models.protocol import forward
from mechcore.steps.config import ModelConfig
from mechcore.steps.inputs import open_model

SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
ADDED = (
    *("pytorch_model.bin", "model.safetensors.index.json", "adapter_config.json", "vocab.txt"),
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json", "merges.txt"),
    *("chat_template.jinja", "spiece.model", "modeling_bert.py", "processor_config.json"),
)
KEYS = (
    *("auto_map", "quantization_config", "transformers_weights", "attn_implementation"),
    *("torch_dtype", "dtype", "tie_word_embeddings", "num_labels", "hidden_act", "rope_scaling"),
    *("tokenizer_class", "model_type", "architectures", "id2label", "pad_token_id", "is_decoder"),
    *("num_hidden_layers", "num_attention_heads", "max_position_embeddings", "vocab_size"),
)


def changed_checkpoints(original: Path) -> Maker:
    """Makes copies of a checkpoint in which one file is damaged, changed, lost or added."""

    def write_changed_checkpoint(rng: random.Random, folder: Path) -> Path:
        path = Path(shutil.copytree(original, folder / "checkpoint"))
        file = path / rng.choice([*SMALL, "config.json", "config.json", WEIGHTS])
        content = file.read_bytes()
        kind = rng.randrange(10)
        if kind == 0:
            file.unlink()
        elif kind == 1:
            file.write_bytes(damaged(rng, content))
        elif kind == 2:
            other = rng.choice([b"", b"{}", b"[]", b"[" * 10**5, content])
            (path / rng.choice(ADDED)).write_bytes(other)
        elif file.name == WEIGHTS:
            file.write_bytes(changed_tensors(rng, content))
        elif kind < 6:
            values = json.loads(content)
            values[rng.choice(KEYS)] = rng.choice(ODD_VALUES)
            file.write_bytes(as_json(values))
        else:
            file.write_bytes(as_json(changed(rng, json.loads(content))))
        return path

    return write_changed_checkpoint


def foreign_tokenizers(original: Path) -> Maker:
    """Makes copies of a checkpoint whose tokenizer has ids moved, or tokens more or less."""

    def write_foreign_tokenizer(rng: random.Random, folder: Path) -> Path:
        path = Path(shutil.copytree(original, folder / "checkpoint"))
        file = path / "tokenizer.json"
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        kind = rng.randrange(4)
        if kind == 0:  # a larger vocabulary
            words |= {f"more{i}": len(words) + i for i in range(rng.choice([1, 5, 1000]))}
        elif kind == 1:  # the ids of one
            moved = rng.choice([w for w in words if not w.startswith("[")])
            words[moved] = rng.choice([helpers.VOCABULARY - 1, helpers.VOCABULARY, 30_000, 2**31])
        elif kind == 2:  # a smaller one
            for word in [w for w in words if not w.startswith("[")][rng.randrange(1, 5) :]:
                del words[word]
        file.write_text(json.dumps(content))
        return path

    return write_foreign_tokenizer


def test_foreign_tokenizers(cases: Cases, tmp_path: Path) -> None:
    words = helpers.word_tokenizer().get_vocab()
    text = " ".join(word for word in words if not word.startswith("["))

    def read(path: Path) -> None:
        loaded = open_model(ModelConfig(source=str(path)))
        ids = loaded.tokenizer([f"{text} more0 more4 more999"], return_tensors="pt")
        assert forward(loaded.model, ids).isfinite().all()

    tally = check_all(tmp_path, 60, foreign_tokenizers(cases.path("bert")), read)
    assert min(tally.read, tally.refused) >= 10


def test_checkpoints(cases: Cases, tmp_path: Path) -> None:
    def read(path: Path) -> None:
        load_model(path)
        load_tokenizer(path)("the cat saw")

    check_all(tmp_path, 75, changed_checkpoints(cases.path("bert")), read)
