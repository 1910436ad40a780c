"""The smallest subnetwork that loses no more than is accepted, among those at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mechcore.components import Mask
from mechcore.evaluation.evaluate import Evaluation
from mechcore.evaluation.recalibration import Effect, decompose, reason_against
from mechcore.tables import Column, Schema, estimate
from mechcore.wording import PLACES, count, number

MEASURES = ("accuracy", "information")

SMALLEST = Schema(
    "smallest",
    "The sparsest subnetwork whose loss is within the limit in domain and out of domain; where "
    "there is none, the one that comes closest.",
    (
        Column("measure", "text", "of the loss: ``accuracy`` or ``information``"),
        Column("limit", "points", "loss accepted", digits=2),
        Column("within", "flag", "whether a subnetwork is within the limit"),
        Column("subnetwork", "text", "its name; else that of the one that comes closest"),
        Column("mask", "text", "its file in the study's folder"),
        Column("sparsity", "share", "share of components that it prunes"),
        Column("kept", "whole", "components that it keeps"),
        *(
            column
            for split, place in PLACES.items()
            for column in estimate(
                f"{split}_change",
                "points",
                f"subnetwork's figure less the full model's, {place}",
                low=f"{split}_change_low",
                high=f"{split}_change_high",
            )
        ),
        *(
            Column(
                f"{split}_accuracy_change",
                "points",
                f"change of accuracy as it stands, {place}; under ``accuracy`` the same as "
                f"``{split}_change``",
            )
            for split, place in PLACES.items()
        ),
        *(
            Column(
                f"{split}_change_held_out",
                "points",
                f"change {place} on one half of what the other would choose, mean of both ways; "
                "missing where a half is too small",
                optional=True,
            )
            for split, place in PLACES.items()
        ),
        Column("n_masks", "whole", "subnetworks at hand"),
        Column("reason", "text", "why none is within the limit"),
    ),
)


def smallest_subnetworks(
    masks: Mapping[str, Mask],
    full: Mapping[str, Evaluation],
    masked: Mapping[str, Mapping[str, Evaluation]],
    limit: float,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """The columns of `SMALLEST`: the sparsest subnetwork within a limit of each measure of loss.

    Among equally sparse ones it is the one whose lower end is higher. ``full`` and ``masked`` are
    the answers of the full model and of the subnetworks (by name) to the same examples, by split;
    ``limit`` is the loss accepted, a share; ``seed`` is that of folds and paired resamples.
    """
    statistics: dict[str, Any] = {"n_resamples": n_resamples, "level": level, "seed": seed}
    table = _chosen(masks, full, masked, limit, **statistics)
    halves = {split: _halves(full[split], seed) for split in PLACES}
    held_out = np.zeros((len(MEASURES), len(PLACES)))
    for here in (0, 1):
        own, other = (
            {
                split: {
                    name: evaluation.part(halves[split][half])
                    for name, evaluation in answers.items()
                }
                for split, answers in ((r, {"": full[r], **masked[r]}) for r in PLACES)
            }
            for half in (here, 1 - here)
        )
        fulls = {split: answers[""] for split, answers in own.items()}
        names = _chosen(masks, fulls, own, limit, **statistics)["subnetwork"]
        for i, (measure, name) in enumerate(zip(MEASURES, names, strict=True)):
            for j, answers in enumerate(other.values()):
                known = name and not _reason(measure, answers[""], "")
                change = (
                    _effect(measure, answers[""], [answers[name]], seed).changes[0]
                    if known
                    else np.nan
                )
                held_out[i, j] += change / 2
    table[[f"{split}_change_held_out" for split in PLACES]] = held_out
    return table[SMALLEST.names]


def _halves(full: Evaluation, seed: int) -> list[np.ndarray]:
    """Rows of two random halves of the clusters, or of the examples."""
    clusters = np.arange(len(full.subsets)) if full.clusters is None else full.clusters
    names = np.random.default_rng(seed).permutation(np.unique(clusters))
    first = np.isin(clusters, names[len(names) // 2 :])
    return [np.flatnonzero(first), np.flatnonzero(~first)]


def _chosen(
    masks: Mapping[str, Mask],
    full: Mapping[str, Evaluation],
    masked: Mapping[str, Mapping[str, Evaluation]],
    limit: float,
    *,
    seed: int,
    **statistics: Any,
) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for measure in MEASURES:
        row: dict[str, Any] = {"measure": measure, "limit": limit, "within": False}
        row |= {"subnetwork": "", "mask": "", "n_masks": len(masks), "reason": ""}
        rows.append(row)
        reasons = [_reason(measure, full[split], place) for split, place in PLACES.items()]
        if not masks or any(reasons):
            row["reason"] = "; ".join(filter(None, reasons)) or "there is no mask"
            continue
        changes = {}
        for split in PLACES:
            effect = _effect(measure, full[split], [masked[split][n] for n in masks], seed)
            changes[split] = effect.intervals(seed=seed, **statistics)
        worst = [min(changes[split][i].low for split in PLACES) for i in range(len(masks))]
        sparsity = [mask.sparsity for mask in masks.values()]
        inside = [i for i, low in enumerate(worst) if low >= -limit]
        order = inside or range(len(masks))
        best = max(order, key=lambda i: (sparsity[i], worst[i]) if inside else (worst[i],))
        name = [*masks][best]
        row |= {"within": bool(inside), "subnetwork": name, "mask": f"masks/{name}.safetensors"}
        row |= {"sparsity": sparsity[best], "kept": len(masks[name].kept)}
        for split in PLACES:
            change = changes[split][best]
            ends = {"": change.mean, "_low": change.low, "_high": change.high}
            row |= {f"{split}_change{end}": value for end, value in ends.items()}
            row[f"{split}_accuracy_change"] = masked[split][name].accuracy - full[split].accuracy
        if not inside:
            most = -100 * worst[best]  # with as many decimals as tell it from the limit
            digits = next((d for d in range(1, 9) if round(most, d) > 100 * limit), 1)
            row["reason"] = (
                f"{name} comes closest of {count(len(masks), 'mask')}, and loses up to "
                f"{most:.{digits}f} points"
            )
    return pd.DataFrame(rows, columns=SMALLEST.required)


def _reason(measure: str, full: Evaluation, place: str) -> str:
    reason = full.samples()[""].reason
    if measure == "information":
        reason = reason_against(full.correct_classes.numpy()) or reason
    if len(full.subsets) < 2:
        reason = "one example, which has no interval"
    return reason and f"{place}: {reason}"


def _effect(measure: str, full: Evaluation, masked: list[Evaluation], seed: int) -> Effect:
    if measure == "accuracy":
        changes = np.stack(
            [evaluation.correct - full.correct.astype(float) for evaluation in masked]
        )
        return Effect(full.accuracy, changes, sample=full.samples()[""])
    without = np.stack([evaluation.logits.numpy() for evaluation in masked])
    options: dict[str, Any] = {"clusters": full.clusters, "seed": seed}
    parts = decompose(full.logits.numpy(), without, full.correct_classes.numpy(), **options)
    return parts.information.drawn(full.samples()[""])


def explain_smallest(row: Mapping[Any, Any]) -> str:
    """A row of `smallest_subnetworks` in a sentence, without a full stop."""
    limit = f"{100 * row['limit']:g}"
    points = "point" if limit == "1" else "points"
    start = f"smallest subnetwork within {limit} {points} of {row['measure']}"
    if not row["within"]:
        return f"{start}: none; {row['reason']}"
    changes = (
        f"{number(100 * row[f'{split}_change'], 1, signed=True)} points {place} (at worst "
        f"{number(100 * row[f'{split}_change_low'], 1, signed=True)})"
        for split, place in PLACES.items()
    )
    text = (
        f"{start}: {row['subnetwork']}, which keeps {count(row['kept'], 'component')}, a change of "
        f"{' and '.join(changes)}"
    )
    held_out = [row.get(f"{split}_change_held_out", np.nan) for split in PLACES]
    if np.isfinite(held_out).all():
        pairs = zip(held_out, PLACES.values(), strict=True)
        measured = (f"{number(100 * change, 1, signed=True)} {place}" for change, place in pairs)
        text += f"; where other examples choose, {' and '.join(measured)}"
    if row["measure"] == "accuracy":
        return text
    accuracy = (
        f"{number(100 * row[f'{split}_accuracy_change'], 1, signed=True)} points {place}"
        for split, place in PLACES.items()
    )
    return f"{text}; of accuracy, with its bias as it is, {' and '.join(accuracy)}"


def is_for_export(row: Mapping[Any, Any]) -> bool:
    """Whether a subnetwork is within the limit as it stands, in accuracy too."""
    worst = min(row[f"{split}_accuracy_change"] for split in PLACES)
    return bool(row["within"]) and worst >= -row["limit"]
