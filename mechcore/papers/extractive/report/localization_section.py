"""The section of a study of extractive structures on what reads out what."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.extractive.localization import LOCALIZATION, LOCALIZATION_R2
from mechcore.papers.extractive.report.looks import sorted_parts
from mechcore.papers.extractive.report.map_figures import MOST_SEEDS, localization
from mechcore.papers.extractive.report.summary import CLAIMS
from mechcore.papers.extractive.results import PARTS
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Paragraph,
    Section,
    Shown,
    Table,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, means_over_seeds, seeds_in, strongest
from mechcore.wording import count

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
    rows = sorted_parts(r2.sort_values("seed", kind="stable"), "kind")
    caption = "Correlation over components of the two scores"
    return table_of(rows, LOCALIZATION_R2, caption, ["kind", "seed", "r2", "r", "p", "n"])


def _localized(table: pd.DataFrame) -> Table:
    """The strongest components by the informative score, with the other one."""
    means = means_over_seeds(table, ["kind", "component"], ["informative", "downstream"])
    rows = sorted_parts(strongest(means, ["kind"], "informative", _TOP), "kind")
    caption = f"The {count(_TOP, 'component')} of each kind with the largest informative score"
    shown: list[Shown] = [PARTS[0], "component", SEEDS]
    shown += [each for name in ("informative", "downstream") for each in (name, OverSeeds(name))]
    return table_of(rows, LOCALIZATION, f"{caption}: means over seeds", shown, folded=True)
