"""How well rankings, masks and interactions recover a known truth."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from torch import Tensor

from mechcore.ablation.effects import ComponentSet, as_sets
from mechcore.bench.case import Truth
from mechcore.components import Component, ComponentLike, Mask, ModelShape, parse_components
from mechcore.components.paths import PathSet
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.wording import count

Ranking: TypeAlias = Tensor | np.ndarray | pd.Series
"""Scores of components, largest first: [layer, component] as in a mask, or by component's name."""

Pairwise: TypeAlias = Mapping[Any, float] | pd.Series
"""Numbers of pairs, by ``"L0.H1+L1.H2"``, two names or `ComponentSet`."""

# -- rankings -------------------------------------------------------------------------------------


def by_component(scores: Ranking, *, has_mlps: bool = True) -> dict[Component, float]:
    """The score of every component.

    Args:
        scores: the ranking.
        has_mlps: whether the last column of an array is the MLP, as in a mask.

    Raises:
        InputError: a score is NaN or infinite, an array has other than two axes, or a name cannot
            be read or comes twice.
    """
    if isinstance(scores, pd.Series):
        named = [Component.parse(name) for name in scores.index]
        values = scores.to_numpy(dtype=float)
    else:
        array = scores.detach().cpu().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
        if array.ndim != 2 or array.shape[1] <= has_mlps:
            raise InputError(
                f"ranking: found the shape {array.shape}; expected [layers, heads"
                f"{' + 1' if has_mlps else ''}], as of a mask"
            )
        n_layers, columns = array.shape
        named = ModelShape(n_layers, columns - has_mlps, has_mlps).components
        values = array.astype(float).ravel()
    return _finite("ranking", named, values)


def node_auroc(scores: Ranking, truth: Truth, *, has_mlps: bool = True) -> float:
    """Probability that a true component is ranked above another one; ties count half.

    Args:
        scores: the ranking; larger is more likely to be true, so that of signed scores the
            absolute values may be meant.
        truth: what is true.
        has_mlps: see `by_component`.

    Raises:
        InputError: a score is missing, NaN or infinite, or all or none of the components are true.
    """
    return _auroc(by_component(scores, has_mlps=has_mlps), truth.components, "component")


def pair_auroc(predicted: Pairwise, truth: Truth) -> float:
    """Probability that a truly interacting pair has a larger predicted interaction than another.

    Args:
        predicted: interactions of the pairs in question; they are compared by size, without sign.
        truth: what is true; pairs of other components are not interacting.

    Raises:
        InputError: see `node_auroc`; or the truth says nothing of interactions.
    """
    sizes = {pair: abs(value) for pair, value in _by_pair("predicted", predicted).items()}
    return _auroc(sizes, _interacting(truth), "pair")


def path_auroc(
    table: pd.DataFrame, true: Iterable[Any], *, column: str = "margin_change", subset: str = ALL
) -> float:
    """Probability that cutting true paths has a larger effect, up or down, than cutting others.

    Args:
        table: of `mechcore.paths.path_table`, on one data set, or the ``screening`` of
            `mechcore.paths.find_paths`.
        true: the sets of paths that are true, such as ``"L1.H1>L3.H9.q"``.
        column: of the effects.
        subset: of the data, where the table has several.

    Raises:
        InputError: see `node_auroc`; or a set has several rows, as on several data sets.
    """
    rows = table[table["subset"] == subset] if "subset" in table else table
    if column not in rows:
        raise InputError(f"paths: no column {column!r}; found {', '.join(map(str, table.columns))}")
    named = [PathSet.of(name) for name in rows["set"]]
    effects = _finite(f"paths: column {column!r}", named, rows[column].to_numpy(dtype=float))
    sizes = {each: abs(effect) for each, effect in effects.items()}
    return _auroc(sizes, {PathSet.of(each) for each in true}, "set of paths")


def sign_accuracy(
    predicted: Pairwise,
    truth: Truth,
    standard_errors: Pairwise | None = None,
    *,
    k: float = 2.0,
) -> float:
    """Share of truly interacting pairs whose predicted interaction has the right sign.

    A prediction of 0 has the wrong one.

    Args:
        predicted: interactions of all truly interacting pairs, and perhaps of others.
        truth: what is true.
        standard_errors: of the predicted interactions, in the truth's unit; with them only those
            pairs count that truly interact by more than ``k`` of these.
        k: how many.

    Raises:
        InputError: a prediction or standard error is missing, NaN or infinite, no pair is left, or
            the truth says nothing of interactions or, with standard errors, of their sizes.
    """
    found, true = _by_pair("predicted", predicted), _interacting(truth)
    _check_scored(found, true, "pair")
    if standard_errors is not None:
        if not truth.sized:
            raise InputError(
                "sign accuracy: the truth has interactions by sign, not by size; leave "
                "standard errors out"
            )
        errors = _by_pair("standard errors", standard_errors)
        _check_scored(errors, true, "pair")
        true = {pair: size for pair, size in true.items() if abs(size) > k * errors[pair]}
    if not true:
        raise InputError("sign accuracy: no pair truly interacts; expected at least one")
    return float(np.mean([np.sign(found[pair]) == np.sign(size) for pair, size in true.items()]))


def _interacting(truth: Truth) -> dict[ComponentSet, float]:
    if truth.interactions is None:
        raise InputError("truth: its interactions are unknown; expected a case that knows them")
    return {pair: size for pair, size in truth.interactions.items() if size != 0}


def _by_pair(what: str, numbers: Pairwise) -> dict[ComponentSet, float]:
    pairs = as_sets(list(numbers.keys()))
    for each in pairs:
        if not isinstance(each, ComponentSet) or len(each) != 2:
            raise InputError(f"{what}: found {each}; expected pairs, such as L0.H1+L1.H2")
    return _finite(what, pairs, np.array([value for _, value in numbers.items()], dtype=float))


def _finite(what: str, keys: Sequence[Any], values: np.ndarray) -> dict[Any, float]:
    """Numbers by their keys."""
    found = dict(zip(keys, values.tolist(), strict=True))
    if len(found) < len(keys):
        twice = next(each for i, each in enumerate(keys) if each in keys[:i])
        raise InputError(f"{what}: {twice} is there more than once; expected it once")
    for key, value in found.items():
        if not math.isfinite(value):
            raise InputError(f"{what}: found {value} for {key}; expected a finite number")
    return found


def _check_scored(scores: Collection[Any], true: Iterable[Any], what: str) -> None:
    if missing := sorted(str(each) for each in true if each not in scores):
        others = f", nor have {count(n, 'other')}" if (n := len(missing) - 1) else ""
        raise InputError(
            f"scores: the true {what} {missing[0]} has none{others}; expected a score of every "
            f"true {what}: pass 0 where nothing is predicted"
        )


def _auroc(scores: Mapping[Any, float], true: Collection[Any], what: str) -> float:
    _check_scored(scores, true, what)
    flags = [each in true for each in scores]
    if not 0 < sum(flags) < len(flags):
        raise InputError(
            f"AUROC: {sum(flags)} of {len(flags)} are a true {what}; expected some that are and "
            "some that are not"
        )
    return float(roc_auc_score(flags, list(scores.values())))


# -- sets -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recovery:
    """How a set of components compares with the true one."""

    found: frozenset[Component]
    true: frozenset[Component]

    @property
    def extra(self) -> list[Component]:
        """Those found that are not true."""
        return sorted(self.found - self.true)

    @property
    def missing(self) -> list[Component]:
        """Those true that were not found."""
        return sorted(self.true - self.found)

    @property
    def distance(self) -> int:
        """Edit distance: components to drop and to add until the sets are the same."""
        return len(self.found ^ self.true)

    @property
    def precision(self) -> float:
        """Share of those found that are true; NaN where none is found."""
        return len(self.found & self.true) / len(self.found) if self.found else math.nan

    @property
    def recall(self) -> float:
        """Share of those true that are found; NaN where none is true."""
        return len(self.found & self.true) / len(self.true) if self.true else math.nan

    @property
    def jaccard(self) -> float:
        """Components of both as a share of those of either; 1 where both sets are empty."""
        either = self.found | self.true
        return len(self.found & self.true) / len(either) if either else 1.0


def recovery(found: Iterable[ComponentLike], true: Iterable[ComponentLike]) -> Recovery:
    """How a core, or the heads of a category, compares with the true one.

    Args:
        found: components or their names.
        true: likewise.

    Raises:
        InputError: a name cannot be read.

    >>> recovery(["L0.H1", "L1.H0"], ["L0.H1"]).precision
    0.5
    """
    return Recovery(frozenset(parse_components(found)), frozenset(parse_components(true)))


def mask_distance(mask: Mask, truth: Truth) -> Recovery:
    """How what a pruned mask keeps compares with the true components.

    Args:
        mask: of zeros and ones.
        truth: what is true.

    Raises:
        InputError: the mask is batched or continuous, or a true component is not among its own.
    """
    for component in truth.components:
        mask.shape.index(component)
    return recovery(mask.kept, truth.components)
