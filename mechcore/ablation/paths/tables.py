"""Tables of what cutting paths costs, with both of their ends, where each set has one receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What accuracy and margin lose without each set of paths.

    Args:
        ablations: answers with sets of paths cut; sets of components among them are left out.
        options: of `mechcore.ablation.ablation_table`.

    Returns:
        The columns of `PATHS`.

    Raises:
        InputError: a set has several receivers.
    """
    cut = _paths_of(ablations)
    return _with_ends(ablation_table(cut, **options), cut)


def path_information_table(
    ablations: Ablations, groups: Mapping[str, Sequence[str]] | None = None, **options: Any
) -> pd.DataFrame:
    """What is lost in information, and by a moved threshold, without each set of paths.

    Args:
        ablations: as `path_table`.
        groups: see `mechcore.ablation.information_table`.
        options: of that.

    Returns:
        The columns of `PATH_INFORMATION`.

    Raises:
        InputError: a set has several receivers, a group names an unknown subset, or logits were
            not kept.
    """
    cut = _paths_of(ablations)
    return _with_ends(information_table(cut, groups, **options), cut)


def _paths_of(ablations: Ablations) -> Ablations:
    cut_answers: dict[Cut, Answers] = {
        cut: answers for cut, answers in ablations.without.items() if isinstance(cut, PathSet)
    }
    for cut in cut_answers:
        if isinstance(cut, PathSet) and len(cut.senders) != 1:
            raise InputError(
                f"paths {cut}: found {len(cut.senders)} receivers; expected one: make a set of "
                "each, or take mechcore.ablation.ablation_table"
            )
    return replace(ablations, without=cut_answers)


def _with_ends(table: pd.DataFrame, cut: Ablations) -> pd.DataFrame:
    ends: dict[str, tuple[str, ...]] = {}
    for paths in cut.without:
        assert isinstance(paths, PathSet)
        [(receiver, senders)] = paths.senders.items()
        to = "answer" if receiver.component is None else str(receiver.component)
        ends[str(paths)] = ("+".join(map(str, sorted(senders))), to, receiver.input)
    columns = zip(*(ends[name] for name in table["set"]), strict=True) if len(table) else [[]] * 3
    named = zip((column.name for column in ENDS), columns, strict=True)
    return table.assign(**{name: list(values) for name, values in named})
