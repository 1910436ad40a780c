"""How well methods recover the truth about models, see docs/results/known-truth.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.ablation.joint.predictors import PairRequest, Predictions, mean_interactions
from mechcore.ablation.sets import ComponentSet
from mechcore.bench.case import Case, mask_distance, node_auroc, pair_auroc, sign_accuracy
from mechcore.bench.faithfulness import cmd, cpr, faithfulness_of
from mechcore.bench.methods import PREDICTORS, RANKERS
from mechcore.bench.population import NOTHING
from mechcore.components import ModelShape
from mechcore.evaluation.cost import Cost, counted
from mechcore.evaluation.intervals import mean_intervals
from mechcore.masking.means import MeanActivations
from mechcore.pruning.discretise import discretise
from mechcore.pruning.methods import Request
from mechcore.pruning.settings import prune_settings
from mechcore.tables import SEED, Column, Schema

WITH_PAIRS = "singles-and-pairs"
"""Ranking by the largest of a component's exact change and interactions."""
WITHOUT_TRUTH = ("layer-matched",)
"""Methods that need the result of another."""

BATCH_SIZE = 128
"""Texts per forward in sweeps."""

_CASE = Column("case", "text", "the model of known truth")
_METHOD = Column("method", "text", "how it was found")
_COST = (
    Column("forwards", "number", "forward passes per text, one for each mask"),
    Column("backwards", "number", "backward passes per text"),
)
NODES = Schema(
    "nodes",
    "How well each method finds the true components of each case.",
    (
        _CASE,
        _METHOD,
        SEED,
        Column("n_true", "whole", "true components"),
        Column("n", "whole", "components"),
        Column("auroc", "number", "chance that a true component is ranked above another"),
        Column("distance", "whole", "components wrongly kept or dropped, given their true number"),
        Column("cpr", "number", "area under the faithfulness of circuits by size", header="CPR"),
        Column("cmd", "number", "area between faithfulness and 1, likewise", header="CMD"),
        *_COST,
    ),
)
PAIRS = Schema(
    "pairs",
    "How well each method finds the true interactions of each case.",
    (
        _CASE,
        _METHOD,
        SEED,
        Column("n_true", "whole", "pairs that interact"),
        Column("n", "whole", "pairs"),
        Column("auroc", "number", "chance that an interacting pair is predicted above another"),
        Column("signs", "share", "interacting pairs with the right sign"),
        *_COST,
    ),
)


def recovered_nodes(case: Case, methods: Iterable[str], *, seed: int = 0) -> pd.DataFrame:
    """How well methods (of `RANKERS`, or `WITH_PAIRS`) find a case's components, as `NODES`."""
    model, train = case.model, case.data["train"]
    shape = ModelShape.of(model)
    means = MeanActivations.compute(model, train, n_samples=0)
    rows = []
    for method in methods:
        if method == WITH_PAIRS:
            scores, cost = _with_pairs(case, means)
            mask = discretise(scores, _sparsity(case, shape), shape)
        else:
            given = (model, train, means, [_sparsity(case, shape)], [seed])
            request = Request(*given, prune_settings("thorough"), seed)
            with counted(model, len(train)) as cost:
                (subnetwork,) = RANKERS[method](request)
            scores, mask = subnetwork.scores, subnetwork.mask
        curve = faithfulness_of(model, scores, case.data["id"], means, batch_size=BATCH_SIZE)
        rows.append(
            {
                "case": case.name,
                "method": method,
                "seed": seed,
                "n_true": len(case.truth.components),
                "n": len(shape.components),
                "auroc": node_auroc(_without_rounding(scores), case.truth, shape),
                "distance": mask_distance(mask, case.truth),
                "cpr": cpr(curve["share"], curve["faithfulness"]),
                "cmd": cmd(curve["share"], curve["faithfulness"]),
                **asdict(cost),
            }
        )
    return pd.DataFrame(rows, columns=NODES.names)


def _without_rounding(scores: Tensor) -> Float[np.ndarray, "layer component"]:
    """Scores rounded so that differences below a millionth of the largest are ties."""
    values = scores.double().numpy()
    unit = 1e-6 * np.abs(values).max()
    return np.round(values / unit) if unit else values


def _sparsity(case: Case, shape: ModelShape) -> float:
    """Share of components that are not true."""
    return 1 - len(case.truth.components) / len(shape.components)


def _with_pairs(
    case: Case, means: MeanActivations
) -> tuple[Float[Tensor, "layer component"], Cost]:
    """The largest absolute change or interaction of every component, in nats."""
    shape = ModelShape.of(case.model)
    request = _pair_request(case, "train", means, 0)
    ablated = request.ablate([*request.singles, *request.pairs])
    scores = torch.zeros(shape.n_layers, shape.columns)
    for alone in request.singles:
        place = shape.index(alone.components[0])
        scores[place] = abs(float(ablated.changes(alone, "margin").mean()))
    for pair, size in mean_interactions(ablated, request.pairs).items():
        for component in pair.components:
            place = shape.index(component)
            scores[place] = max(abs(size), float(scores[place]))
    return scores, Cost(forwards=1 + len(ablated.sets))


def _pair_request(case: Case, split: str, means: MeanActivations, seed: int) -> PairRequest:
    texts, components = case.data[split], ModelShape.of(case.model).components
    given = (case.model, texts, means, components, len(texts), seed)
    return PairRequest(*given, batch_size=BATCH_SIZE)


def recovered_pairs(case: Case, methods: Iterable[str], *, seed: int = 0) -> pd.DataFrame:
    """How well methods (of `PREDICTORS`) find a case's interactions in domain, as `PAIRS`.

    Predictions within rounding count as 0: below a millionth of a nat or, in other units, of the
    largest prediction. A case without interacting pairs has no rows.
    """
    means = MeanActivations.compute(case.model, case.data["train"], n_samples=0)
    rows = []
    for method in methods if case.truth.interactions else ():
        predictions = PREDICTORS[method](_pair_request(case, "id", means, seed))
        predicted = _beyond_rounding(predictions)
        rows.append(
            {
                "case": case.name,
                "method": method,
                "seed": seed,
                "n_true": len(case.truth.interactions or ()),
                "n": len(predictions.interactions),
                "auroc": pair_auroc(predicted, case.truth),
                "signs": sign_accuracy(predicted, case.truth),
                **asdict(predictions.cost),
            }
        )
    return pd.DataFrame(rows, columns=PAIRS.names)


def _beyond_rounding(predictions: Predictions) -> dict[ComponentSet, float]:
    """Predicted interactions, 0 where within rounding."""
    predicted = predictions.interactions
    largest = 1.0 if predictions.in_nats else max(map(abs, predicted.values()), default=0.0)
    least = NOTHING * largest
    return {pair: 0.0 if abs(value) < least else value for pair, value in predicted.items()}


_PASSES = [column.name for column in _COST]
_FORM = r"-(encoder|decoder)(-noisy)?$"
_RANGES = {"auroc": (0, 1), "signs": (0, 1), "cpr": (-np.inf, np.inf), "cmd": (0, np.inf)}


def over_cases(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Means over circuits and programs, with intervals, best by the first column first.

    Forms of one circuit and repetitions with other seeds are dependent, so they are averaged first.
    """
    circuit = table["case"].str.replace(_FORM, "", regex=True)
    by_case = (
        table.assign(circuit=circuit)
        .groupby(["method", "circuit"], sort=False)[[*columns, *_PASSES]]
        .mean()
    )
    rows: list[dict[str, Any]] = []
    for method, part in by_case.groupby("method", sort=False):
        row: dict[str, Any] = {"method": method, "n_circuits": len(part)}
        for column in columns:
            [interval] = mean_intervals(part[column].to_numpy()[None])
            low, high = np.clip([interval.low, interval.high], *_RANGES[column])
            row |= {column: interval.mean, f"{column}_low": low, f"{column}_high": high}
        row |= {name: part[name].mean() for name in _PASSES}
        rows.append(row)
    best = -1 if columns[0] != "cmd" else 1
    order = np.argsort([best * row[columns[0]] for row in rows], kind="stable")
    return pd.DataFrame([rows[i] for i in order])
