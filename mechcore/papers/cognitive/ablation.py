"""What a model of the cognitive task loses without each of its heads, and in which layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from transformers import PreTrainedTokenizerBase

from mechcore.ablation import ablate, sets
from mechcore.ablation.engines.engine import Precision
from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.intervals import mean_intervals
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import longest_input
from mechcore.papers.cognitive.attention import ATTENTION, ATTENTION_CHANGE, attention_tables
from mechcore.papers.cognitive.steps import Analysis
from mechcore.papers.cognitive.trials import Trials, encode_trials
from mechcore.tables import PART, SUBSET, Column, Schema, estimate

MEAN_TRIALS = 1600
"""Trials that mean activations are taken over."""

QUANTILES = (0.025, 0.975)

ALPHA = 0.05
"""Chance, at most, that a head counts whose loss costs nothing, among all heads of a model."""

FILLS: tuple[str, ...] = ("mean", "zero")

_MEAN_SEED = 1_000_004
_SEED = 0
_BATCH = 64

FILL = Column("fill", "text", "what replaces a head's output", header="ablation")
_TRIALS = Column("n", "whole", "trials")
ABLATION = Schema(
    "cognitive_ablation",
    "What changes without every head, ablated alone; negative: worse without it.",
    (
        FILL,
        *PART,
        _TRIALS,
        *estimate("change", "points", "of accuracy", over="over trials"),
        Column("sure", "flag", "below 0 after Bonferroni over heads", header="surely below 0"),
        *estimate(
            "incongruent_change",
            "points",
            "the same on incongruent trials",
            low="incongruent_low",
            high="incongruent_high",
            over="over trials",
            header="incongruent",
        ),
        Column("margin_change", "number", "of margin", "nats", header="margin", signed=True),
    ),
)
MASS = Schema(
    "cognitive_mass",
    "Centre of mass of the changes over layers, by fill and subset of the trials.",
    (
        FILL,
        SUBSET.called("trials"),
        _TRIALS,
        *estimate(
            "centre", "number", "in layers from 0; missing without changes", over="moved quantiles"
        ),
        Column("undefined", "share", "resamples without a centre", header="no centre"),
        Column("total_change", "share", "of all below 0", "points", "changes in all", shown="bare"),
        Column("first_layer_share", "share", "of it, in layer 0", header="in first layer"),
        Column("strongest", "text", "the head with the lowest change, if one is below 0"),
        *estimate(
            "centre_significant",
            "number",
            "the centre of the heads whose change is surely below 0, see ``cognitive_ablation``",
            low="significant_low",
            high="significant_high",
            over="quantiles over resamples",
            optional_ends=True,
            header="heads surely below 0",
        ),
        Column("n_significant", "whole", "such heads", header="how many"),
    ),
)


@dataclass(frozen=True)
class AblateHeads(Analysis):
    """Every head ablated alone, and its attention to the numbers."""

    kind: ClassVar[str] = "ablation"
    schemas: ClassVar[tuple[Schema, ...]] = (ABLATION, MASS, ATTENTION, ATTENTION_CHANGE)
    passes: ClassVar[float] = 20.0
    n_resamples: int
    precision: Precision

    def tables(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials
    ) -> dict[str, pd.DataFrame]:
        """See `ablation_tables` and `mechcore.papers.cognitive.attention.attention_tables`."""
        seen = self.task.trials(MEAN_TRIALS, _MEAN_SEED)
        encoded = encode_trials(seen, tokenizer, max_length=longest_input(model))
        means = MeanActivations.compute(model, encoded)
        how: dict[str, Any] = {"n_resamples": self.n_resamples, "precision": self.precision}
        tables = ablation_tables(model, tokenizer, trials, means, **how)
        return tables | attention_tables(model, tokenizer, trials, tables["cognitive_ablation"])


def ablation_tables(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    trials: Trials,
    means: MeanActivations,
    *,
    n_resamples: int = 1000,
    precision: Precision = "float32",
) -> dict[str, pd.DataFrame]:
    """The columns of `ABLATION`, a row per fill and head; and of `MASS`, one per fill and subset.

    Accuracy is restricted to the two answers. Intervals are of 95 %, over trials and paired; those
    of centres are from resamples, which all heads share, moved until their median is the centre:
    resampling adds noise of its own, which would pull a centre further to the middle.

    Raises:
        InputError: no trial is incongruent.
    """
    incongruent = ~trials.frame["congruent"].to_numpy(dtype=bool)
    if not incongruent.any():
        raise InputError(
            f"cognitive ablation: none of {len(trials)} trials is incongruent; expected some: draw "
            "more trials"
        )
    data = encode_trials(trials, tokenizer, max_length=longest_input(model))
    shape, heads = ModelShape.of(model), sets.singles(model, mlps=False)
    parts, masses = [], []
    for fill in FILLS:
        ablated = ablate(
            model,
            heads,
            data,
            means,
            fill=fill,
            precision=precision,
            split="ood",  # accuracy under chance is a finding here, and no reason to warn
            batch_size=_BATCH,
        )
        changes = np.stack([ablated.changes(head, "accuracy") for head in heads])
        of_heads = [(str(head), head.layer, head.head) for head in shape.heads]
        table = pd.DataFrame(of_heads, columns=["component", "layer", "head"])
        table.insert(0, "fill", fill)
        table["n"] = len(trials)
        for subset, prefix, part in (
            ("all", "", changes),
            ("incongruent", "incongruent_", changes[:, incongruent]),
        ):
            intervals = mean_intervals(part, answers=True)
            for name, end in (("change", "mean"), ("low", "low"), ("high", "high")):
                table[prefix + name] = [getattr(interval, end) for interval in intervals]
            strict = mean_intervals(part, answers=True, level=1 - ALPHA / len(heads))
            significant = np.array([interval.high < 0 for interval in strict])
            if subset == "all":
                table["sure"] = significant
            mass = _mass(part, significant, shape, n_resamples)
            masses.append({"fill": fill, "subset": subset, **mass})
        table["margin_change"] = [ablated.changes(head, "margin").mean() for head in heads]
        parts.append(table)
    return {
        "cognitive_ablation": pd.concat(parts, ignore_index=True),
        "cognitive_mass": pd.DataFrame(masses),
    }


def centre_of_mass(
    changes: Float[np.ndarray, "*group layer head"],
) -> Float[np.ndarray, "*group"]:
    """Mean layer of the heads, weighted by their changes, positive ones as 0; NaN without weight.

    >>> centre_of_mass(np.array([[-0.1, 0.5], [0, -0.1], [-0.2, 0]]))  # (0*.1 + 1*.1 + 2*.2) / .4
    array(1.25)
    """
    by_layer = np.maximum(-changes, 0).sum(-1)
    total = by_layer.sum(-1, keepdims=True)
    shares = np.divide(by_layer, total, out=np.full_like(by_layer, np.nan), where=total > 0)
    return np.asarray(shares @ np.arange(shares.shape[-1]))


def _mass(
    changes: Float[np.ndarray, "component example"],
    significant: Bool[np.ndarray, " component"],
    shape: ModelShape,
    n_resamples: int,
) -> dict[str, Any]:
    """A row of ``cognitive_mass`` without fill and subset."""
    grid = (shape.n_layers, shape.n_heads)
    means = changes.mean(1).reshape(grid)
    resampled = _resampled_means(changes, n_resamples).reshape(-1, *grid)
    chosen = significant.reshape(grid)
    centre, centres = float(centre_of_mass(means)), centre_of_mass(resampled)
    low, high = np.clip(_quantiles(centres, around=centre), 0, shape.n_layers - 1)
    significant_low, significant_high = _quantiles(centre_of_mass(np.where(chosen, resampled, 0)))
    if changes.shape[1] == 1:  # one trial does not say how much trials differ
        low = high = significant_low = significant_high = np.nan
    lost = np.maximum(-means, 0)
    total = lost.sum()
    return {
        "n": changes.shape[1],
        "centre": centre,
        "low": low,
        "high": high,
        "undefined": np.isnan(centres).mean(),
        "total_change": 0.0 - total,
        "first_layer_share": lost[0].sum() / total if total > 0 else np.nan,
        "strongest": str(shape.heads[means.argmin()]) if total > 0 else None,
        "centre_significant": float(centre_of_mass(np.where(chosen, means, 0))),
        "significant_low": significant_low,
        "significant_high": significant_high,
        "n_significant": int(significant.sum()),
    }


def _resampled_means(
    changes: Float[np.ndarray, "component example"], n_resamples: int
) -> Float[np.ndarray, "resample component"]:
    n = changes.shape[1]
    generator = np.random.default_rng(_SEED)
    draws = (generator.integers(n, size=n) for _ in range(n_resamples))
    return np.stack([changes @ np.bincount(rows, minlength=n) for rows in draws]) / n


def _quantiles(
    values: Float[np.ndarray, " resample"], around: float | None = None
) -> tuple[float, float]:
    """Of the defined values, moved by as much as brings their median to ``around``."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.nan, np.nan
    shift = 0.0 if around is None else around - float(np.median(defined))
    low, high = np.quantile(defined, QUANTILES)
    return float(low) + shift, float(high) + shift
