"""The command line: thin commands over the study's steps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

import mechcore
from mechcore.cli import (
    ablation,
    bench,
    components,
    dividends,
    paths,
    report,
    study,
    subnetworks,
    superadditive,
    training,
)
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.registry import Registry

INTERRUPTED = 130

COMMANDS: Registry[typer.Typer] = Registry("group of commands", "mechcore.commands")
"""Groups of commands that packages add, by the name of the group."""

app = typer.Typer(
    name="mechcore",
    help=mechcore.__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"mechcore {mechcore.__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for _command in (
    study.init,
    study.run,
    study.demo,
    study.status,
    study.clean,
    subnetworks.means,
    subnetworks.prune,
    subnetworks.compare,
    subnetworks.core,
    subnetworks.effective_size,
    subnetworks.export,
    components.heads,
    ablation.ablate,
    superadditive.superadditive,
    dividends.dividends,
    paths.paths,
    report.report,
    training.train,
    bench.bench,
    study.train_world,
):
    app.command(_command.__name__.replace("_", "-"))(_command)
for _group in COMMANDS:
    app.add_typer(COMMANDS[_group], name=_group)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show mechcore's warnings as one line each, and once, and no one else's."""
    told: set[str] = set()

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        if issubclass(category, MechcoreWarning) and str(message) not in told:
            told.add(str(message))
            print(f"mechcore: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", MechcoreWarning)
        warnings.showwarning = show
        yield


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line.

    Exit codes: 0 done, 1 a step failed, 2 bad input (one line on standard error), 130 interrupted.
    """
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
        code = _fail(f"{describe()} (mechcore COMMAND --help lists the options)", 2)
    if code == INTERRUPTED:  # also what typer makes of a KeyboardInterrupt
        _fail(
            "interrupted; run, demo, cognitive run, extractive run, effective-size, train and "
            "bench go on when run again, prune, compare, ablate, superadditive, dividends and "
            "paths with --resume",
            code,
        )
    sys.exit(code or 0)


def _fail(message: str, code: int) -> int:
    print(f"mechcore: error: {' '.join(message.split())}", file=sys.stderr)
    return code
