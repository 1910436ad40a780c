"""Tables of the effects of cutting paths, with senders and receiver, for one receiver per set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from mechcore.ablation.effects.changes import ABLATION, Ablations, Answers, ablation_table
from mechcore.ablation.effects.information import information_table, with_information
from mechcore.ablation.sets import Cut
from mechcore.components.names import PathSet
from mechcore.errors import InputError
from mechcore.tables import Column

ENDS = (
    Column("senders", "text", "the components that the receiver does not see, joined by ``+``"),
    Column("receiver", "text", "the component that does not see them, or ``answer``"),
    Column("input", "text", "the blind inputs of a head: ``q``, ``k``, ``v``, or ``all``"),
)
PATHS = with_information(
    ABLATION,
    "path_information",
    "Changes when paths from senders to a receiver are cut, on every subset and, in information, "
    "on groups of subsets; negative: worse when cut.",
    *ENDS,
)


def path_table(ablations: Ablations, **options: Any) -> pd.DataFrame:
    """`mechcore.ablation.ablation_table` of sets of paths to one receiver each, as in `PATHS`."""
    return _with_ends(ablation_table, ablations, **options)


def path_information_table(
    ablations: Ablations, groups: Mapping[str, Sequence[str]] | None = None, **options: Any
) -> pd.DataFrame:
    """`mechcore.ablation.information_table` of sets of paths to one receiver, as in `PATHS`."""
    return _with_ends(information_table, ablations, groups=groups, **options)


def _with_ends(
    tabled: Callable[..., pd.DataFrame], ablations: Ablations, **options: Any
) -> pd.DataFrame:
    """A table of only the sets of paths, with their senders and receiver."""
    cut: dict[Cut, Answers] = {}
    ends: dict[str, tuple[str, ...]] = {}
    for paths, answers in ablations.without.items():
        if isinstance(paths, PathSet):
            if len(paths.senders) != 1:
                raise InputError(
                    f"paths {paths}: found {len(paths.senders)} receivers; expected one; make one "
                    "set per receiver, or use mechcore.ablation.ablation_table"
                )
            [(receiver, senders)] = paths.senders.items()
            to = "answer" if receiver.component is None else str(receiver.component)
            cut[paths] = answers
            ends[str(paths)] = ("+".join(map(str, sorted(senders))), to, receiver.input)
    table = tabled(replace(ablations, without=cut), **options)
    columns = [[ends[name][i] for name in table["set"]] for i in range(len(ENDS))]
    return table.assign(**dict(zip((c.name for c in ENDS), columns, strict=True)))
