"""Where commands put models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from mechcore.analyses import question_names
from mechcore.cli import app, main

WITHOUT_MODELS = {"init", "status", "clean", "report", "export", "trials", "facts"}
"""Commands that run no model, or train the embedded ones, which the processor does bit for bit."""

ASKED = {
    **{name.replace("_", "-"): "--model none --task mnli-hans" for name in question_names()},
    "effective-size": "--checkpoints none",
    "bench": "--cases planted",
    "run": "--model none --task mnli-hans",
    "demo": "",
    "train": "--model none --train none.csv",
    "reproduce cognitive": "",
    "reproduce extractive": "",
}


def commands(group: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Commands by name, those in groups included."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{place}{name} ")
        else:
            yield f"{place}{name}", command


def test_every_command_that_runs_a_model_has_the_option() -> None:
    group = typer.main.get_command(app)
    having = {
        name
        for name, command in commands(group)
        if any("--device" in option.opts for option in command.params)
    }
    missing = {name for name, _ in commands(group)} - having
    assert {name.split()[-1] for name in missing} == WITHOUT_MODELS
    assert having == ASKED.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("command", ASKED)
def test_a_device_that_is_not_there_is_said_before_any_work(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), *ASKED[command].split(), "--device", "cuda"])
    said = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert len(said) == 1
    assert said[0].startswith("mechcore: error: device cuda: this machine has none")
    assert sorted(tmp_path.rglob("*")) == before
