"""Tables of what cutting paths costs, with both of their ends, where each set has one receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from mechcore.ablation.cuts import Cut
from mechcore.ablation.effects.changes import ABLATION, Ablations, Answers, ablation_table
from mechcore.ablation.effects.information import INFORMATION, information_table
from mechcore.components.paths import PathSet
from mechcore.errors import InputError
from mechcore.tables import Column

ENDS = (
    Column("senders", "text", "the components that the receiver does not see, joined by ``+``"),
    Column("receiver", "text", "the component that does not see them, or ``answer``"),
    Column("input", "text", "what of it does not: ``q``, ``k``, ``v``, or ``all`` that it reads"),
)
_MEANING = "when a receiver does not see what senders write, on every subset"
PATHS = ABLATION.named("paths", f"How accuracy and margin change {_MEANING}.", *ENDS)
PATH_INFORMATION = INFORMATION.named(
    "path_information",
    f"What changes in information, and what by a moved threshold, {_MEANING} and group of subsets; "
    "negative: worse so.",
    *ENDS,
)


def path_table(ablations: Ablations, **options: Any) -> pd.DataFrame:
    """What accuracy and margin lose without each set of paths; the columns of `PATHS`.

    Args:
        ablations: answers with sets of paths cut; sets of components among them are left out.
        options: of `mechcore.ablation.ablation_table`.

    Raises:
        InputError: a set has several receivers.
    """
    return _with_ends(ablation_table, ablations, **options)


def path_information_table(
    ablations: Ablations, groups: Mapping[str, Sequence[str]] | None = None, **options: Any
) -> pd.DataFrame:
    """What is lost in information, and by a moved threshold; the columns of `PATH_INFORMATION`.

    Args:
        ablations: as `path_table`.
        groups: see `mechcore.ablation.information_table`.
        options: of that.

    Raises:
        InputError: a set has several receivers, a group names an unknown subset, or logits were
            not kept.
    """
    return _with_ends(information_table, ablations, groups=groups, **options)


def _with_ends(
    tabled: Callable[..., pd.DataFrame], ablations: Ablations, **options: Any
) -> pd.DataFrame:
    """A table of the sets of paths alone, with the ends of each."""
    cut: dict[Cut, Answers] = {}
    ends: dict[str, tuple[str, ...]] = {}
    for paths, answers in ablations.without.items():
        if isinstance(paths, PathSet):
            if len(paths.senders) != 1:
                raise InputError(
                    f"paths {paths}: found {len(paths.senders)} receivers; expected one: make a "
                    "set of each, or take mechcore.ablation.ablation_table"
                )
            [(receiver, senders)] = paths.senders.items()
            to = "answer" if receiver.component is None else str(receiver.component)
            cut[paths] = answers
            ends[str(paths)] = ("+".join(map(str, sorted(senders))), to, receiver.input)
    table = tabled(replace(ablations, without=cut), **options)
    columns = [[ends[name][i] for name in table["set"]] for i in range(len(ENDS))]
    return table.assign(**dict(zip((c.name for c in ENDS), columns, strict=True)))
