"""How all commands are made: help in typer's panels, rare options on request."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mechcore.errors import warn


class Command(TyperCommand):
    """A command that says when an option is given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; of one that is given twice the last counts, which is said."""
        _, _, order = self.make_parser(ctx).parse_args([*args])
        for each, times in Counter(each for each in order if each.nargs == 1).items():
            if times > 1 and each.param_type_name == "option" and not each.multiple:
                warn(f"{each.opts[0]} is given {times} times; the last one counts")
        return super().parse_args(ctx, args)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for each in context.command.params:
            each.hidden = False  # type: ignore[attr-defined]
        context.get_help()
        raise typer.Exit()


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_show_all,
        is_eager=True,
        help="Show all options, with those that are rarely used, and exit.",
    ),
]
"""Of commands that have options which ``--help`` leaves out."""


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
