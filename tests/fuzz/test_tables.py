"""Hostile files of examples, and of accuracies."""

from pathlib import Path
from typing import Any

import pytest
from fuzz.harness import check_all
from fuzz.tables import write_examples

from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.models import load_tokenizer
from mechcore.worlds.embedded import tiny_encoder_dir


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(tiny_encoder_dir())


@pytest.mark.parametrize("labelled", [True, False])
def test_examples(tmp_path: Path, tokenizer: Any, labelled: bool) -> None:
    def read(path: Path) -> None:
        examples = read_examples(path, labelled=labelled)
        assert examples.fingerprint
        assert len(examples.sample(2, seed=0)) <= 2
        encoded = encode(examples, tokenizer, max_length=48, words=True)
        assert max(map(len, encoded.input_ids)) <= 48
        assert len(encoded) == len(examples)

    check_all(tmp_path, 180, write_examples, read)
