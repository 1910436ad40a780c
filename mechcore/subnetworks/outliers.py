"""Subnetworks that do far worse than the others of their kind: trainings that may have failed."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.wording import percent, percent_range

CONTROLS = ("random", "layer-matched")
"""Methods that choose components by chance, whose subnetworks differ as they please."""

FEWEST = 3
"""Seeds without which none can stand out."""

MARGIN = 0.05
"""Accuracy (share) below which a difference is no sign of a failure, however alike the others."""


def outliers(subnetworks: pd.DataFrame) -> Iterator[str]:
    """Say which subnetworks stand out from those of other seeds: a rule of thumb, not a test.

    A subnetwork stands out where its in-domain accuracy is below the lowest of the others, of the
    same method and target sparsity, by more than `MARGIN` and by more than all the others differ.
    """
    by = ["target_sparsity"]
    if "method" in subnetworks:
        by.append("method")
        subnetworks = subnetworks[~subnetworks["method"].isin(CONTROLS)]
    for _, part in subnetworks.groupby(by, sort=False):
        if len(part) < FEWEST:
            continue
        ranked = part.sort_values("id_accuracy", kind="stable")
        worst, others = ranked.iloc[0], ranked["id_accuracy"].iloc[1:]
        below = others.min() - worst["id_accuracy"]
        if below > max(MARGIN, others.max() - others.min()):
            yield (
                f"{worst['subnetwork']} stands out: it is right on {percent(worst['id_accuracy'])} "
                f"of in-domain examples, the other {len(others)} of its target sparsity on "
                f"{percent_range(others)}. Its training may have failed, yet it counts like the "
                "others, for the core as well: try more steps (--prune-steps), or leave out its "
                "seed (--seeds) and report that you did."
            )
