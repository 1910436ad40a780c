"""Sections of a study of extractive structures on scores: maps, their sums, two scores compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mechcore.papers.extractive.experiments.score_maps import LOCALIZATION, LOCALIZATION_R2, SUMS
from mechcore.papers.extractive.report.looks import (
    CLAIMS,
    KINDS,
    LETTERS,
    basis,
    kind_name,
    slug,
    sorted_parts,
    tasks_of,
)
from mechcore.papers.extractive.results import KINDS as SCORE_KINDS
from mechcore.papers.extractive.results import SCORES as SCHEMA
from mechcore.papers.pages import TOP, seed_tables
from mechcore.papers.seeds import in_order, rows_of, seed_name, seeds_in
from mechcore.report.blocks import Block, Drawing, Paragraph, Shown, missing, table_of
from mechcore.report.drawing import (
    GREY,
    LIGHT_GREY,
    MAX_WIDTH,
    draw_by_layer,
    layer_bar,
    layer_norm,
    new_figure,
    shorten,
    styled,
)
from mechcore.report.run_folder import RunFolder
from mechcore.wording import number, small

_MAP = ("task", "score", "kind")
_UNORDERED = (
    ". If every seed has its own base, heads of a layer have no order, so means over seeds "
    "are more informative for layers than for heads"
)
_SMALLEST, _LARGEST, _ROOM_FOR_NUMBERS = 0.09, 0.42, 0.16
"""Sides of a cell, and the least one with a number beside it, in inches."""
_NARROWEST = 1.05
"""Least width of a panel, in inches, so that titles stay apart."""
_PALETTE = matplotlib.colormaps["RdBu"].with_extremes(bad=LIGHT_GREY)


@CLAIMS.section("scores", "Extractive scores", "the scores of components", "extractive_scores")
def component_scores(_: RunFolder, scores: pd.DataFrame) -> Iterator[Block]:
    """Where facts are stored, asked for and read out."""
    yield Paragraph(
        "Informative: stores the fact. Upstream: queries the fact. "
        "Downstream: turns the stored fact into the answer. Blue helps the right answer, "
        "red hinders it, white does neither. Every map has its own scale, given next to its "
        "name, in logits."
    )
    for task in tasks_of(scores):
        rows = rows_of(scores, task=task)
        yield from _maps(rows, task, "")
        seeds = seeds_in(rows)
        for seed in seeds if len(seeds) > 1 else ():
            yield from _maps(rows_of(rows, seed=seed), task, seed_name(seed))
    sums = scores.groupby([*_MAP, "seed"], sort=False)["value"].sum(min_count=1).reset_index()
    yield from seed_tables(
        sorted_parts(sums, *_MAP),
        SCHEMA,
        _MAP,
        ["value"],
        "Scores summed over all components of a kind and all tokens",
    )
    named = pd.concat([keyed(rows_of(scores, task=task)) for task in tasks_of(scores)])
    named = named.assign(token=named["column"].map(token_name)).reset_index(drop=True)
    yield from seed_tables(
        sorted_parts(named, *_MAP),
        SCHEMA,
        [*_MAP, "component", "token"],
        ["value"],
        f"The {TOP} components and tokens of each map with the largest scores, of either sign",
        largest_of=_MAP,
        by=lambda rows: rows["value"].abs(),
    )


def _maps(scores: pd.DataFrame, task: str, seed: str) -> Iterator[Block]:
    name = "-".join(filter(None, (slug(task), seed.replace(" ", "-"))))
    several = len(seeds_in(scores)) > 1
    over = seed or ("mean over seeds" if several else "one seed")
    title = f"{task[:1].upper()}{task[1:]}, {over}"
    of_all = basis(rows_of(scores, n=scores["n"].max()))  # not all have tokens of long names
    yield Drawing(
        token_maps(scores, title),
        f"scores-tokens-{name}",
        f"{title}: scores by layer and token of the implication's prompt, on top of MLPs, below "
        "of heads, summed over the heads of a layer. The answer is read at the last token; "
        f"{of_all}",
        f"Heatmaps, layer by token, of the scores of {task}, {over}; the largest are in the table "
        "below.",
        fold=f"{title}: by layer and token" if seed else "",
    )
    if (scores["kind"] == "head").any():
        yield Drawing(
            head_maps(scores, title),
            f"scores-heads-{name}",
            f"{title}: scores of every head, summed over tokens{_UNORDERED if several else ''}; "
            f"{of_all}",
            f"Heatmaps, layer by head, of the scores of {task}, {over}.",
            fold=f"{title}: by layer and head" if seed else "",
        )


@CLAIMS.section("sums", "Sum check", "the check that scores add up", "extractive_sums")
def sums(run: RunFolder, table: pd.DataFrame) -> Iterator[Block]:
    """Whether the scores add up, and how far first order is from the actual change."""
    table = table.assign(sum=table["informative"] + table["other"])
    gap = (table["sum"] - table["gradient"]).abs().max()
    yield Paragraph(
        "Informative scores of all components, plus the contributions of embeddings and norms, "
        "must add up to the first-order change of the reward: its gradient times the change of the "
        f"weights. The largest difference between the two is {small(gap)} logits. The "
        "actual change differs from both by its nonlinear part."
    )
    if (run.config.get("settings") or {}).get("compat") == "paper":
        text = "These are scores as in the published code, with W_out twice and without W_in "
        yield Paragraph(f"{text}in the MLPs: they do not add up.", note=True)
    caption = "Change in the reward (logits), means over prompts: by scores, to first order, and "
    caption += "actual; r is the correlation over prompts of the last two"
    total = SUMS["gradient"].alike("sum", "")
    shown: list[Shown] = ["task", "seed", "informative", "other", total, "gradient", "actual"]
    yield table_of(table, SUMS, caption, [*shown, "r", "n"])


def token_map(
    scores: pd.DataFrame, columns: Sequence[tuple[str, int]], n_layers: int
) -> pd.DataFrame:
    """Scores of a task and kind by layer and token: summed over components, mean over seeds."""
    values = _matrix(keyed(scores), "column", columns, n_layers)
    return values.set_axis([token_name(column) for column in columns], axis=1)


def head_map(scores: pd.DataFrame, n_heads: int, n_layers: int) -> pd.DataFrame:
    """Scores by layer and head: summed over tokens, mean over seeds."""
    return _matrix(scores, "head", range(n_heads), n_layers).rename(columns=str)


def token_columns(scores: pd.DataFrame) -> list[tuple[str, int]]:
    """The columns of all seeds: the name of a token, and the how many-th of that name it is."""
    columns = keyed(scores).sort_values("place").groupby("seed")["column"].unique()
    longest_first = sorted(columns, key=len, reverse=True)
    return list(dict.fromkeys(column for one in longest_first for column in one))


def keyed(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task with ``column``: (token, how many-th of that name in its seed)."""
    places = scores[["seed", "place", "token"]].drop_duplicates().sort_values(["seed", "place"])
    nth = places.groupby(["seed", "token"]).cumcount()
    column = pd.Series(list(zip(places["token"], nth, strict=True)), places.index, dtype=object)
    return scores.merge(places.assign(column=column), on=["seed", "place", "token"])


def _matrix(
    scores: pd.DataFrame, column: str, columns: Sequence[object], n_layers: int
) -> pd.DataFrame:
    keys = ["layer", column]
    sums = scores.groupby(["seed", *keys])["value"].sum(min_count=1)
    table = sums.groupby(keys).mean().unstack(column)
    names = pd.Index(list(columns), tupleize_cols=False)
    return table.reindex(index=range(n_layers), columns=names).astype(float)


def token_name(column: tuple[str, int]) -> str:
    """What a column is called."""
    token, nth = column
    return f"{token.strip()} ({nth + 1})" if nth else token.strip()


@styled
def token_maps(scores: pd.DataFrame, title: str) -> Figure:
    """MLPs and heads of a task by layer and token, a column of panels per score."""
    columns, n_layers = token_columns(scores), _count(scores["layer"])
    maps = {
        (kind_name(kind), score): token_map(
            rows_of(scores, kind=kind, score=score), columns, n_layers
        )
        for kind in in_order(scores["kind"], list(KINDS))
        for score in in_order(scores["score"], SCORE_KINDS)
    }
    return _draw_maps(title, maps, "", upright=False)


@styled
def head_maps(scores: pd.DataFrame, title: str) -> Figure:
    """Heads of a task by layer and number, summed over tokens, a panel per score."""
    heads = rows_of(scores, kind="head")
    shape = _count(heads["head"]), _count(scores["layer"])
    maps = {
        ("heads", score): head_map(rows_of(heads, score=score), *shape)
        for score in in_order(scores["score"], SCORE_KINDS)
    }
    return _draw_maps(title, maps, "head", upright=True)


def _count(numbers: pd.Series) -> int:
    return int(numbers.max()) + 1


def _draw_maps(
    title: str, maps: Mapping[tuple[str, str], pd.DataFrame], label: str, *, upright: bool
) -> Figure:
    """Panels by kind and score, each with its own scale, which its title gives."""
    kinds, scores = (list(dict.fromkeys(names)) for names in zip(*maps, strict=True))
    first = next(iter(maps.values()))
    n_layers, n_columns = first.shape
    largest = max(_LARGEST, _NARROWEST / n_columns)
    cell = float(np.clip(((MAX_WIDTH - 1.5) / len(scores) - 0.2) / n_columns, _SMALLEST, largest))
    end = "\n" if cell * n_columns < 2 * _NARROWEST else " "  # of the first line of a title
    names = [shorten(str(name), LETTERS) for name in first]
    below = 0.45 if upright else 0.15 + 0.065 * max(map(len, names))
    width = len(scores) * (cell * n_columns + 0.3) + 1.5
    height = len(kinds) * (cell * n_layers + 0.3 + 0.15 * (end == "\n")) + below + 0.45
    figure = new_figure(width, height, square_cells=True)
    figure.suptitle(shorten(title), size=10.5)
    axes = figure.subplots(len(kinds), len(scores), squeeze=False, sharex=True, sharey=True)
    for ax, ((kind, score), values) in zip(axes.flat, maps.items(), strict=True):
        most = _draw_map(ax, values.to_numpy())
        ax.set_title(f"{shorten(score, LETTERS)},{end}{kind}: \u00b1{small(most)}", size=8.5)
    shown = range(0, n_columns, _every(n_columns, cell) if upright else 1)
    for ax in axes[-1]:
        ax.set_xticks(
            shown, labels=[names[i] for i in shown], rotation=0 if upright else 90, size=7
        )
        ax.set_xlabel(label)
    for ax in axes[:, 0]:
        ax.set_ylabel("layer")
    axes[0, 0].set_yticks(range(0, n_layers, _every(n_layers, cell)))
    scale = ScalarMappable(Normalize(-1, 1), _PALETTE)
    bar = figure.colorbar(scale, ax=axes, fraction=0.03, aspect=16, shrink=0.8)
    bar.set_ticks([-1, 0, 1], labels=["hinders", "0", "helps"])
    bar.outline.set_visible(False)
    return figure


def _every(n: int, cell: float) -> int:
    """Of so many numbered rows or columns, one in how many is named."""
    return 1 if cell >= _ROOM_FOR_NUMBERS or n <= 6 else 4


def _draw_map(ax: Axes, values: np.ndarray) -> float:
    most = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
    # Without interpolation the file holds one pixel per cell, however large it is shown.
    ax.imshow(values, cmap=_PALETTE, norm=Normalize(-most, most), interpolation="none")
    ax.spines[:].set(visible=True, color=LIGHT_GREY, lw=0.8)
    ax.tick_params(length=0, pad=2)
    return most


# -- two scores compared ------------------------------------------------------------------------

MOST_SEEDS = 3


@CLAIMS.section(
    "localization", "Localisation", "", "extractive_localization", "extractive_localization_r2"
)
def learned_and_read(
    _: RunFolder, table: pd.DataFrame | None, r2: pd.DataFrame | None
) -> Iterator[Block]:
    """Whether what learning implications changes is where facts are read out."""
    if table is None:
        yield missing("the scores of learning and of reading out")
    else:
        n = len(seeds_in(table))
        shown_seeds = f"; the first {MOST_SEEDS} of {n} seeds" if n > MOST_SEEDS else ""
        yield Drawing(
            localization(table, r2),
            "localization",
            "Informative score of learning implications after facts (where it is stored) "
            "against downstream score of facts of test names (where they are read out), in "
            "logits, summed over tokens: a dot per component, coloured by layer. Every panel "
            f"has its own scale{shown_seeds}.",
            "Scatter plots of informative against downstream scores of components, MLPs and "
            "heads by seed; the correlations are in the table below.",
        )
    if r2 is None:
        yield missing("the correlation of the two scores")
    else:
        rows = sorted_parts(r2.sort_values("seed", kind="stable"), "kind")
        caption = "Correlation over components of the two scores"
        columns = ["kind", "seed", "r2", "r", "p", "n", "facts", "new_facts"]
        yield table_of(rows, LOCALIZATION_R2, caption, columns)
    if table is not None:
        yield from seed_tables(
            sorted_parts(table, "kind"),
            LOCALIZATION,
            ["kind", "component"],
            ["informative", "downstream"],
            f"The {TOP} components of each kind with the largest informative score",
            largest_of=["kind"],
            by=lambda rows: rows["informative"],
        )


@styled
def localization(table: pd.DataFrame, r2: pd.DataFrame | None) -> Figure:
    """Informative against downstream scores, a dot per component: kinds by seeds."""
    kinds, seeds = in_order(table["kind"], list(KINDS)), seeds_in(table)[:MOST_SEEDS]
    layers = layer_norm(table["layer"])
    figure = new_figure(min(1.6 + 2.9 * len(seeds), MAX_WIDTH), 0.5 + 2.6 * len(kinds))
    axes = figure.subplots(len(kinds), len(seeds), squeeze=False)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            part = rows_of(table, kind=kind, seed=seed)
            ax.axvline(0, color=GREY, lw=0.9)
            ax.axhline(0, color=GREY, lw=0.9)
            draw_by_layer(ax, part["informative"], part["downstream"], part["layer"], layers)
            squared = () if r2 is None else rows_of(r2, kind=kind, seed=seed)["r2"].head(1)
            r_squared = "".join(f": r\u00b2 = {number(value)}" for value in squared)
            ax.set_title(f"{kind_name(kind)}, {seed_name(seed)}{r_squared}")
        row[0].set_ylabel("downstream")
    for ax in axes[-1]:
        ax.set_xlabel("informative")
    layer_bar(figure, axes, layers)
    return figure
