"""The section on the sets that a search for superadditive ones found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from mechcore.ablation.settings import GUARANTEE
from mechcore.ablation.superadditivity import directions
from mechcore.report import interaction_figures
from mechcore.report.ablation_figures import atlas, by_components, largest_interactions
from mechcore.report.blocks import Block, Drawing, Paragraph, Section, Table
from mechcore.report.groups import one_label_notes
from mechcore.report.run_folder import RunFolder
from mechcore.wording import (
    ALL,
    DASH,
    SIGNIFICANT,
    count,
    effect,
    role_name,
    small,
    subsets_named,
    whole,
    with_interval,
)

_MOST_ROWS = 40


def search_section(run: RunFolder) -> Section | None:
    """The sets found, measured on data that the search did not see; None without a search."""
    found = run.table("superadditive")
    if found is None:
        return None
    title, files = "Search for superadditive sets", ["superadditive.csv", "screening.csv"]
    files += ["race.csv"] * (run.table("race") is not None)
    overall = found[found["subset"] == ALL]
    if len(overall) == 0:
        none: list[Block] = [*map(Paragraph, _raced(run, overall)), *_atlas(run)]
        none.append(Paragraph("The search found no set.", note=True))
        return Section("search", title, none, files)
    drawn = largest_interactions(overall)
    n = overall["set"].nunique()
    rest = f" Of {n} sets, the {len(drawn)} with the largest are drawn." if len(drawn) < n else ""
    blocks: list[Block] = [
        *map(Paragraph, _how(run, found, overall)),
        *map(Paragraph, search_sentences(run)),
        *one_label_notes(run, found),
        Drawing(
            interaction_figures.interactions(overall, drawn),
            "superadditive",
            "Interaction of the sets that the search found, in the order in which it ranked them, "
            f"on the half of the data that it did not see.{rest}",
            "Dot plot of interactions on accuracy and margin; the numbers are in the table below.",
        ),
        _table(overall),
        *_atlas(run),
    ]
    return Section("search", title, blocks, files)


def search_sentences(run: RunFolder) -> Iterator[str]:
    """How many of the sets found are superadditive on data that the search did not see."""
    found = run.table("superadditive")
    if found is None:
        return
    overall = found[found["subset"] == ALL]
    for metric, name in (("margin", "the margin"), ("accuracy", "accuracy")):
        part = overall[overall["metric"] == metric].dropna(subset=["interaction"])
        if len(part) == 0:
            continue
        above = int((directions(part, SIGNIFICANT) > 0).sum())
        data, largest = part["data"].iloc[0], _largest(overall, part, metric)
        chosen = f"Of {count(len(part), 'set')} that a search chose on one half of {data}"
        if part["low"].isna().all():
            yield f"{chosen}, no interval on {name} is known on the other half. {largest}"
            continue
        text = (
            f"{chosen}, {above} {'is' if above == 1 else 'are'} superadditive on {name} on the "
            f"other half, with an interval below zero and an adjusted p of at most "
            f"{SIGNIFICANT:g}. {largest}"
        )
        floors = int(part["floor"].sum()) if metric == "accuracy" else 0
        if floors:
            text += f" Accuracy has next to nothing left to lose for {floors} of {len(part)}."
        yield text


def _largest(overall: pd.DataFrame, part: pd.DataFrame, metric: str) -> str:
    """The interaction, on the other half, of the set that was the largest in the search."""
    column = "interaction_in_search"  # which tables of older versions lack
    seen = overall.reindex(columns=["set", column]).dropna()
    first = part[part["set"].isin(seen["set"][seen[column] == seen[column].max()])]
    row = first.iloc[0] if len(first) else part.iloc[int(part["interaction"].argmax())]
    size = with_interval(-row["interaction"], -row["high"], -row["low"], metric, unit=True)
    which = "set that was the largest in the search" if len(first) else "most superadditive set"
    return f"The {which}, {row['set']}, has an interaction of {size}."


def _how(run: RunFolder, found: pd.DataFrame, overall: pd.DataFrame) -> Iterator[str]:
    screening = run.table("screening")
    if run.table("race") is not None:
        yield from _raced(run, overall)
    elif screening is not None and len(screening):
        exact = int(screening["interaction"].notna().sum())
        were = "was" if len(screening) == 1 else "were"
        by = _settings(run).get("screening_by", "screening")
        how = "gradients" if by == "screening" else by
        grown = "; larger sets grew from the best smaller ones" if overall["size"].max() > 2 else ""
        yield (
            f"{count(len(screening), 'pair')} of components {were} screened by {how}, and the "
            f"best {whole(exact)} ablated exactly{grown}."
        )
    first = overall.iloc[0]
    names = [name for name in dict.fromkeys(found["subset"]) if name != ALL]
    which = f" in {subsets_named(names)}" if names else ""
    yield (
        f"All figures are from the half of {first['data']} ({role_name(first['role'])}) that the "
        f"search did not see: {count(first['n'], 'example')}{which}. Those on the half that it "
        "chose the sets by stand beside them; as the largest of many they come out too large."
    )


def _settings(run: RunFolder) -> Mapping[str, Any]:
    """Those of the search, as far as ``config.json`` has them."""
    found: Mapping[str, Any] = run.analyses.get("search") or {}
    return found


def _raced(run: RunFolder, overall: pd.DataFrame) -> Iterator[str]:
    """What a race decided, by the size of the sets, and how many of those found are shown."""
    race, search = run.table("race"), _settings(run)
    least = f"{search.get('least', 0.1):g} nats"
    names = {
        "above": f"superadditive by more than {least} of margin",
        "below": f"subadditive by more than {least}",
        "within": f"within {least} of zero",
        "top": "among the largest",
        "rest": "not among them",
        "open": "undecided",
    }
    for size, part in race.groupby("size") if race is not None else []:
        counts = part["decision"].value_counts()
        told = [f"{whole(counts[each])} {name}" for each, name in names.items() if each in counts]
        found = ", ".join(told)
        yield (
            f"A race decided {count(len(part), 'set')} of {whole(float(str(size)))} components: "
            f"{found}. Half of them took {part['n'].median():g} examples or fewer, none more than "
            f"{whole(part['n'].max())}; any decision about the half searched is wrong with a "
            f"probability of {search.get('guarantee') or GUARANTEE:g} at most, if no example has "
            "an effect far larger than those seen."
        )
        wanted = counts.get("above", 0) + counts.get("top", 0)
        reported = overall.loc[overall["size"] == size, "set"].nunique()
        if reported < wanted:
            yield (
                f"The table shows the {whole(reported)} largest of the {whole(wanted)} that are "
                f"{names['above' if 'above' in counts else 'top']}; race.csv has all."
            )


def _atlas(run: RunFolder) -> Iterator[Drawing]:
    """The interactions of all pairs that were raced, if they are more than a table shows."""
    race = run.table("race")
    if race is None or by_components(race, 2)["set"].nunique() <= _MOST_ROWS:
        return
    where = race.iloc[0]
    yield Drawing(
        atlas({f"{role_name(where['role'])}: {where['data']}": race}),
        "atlas",
        "Interaction of every two components as a change of margin, as far as the race knows it: "
        "negative, and red, where both together cost more than the sum. Sets that left the race "
        "early are known less well; race.csv has every interval. One per cent of the largest "
        "share the darkest colours. Components are in the order of layers, MLPs after heads.",
        "Heat map of the interactions of pairs of components; the numbers are in race.csv.",
    )


def _table(overall: pd.DataFrame) -> Table:
    rows = []
    for name, part in overall.groupby("set", sort=False):
        by_metric = {row["metric"]: row for _, row in part.iterrows()}
        margin, accuracy = by_metric.get("margin"), by_metric.get("accuracy")
        rows.append([str(name), *_cells(margin), _searched(part), *_cells(accuracy)])
        rows[-1].append(_limit(accuracy))
    header = ["set", "interaction on margin (nats)", "adjusted p", "in the search half"]
    header += ["interaction on accuracy (points)", "adjusted p", "accuracy is cut off"]
    caption = "Sets that the search found, over all examples of the half that it did not see; "
    caption += (
        "joint and single drops (with the other sign), and every subset, are in superadditive.csv"
    )
    words = frozenset({0, len(header) - 1})
    return Table(caption, header, rows, words, folded=len(rows) > _MOST_ROWS)


def _cells(row: pd.Series | None) -> list[str]:
    if row is None:
        return [DASH] * 2
    metric = row["metric"]
    return [
        with_interval(-row["interaction"], -row["high"], -row["low"], metric),
        small(row["p_adjusted"]),
    ]


def _searched(part: pd.DataFrame) -> str:
    """The interaction that the search saw, on the one metric that it ranked by."""
    if "interaction_in_search" not in part:
        return DASH
    seen = part.dropna(subset=["interaction_in_search"])
    if len(seen) == 0:
        return DASH
    return effect(-seen["interaction_in_search"].iloc[0], seen["metric"].iloc[0])


def _limit(row: pd.Series | None) -> str:
    if row is None:
        return ""
    ends = [name for name in ("floor", "ceiling") if row[name]]
    return f"at the {' and '.join(ends)}" if ends else "no"
