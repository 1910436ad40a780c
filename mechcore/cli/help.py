"""Help in panels, so that a page of it can be surveyed.

Commands and options carry their panel as typer's ``rich_help_panel``; what is drawn is plain text,
which costs less than rich's boxes in lines and in time.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mechcore.errors import warn

WIDTH = 100
"""Characters in a line of help at most."""

PANELS = (
    *("Arguments", "Options", "Model", "Data", "Training"),
    *("Pruning", "Analyses", "Compute", "Output", "Help"),
)
"""Panels of options in their order; options without one are the command's own."""

_WIDEST = 34
"""Characters of an option beside its help; longer ones stand in a line of their own."""


class Command(TyperCommand):
    """A command whose options stand in panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; of one that is given twice the last counts, which is said."""
        _, _, order = self.make_parser(ctx).parse_args([*args])
        for each, times in Counter(each for each in order if each.nargs == 1).items():
            if times > 1 and each.param_type_name == "option" and not each.multiple:
                warn(f"{each.opts[0]} is given {times} times; the last one counts")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, panel by panel."""
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                panels[_panel(each)].append(record)
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records, col_max=_WIDEST)


def _panel(option: Any) -> str:
    if option.param_type_name == "argument":
        return "Arguments"
    if option.name in ("help", "help_all"):
        return "Help"
    return getattr(option, "rich_help_panel", None) or "Options"


class Group(TyperGroup):
    """Commands in panels, each with the whole first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, panel by panel."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, each in found.items():
            assert each is not None
            panel = getattr(each, "rich_help_panel", None) or "Commands"
            row = (name.ljust(max(map(len, found))), each.get_short_help_str(limit=10 * WIDTH))
            panels.setdefault(panel, []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for each in context.command.params:
            each.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
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


def group(help: str, cls: type[Group] = Group) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        help=help,
        cls=cls,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDTH, "help_option_names": ["-h", "--help"]},
    )
