"""The sections of a study of extractive structures that are of scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from mechcore.papers.extractive.report.looks import (
    SCORES as SCORE_ORDER,
)
from mechcore.papers.extractive.report.looks import (
    TASKS,
    basis,
    of,
    seed_name,
    slug,
    sorted_parts,
    tasks_of,
)
from mechcore.papers.extractive.report.map_figures import head_maps, token_maps
from mechcore.papers.extractive.report.maps import keyed, token_name
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.papers.extractive.results import PARTS, SCORES
from mechcore.papers.extractive.score_maps import SUMS
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Paragraph,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, means_over_seeds, ordered, seeds_in, strongest
from mechcore.wording import small

_MAP = ("task", "score", "kind")
_UNORDERED = (
    ". If every seed has a base of its own, heads of a layer have no order, and means over seeds "
    "say more of layers than of heads"
)
_TOP = 3
"""Cells of a map in a table."""


# -- maps ---------------------------------------------------------------------------------------


def scores_section(run: RunFolder, gallery: Gallery) -> Section:
    """Where facts are stored, asked for and read out."""
    section_id, title = "scores", "Extractive scores"
    scores = run.filled("extractive_scores")
    if scores is None:
        return not_run(section_id, title, "the scores of components")
    text = (
        "Informative: the fact is stored here. Upstream: the fact is asked for from here. "
        "Downstream: turns the stored fact into the answer. Blue helps the right answer, "
        "red hinders it, white does neither. Every map has its own scale, the number beside its "
        "name, in logits."
    )
    blocks: list[Block] = [*CLAIMS.lines(run, section_id), Paragraph(text)]
    for task in tasks_of(scores):
        blocks += _maps_of_task(gallery, of(scores, task=task), task)
    named = pd.concat([keyed(of(scores, task=task)) for task in tasks_of(scores)])
    named = named.reset_index(drop=True)
    blocks += [_totals(scores), _strongest(named), _strongest_of_seeds(named)]
    return Section(section_id, title, blocks, ["extractive_scores.csv"])


def _maps_of_task(gallery: Gallery, scores: pd.DataFrame, task: str) -> Iterator[Block]:
    yield from _maps(gallery, scores, task, "")
    seeds = seeds_in(scores)
    for seed in seeds if len(seeds) > 1 else ():
        yield from _maps(gallery, of(scores, seed=seed), task, seed_name(seed))


def _maps(gallery: Gallery, scores: pd.DataFrame, task: str, seed: str) -> Iterator[Block]:
    """Maps of all seeds of a task, or folded of one seed."""
    name = "-".join(filter(None, (slug(task), seed.replace(" ", "-"))))
    over = seed or ("mean over seeds" if len(seeds_in(scores)) > 1 else "one seed")
    title = f"{task[:1].upper()}{task[1:]}, {over}"
    of_all = basis(scores[scores["n"] == scores["n"].max()])  # not all have tokens of long names
    yield gallery.add(
        token_maps(scores, title),
        f"scores-tokens-{name}",
        f"{title}: scores by layer and token of the implication's prompt, on top of MLPs, below "
        "of heads, summed over the heads of a layer. The answer is read at the last token; "
        f"{of_all}",
        f"Heatmaps, layer by token, of the scores of {task}, {over}; the largest are in the table "
        "below.",
        fold=f"{title}: by layer and token" if seed else "",
    )
    unordered = "" if len(seeds_in(scores)) == 1 else _UNORDERED
    if (scores["kind"] == "head").any():
        yield gallery.add(
            head_maps(scores, title),
            f"scores-heads-{name}",
            f"{title}: scores of every head, summed over tokens{unordered}; {of_all}",
            f"Heatmaps, layer by head, of the scores of {task}, {over}.",
            fold=f"{title}: by layer and head" if seed else "",
        )


def _totals(scores: pd.DataFrame) -> Table:
    """Sums over components and tokens."""
    keys = ["task", "score", "kind"]
    sums = scores.groupby([*keys, "seed"], sort=False)["value"].sum(min_count=1).reset_index()
    rows = ordered(means_over_seeds(sums, keys, ["value"]), task=TASKS, score=SCORE_ORDER)
    caption = "Scores summed over all components of a kind and all tokens: means over seeds"
    shown: list[Shown] = ["task", "score", PARTS[0].called("components"), SEEDS]
    shown += [SCORES["value"].called("sum", digits=2), OverSeeds("value")]
    return table_of(rows, SCORES, caption, shown)


def _strongest(scores: pd.DataFrame) -> Table:
    signs = scores.assign(positive=scores["value"] > 0)
    means = means_over_seeds(signs, [*_MAP, "component", "column"], ["value", "positive"])
    rows = _largest(means, _MAP)
    positive = [f"{s * n:.0f} of {n}" for s, n in zip(rows["positive"], rows["seeds"], strict=True)]
    caption = f"The {_TOP} components and tokens of each map with the largest scores, of either "
    caption += "sign: means over seeds, and in how many seeds the score is positive"
    shown: list[Shown] = [*_MAP, "component", "token", "value", OverSeeds("value")]
    shown.append(("positive in", positive))
    return table_of(rows, SCORES, caption, shown)


def _strongest_of_seeds(scores: pd.DataFrame) -> Table:
    caption = f"Every seed: the {_TOP} components and tokens with the largest scores, of either "
    caption += "sign, and the standard error over prompts"
    shown = [*_MAP, "component", "token", "seed", "value", "se", "n"]
    return table_of(_largest(scores, [*_MAP, "seed"]), SCORES, caption, shown, folded=True)


def _largest(scores: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The largest of each map, of either sign, with the names of their tokens."""
    rows = scores.assign(size=scores["value"].abs(), token=scores["column"].map(token_name))
    best = strongest(rows, keys, "size", _TOP)
    return sorted_parts(
        best.sort_values(list(keys[3:]), kind="stable") if keys[3:] else best, *_MAP
    )


# -- the sum check ------------------------------------------------------------------------------


def sums_section(run: RunFolder, gallery: Gallery) -> Section:
    """Whether the scores add up, and how far first order is from the actual change."""
    del gallery
    section_id, title = "sums", "Sum check"
    table = run.filled("extractive_sums")
    if table is None:
        return not_run(section_id, title, "the check that scores add up")
    summed = table["informative"] + table["other"]
    gap = (summed - table["gradient"]).abs().max()
    settings = run.config.get("settings") or {}
    text = (
        "Informative scores of all components, with what embeddings and norms add, have to give "
        "the first-order change of the reward, which is its gradient times the change of the "
        f"weights. The largest difference between the two is {small(gap)} logits. The "
        "actual change differs from both by what is not linear in the change of the weights."
    )
    rows = table.assign(sum=summed)
    total = SUMS["gradient"].alike("sum", "")
    shown: list[Shown] = ["task", "seed", "informative", "other", total, "gradient"]
    shown += ["actual", "r", "n"]
    caption = (
        "Change of the reward (logits), means over prompts: by scores, to first order, and as "
    )
    caption += "it is; r is the correlation over prompts of the last two"
    blocks: list[Block] = [*CLAIMS.lines(run, section_id), Paragraph(text)]
    if settings.get("compat") == "paper":
        text = "These are scores as the published code has them, with W_out twice and without W_in "
        blocks.append(Paragraph(f"{text}in the MLPs: they do not add up.", note=True))
    return Section(
        section_id,
        title,
        [*blocks, table_of(rows, SUMS, caption, shown)],
        ["extractive_sums.csv"],
    )
