"""The command line: one command per question, and commands for runs, studies and models."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import mechcore
from mechcore.analyses import question_names
from mechcore.cli import methods, study
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.registry import Registry

INTERRUPTED = 130

REPRODUCTIONS: Registry[Callable[..., None]] = Registry("reproduction", "mechcore.reproductions")


def group(help: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        help=help,
        cls=cls,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class Reproductions(TyperGroup):
    """Commands that are imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return REPRODUCTIONS.names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if there is none."""
        if cmd_name not in REPRODUCTIONS:
            return None
        alone = group("")
        alone.command(cmd_name)(REPRODUCTIONS[cmd_name])
        return typer.main.get_command(alone)


app = group(mechcore.__doc__ or "")


def _version(asked: bool) -> None:
    if asked:
        print(f"mechcore {mechcore.__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("-V", "--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


_STUDIES = group("Settings and progress of studies, and cleaning up.")
_PANELS: list[tuple[typer.Typer, str | None, Sequence[Callable[..., None]]]] = [
    (app, "Main job", (study.run, study.demo, study.report, study.export)),
    (app, "Questions", [study.question(name) for name in question_names()]),
    (app, "Models and methods", (methods.train, methods.bench)),
    (_STUDIES, None, (study.init, study.status, study.clean)),
]
for _group, _panel, _commands in _PANELS:
    for _command in _commands:
        _group.command(_command.__name__.replace("_", "-"), rich_help_panel=_panel)(_command)
app.add_typer(_STUDIES, name="study", rich_help_panel="Studies")
app.add_typer(
    group("Studies of published papers, and their parts.", Reproductions),
    name="reproduce",
    rich_help_panel="Reproductions",
)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show each of mechcore's warnings once, on one line, and no others."""
    seen: set[str] = set()

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        if issubclass(category, MechcoreWarning) and str(message) not in seen:
            seen.add(str(message))
            print(f"mechcore: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", MechcoreWarning)
        warnings.showwarning = show
        yield


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line.

    Exit codes: 0 done, 1 a step failed, 2 bad input (one line on standard error), 130 interrupted.
    """
    arguments = _with_home(sys.argv[1:] if arguments is None else arguments)
    try:
        with _one_line_warnings():
            code = app(arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except InputError as error:
        code = _fail(str(error), 2)
    except MechcoreError as error:
        code = _fail(str(error), 1)
    except OSError as error:
        code = _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 1)
    except Exception as error:
        # Usage errors; their class moved between versions of typer.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is shown
            sys.exit(2)
        code = _fail(f"{describe()} (mechcore COMMAND --help lists the options)", 2)
    if code == INTERRUPTED:  # typer also returns it for a KeyboardInterrupt
        _fail("interrupted; rerun the same command to resume", code)
    sys.exit(code or 0)


def _with_home(arguments: Sequence[str]) -> list[str]:
    """Arguments with ``~`` expanded, which shells do not do after an equals sign."""
    return [
        re.sub(r"^(--[\w-]+=)?~(?=/|$)", lambda at: f"{at[1] or ''}{os.path.expanduser('~')}", text)
        for text in arguments
    ]


def _fail(message: str, code: int) -> int:
    print(f"mechcore: error: {' '.join(message.split())}", file=sys.stderr)
    return code
