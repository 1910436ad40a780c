"""What ``--help`` shows, and what it leaves to ``--help-all``."""

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
import typer

import mechcore
from mechcore.analyses import question_names
from mechcore.cli import app, main
from mechcore.main_study.config import StudyConfig
from mechcore.settings import all_entries

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


def commands(group: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands, with the words that call them."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*place, name))
        else:
            yield (*place, name), command


def test_commands_stand_in_groups() -> None:
    shown = panels(lines("--help"))
    found = {name: re.findall(r"^ (\S+)", text, re.M) for name, text in shown.items()}
    assert found.pop("Options") == ["--version", "--help"]
    assert found == {
        "Main job": ["run", "demo", "report", "export"],
        "Models and methods": ["train", "bench"],
        "Questions": [name.replace("_", "-") for name in question_names()],
        "Studies": ["study"],
        "Reproductions": ["reproduce"],
    }


def test_commands_of_groups() -> None:
    found = {" ".join(words) for words, _ in commands(typer.main.get_command(app))}
    assert {each for each in found if each.startswith("study ")} == {
        f"study {name}" for name in ("init", "status", "clean")
    }
    papers = ("cognitive", "trials", "extractive", "facts")
    assert {f"reproduce {name}" for name in papers} <= found


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


@pytest.mark.parametrize(
    ("panel", "options"),
    [
        ("Model", "--model --class-names --dtype"),
        ("Data", "--train --label-map --max-ood"),
        (
            "Pruning",
            "--prune-method --prune-preset --prune-settings --prune-steps --seeds "
            "--target-sparsities",
        ),
        ("Analyses", "--fill --tolerance --resamples --with --without --only --ood-mean"),
        ("Compute", "--cpus --device --executor --batch-size"),
        ("Output", "--out --dry-run"),
    ],
)
def test_options_stand_in_the_panel_of_their_settings(panel: str, options: str) -> None:
    found = panels(lines("run", "--help-all"))[panel]
    assert "[default: float32]" in panels(lines("run", "--help-all"))["Model"]
    assert {*options.split()} <= {*re.findall(r"^ (--[a-z-]+)", found, re.M)}


def test_rare_options_are_shown_on_request() -> None:
    rare = {entry.setting.option for _, entry in all_entries(StudyConfig) if entry.setting.rare} | {
        "--store",
        "--address",
        "--wandb-mode",
    }
    assert {"--revision", "--device-map", "--allow-pickle", "--least-effect"} <= rare
    short, whole = ({*OPTION.findall("\n".join(lines("run", each)))} for each in HELP)
    assert not rare & short
    assert rare <= whole
    assert short < whole
    options = sum("│ --" in line for line in lines("run", "--help", columns=160))
    assert options <= 40 + len(["--help", "--help-all"])


HELP = ("--help", "--help-all")


def test_only_commands_that_hide_options_show_them_on_request() -> None:
    for words, command in commands(typer.main.get_command(app)):
        options = {option for each in command.params for option in each.opts}
        assert ("--help-all" in options) == any(each.hidden for each in command.params), words


def test_the_reference_of_commands_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "docs" / "site"))
    import commands as reference  # type: ignore[import-not-found]

    sections = re.split(r"^## mechcore ", reference.reference(), flags=re.M)[1:]
    texts = {section.partition("\n")[0]: section for section in sections}
    known = dict(commands(typer.main.get_command(app)))
    assert texts.keys() == {" ".join(words) for words in known}
    for words, command in known.items():
        text = texts[" ".join(words)]
        for each in command.params:
            for option in [*each.opts, *each.secondary_opts]:
                assert option in text, f"{words} {option}"
