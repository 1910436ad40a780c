"""How often the verdict and the ladder of repairs are right about planted models that fail.

Each draw plants a new model with noise in its weights, draws its texts, and takes the ladder's
recommendation, with half of the kinds held out. Permuted labels are unrelated to the model's
answers: a recommendation there is an error.

    python benchmarks/repair.py --draws 100 --out repair.csv
    python benchmarks/repair.py --verdicts --draws 100 --out verdicts.csv
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch

from mechcore.ablation import ablate, sets
from mechcore.ablation.effects.failure import explanation, failure_table, net_table
from mechcore.bench.failing import CIRCUITS, failing_data, failing_model, tokenizer_of
from mechcore.evaluation.evaluate import evaluate
from mechcore.evaluation.readout import Readout
from mechcore.masking.means import MeanActivations
from mechcore.repair import HELD_OUT
from mechcore.repair.fitting import Settings
from mechcore.repair.ladder import Labelled, Ladder, runs_of
from mechcore.repair.model import RepairableModel
from mechcore.repair.outcome import recommended, repair_table

CASES = ("head", "backup", "threshold", "absent", "permuted")
RUNGS = ("none", "threshold", "last-layer", "remove", "gates")
NOISE = 0.01


def recommendation(case: str, draw: int, rungs: list[str], n: int, steps: int) -> dict[str, object]:
    """The ladder's recommendation for one planted model, and the results of each rung."""
    name = "absent" if case == "permuted" else case
    with TemporaryDirectory() as folder:
        model = failing_model(name, folder, seed=draw, noise=NOISE)
        data = failing_data(name, {"train": 64, "id": 200, "ood": 400}, seed=draw)
        means = MeanActivations.compute(model, data["train"])
        repairable = RepairableModel(model, folder, tokenizer_of(), means)
        of = {
            split: Labelled(
                data[split], Readout.of(model, data[split]).correct_classes(data[split])
            )
            for split in ("id", "ood")
        }
        if case == "permuted":
            order = np.random.default_rng(draw).permutation(len(data["ood"]))
            of["ood"] = Labelled(data["ood"], of["ood"].correct[order])
        runs = runs_of(of["ood"], [n], 1, 2, draw, 200)
        settings = Settings(steps=steps, seed=draw, diagnose=False)
        ladder = Ladder(repairable, of["ood"], of["id"], data["train"], settings)
        done = list(ladder.outcomes(runs[:1], rungs))
    labels = {split: [*map(str, examples.label)] for split, examples in of.items()}
    table = repair_table(done, of["ood"], of["id"], labels)
    held = table[(table["place"] == HELD_OUT) & (table["label"] == "all")]
    reached = held.set_index("rung")["accuracy"].round(4).to_dict()
    return {"case": case, "draw": draw, "recommended": recommended(table), **reached}


def verdict(case: str, draw: int) -> dict[str, object]:
    """What is said to explain a planted failure, from all components and all pairs ablated."""
    with TemporaryDirectory() as folder:
        model = failing_model(case, folder, seed=draw, noise=NOISE)
        data = failing_data(case, {"train": 150, "id": 300, "ood": 300}, seed=draw)
        means = MeanActivations.compute(model, data["train"])
        alone = sets.singles(model)
        pairs = sets.pairs(c for one in alone for c in one.components)
        kinds = dict.fromkeys(alone, "single") | dict.fromkeys(pairs, "pair")
        ablations = ablate(model, list(kinds), data["ood"], means, split="ood")
        full = {"id": evaluate(model, data["id"]), "ood": ablations.full}
    labels = {split: data[split].examples.frame["label"].tolist() for split in full}
    failure = failure_table(full, labels, {s: s for s in full}, n_resamples=200, seed=draw)
    nets = net_table(ablations, labels["ood"], kinds, n_resamples=200, seed=draw)
    why = explanation(failure, nets)
    return {"case": case, "draw": draw, "kind": why.kind, "name": why.name, "share": why.share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", action="store_true", help="verdicts, without the ladder")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rungs", default=",".join(RUNGS))
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("repair.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rungs, cases = args.rungs.split(","), args.cases.split(",")
    judged = partial(recommendation, rungs=rungs, n=args.examples, steps=args.steps)
    if args.verdicts:  # permuted labels are for the ladder alone
        judged, cases = verdict, [case for case in cases if case in CIRCUITS]
    rows = []
    for draw in range(args.draws):
        for case in cases:
            rows.append(judged(case, draw))
            pd.DataFrame(rows).to_csv(args.out, index=False)
    table = pd.DataFrame(rows)
    if args.verdicts:
        print(table.groupby(["case", "kind", "name"]).size().to_string())
        return
    print(table.groupby(["case", "recommended"]).size().to_string())
    reached = table.drop(columns=["draw", "recommended"]).set_index("case") >= 0.95
    print((reached.groupby("case").mean() * 100).round(1).to_string())


if __name__ == "__main__":
    main()
