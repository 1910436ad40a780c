"""Races compared with exact sweeps: what they save and miss, and how often they are wrong.

    python benchmarks/racing.py [--examples 2000] [--least 0.1 | --largest 20] [--checked 200]
    python benchmarks/racing.py --model DIR --train FILE --ood FILE
    python benchmarks/racing.py --planted [--runs 1000]
    python benchmarks/racing.py --rare [--runs 1000] [--bound NATS]

The first two race all pairs of the embedded encoder or of a classifier on out-of-domain examples.
Then some pairs are ablated on all examples: those decided to be larger than ``--least`` (or among
the ``--largest``), those with an estimated effect above half of it, and ``--checked`` others drawn
at random to represent the rest. The third takes random orders of texts of planted circuits, whose
answers are known, and counts the races with any wrong decision; the last does so for made-up sets
with effects in few texts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mechcore.ablation import ComponentSet, Race, ablate, race, sets
from mechcore.ablation.joint.decisions import Goal, Interactions
from mechcore.ablation.joint.races import RARE, looks, span_of
from mechcore.bench.planted import CATALOGUE
from mechcore.components import KINDS, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.evaluation.metrics import METRICS
from mechcore.main_study.config import StudyConfig
from mechcore.masking.means import MeanActivations
from mechcore.steps.inputs import open_model, read_split

ERROR = 0.05


def exact_effects(
    model: Any, chosen: Sequence[ComponentSet], data: EncodedExamples, means: Any, **options: Any
) -> np.ndarray:
    """Mean interactions on the margin, nats, [set], from an exact sweep."""
    members = sorted({c for cut in chosen for c in cut.components})
    alone = [ComponentSet((c,)) for c in members]
    ablations = ablate(model, [*alone, *chosen], data, means, split="ood", **options)
    changes = {cut: ablations.changes(cut, "margin").mean() for cut in ablations.sets}
    return np.array(
        [changes[s] - sum(changes[ComponentSet((c,))] for c in s.components) for s in chosen]
    )


def checked(outcome: Race, n: int, seed: int) -> tuple[list[ComponentSet], int, int]:
    """Sets to ablate on all examples: those that matter, and a sample of how many of the others."""
    table, size = outcome.decisions, outcome.decisions["effect"].abs()
    matters = ~table["decision"].isin(["within", "rest"])
    matters |= size > (0 if outcome.goal.least is None else outcome.goal.least) / 2
    if outcome.goal.largest is not None:
        matters = table["effect"] < table["effect"].nsmallest(2 * outcome.goal.largest).max()
    others = np.flatnonzero(~matters)
    drawn = np.random.default_rng(seed).permutation(others)[:n]
    rows = [*np.flatnonzero(matters), *drawn]
    names = table["set"].iloc[rows]
    return [ComponentSet.of(name.split("+")) for name in names], len(drawn), len(others)


def report(outcome: Race, chosen: Sequence[ComponentSet], exact: np.ndarray, n_drawn: int) -> None:
    """Print how decisions compare with exact effects of the sets checked."""
    names = list(map(str, chosen))
    table = outcome.decisions.set_index("set").loc[names].assign(exact_effect=exact)
    if outcome.goal.least is not None:
        right = np.where(
            exact > outcome.goal.least,
            "above",
            np.where(exact < -outcome.goal.least, "below", "within"),
        )
        looked_for = ["above", "below"]
    else:
        order = np.argsort(exact, kind="stable")[: outcome.goal.largest]
        right = np.full(len(exact), "rest", dtype=object)
        right[order] = "top"
        looked_for = ["top"]
    table["right"] = right
    wanted, said = table["right"].isin(looked_for), table["decision"].isin(looked_for)
    wrong = table[table["right"] != table["decision"]]
    hits, more = (wanted & said).sum(), (said & ~wanted).sum()
    missed = wanted.iloc[len(wanted) - n_drawn :].sum()
    print(
        f"{wanted.sum()} of the {len(table)} sets checked are what was looked for: {hits} found "
        f"(recall {hits / max(1, wanted.sum()):.3f}), {more} others found; of {n_drawn} drawn "
        f"at random from the rest, {missed} are"
    )
    same = table[table["exact"]]
    if len(same):
        gap = (same["effect"] - same["exact_effect"]).abs().max()
        print(f"{len(same)} effects called exact differ from the sweep's by {gap:.2g} at most")
    if len(wrong):
        print(wrong[["decision", "right", "effect", "exact_effect", "n"]].to_string())


def raced(options: argparse.Namespace) -> None:
    """Race all pairs of a model."""
    torch.set_num_threads(options.threads)
    config = StudyConfig()
    model = config.model if options.model is None else replace(config.model, source=options.model)
    data = replace(config.data, train=options.train, ood=options.ood)
    data = replace(data, max_train=options.means, max_ood=options.examples)
    inputs = open_model(model)
    for split in ("train", "ood"):
        inputs.add(split, *read_split(split, model, data))
    means = MeanActivations.compute(inputs.model, inputs.data["train"])
    shape = ModelShape.of(inputs.model)
    names = options.components
    components = shape.kind(names) if names in KINDS else names.split(",")
    pairs, ood = sets.pairs(components), inputs.data["ood"]
    goal = {"largest": options.largest} if options.largest else {"least": options.least}
    start, clock = time.process_time(), time.perf_counter()
    outcome = race(
        inputs.model,
        pairs,
        ood,
        means,
        error=ERROR,
        bound=options.bound,
        seed=options.seed,
        split="ood",
        **goal,
    )
    spent, seconds = time.process_time() - start, time.perf_counter() - clock
    print(f"{len(pairs)} pairs: {outcome.describe()}")
    print(f"looks after {', '.join(map(str, outcome.n_looks))} examples")
    print(f"{seconds:.0f} s, {spent:.0f} s of the processor")
    if options.csv:
        outcome.decisions.to_csv(options.csv, index=False)
    chosen, n_drawn, n_rest = checked(outcome, options.checked, options.seed)
    print(f"checking {len(chosen)} sets, {n_drawn} of them drawn from {n_rest}", flush=True)
    report(outcome, chosen, exact_effects(inputs.model, chosen, ood, means), n_drawn)


# -- planted circuits -----------------------------------------------------------------------------


def planted_effects(
    name: str, metric: str, n: int, seed: int
) -> tuple[list[ComponentSet], np.ndarray, np.ndarray]:
    """All pairs of a circuit's parts, their interactions on texts drawn at random, [set, text], and
    the full model's margins or answers, [text].
    """
    case, rng = CATALOGUE[name], np.random.default_rng(seed)
    parts = sorted(case.circuit.components)
    answers: dict[tuple[Any, ...], np.ndarray] = {}
    rows = None
    for without in [(), *((p,) for p in parts), *itertools.combinations(parts, 2)]:
        margins, chance = case.oracle.margins(case.domains[-1], without)
        if rows is None:
            rows = rng.choice(len(chance), n, p=chance / chance.sum())
        chosen = margins[rows]
        answers[without] = chosen if metric == "margin" else (chosen > 0).astype(float)
    pairs = list(itertools.combinations(parts, 2))
    effects = [answers[()] + answers[(a, b)] - answers[(a,)] - answers[(b,)] for a, b in pairs]
    return [ComponentSet.of(pair) for pair in pairs], np.stack(effects), answers[()]


def wrong_races(
    chosen: Sequence[ComponentSet],
    effects: np.ndarray,
    goal: Goal,
    runs: int,
) -> dict[str, float]:
    """Share of races with a wrong decision and mean shares of examples seen and bounds broken."""
    n, exact, n_wrong, seen, broken = effects.shape[1], effects.mean(1), 0, 0.0, 0.0
    for seed in range(runs):
        known = Interactions(chosen, n, goal)
        known.values[:] = effects[:, np.random.default_rng(seed).permutation(n)]
        for stop in looks(n):
            known.decide(stop)
        while known.open.any():  # again, since a bound broke at the last look
            known.decide(n)
        if goal.least is not None:
            wrong = (known.decisions != goal.decisions(exact, exact)).any()
        else:
            top = known.decisions == "top"
            wrong = exact[top].max() > np.sort(exact)[(goal.largest or 1) - 1] + 1e-6
        n_wrong += bool(wrong)
        seen += float(known.n.mean()) / n / runs
        broken += float((known.steps > 0).mean()) / runs
    return {"wrong": n_wrong / runs, "examples": seen, "broken": broken}


def planted(options: argparse.Namespace) -> None:
    """Print error rates on planted circuits."""
    rows = []
    names = [name for name in CATALOGUE if name.endswith("-encoder")]
    for name, metric in itertools.product(names, ("margin", "accuracy")):
        case = planted_effects(name, metric, options.examples, options.seed)
        chosen, effects, full = case
        for least, largest in ((options.least, None), (None, 2)):
            bound = options.bound or (least / RARE if least else span_of(full))
            bound = bound if metric == "margin" else None
            goal = Goal(least, largest, METRICS[metric], ERROR, bound)
            what = f"over {goal.least:g}" if goal.largest is None else f"{goal.largest} largest"
            rows.append({"circuit": name, "metric": metric, "goal": what})
            rows[-1] |= wrong_races(chosen, effects, goal, options.runs)
            print(rows[-1], flush=True)
    tell(rows, options)


# -- effects in a few of the texts ----------------------------------------------------------------


def rare_effects(share: float, mean: float, largest: float, n: int, seed: int) -> np.ndarray:
    """Effects of 40 sets on texts, [set, text]: 32 idle, 5 with their whole effect in a share
    of the texts, and 3 with effects in all texts, up to about ``largest``.
    """
    rng = np.random.default_rng(seed)
    effects = 0.03 * rng.standard_normal((40, n))
    for row in range(5):
        effects[row, rng.permutation(n)[: round(share * n)]] += mean / share
    effects[5:8] += largest / 3 * rng.standard_normal((3, n))
    return effects


def rare(options: argparse.Namespace) -> None:
    """Print error rates for effects in few texts."""
    chosen = sets.pairs([f"L0.H{i}" for i in range(10)])[:40]
    bound, rows = options.bound or options.least / RARE, []
    goal = Goal(options.least, None, error=ERROR, bound=bound)
    for share, ratio, largest in itertools.product((0.02, 0.05, 0.2), (1.5, 3.0), (6.0, 0.0)):
        mean = ratio * options.least
        effects = rare_effects(share, mean, largest, options.examples, options.seed)
        rows.append({"share": share, "mean": mean, "size": mean / share, "others": largest})
        rows[-1] |= {"bound": bound}
        rows[-1] |= wrong_races(chosen, effects, goal, options.runs)
        print(rows[-1], flush=True)
    tell(rows, options)


def tell(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the largest error rate, and write the table."""
    table = pd.DataFrame(rows)
    print(f"wrong at most: {table['wrong'].max():.3f} (allowed: {ERROR})")
    if options.csv:
        table.to_csv(options.csv, index=False, float_format="%.4g")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="checkpoint of a classifier; else the embedded encoder")
    parser.add_argument("--train", help="its training examples, for means")
    parser.add_argument("--ood", help="examples to race on")
    parser.add_argument("--components", default="all", help="heads, mlps, all, or names by commas")
    parser.add_argument("--means", type=int, default=500, help="number of examples for means")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--least", type=float, default=0.1, help="least interaction, nats")
    parser.add_argument("--largest", type=int, help="number of pairs to find, instead of --least")
    parser.add_argument("--checked", type=int, default=200, help="of the rest, ablated exactly")
    parser.add_argument("--planted", action="store_true", help="error rates on planted circuits")
    parser.add_argument("--rare", action="store_true", help="error rates for rare effects")
    parser.add_argument("--runs", type=int, default=1000, help="orders of their texts")
    parser.add_argument("--bound", type=float, help="of an effect on one text, in nats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    (planted if options.planted else rare if options.rare else raced)(options)


if __name__ == "__main__":
    main()
