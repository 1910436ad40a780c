"""Finding the most superadditive pairs, triples and larger sets without ablating all of them.

The interaction of every pair is predicted, by gradients or otherwise
(`mechcore.ablation.predicting`). The best pairs are then ablated exactly; larger sets grow from the
best smaller ones (beam search). Search and report use different halves of the data, so that the
figures reported are not those the sets were chosen by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.ablation.effects import SET, Ablations, ComponentSet
from mechcore.ablation.predicting import INTERACTION_METHODS, PairRequest
from mechcore.ablation.sets import singles
from mechcore.ablation.settings import SCREENING_EXAMPLES, SCREENING_SETS
from mechcore.ablation.stability import interaction_stability
from mechcore.ablation.superadditivity import INTERACTIONS, interactions
from mechcore.ablation.sweeping import ablate
from mechcore.components import Component, ComponentLike, ModelShape, parse_components
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import ALL, half_rows
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost
from mechcore.evaluation.evaluate import Metric
from mechcore.evaluation.p_values import Correction
from mechcore.evaluation.readout import Readout
from mechcore.masking.interventions import FillName
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.showing import Shown
from mechcore.state import StateFile, encoded_inputs, input_facts
from mechcore.tables import Column, Schema

SUPERADDITIVE = INTERACTIONS.named(
    "superadditive",
    "The sets that a search found, measured on the half of the data that it did not see; as "
    "``interactions``.",
    Column("interaction_in_search", "number", "on the half that the search saw", optional=True),
)
SCREENING = Schema(
    "screening",
    "Every pair of components that a search screened, best first.",
    (
        SET,
        Column("predicted", "number", "interaction on the margin by screening", "nats"),
        Column("interaction", "number", "on the half that the search saw; missing if not ablated"),
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class Search(Shown):
    """What a search for superadditive sets found.

    Attributes:
        found: interactions of the best sets on data that the search did not see, in the order of
            the search, with the columns of `mechcore.interactions` and ``interaction_in_search``.
        screening: every pair: set, predicted interaction (always of the margin, nats), interaction
            (in the unit of the metric, missing where the pair was screened out), on the search
            half.
        n_pairs: pairs there are.
        n_screened_out: of these, those not ablated.
        n_tested: sets of two or more components ablated in the search.
        rank_correlation: Spearman's rho of predicted and exact interactions over the pairs
            ablated; missing under three, or where either is the same for all.
        cost: of the predictions.
        fit: of the predictions, see `mechcore.ablation.predicting.Predictions`.
        stability: of the order of the sets found, on data that the search did not see, see
            `mechcore.ablation.stability.interaction_stability`.
    """

    found: pd.DataFrame
    screening: pd.DataFrame
    n_pairs: int
    n_screened_out: int
    n_tested: int
    rank_correlation: float
    cost: Cost
    fit: float | None
    stability: pd.DataFrame

    def _summary(self) -> str:
        best = f", best {self.found['set'].iloc[0]}" if len(self.found) else ""
        return f"{self.n_tested} sets tested, {self.n_pairs} pairs screened{best}"


def find_superadditive(
    model: Any,
    data: Any,
    means: MeanActivations | None,
    *,
    components: Iterable[ComponentLike] | None = None,
    subset: str = ALL,
    metric: Metric = "margin",
    max_size: int = 3,
    n_pairs: int = 100,
    beam: int = 20,
    n_found: int = 10,
    screening_by: str = "screening",
    screening_examples: int = SCREENING_EXAMPLES,
    screening_sets: int = SCREENING_SETS,
    correction: Correction = "benjamini-hochberg",
    n_resamples: int = 1000,
    seed: int = 0,
    fill: FillName = "mean",
    class_labels: Sequence[str] | None = None,
    batch_size: int = 64,
    state: str | Path | None = None,
    **options: Any,
) -> Search:
    """Search for the sets that lose most beyond the sum of their members' losses.

    Args:
        model: any TransformerLens model.
        data: labelled examples of any form, see `mechcore.data.given`; half of them, by subset,
            choose, the other half report.
        means: the model's mean activations.
        components: to choose from; by default all heads and MLPs.
        subset: the subset of the data that the search looks at.
        metric: what the search ranks by; the report has both.
        max_size: components of the largest sets.
        n_pairs: pairs ablated exactly, the best by screening; all if there are no more.
        beam: sets of each size from which larger ones grow.
        n_found: sets of each size to report.
        screening_by: how interactions of pairs are predicted, a name in
            `mechcore.ablation.predicting.INTERACTION_METHODS`.
        screening_examples: examples of the search half that predictions are averaged over.
        screening_sets: random sets to ablate, for ways that draw them.
        correction: of the reported p-values, see `mechcore.interactions`.
        n_resamples: bootstrap resamples of the report.
        seed: of the split, and of the resamples.
        fill: what replaces ablated outputs, the name of a fill that draws nothing at random.
        class_labels: names of a classifier's classes, in place of its ``id2label``.
        batch_size: examples per batch.
        state: folder for files that keep what is finished, see `state_files`; an interrupted
            search goes on from them. They stay when all is finished.
        options: see `mechcore.ablate`.

    Raises:
        InputError: there are fewer than two components, too few examples, the subset is unknown,
            or a number is out of range; or ``state`` is that of another search.

    >>> find_superadditive(model, hans, means, subset="so_swap").found  # doctest: +SKIP
    """
    data = as_encoded(model, data, role=options.get("role", "id"))
    settings: dict[str, Any] = {
        "subset": subset,
        "max_size": max_size,
        "n_pairs": n_pairs,
        "beam": beam,
        "n_found": n_found,
        "screening_by": screening_by,
        "fill": fill,
    }
    chosen = check_search(model, data, components=components, **settings)
    halves = searched, reported = halves_of(data, subset, seed)
    files: list[Path] | list[None] = [None] * (max_size + 2)
    facts: dict[str, Any] = {}
    if state is not None:
        files = state_files(state, max_size)
        facts = facts_of(model, halves, means, class_labels) | settings
        facts |= {
            "components": list(map(str, chosen)),
            "metric": metric,
            "screening_examples": screening_examples,
            "screening_sets": screening_sets,
            "seed": seed,
            "batch_size": batch_size,
        }
    own: dict[str, Any] = {"fill": fill, "class_labels": class_labels, "batch_size": batch_size}

    def without(sets: Sequence[ComponentSet], half: EncodedExamples, n: int) -> Ablations:
        return ablate(model, sets, half, means, state=files[n], **own, **options)

    store = StateFile(files[0], "search", facts)
    request = PairRequest(
        model,
        searched,
        means,
        chosen,
        n_examples=screening_examples,
        n_sets=screening_sets,
        seed=seed,
        store=store,
        sweep=options,
        **own,
    )
    predictions = INTERACTION_METHODS[screening_by](request)
    predicted = predictions.interactions
    order = sorted(predicted, key=lambda pair: -predicted[pair])
    unknown = predicted if predictions.in_nats else dict.fromkeys(predicted, 0.0)
    known = without([ComponentSet((c,)) for c in chosen], searched, 1)
    alone = {s.components[0]: float(known.drops(s, metric).mean()) for s in known.sets}
    exact: dict[ComponentSet, float] = {}
    level = order[:n_pairs]
    best: dict[int, list[ComponentSet]] = {}
    for size in range(2, max_size + 1):
        if not level:
            break
        ablated = without(level, searched, size)
        for each in ablated.sets:
            drop = float(ablated.drops(each, metric).mean())
            exact[each] = drop - sum(alone[c] for c in each.components)
        best[size] = sorted(level, key=lambda s: -exact[s])
        level = _grown(best[size][:beam], chosen, exact, unknown)[:n_pairs]
    named = [each for sets in best.values() for each in sets[:n_found]]
    members = sorted({c for each in named for c in each.components})
    final = without([*(ComponentSet((c,)) for c in members), *named], reported, -1)
    table = interactions(final, correction=correction, n_resamples=n_resamples, seed=seed)
    screening = pd.DataFrame(
        [{"set": str(p), "predicted": predicted[p], "interaction": exact.get(p)} for p in order]
    ).astype({"interaction": float})
    return Search(
        found=_with_search(table, {str(s): exact[s] for s in named}, metric),
        screening=screening,
        n_pairs=len(order),
        n_screened_out=max(0, len(order) - n_pairs),
        n_tested=len(exact),
        rank_correlation=rank_correlation(screening, "interaction"),
        cost=predictions.cost,
        fit=predictions.fit,
        stability=interaction_stability(final, n_resamples=n_resamples, seed=seed),
    )


def state_files(folder: str | Path, max_size: int) -> list[Path]:
    """The files of an interruptible search, the one that it begins with first.

    Returns:
        That of the screening, of one sweep for every size of sets from 1, and of the report.
    """
    names = ["search", *(f"sweep-{size}" for size in range(1, max_size + 1)), "sweep-report"]
    return [Path(folder) / f"{name}.safetensors" for name in names]


def check_search(
    model: Any,
    data: EncodedExamples,
    *,
    components: Iterable[ComponentLike] | None = None,
    subset: str = ALL,
    max_size: int = 3,
    n_pairs: int = 100,
    beam: int = 20,
    n_found: int = 10,
    screening_by: str = "screening",
    fill: FillName = "mean",
) -> list[Component]:
    """The components that `find_superadditive` would choose from, all that is quick to check done.

    Raises:
        InputError: see `find_superadditive`.
    """
    shape = ModelShape.of(model)
    if components is None:
        chosen = [s.components[0] for s in singles(shape)]
    else:
        chosen = sorted(set(parse_components(components)))
    for component in chosen:
        shape.index(component)
    if len(chosen) < 2:
        raise InputError(f"search: {len(chosen)} components; expected at least two")
    if not 2 <= max_size <= len(chosen):
        raise InputError(
            f"search: max_size is {max_size}; expected 2 to the {len(chosen)} components"
        )
    check_options(fill, n_pairs=n_pairs, beam=beam, n_found=n_found)
    INTERACTION_METHODS[screening_by]
    halves_of(data, subset, 0)
    return chosen


def check_options(fill: FillName, **numbers: int) -> None:
    """Make sure that a search can predict with this fill, and that there is something to find.

    Raises:
        InputError: the fill draws at random, or a number is under 1.
    """
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"search: {name} is {value}; expected at least 1")
    if fill not in ("mean", "zero"):
        raise InputError(f"search: fill is {fill!r}; expected 'mean' or 'zero'")


def rank_correlation(screening: pd.DataFrame, exact: str) -> float:
    """Spearman's rho of what was predicted and the column ``exact``, over the rows that have it.

    Missing under three of them, or where either is the same for all.
    """
    both = screening.dropna()[["predicted", exact]]
    ranked = len(both) > 2 and both.nunique().min() > 1
    return float(stats.spearmanr(both).statistic) if ranked else float("nan")


def halves_of(
    data: EncodedExamples, subset: str, seed: int
) -> tuple[EncodedExamples, EncodedExamples]:
    """Two halves of the subset searched; of all data, halves of every subset."""
    names = data.examples.frame["subset"].tolist()
    known = dict.fromkeys(names)
    if subset != ALL and subset not in known:
        raise InputError(f"search: no subset {subset!r}; the data has {', '.join(known)}")
    chosen = [row for row, name in enumerate(names) if subset in (ALL, name)]
    halves = half_rows([names[row] for row in chosen], seed)
    if min(map(len, halves)) < 2:
        raise InputError(
            f"search: {len(halves[0]) + len(halves[1])} examples; expected at least 4: half of "
            "them choose, the other half report"
        )
    first, second = (data.part([chosen[row] for row in half]) for half in halves)
    return first, second


def facts_of(
    model: Any,
    halves: Sequence[EncodedExamples],
    means: MeanActivations | None,
    class_labels: Sequence[str] | None,
) -> dict[str, str | None]:
    """Digests of what a search works on."""
    labels = hashlib.sha256()
    for half in halves:
        readout = Readout.of(model, half, class_labels)
        labels.update(readout.correct_classes(half).numpy().tobytes())
    inputs = [encoded_inputs(half) for half in halves]
    return input_facts(model, inputs, means) | {"labels": labels.hexdigest()}


def _grown(
    sets: Sequence[ComponentSet],
    components: Sequence[Component],
    exact: Mapping[ComponentSet, float],
    predicted: Mapping[ComponentSet, float],
) -> list[ComponentSet]:
    """Sets with one component more, best predicted first: new pairs add their interactions."""

    def pair(a: Component, b: Component) -> float:
        both = ComponentSet.of([a, b])
        return exact.get(both, predicted[both])

    found: dict[ComponentSet, float] = {}
    for each in sets:
        for component in components:
            if component not in each.components:
                more = ComponentSet.of([*each.components, component])
                score = exact[each] + sum(pair(component, c) for c in each.components)
                found[more] = max(score, found.get(more, -np.inf))
    return sorted(found, key=lambda s: -found[s])


def _with_search(table: pd.DataFrame, found: Mapping[str, float], metric: Metric) -> pd.DataFrame:
    """Sets in the order of the search, with what the search saw of them."""
    seen = table["set"].map(found).where(table["metric"] == metric)
    rank = table["set"].map({name: i for i, name in enumerate(found)})
    ordered = table.assign(interaction_in_search=seen).iloc[np.argsort(rank, kind="stable")]
    return ordered.reset_index(drop=True)
