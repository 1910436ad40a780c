"""What ``--help`` shows and leaves to ``--help-all``, and which commands can choose a device."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import typer
from helpers import every_setting

import mechcore
from mechcore.analyses import question_names
from mechcore.cli import app, main
from mechcore.main_study.config import StudyConfig

ROOT = Path(__file__).resolve().parents[2]
OPTION = re.compile(r"--[a-z][a-z-]*")


def lines(*words: str, columns: int = 100) -> list[str]:
    """What a command prints on a terminal with so many columns."""
    out = io.StringIO()  # typer's runner has 80 columns, whatever it is told
    with patch.dict(os.environ, {"COLUMNS": str(columns)}), contextlib.redirect_stdout(out):
        app(words, prog_name="mechcore", standalone_mode=False)
    return out.getvalue().splitlines()


def panels(shown: list[str]) -> dict[str, str]:
    """The text of every panel by its name."""
    text = "\n".join(line.strip("│") for line in shown)
    parts = re.split(r"^╭─ (\w[\w ]*) ─+╮\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(group: Any = None, place: str = "") -> Iterator[tuple[str, Any]]:
    """All commands, with the words that call them."""
    group = group or typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{place}{name} ")
        else:
            yield f"{place}{name}", command


def test_commands_stand_in_groups() -> None:
    shown = panels(lines("--help"))
    groups = {name: re.findall(r"^ (\S+)", text, re.M) for name, text in shown.items()}
    assert groups.pop("Options") == ["--version", "--help"]
    assert groups == {
        "Main job": ["run", "demo", "report", "export"],
        "Models and methods": ["train", "bench"],
        "Questions": [name.replace("_", "-") for name in question_names()],
        "Studies": ["study"],
        "Reproductions": ["reproduce"],
    }
    known = {name for name, _ in commands()}
    studies = {f"study {name}" for name in ("init", "status", "clean")}
    assert {name for name in known if name.startswith("study ")} == studies
    papers = ("cognitive", "trials", "extractive", "facts")
    assert {f"reproduce {name}" for name in papers} <= known


@pytest.mark.parametrize(
    ("words", "code", "first"),
    [
        ("", 2, "[OPTIONS] COMMAND"),
        ("study", 2, "study [OPTIONS] COMMAND"),
        ("-h", 0, "[OPTIONS] COMMAND"),
        ("core -h", 0, "core [OPTIONS]"),
        ("-V", 0, f"mechcore {mechcore.__version__}"),
    ],
)
def test_ways_to_ask_for_help(
    capsys: pytest.CaptureFixture[str], words: str, code: int, first: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == code
    out, err = capsys.readouterr()
    assert first in out
    assert err == ""


PANELS = {
    "Model": "--model --class-names --dtype",
    "Data": "--train --label-map --max-ood",
    "Pruning": "--prune-method --prune-preset --prune-settings --prune-steps --seeds "
    "--target-sparsities",
    "Analyses": "--fill --tolerance --resamples --with --without --only --ood-mean",
    "Compute": "--cpus --device --executor --batch-size",
    "Output": "--out --dry-run",
}


def test_options_stand_in_the_panel_of_their_settings() -> None:
    shown = panels(lines("run", "--help-all"))
    assert "[default: float32]" in shown["Model"]
    for panel, options in PANELS.items():
        assert {*options.split()} <= {*re.findall(r"^ (--[a-z-]+)", shown[panel], re.M)}, panel


def test_rare_options_are_shown_on_request() -> None:
    rare = {entry.setting.option for _, entry in every_setting(StudyConfig) if entry.setting.rare}
    rare |= {"--store", "--address", "--wandb-mode"}
    assert {"--revision", "--device-map", "--allow-pickle", "--least-effect"} <= rare
    shown = [lines("run", option, columns=160) for option in ("--help", "--help-all")]
    short, whole = ({*OPTION.findall("\n".join(text))} for text in shown)
    assert not rare & short
    assert rare <= whole
    assert short < whole
    assert sum("│ --" in line for line in shown[0]) <= 40 + len(shown)


def test_the_reference_of_commands_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import commands as reference  # type: ignore[import-not-found]

    sections = re.split(r"^## mechcore ", reference.reference(), flags=re.M)[1:]
    texts = {section.partition("\n")[0]: section for section in sections}
    known = dict(commands())
    assert texts.keys() == known.keys()
    for words, command in known.items():
        for param in command.params:
            for option in [*param.opts, *param.secondary_opts]:
                assert option in texts[words], f"{words} {option}"


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


def test_every_command_that_runs_a_model_has_the_option() -> None:
    known = {
        name: {option for param in command.params for option in param.opts}
        for name, command in commands()
    }
    missing = {name.split()[-1] for name, options in known.items() if "--device" not in options}
    assert missing == WITHOUT_MODELS
    assert {name for name in known if name.split()[-1] not in missing} == ASKED.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("command", ASKED)
def test_a_device_that_is_not_there_is_said_before_any_work(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), *ASKED[command].split(), "--device", "cuda"])
    said = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert len(said) == 1
    assert said[0].startswith("mechcore: error: device cuda: torch ")
    assert not list(tmp_path.iterdir())
