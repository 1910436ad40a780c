"""How the cost of a sweep grows with examples, sets and layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from full_forwards import VARIANTS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from measuring import spread
from sweep_variants import (
    RAW,
    TREES,
    Bench,
    Settings,
    Sweep,
    full_forwards,
    mechcore_variants,
)

AXES = {
    "examples": "all single heads",
    "sets": "random pairs of heads",
    "layers": "all single heads, 12 in a layer",
}
COUNTS: dict[str, Sequence[int]] = {
    "examples": (8, 16, 32, 64, 128),
    "sets": (18, 72, 288, 1152, 2556),
    "layers": (2, 4, 6, 8, 12),
}
QUICK_COUNTS: dict[str, Sequence[int]] = {"examples": (2, 4), "sets": (16, 64), "layers": (2, 3)}


def scaling(settings: Settings, rounds: int, folder: Path, quick: bool) -> list[dict[str, Any]]:
    """One row for each point: axis, n, variant, seconds (median, lowest, highest)."""
    rows = []
    counts = QUICK_COUNTS if quick else COUNTS
    for axis in AXES:
        for n, bench, sweep in _points(axis, counts[axis], settings, folder):
            made = VARIANTS[RAW](bench.source, bench.means, bench.device)
            variants = {RAW: full_forwards(bench, made)} | {
                name: variant for name, variant in mechcore_variants(bench).items() if name in TREES
            }
            few = Sweep("", sweep.sets[:1], sweep.data.part([0]), sweep.sets[:1])
            for variant in variants.values():
                variant.run(few)
            timed = [
                {name: variant.seconds(bench, sweep) for name, variant in variants.items()}
                for _ in range(rounds)
            ]
            for name in variants:
                median, lowest, highest = spread([times[name] for times in timed])
                rows.append(
                    {
                        "axis": axis,
                        "n": n,
                        "variant": name,
                        "seconds": median,
                        "lowest": lowest,
                        "highest": highest,
                        "sets": len(sweep.sets),
                        "examples": len(sweep.data),
                        "layer evaluations": bench.layer_evaluations(sweep.sets),
                    }
                )
    show(rows)
    return rows


def _points(
    axis: str, counts: Sequence[int], settings: Settings, folder: Path
) -> Iterator[tuple[int, Bench, Sweep]]:
    """The measurements along an axis."""
    most = max(counts)
    if axis == "layers":
        for n in counts:
            here = folder / f"layers-{n}"
            here.mkdir(exist_ok=True)
            of_size = replace(
                settings, layers=n, examples=settings.pair_examples, model=None, data=None
            )
            bench = Bench(of_size, here)
            yield n, bench, bench.sweeps[0]
        return
    examples = most if axis == "examples" else settings.pair_examples
    bench = Bench(replace(settings, examples=examples), folder)
    single, pairs = bench.sweeps
    order = np.random.default_rng(0).permutation(len(pairs.sets))
    for n in counts:
        if axis == "examples":
            yield n, bench, replace(single, data=single.data.part(range(n)))
        else:
            sets = [pairs.sets[i] for i in sorted(order[:n])]
            yield n, bench, replace(pairs, sets=sets, sample=sets[: len(pairs.sample)])


def exponent(rows: Sequence[dict[str, Any]], axis: str, variant: str) -> float:
    """The exponent of a power law from the first point to the last."""
    points = [r for r in rows if r["axis"] == axis and r["variant"] == variant]
    first, last = points[0], points[-1]
    return float(np.log(last["seconds"] / first["seconds"]) / np.log(last["n"] / first["n"]))


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table for each axis."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for axis, what in AXES.items():
        here = [row for row in rows if row["axis"] == axis]
        table: dict[int, dict[str, str]] = {}
        for row in here:
            line = table.setdefault(row["n"], {})
            line |= {"sets": str(row["sets"]), "examples": str(row["examples"])}
            line["layer evaluations"] = f"{row['layer evaluations']:.0f}"
            line[row["variant"]] = "{seconds:.2f} ({lowest:.2f}-{highest:.2f})".format(**row)
        print(f"\n== seconds by number of {axis}: {what}\n")
        print(pd.DataFrame.from_dict(table, orient="index").to_string())
        powers = [f"{exponent(rows, axis, variant):.2f} ({variant})" for variant in variants]
        print(f"time grows as the number of {axis} to the power of: {', '.join(powers)}")


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds along every axis, on logarithmic scales, one panel each."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(AXES))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for panel, (axis, what) in zip(panels, AXES.items(), strict=True):
        for number, variant in enumerate(variants):
            points = [r for r in rows if r["axis"] == axis and r["variant"] == variant]
            n = [point["n"] for point in points]
            low, middle, high = ([p[k] for p in points] for k in ("lowest", "seconds", "highest"))
            label = f"{variant}, power {exponent(rows, axis, variant):.2f}"
            panel.fill_between(n, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
            panel.plot(n, middle, "o-", color=f"C{number}", markersize=4, label=label)
        panel.set(xscale="log", yscale="log", xlabel=axis, title=what)
        panel.set_xticks(n, [str(count) for count in n])
        panel.minorticks_off()
        panel.legend(fontsize="small", frameon=False)
    panels[0].set_ylabel("seconds a sweep")
    figure.savefig(path, dpi=150)
