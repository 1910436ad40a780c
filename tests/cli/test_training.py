"""`mechcore train` as users call it, bad input included."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import transformers as hf
from training.builders import encoder

from mechcore.cli import main
from mechcore.models import load_model
from mechcore.study.step import plain
from mechcore.training import read_history, train_settings
from mechcore.training.run_folder import publish
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_decoder_dir

SIZES = {"train": 40, "id": 30, "ood": 24}
SHORT = ["--steps", "3", "--warmup-steps", "0", "--batch-size", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and labelled files."""
    folder = tmp_path_factory.mktemp("files")
    for split, size in SIZES.items():
        frame = tiny_world.generate(split, size, 11).frame  # type: ignore[arg-type]
        frame.to_csv(folder / f"{split}.csv", index=False)
    frame.assign(label="maybe").to_csv(folder / "other.csv", index=False)
    frame.assign(label=range(len(frame))).to_csv(folder / "numbers.csv", index=False)
    publish(encoder(), tiny_world.encoder_tokenizer(), folder / "base")
    return folder


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["train", *map(str, words)])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def own(files: Path, *splits: str) -> list[object]:
    data = [word for split in splits or SIZES for word in (f"--{split}", files / f"{split}.csv")]
    return ["--model", files / "base", *data]


def test_a_run_its_table_and_its_checkpoints(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = [*own(files), *SHORT, "--checkpoint-every", 2, "--out", out]
    assert call(*command) == 0
    shown = capsys.readouterr().out
    history = read_history(out)
    overall = history[history["subset"] == "all"].set_index(["step", "dataset"])["accuracy"]
    for step in (2, 3):
        cells = [str(step), f"{overall[step, 'id']:.3f}", f"{overall[step, 'ood']:.3f}"]
        assert any(all(cell in line for cell in cells) for line in shown.splitlines())
    assert f"checkpoints and history: {out}" in shown
    left = {"step-0002", "final", "history.json", "training.json"}
    assert {path.name for path in out.iterdir()} == left
    load_model(out / "final")
    # Again: nothing is done, and other settings are refused.
    before = (out / "final" / "model.safetensors").stat().st_mtime_ns
    assert call(*command) == 0
    assert capsys.readouterr().out == shown
    assert (out / "final" / "model.safetensors").stat().st_mtime_ns == before
    assert call(*command, "--learning-rate", "1e-3") == 2
    assert "these differ: learning_rate. Use the same settings" in capsys.readouterr().err


def test_all_training_data_is_used_and_tests_are_optional(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_world.generate("train", 4100, 0).frame.to_csv(tmp_path / "big.csv", index=False)
    command = ["--model", files / "base", "--train", tmp_path / "big.csv", *SHORT]
    assert call(*command, "--steps", 1, "--out", tmp_path / "run") == 0
    taken = capsys.readouterr()
    assert "drawn at random" not in taken.err
    assert "accuracy" not in taken.out
    assert '"n": 4100' in (tmp_path / "run" / "training.json").read_text()


def test_the_classes_are_those_of_the_data_or_those_named(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*own(files, "train", "ood"), *SHORT, "--steps", 1]
    names = "neutral,entailment,contradiction"
    assert call(*command, "--class-names", names, "--out", tmp_path / "named") == 2
    error = capsys.readouterr().err
    assert "'non-entailment' stands for several of the classes" in error
    rename = ["--label-map", "non-entailment=neutral"]
    assert call(*command, "--class-names", names, *rename, "--out", tmp_path / "named") == 0
    config = hf.AutoConfig.from_pretrained(tmp_path / "named" / "final")
    assert list(config.id2label.values()) == names.split(",")
    assert "is replaced by a new one" in capsys.readouterr().err
    assert call(*command, *rename, "--out", tmp_path / "data") == 0
    config = hf.AutoConfig.from_pretrained(tmp_path / "data" / "final")
    assert list(config.id2label.values()) == ["entailment", "neutral"]


def test_settings_reach_the_run(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = "--preset bert-qqp --accumulate 2 --seed 5 --precision bfloat16 --max-length 40"
    further = "--setting weight_decay=0.1,by_length=true,checkpoint_dtype=float16"
    command = [*own(files, "train"), *SHORT, *options.split(), *further.split(), "--from-scratch"]
    assert call(*command, "--steps", 1, "--out", out) == 0
    settings = pd.read_json(out / "training.json", typ="series")["settings"]
    given = {"steps": 1, "batch_size": 8, "accumulate": 2, "warmup_steps": 0, "weight_decay": 0.1}
    given |= {"checkpoint_dtype": "float16", "max_length": 40, "by_length": True, "seed": 5}
    given |= {"precision": "bfloat16", "from_scratch": True, "epochs": None}
    assert settings == plain(train_settings("bert-qqp")) | given


def test_a_language_model_is_trained_to_answer(files: Path, tmp_path: Path) -> None:
    command = ["--model", tiny_decoder_dir(), *own(files)[2:], *SHORT, "--steps", 1]
    reading = ["--prompt", tiny_world.DECODER_PROMPT, "--answers"]
    answers = ",".join(f"{k}={v}" for k, v in tiny_world.DECODER_ANSWERS.items())
    assert call(*command, *reading, answers, "--out", tmp_path / "run") == 0
    assert hf.AutoConfig.from_pretrained(tmp_path / "run" / "final").model_type == "gpt2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model", "missing --train"),
        ("--train --id other.csv", "--model is missing; name the checkpoint to fine-tune"),
        ("--model --train --id FILES/other.csv", "label 'maybe'"),
        ("--model --train --prompt {a}", "--prompt and --answers belong"),
        ("--model --train --epochs 2", "exactly one of them"),
        ("--model --train --setting lr=1", "unknown setting 'lr'"),
        ("--model --train --setting steps=4", "has its own option"),
        ("--model --train --device gpu", "device gpu: expected cpu"),
        ("--model --train --patience 2", "no evaluation data to watch"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    options: str, message: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options.replace("--model", f"--model {files}/base")
    given = given.replace("--train", f"--train {files}/train.csv").replace("FILES", str(files))
    # What is given last counts.
    assert call(*SHORT, *given.split(), "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1]
    assert error[-1].startswith("mechcore: error: ")
    assert not (tmp_path / "run").exists()
