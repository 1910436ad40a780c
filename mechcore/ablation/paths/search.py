"""Finding the paths that cost most without cutting all of them.

Derivatives predict what every set of paths costs (`mechcore.ablation.paths.screening`). The best
are cut exactly, on the same half of the data; the best of these are cut once more on the other
half, so that the figures reported are not those the paths were chosen by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.ablation.effects.changes import SET, Ablations
from mechcore.ablation.halves import check_options, halves_of, rank_correlation
from mechcore.ablation.paths.screening import Screening
from mechcore.ablation.settings import SCREENING_EXAMPLES
from mechcore.ablation.sweeps import ablate
from mechcore.components.paths import PathSet
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.session import plain_session
from mechcore.showing import Shown
from mechcore.tables import Column, Schema

PATH_SCREENING = Schema(
    "path_screening",
    "Every set of paths that a search screened, largest first.",
    (
        SET,
        Column("predicted", "number", "change in margin that derivatives predict", "nats"),
        Column("margin_change", "number", "on the half that the search saw; missing if not cut"),
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class PathSearch(Shown):
    """What a search for paths found.

    Attributes:
        found: the full model and the largest sets of paths, on data that the search did not see;
            see `mechcore.ablation.paths.path_table`.
        screening: the columns of `PATH_SCREENING`.
        n_screened_out: sets of paths not cut.
        rank_correlation: Spearman's rho of predicted and exact changes over those cut; missing
            under three, or where either is the same for all.
    """

    found: Ablations
    screening: pd.DataFrame
    n_screened_out: int
    rank_correlation: float

    def _summary(self) -> str:
        best = next(iter(self.found.without))
        return f"{len(self.screening)} sets of paths screened, best {best}"


@plain_session()
def find_paths(
    model: Any,
    data: Any,
    means: MeanActivations | None,
    cuts: Sequence[PathSet],
    *,
    subset: str = ALL,
    n_cut: int = 100,
    n_found: int = 10,
    screening_examples: int = SCREENING_EXAMPLES,
    seed: int = 0,
    fill: FillName = "mean",
    class_names: Sequence[str] | None = None,
    batch_size: int = 64,
    state: str | Path | None = None,
    **options: Any,
) -> PathSearch:
    """Search for the paths whose cutting changes the margin most, up or down.

    Args:
        model: any TransformerLens model.
        data: labelled examples of any form, see `mechcore.data.given`; half of them, by subset,
            choose, the other half report.
        means: the model's mean activations.
        cuts: sets of paths to one receiver each, see `mechcore.ablation.sets.paths`.
        subset: the subset of the data that the search looks at.
        n_cut: sets cut exactly, the largest by screening; all if there are no more.
        n_found: sets to report, at most ``n_cut``.
        screening_examples: examples of the search half that are screened with.
        seed: of the split and the draw of these.
        fill: what replaces the senders' outputs, ``"mean"`` or ``"zero"``.
        class_names: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.
        state: folder that keeps what is finished, see `mechcore.ablate`.
        options: see `mechcore.ablate`.

    Raises:
        InputError: no set of paths, one has several receivers, too few examples, the subset is
            unknown, or a number or the fill is not as expected.

    >>> cuts = sets.paths("all", "all", model, together=False)  # doctest: +SKIP
    >>> path_table(find_paths(model, hans, means, cuts).found)  # doctest: +SKIP
    """
    data = as_encoded(model, data, split=options.get("split", "id"))
    _check(cuts)
    check_options(fill, n_cut=n_cut, n_found=n_found)
    searched, reported = halves_of(data, subset, seed)
    own: dict[str, Any] = {"fill": fill, "class_names": class_names, "batch_size": batch_size}
    own |= {**options, "state": state}
    screened = Screening(model, searched, means, cuts, fill, class_names, state)
    changes = screened.changes(screening_examples, seed=seed, batch_size=batch_size)
    predicted = dict(zip(cuts, changes.tolist(), strict=True))
    order = sorted(predicted, key=lambda cut: -abs(predicted[cut]))
    known = ablate(model, order[:n_cut], searched, means, **own)
    exact = {cut: float(known.changes(cut, "margin").mean()) for cut in order[:n_cut]}
    best = sorted(exact, key=lambda cut: -abs(exact[cut]))[:n_found]
    screening = pd.DataFrame(
        [
            {"set": str(cut), "predicted": predicted[cut], "margin_change": exact.get(cut)}
            for cut in order
        ]
    ).astype({"margin_change": float})
    return PathSearch(
        found=ablate(model, best, reported, means, **own),
        screening=screening,
        n_screened_out=max(0, len(order) - n_cut),
        rank_correlation=rank_correlation(screening, "margin_change"),
    )


def _check(cuts: Sequence[PathSet]) -> None:
    if not cuts:
        raise InputError("paths: none to search; expected at least one set")
    twice = [cut for cut, n in Counter(cuts).items() if n > 1]
    if twice:
        raise InputError(f"paths: {twice[0]} is given more than once; leave one out")
    for cut in cuts:
        if len(cut.senders) != 1:
            raise InputError(
                f"paths {cut}: found {len(cut.senders)} receivers; expected one: make a set of each"
            )
