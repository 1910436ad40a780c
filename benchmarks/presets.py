"""Two presets of pruning side by side on a checkpoint: KL of their masks, seed by seed.

    python benchmarks/presets.py --model DIR --pairs train.tsv --out presets.csv

Masks are trained on the first pairs of the file and their KL to the full model is measured on the
next ones, all in the random order of seed 0. Every seed of a preset is one process with one thread,
whose CPU time counts. Rows are written as they are computed; rerun the same command to resume. It
prints the table once all are done.
"""

from __future__ import annotations

import argparse
import itertools
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy import stats

from mechcore.components import Mask
from mechcore.data.formats import read_table
from mechcore.files import write_csv
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.encoded import as_encoded
from mechcore.pruning import prune, prune_settings
from mechcore.pruning.teacher import ranking_teacher

REFERENCE, OTHER = PRESETS = ("thorough", "fast")
PRECISION = "bfloat16"
LEVEL = 0.95


def divergences(masks: list[Mask], model: Any, data: Any, means: MeanActivations) -> list[float]:
    """KL(full model || masked model) of each mask, nats, mean over the data."""
    teacher = ranking_teacher(model, data, batch_size=64)
    values = torch.stack([mask.values for mask in masks])
    return teacher.mean_divergences(values, means, lambda: None).tolist()


def measure(preset: str, seed: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one preset and seed."""
    torch.set_num_threads(1)
    pairs = read_table(Path(arguments.pairs)).sample(frac=1, random_state=0)
    first, last = arguments.train, arguments.train + arguments.held_out
    if len(pairs) < last:
        raise SystemExit(f"{arguments.pairs}: has {len(pairs)} pairs; expected {last} or more")
    model = load_model(arguments.model)
    train, held_out = (
        as_encoded(model, part, split="train", labelled=False)
        for part in (pairs[:first], pairs[first:last])
    )
    means = MeanActivations.compute(model, train)
    settings = prune_settings(preset, precision=PRECISION, **arguments.settings)
    begin = time.process_time()
    subnetworks = prune(
        model,
        train,
        means,
        target_sparsities=arguments.target_sparsities,
        seeds=[seed],
        preset=settings,
    )
    seconds = time.process_time() - begin
    kl = divergences([subnetwork.mask for subnetwork in subnetworks], model, held_out, means)
    return [
        {
            "preset": preset,
            "seed": seed,
            "sparsity": subnetwork.target_sparsity,
            "kl": value,
            "seconds": seconds,
        }
        | sizes_of(arguments)
        for subnetwork, value in zip(subnetworks, kl, strict=True)
    ]


def sizes_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Numbers of pairs that masks were trained and measured on."""
    return {"train": arguments.train, "held_out": arguments.held_out}


def read_rows(out: Path, arguments: argparse.Namespace) -> pd.DataFrame:
    """Rows already written, if they have the same sparsities and numbers of pairs."""
    if not out.exists():
        return pd.DataFrame(columns=["preset", "seed"])
    rows = pd.read_csv(out)
    target_sparsities, sizes = set(rows["sparsity"]), sizes_of(arguments)
    same = target_sparsities == set(arguments.target_sparsities) and all(
        (rows[k] == sizes[k]).all() for k in sizes
    )
    if not same:
        raise SystemExit(f"{out}: has rows of other sparsities or numbers of pairs; name another")
    return rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean KL of both presets at each sparsity, and the paired t interval of their difference."""
    wide = rows.pivot(index=["sparsity", "seed"], columns="preset", values="kl")
    table = []
    for sparsity, part in wide.groupby(level="sparsity"):
        low, high = stats.ttest_rel(part[OTHER], part[REFERENCE]).confidence_interval(LEVEL)
        row = {"sparsity": sparsity, "seeds": len(part), **part.mean().to_dict()}
        table.append(row | {"low": low, "high": high})
    return pd.DataFrame(table)


def main(arguments: argparse.Namespace) -> None:
    """Measure what is not yet in the file, and print the table."""
    out = Path(arguments.out)
    rows = read_rows(out, arguments)
    known = set(zip(rows["preset"], rows["seed"], strict=True))
    wanted = [pair for pair in itertools.product(PRESETS, arguments.seeds) if pair not in known]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for job in as_completed([pool.submit(measure, *pair, arguments) for pair in wanted]):
            new = pd.DataFrame(job.result())
            rows = new if rows.empty else pd.concat([rows, new], ignore_index=True)
            write_csv(out, rows)
    print(summary(rows).round(4).to_string(index=False))
    took = rows.groupby("preset")["seconds"].sum()
    print(f"processor time: {took[OTHER] / took[REFERENCE]:.2f} of that of {REFERENCE}")


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="checkpoint directory")
    parser.add_argument("--pairs", required=True, help="file of training pairs")
    parser.add_argument("--out", required=True, help="table to write, or to resume")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(42, 48)])
    parser.add_argument("--target-sparsities", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--train", type=int, default=2000, help="pairs to train masks on")
    parser.add_argument("--held-out", type=int, default=600, help="pairs to measure KL on")
    parser.add_argument("--processes", type=int, default=2)
    parser.set_defaults(settings={})
    return parser.parse_args(given)


if __name__ == "__main__":
    main(parsed())
