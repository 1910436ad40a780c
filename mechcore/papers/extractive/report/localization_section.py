"""The section of a study of extractive structures on what reads out what."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.report.looks import KINDS, of
from mechcore.papers.extractive.report.map_figures import (
    MOST_SEEDS,
    localization,
)
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import ends_of, in_order, means_over_seeds, seeds_in
from mechcore.wording import (
    count,
    number,
    number_range,
    p_value,
    whole,
)

_TOP = 5
"""Components in a table."""


def localization_section(run: RunFolder, gallery: Gallery) -> Section:
    """Whether what learning implications changes is where facts are read out."""
    section_id, title = "localization", "Localisation"
    table = run.filled("extractive_localization")
    r2 = run.filled("extractive_localization_r2")
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    if table is None:
        blocks.append(Paragraph("Not run: the scores of learning and of reading out.", note=True))
    else:
        seeds = seeds_in(table)
        shown = f"; the first {MOST_SEEDS} of {len(seeds)} seeds" if seeds[MOST_SEEDS:] else ""
        blocks.append(
            gallery.add(
                localization(table, r2),
                "localization",
                "Informative score of learning implications after facts (where that is stored) "
                "against downstream score of facts of test names (where they are read out), in "
                "logits, summed over tokens: a dot per component, coloured by layer. Every panel "
                f"has its own scale{shown}.",
                "Scatter plots of informative against downstream scores of components, MLPs and "
                "heads by seed; the correlations are in the table below.",
            )
        )
    if r2 is None:
        blocks.append(Paragraph("Not run: the correlation of the two scores.", note=True))
    else:
        blocks.append(_r2_table(r2))
    if table is not None:
        blocks.append(_localized(table))
    files = ["extractive_localization.csv", "extractive_localization_r2.csv"]
    return Section(section_id, title, blocks, files)


def _r2_table(r2: pd.DataFrame) -> Table:
    rows = [
        [
            KINDS.get(kind, kind),
            number(row["seed"], 0),
            number(row["r2"]),
            number(row["r"], signed=True),
            p_value(row["p"]).removeprefix("p ").removeprefix("= "),
            whole(row["n"]),
        ]
        for kind in in_order(r2["kind"], list(KINDS))
        for _, row in of(r2, kind=kind).sort_values("seed").iterrows()
    ]
    header = ["components", "seed", "r\u00b2", "r", "p", "how many"]
    return Table("Correlation over components of the two scores", header, rows)


def _localized(table: pd.DataFrame) -> Table:
    """The strongest components by the informative score, with the other one."""
    keys = ["kind", "component"]
    means = means_over_seeds(table, keys, ["informative", "downstream"])
    rows = [
        [
            KINDS.get(kind, kind),
            row["component"],
            whole(row["seeds"]),
            *(
                cell
                for name in ("informative", "downstream")
                for cell in (number(row[name], signed=True), number_range(ends_of(row, name)))
            ),
        ]
        for kind in in_order(means["kind"], list(KINDS))
        for _, row in of(means, kind=kind).nlargest(_TOP, "informative").iterrows()
    ]
    header = ["kind", "component", "seeds", "informative", "over seeds", "downstream", "over seeds"]
    caption = f"The {count(_TOP, 'component')} of each kind with the largest informative score"
    return Table(f"{caption}: means over seeds", header, rows, frozenset({0, 1}), folded=True)
