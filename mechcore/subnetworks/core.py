"""What several subnetworks have in common, and how they differ (arXiv 2403.03942, section 4).

Chance levels are for random subnetworks that keep as many heads of each layer as the given ones;
*uniform* ones for random heads of any layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import stats

from mechcore.components import Component, Mask, ModelShape, same_model
from mechcore.errors import InputError
from mechcore.evaluation.agreement import jaccard, permuted_within
from mechcore.showing import Shown
from mechcore.tables import PART, PLACE, TARGET, Column, Schema
from mechcore.wording import count, percent, percent_range

HEAD_FREQUENCY = Schema(
    "head_frequency",
    "Number of seeds that keep each component, at each target sparsity.",
    (
        *PART,
        TARGET,
        Column("n_seeds", "whole", "masks of this target"),
        Column("count", "whole", "masks that keep the component"),
        Column("frequency", "share", "count / n_seeds"),
    ),
)
HEAD_OVERLAP = Schema(
    "head_overlap",
    "Overlap of the heads of every pair of subnetworks.",
    (
        Column("first", "text", "one subnetwork"),
        Column("second", "text", "the other"),
        Column("shared", "whole", "heads that both keep"),
        Column("either", "whole", "heads that one or both keep"),
        Column("jaccard", "number", "shared / either"),
        Column(
            "expected",
            "number",
            "its mean if each kept as many random heads of each layer; missing, like the following "
            "columns, if both come from one seed or ranking",
        ),
        Column("p_value", "number", "p of sharing this many heads by that chance", shown="small"),
        Column("expected_uniform", "number", "its mean if each kept as many random heads"),
        Column("p_uniform", "number", "p of sharing this many heads by that chance", shown="small"),
    ),
)
BOTH_LABELS = ("balanced_accuracy", "information")
"""Metrics over both labels: what one label gains by a shifted threshold, the other loses."""

_SPREAD = Column("spread", "share", "high minus low", unit="points", shown="bare")
ACCURACY_SPREAD = Schema(
    "accuracy_spread",
    "Spread of the accuracy of subnetworks of one target sparsity between seeds.",
    (
        TARGET,
        *PLACE,
        Column("n_seeds", "whole", "subnetworks", header="seeds"),
        Column("full", "share", "accuracy of the full model", header="full model"),
        Column("mean", "share", "mean accuracy over seeds"),
        Column("std", "points", "its standard deviation, with n - 1", optional=True),
        Column("low", "share", "lowest seed", header="lowest"),
        Column("high", "share", "highest seed", header="highest"),
        _SPREAD,
        *(
            _SPREAD.alike(f"{name}_spread", f"the same for {name}", optional=True)
            for name in BOTH_LABELS
        ),
    ),
)


@dataclass(frozen=True, repr=False)
class HeuristicCore(Shown):
    """The heads that every subnetwork keeps, and how surprising that is.

    Attributes:
        heads: the core, by layer.
        n_subnetworks, n_heads: subnetworks that share it, and heads of the model.
        expected: expected size if each subnetwork kept as many random heads of each layer.
        p_value: exact probability that such random subnetworks share at least as many heads.
            Subnetworks of one draw count as one, with the heads that they have in common.
        expected_uniform, p_uniform: the same if each kept as many random heads of any layer.
    """

    heads: tuple[Component, ...]
    n_subnetworks: int
    n_heads: int
    expected: float
    p_value: float
    expected_uniform: float
    p_uniform: float

    def _summary(self) -> str:
        heads = " ".join(map(str, self.heads)) or "no head"
        chance = (
            f"{self.expected:.2g} of {self.n_heads} expected by chance with as many heads of each "
            f"layer, p={self.p_value:.2g}"
        )
        size, among = count(len(self.heads), "head"), count(self.n_subnetworks, "subnetwork")
        return f"{heads}; {size} in {among}, {chance}"


def heuristic_core(masks: Sequence[Mask], draws: Sequence[int] | None = None) -> HeuristicCore:
    """Heads kept by all of ``masks``, single ones of zeros and ones.

    ``draws`` are the numbers of their random draws, see `mechcore.pruning.draws_of`; by default all
    are independent.

    Raises:
        InputError: there is no mask, or one is not a single mask of zeros and ones.
        MismatchError: the masks belong to different models.
    """
    shape = _common_shape(masks)
    common: dict[int, set[Component]] = {}
    for mask, draw in zip(masks, draws or range(len(masks)), strict=True):
        common[draw] = common.get(draw, set(shape.heads)) & _heads(mask)
    core = sorted(set.intersection(*common.values()))
    by_layer = _by_layer(shape, [*common.values()])
    n_heads = len(shape.heads)
    layered = shared_by_chance([shape.n_heads] * shape.n_layers, by_layer)
    uniform = shared_by_chance([n_heads], by_layer.sum(1, keepdims=True))
    expected, expected_uniform = (float(np.arange(n_heads + 1) @ c) for c in (layered, uniform))
    p_value, p_uniform = (_tail(chance, len(core)) for chance in (layered, uniform))
    return HeuristicCore(
        tuple(core), len(masks), n_heads, expected, p_value, expected_uniform, p_uniform
    )


def shared_by_chance(
    groups: Sequence[int], sizes: Int[np.ndarray, "sets group"]
) -> Float[np.ndarray, " n+1"]:
    """Probabilities that 0 to n items are in all random sets, given their sizes within groups.

    Within a group the intersection with a random set is hypergeometric; groups are independent.
    ``groups`` are the numbers of items in each, n in total.
    """
    shared = np.ones(1)
    for n, of_group in zip(groups, sizes.T, strict=True):
        within = np.zeros(n + 1)
        within[of_group[0]] = 1.0
        for size in of_group[1:]:
            among = np.flatnonzero(within)
            step = stats.hypergeom.pmf(np.arange(n + 1), n, among[:, None], size)
            within = within[among] @ step
        shared = np.convolve(shared, within)
    return shared


def _tail(chance: Float[np.ndarray, " n+1"], observed: int) -> float:
    return min(1.0, float(chance[observed:].sum()))


def head_frequency(masks: Sequence[Mask], target_sparsities: Sequence[float]) -> pd.DataFrame:
    """`HEAD_FREQUENCY`: how many subnetworks of each target sparsity keep a component."""
    shape = _common_shape(masks)
    rows = []
    for target_sparsity in sorted(set(target_sparsities)):
        chosen = [
            set(m.kept)
            for m, t in zip(masks, target_sparsities, strict=True)
            if t == target_sparsity
        ]
        for c in shape.components:
            count = sum(c in kept for kept in chosen)
            rows.append(
                (str(c), c.layer, c.head, target_sparsity, len(chosen), count, count / len(chosen))
            )
    return pd.DataFrame(rows, columns=HEAD_FREQUENCY.names).astype({"head": "Int64"})


@dataclass(frozen=True)
class RankAgreement:
    """Spearman correlation of head frequencies at two sparsities; NaN if one is constant.

    The p-value permutes frequencies within layers; it is meaningless for subnetworks of one seed.
    """

    rho: float
    p_value: float
    low_sparsity: float
    high_sparsity: float


def frequency_agreement(frequency: pd.DataFrame) -> RankAgreement:
    """Spearman's rho of a table of `head_frequency`, lowest against highest sparsity."""
    heads = frequency[frequency["head"].notna()]
    table = heads.pivot(index="component", columns="target_sparsity", values="count")
    if table.shape[1] < 2:
        raise InputError(
            "head frequencies: found one target sparsity; expected at least two to compare"
        )
    first, last = table.iloc[:, 0].to_numpy(), table.iloc[:, -1].to_numpy()
    between = (float(table.columns[0]), float(table.columns[-1]))
    if len(set(first)) == 1 or len(set(last)) == 1:
        return RankAgreement(float("nan"), float("nan"), *between)
    layers = frequency.drop_duplicates("component").set_index("component")["layer"]
    p = permuted_within(first, last, layers[table.index].to_numpy())
    return RankAgreement(float(stats.spearmanr(first, last).statistic), p, *between)


def head_overlap(
    masks: Sequence[Mask], names: Sequence[str], draws: Sequence[int] | None = None
) -> pd.DataFrame:
    """Jaccard index of the heads of every pair of subnetworks, with its chance level.

    The columns of `HEAD_OVERLAP`, a row per pair; the index is 1 if neither keeps a head. Masks are
    single ones of zeros and ones; for ``draws`` see `heuristic_core`, also for errors.
    """
    shape = _common_shape(masks)
    groups = [shape.n_heads] * shape.n_layers
    rows = []
    named = zip(names, map(_heads, masks), draws or range(len(masks)), strict=True)
    for (first, a, draw), (second, b, other) in itertools.combinations(named, 2):
        by_layer = _by_layer(shape, [a, b])
        sizes, shared = by_layer.sum(1), len(a & b)
        jaccards = jaccard(np.arange(len(shape.heads) + 1), *sizes)
        chances = (
            shared_by_chance(groups, by_layer),
            shared_by_chance([len(shape.heads)], sizes[:, None]),
        )
        figures = [figure for c in chances for figure in (float(jaccards @ c), _tail(c, shared))]
        if draw == other:
            figures = [np.nan] * len(figures)
        rows.append((first, second, shared, len(a | b), jaccards[shared], *figures))
    return pd.DataFrame(rows, columns=HEAD_OVERLAP.names)


def _heads(mask: Mask) -> set[Component]:
    return {component for component in mask.kept if component.is_head}


def _by_layer(shape: ModelShape, kept: Sequence[set[Component]]) -> Int[np.ndarray, "sets layer"]:
    layers = [[component.layer for component in heads] for heads in kept]
    return np.stack([np.bincount(np.array(ls, int), minlength=shape.n_layers) for ls in layers])


def accuracy_spread(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Spread of the accuracy of subnetworks of one sparsity between seeds, per subset.

    ``accuracy`` has one row per subnetwork and subset: target_sparsity (missing for the full
    model), seed, data, split, subset, accuracy; optionally `BOTH_LABELS`. All are by one method.
    Returns the columns of `ACCURACY_SPREAD`, a row per target sparsity and subset.
    """
    where = ["data", "split", "subset"]
    masked = accuracy[accuracy["target_sparsity"].notna()]
    by = ["target_sparsity", *where]
    groups = masked.groupby(by, sort=False)["accuracy"]
    table = groups.agg(n_seeds="count", mean="mean", std="std", low="min", high="max").reset_index()
    full = accuracy[accuracy["target_sparsity"].isna()][[*where, "accuracy"]]
    table = table.merge(full.rename(columns={"accuracy": "full"}), on=where, how="left")
    table["spread"] = table["high"] - table["low"]
    for name in (figure for figure in BOTH_LABELS if figure in masked):
        figures = masked.groupby(by, sort=False)[name]
        table[f"{name}_spread"] = (figures.max() - figures.min()).to_numpy()
    return table[[name for name in ACCURACY_SPREAD.names if name in table]]


def _common_shape(masks: Sequence[Mask]) -> ModelShape:
    same_model(masks)
    return masks[0].shape


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
