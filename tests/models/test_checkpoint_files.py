"""What a checkpoint may hold: no code, no pickle unless asked for, nothing outside its folder."""

import builtins
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import Cases, close, padded, texts
from models.checkpoints import change_config
from models.checkpoints import refusal as refused
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechcore.errors import InputError
from mechcore.models import load_model, load_tokenizer
from mechcore.models.protocol import forward

INPUTS = padded(texts(), "right")


def refusal(source: Path, **options: Any) -> str:
    message = refused(source, **options)
    assert message.startswith(f"checkpoint {source}: ")
    return message


@pytest.fixture
def pickled(bert: Path) -> Path:
    """A checkpoint whose weights are a pickle."""
    torch.save(load_file(bert / "model.safetensors"), bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    return bert


def logits(source: Path, **options: Any) -> Tensor:
    return forward(load_model(source, **options), INPUTS)


# -- pickles --------------------------------------------------------------------------------------


def test_a_pickle_is_refused_with_the_reason_and_both_remedies(pickled: Path) -> None:
    message = refusal(pickled)
    assert "pytorch_model.bin is a pickle, which can run any code when it is read" in message
    assert "allow_pickle=True (on the command line --allow-pickle)" in message


def test_a_pickle_is_read_if_it_is_allowed_or_converted(pickled: Path, cases: Cases) -> None:
    expected = logits(cases.path("bert"))
    close(logits(pickled, allow_pickle=True), expected, 0)
    first, second = refusal(pickled).split("`")[1::2]
    space: dict[str, Any] = {}
    exec(f"{first}\n{second}", space)
    close(logits(pickled), expected, 0)


@pytest.mark.parametrize("allow", [False, True])
def test_safetensors_win_over_a_pickle(bert: Path, cases: Cases, allow: bool) -> None:
    other = {name: t + 1 for name, t in load_file(bert / "model.safetensors").items()}
    torch.save(other, bert / "pytorch_model.bin")
    expected = logits(cases.path("bert"))
    close(logits(bert, allow_pickle=allow), expected, 0)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_an_allowed_pickle_still_runs_nothing(pickled: Path, tmp_path: Path) -> None:
    torch.save({"x": Evil(tmp_path / "made")}, pickled / "pytorch_model.bin")
    message = refusal(pickled, allow_pickle=True)
    assert "its pickle is damaged, or holds objects other than tensors" in message
    assert not (tmp_path / "made").exists()


def test_parts_of_a_pickle_outside(pickled: Path) -> None:
    (pickled / "pytorch_model.bin").rename(pickled.parent / "outside.bin")
    index = {"metadata": {}, "weight_map": {"x": "../outside.bin"}}
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert "pytorch_model.bin.index.json is a pickle" in refusal(pickled)
    assert "names '../outside.bin' as weights" in refusal(pickled, allow_pickle=True)


def test_a_pickle_on_the_hub(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers reports a repository of which only the pickle is missing to it."""

    def no_safetensors(*_: Any, **options: Any) -> None:
        assert options["use_safetensors"] is True
        assert os.environ["DISABLE_SAFETENSORS_CONVERSION"] == "1"
        raise OSError("some/name has no file named model.safetensors; do not set `use_safetensors`")

    config = hf.AutoConfig.from_pretrained(bert)
    monkeypatch.setattr(
        hf.PretrainedConfig, "get_config_dict", lambda *_, **__: (config.to_dict(), {})
    )
    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", lambda **_: config)
    monkeypatch.setattr(hf.AutoModelForSequenceClassification, "from_pretrained", no_safetensors)
    with pytest.raises(InputError, match=r"^checkpoint some/name: no safetensors, and its pyt"):
        load_model("some/name")
    assert "DISABLE_SAFETENSORS_CONVERSION" not in os.environ


# -- code -----------------------------------------------------------------------------------------


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is asked on the terminal."""

    def asked(question: str = "") -> str:
        raise AssertionError(f"asked: {question}")

    monkeypatch.setattr(builtins, "input", asked)


CODE = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
class Config(BertConfig): pass
class Model(BertForSequenceClassification): pass
class Tokens(PreTrainedTokenizerFast): pass
"""


@pytest.mark.usefixtures("no_questions")
@pytest.mark.parametrize("kind", ["bert", "unheard-of"])
@pytest.mark.parametrize("where", ["code.", "someone/else--code."])
def test_code_of_a_checkpoint_is_never_run(bert: Path, kind: str, where: str) -> None:
    (bert / "code.py").write_text(CODE)
    model = {"AutoModelForSequenceClassification": f"{where}Model"}
    auto_map = {"AutoConfig": f"{where}Config", **model}
    change_config(bert, model_type=kind, auto_map=auto_map)
    message = refusal(bert)
    assert "its config.json names Python code to run (auto_map: {'AutoConfig': " in message
    assert "mechcore never runs code from checkpoints" in message
    assert not (bert / "ran").exists()


@pytest.mark.usefixtures("no_questions")
@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "Tokens"])
def test_code_of_a_tokenizer_is_never_run(bert: Path, kind: str) -> None:
    (bert / "code.py").write_text(CODE)
    auto_map = {"AutoTokenizer": [None, "code.Tokens"]}
    change_config(bert, "tokenizer_config.json", tokenizer_class=kind, auto_map=auto_map)
    with pytest.raises(InputError, match=r"its tokenizer_config\.json names Python code to run"):
        load_tokenizer(bert)
    assert not (bert / "ran").exists()


def test_an_adapter_is_not_a_model(bert: Path) -> None:
    (bert / "adapter_config.json").write_text('{"base_model_name_or_path": "some/where"}')
    problem = "found an adapter (adapter_config.json); merge it into its model"
    assert problem in refusal(bert)
    (bert / "model.safetensors").rename(bert / "adapter_model.safetensors")
    (bert / "config.json").unlink()
    assert problem in refusal(bert)


# -- other folders --------------------------------------------------------------------------------


def test_the_folder_around_checkpoints(bert: Path) -> None:
    run = bert.parent / "run"
    for inner in ("checkpoint-500", "checkpoint-1500", "checkpoint-1000"):
        shutil.copytree(bert, run / inner)
    (run / "logs").mkdir()
    (run / "training_args.bin").write_bytes(b"x")
    names = "checkpoint-500, checkpoint-1000, checkpoint-1500"
    rest = f"the checkpoints are in its folders {names}: name one of them, such as {run}/checkpo"
    assert f"no config.json in this directory; {rest}int-1500" in refusal(run)
    shutil.copy(bert / "config.json", run)
    assert f"no weights (model.safetensors) in this directory; {rest}int-1500" in refusal(run)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
POINTER = (LFS, "a Git LFS pointer (`git lfs pull` gets the file)")


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("config.json", "\n<!DOCTYPE html><html>", "a web page"),
        ("config.json", "\ufeff<?xml version='1.0'?><Error>", "a web page"),
        ("model.safetensors", *POINTER),
        ("part-1.safetensors", *POINTER),
        ("pytorch_model.bin", *POINTER),
        ("model.safetensors.index.json", "", "empty"),
        ("tokenizer.json", *POINTER),
        ("tokenizer_config.json", "", "empty"),
        ("vocab.txt", *POINTER),
    ],
)
def test_what_came_in_place_of_a_file(bert: Path, file: str, content: str, what: str) -> None:
    if "part" in file or "index" in file:
        shard(bert)
    if file == "pytorch_model.bin":
        (bert / "model.safetensors").unlink()
    if file == "vocab.txt":
        (bert / "tokenizer.json").unlink()
    (bert / file).write_text(content, encoding="utf-8")
    load = load_tokenizer if "token" in file or "vocab" in file else load_model
    options = {"allow_pickle": True} if load is load_model else {}
    message = re.escape(f"checkpoint {bert}: its {file} is {what}; download or copy the file again")
    with pytest.raises(InputError, match=f"^{message}$"):
        load(bert, **options)  # type: ignore[operator]


def test_what_is_not_read_may_be_anything(bert: Path, cases: Cases) -> None:
    for file in ("pytorch_model.bin", "vocab.txt", "README.md", "model.onnx"):
        (bert / file).write_text(LFS)
    load_tokenizer(bert)
    close(logits(bert), logits(cases.path("bert")), 0)


LAST = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize("pickle", [False, True])
@pytest.mark.parametrize(
    ("dtype", "quantization", "why"),
    [
        ("int8", None, "because a quantization_config is missing in its config.json"),
        ("float8_e4m3fn", None, "because a quantization_config is missing in its config.json"),
        ("int8", {"quant_method": "unheard-of"}, "because a quantization_config was not applied"),
        ("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, ""),
    ],
)
def test_quantized_weights(
    bert: Path, dtype: str, quantization: Any, why: str, pickle: bool
) -> None:
    if not why and importlib.util.find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed, which reads them")
    change_config(bert, **({"quantization_config": quantization} if quantization else {}))
    file = bert / "model.safetensors"
    weights = load_file(file)
    weights[LAST] = (100 * weights[LAST].abs()).to(getattr(torch, dtype))
    save_file(weights, file, {"format": "pt"})
    if pickle:
        torch.save(weights, bert / "pytorch_model.bin")
        file.unlink()
    message = refusal(bert, allow_pickle=pickle)
    stored = dtype if pickle else {"int8": "I8", "float8_e4m3fn": "F8_E4M3"}[dtype]
    assert f"its files hold the weights {LAST} ({stored})" in message
    assert why in message
    assert "from before quantization" in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_and_numbers_that_are_no_weights(bert: Path, dtype: torch.dtype) -> None:
    file = bert / "model.safetensors"
    rounded = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    more = {"bert.embeddings.position_ids": torch.arange(48)[None]}
    save_file({**rounded, **more}, file, {"format": "pt"})
    answers = logits(bert)
    save_file({name: t.float() for name, t in rounded.items()}, file, {"format": "pt"})
    close(answers, logits(bert), 0)


# -- files outside --------------------------------------------------------------------------------


def shard(path: Path, parts: dict[str, str] | None = None) -> None:
    """Replace the weights of a checkpoint by two parts; ``parts`` are other names for them."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {}
    for i, chosen in enumerate((names[::2], names[1::2])):
        file = f"part-{i}.safetensors"
        save_file({name: weights[name] for name in chosen}, path / file, {"format": "pt"})
        weight_map |= {name: (parts or {}).get(file, file) for name in chosen}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_parts(bert: Path, cases: Cases) -> None:
    shard(bert)
    close(logits(bert), logits(cases.path("bert")), 0)
    (bert / "part-1.safetensors").unlink()
    assert "index.json names part-1.safetensors as weights, which is missing; c" in refusal(bert)


@pytest.mark.parametrize(
    "file",
    [
        "inner/../../part-1.safetensors",
        "{outside}/part-1.safetensors",
        "..\\part-1.safetensors",
        "part-1.bin",
        5,
    ],
)
def test_parts_outside_the_checkpoint(bert: Path, file: Any) -> None:
    if isinstance(file, str):
        file = file.format(outside=bert.parent)
    shard(bert, {"part-1.safetensors": file})
    shutil.copy(bert / "part-1.safetensors", bert.parent)
    message = refusal(bert)
    start = repr(str(file)[:60])[:-1]  # long ones are cut
    assert f"model.safetensors.index.json names {start}" in message
    assert "expected a file inside the checkpoint that ends in .safetensors" in message


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "[" * 100_000])
def test_an_index_that_is_none(bert: Path, content: str) -> None:
    shard(bert)
    (bert / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json is not an index of weights" in refusal(bert)


def test_weights_that_the_configuration_names(bert: Path, cases: Cases) -> None:
    shutil.copy(bert / "model.safetensors", bert.parent)
    for file in ("../model.safetensors", "adapter_model.bin", 5):
        change_config(bert, transformers_weights=file)
        assert f"config.json names {str(file)!r} as weights" in refusal(bert)
    (bert / "model.safetensors").rename(bert / "mine.safetensors")
    change_config(bert, transformers_weights="mine.safetensors")
    close(logits(bert), logits(cases.path("bert")), 0)


def test_a_configuration_that_cannot_be_used(bert: Path) -> None:
    change_config(bert, vocab_size="many")
    message = "its configuration cannot be used: Validation error for field 'vocab_size': Type"
    assert message in refusal(bert)


def test_a_tokenizer_that_fails_when_it_is_used(bert: Path) -> None:
    change_config(bert, "tokenizer_config.json", model_max_length="long")
    with pytest.raises(InputError, match="no usable tokenizer: '>' not supported"):
        load_tokenizer(bert)
