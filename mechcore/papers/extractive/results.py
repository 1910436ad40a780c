"""Extractive scores in columns that prompts share, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.papers.extractive.encoded import TASK
from mechcore.showing import Shown
from mechcore.tables import COMPONENT, LAYER, SEED, Column, Schema


def common_ends(prompts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Lengths of the longest prefix and suffix that all prompts share, without overlap."""
    prefix, suffix = (
        sum(1 for _ in takewhile(lambda tokens: len({*tokens}) == 1, zip(*texts)))  # noqa: B905
        for texts in (prompts, [prompt[::-1] for prompt in prompts])
    )
    return prefix, min(suffix, min(map(len, prompts)) - prefix)


def align(prompt: Sequence[int], other: Sequence[int]) -> list[int]:
    """The position in ``other`` that stands for each position of ``prompt``.

    As in arXiv 2412.04614: what both begin and end with is mapped to itself; the middles are
    aligned at their right ends, and where that of ``other`` is too short, its first token stands
    for all that lack one (if it has none, the token after the common beginning, or the last).
    """
    prefix, suffix = common_ends([prompt, other])
    middle, other_middle = (len(ids) - prefix - suffix for ids in (prompt, other))
    first = min(prefix, len(other) - 1)
    shift = other_middle - middle
    between = [max(first, prefix + i + shift) for i in range(middle)]
    end = [len(other) - suffix + i for i in range(suffix)]
    return [*range(prefix), *between, *end]


@dataclass(frozen=True)
class Places:
    """Columns that the tokens of several prompts share: their names, and those of each prompt."""

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]


def places(prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> Places:
    """Columns for prompts of one wording; ``subject -1`` is the last token of what differs."""
    prefix, suffix = common_ends(prompts)
    middles = [len(prompt) - prefix - suffix for prompt in prompts]
    widest = max(middles)
    names = [*texts[0][:prefix], *(f"subject {i - widest}" for i in range(widest))]
    names += texts[0][len(texts[0]) - suffix :]
    columns = tuple(
        (*range(prefix), *range(prefix + widest - middle, prefix + widest + suffix))
        for middle in middles
    )
    return Places(tuple(names), columns)


Kind: TypeAlias = Literal["informative", "upstream", "downstream"]
KINDS: tuple[Kind, ...] = ("informative", "upstream", "downstream")


PARTS = (
    Column("kind", "text", "``mlp`` or ``head``", names={"mlp": "MLPs", "head": "heads"}),
    COMPONENT,
    LAYER,
    Column("head", "whole", "number of the head in its layer; -1 for MLPs"),
)
SCORES = Schema(
    "extractive_scores",
    "Scores of every component at every token, means over prompts.",
    (
        TASK,
        SEED,
        Column("score", "text", "``informative``, ``upstream`` or ``downstream``"),
        *PARTS,
        Column("place", "whole", "column of the token, from 0"),
        Column("token", "text", "its name"),
        Column("value", "number", "the score", "logits", digits=3, signed=True),
        Column("se", "number", "standard error over prompts", header="error", digits=3),
        Column("n", "whole", "prompts that have a token there"),
    ),
)


def _sums(values: Float[Tensor, "point ..."]) -> Float[Tensor, " point"]:
    """Sums over all but the first axis, in float64."""
    return values.flatten(1).double().sum(1)


@dataclass(frozen=True, eq=False, repr=False)
class Scores(Shown):
    """Scores of one kind, in logits; 0 at positions that a prompt does not have."""

    heads: Float[Tensor, "point layer head pos"]
    mlps: Float[Tensor, "point layer pos"]

    @property
    def total(self) -> Float[Tensor, " point"]:
        """Sum over everything."""
        return _sums(self.heads) + _sums(self.mlps)

    @property
    def size(self) -> Float[Tensor, " point"]:
        """Sum of absolute values."""
        return _sums(self.heads.abs()) + _sums(self.mlps.abs())


@dataclass(frozen=True, eq=False, repr=False)
class ExtractiveScores(Shown):
    """Extractive scores of every component at every token of every prompt.

    Attributes:
        other: first-order effect of changed weights that are of no component (embeddings,
            normalisations, the bias of W_O), in logits.
        rewards_before, rewards_after: R at W0 and at W1.
        gradient: <grad R, W1 - W0> at W0 from the derivatives of the weights themselves, which
            informative and other must sum to; missing if it was not asked for.
        places: columns for the tokens.
    """

    shape: ModelShape
    informative: Scores
    upstream: Scores
    downstream: Scores
    other: Float[Tensor, " point"]
    rewards_before: Float[Tensor, " point"]
    rewards_after: Float[Tensor, " point"]
    gradient: Float[Tensor, " point"]
    places: Places

    def sums(self) -> pd.DataFrame:
        """What the scores add up to: one row per prompt, in logits.

        Columns: informative (sum over components and tokens), other, gradient, actual (R at W1
        minus R at W0), upstream, downstream.
        """
        columns = {
            "informative": self.informative.total,
            "other": self.other,
            "gradient": self.gradient,
            "actual": (self.rewards_after - self.rewards_before).double(),
            "upstream": self.upstream.total,
            "downstream": self.downstream.total,
        }
        return pd.DataFrame({name: values.numpy() for name, values in columns.items()})

    def by_place(self, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
        """[point, layer, head, place] and [point, layer, place], 0 where a prompt has no token."""
        scores: Scores = getattr(self, kind)
        placed = []
        for values in (scores.heads.double().numpy(), scores.mlps.double().numpy()):
            into = np.zeros((*values.shape[:-1], len(self.places.names)))
            for point, columns in enumerate(self.places.columns):
                into[point][..., list(columns)] = values[point][..., : len(columns)]
            placed.append(into)
        return placed[0], placed[1]

    def table(self) -> pd.DataFrame:
        """Means over prompts: the columns of `SCORES` but for task and seed."""
        names, n_points = self.places.names, len(self.places.columns)
        counts = np.bincount([*chain(*self.places.columns)], minlength=len(names))
        parts = []
        for score in KINDS:
            heads, mlps = self.by_place(score)
            for component in self.shape.components:
                layer, head = component.layer, component.head
                values = mlps[:, layer] if head is None else heads[:, layer, head]
                error = values.std(0, ddof=1) / np.sqrt(n_points) if n_points > 1 else np.nan
                part = {
                    "score": score,
                    "kind": "mlp" if head is None else "head",
                    "component": str(component),
                    "layer": layer,
                    "head": -1 if head is None else head,
                    "place": range(len(names)),
                    "token": names,
                    "value": values.mean(0),
                    "se": error,
                    "n": counts,
                }
                parts.append(pd.DataFrame(part))
        return pd.concat(parts, ignore_index=True)
