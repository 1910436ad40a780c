"""All single heads and all pairs of heads ablated: mechcore against forwards of the whole model.

The model is random, of MiniLM's shape (6 layers, 12 heads, width 384, MLP 1536, 3 classes), and the
examples have the lengths of MNLI pairs; ``--model`` and ``--data`` take a real BERT classifier and
labelled texts. Every variant replaces the outputs of the same heads by the same means.

    python benchmarks/sweep.py [--examples 48] [--rounds 3] [--device cuda] [--json FILE]
    python benchmarks/sweep.py --model DIR --data FILE
    python benchmarks/sweep.py --scaling [--figure FILE]
    python benchmarks/sweep.py --decoder --layers 4
    python benchmarks/sweep.py --quick

``--decoder`` compares the two engines that run any model, on layers of Qwen3-0.6B's shape.

With one forward of the whole model per set, all sets cost the same: these variants run a random
sample of the sets (``--peer-sets``), and their time is extrapolated to all sets and the full model.
mechcore's tree runs all of them. Each round runs every variant once, in turn, and ratios are within
rounds. Peak memory is that of a process that runs only this variant, on the longest batch. pyvene
and nnsight are included if they are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from full_forwards import VARIANTS, FullForwards, NotHere, batches_of, versions
from measuring import peak, peak_alone, spread
from sweep_scaling import plot, scaling
from sweep_variants import (
    RAW,
    REFERENCE,
    RESTART,
    TREES,
    Bench,
    Settings,
    Sweep,
    add_options,
    full_forwards,
    layer_variants,
    mechcore_variants,
)

from mechcore.data.encoding import EncodedExamples
from mechcore.errors import MechcoreError

NOTHING = "nothing but imports"
MAX_DIFFERENCE = 1e-4
"""Maximum difference of float32 logits from those of raw hooks."""

CHECKED = 16
"""Examples on which the logits of all variants are compared."""

QUICK = {
    "examples": 4,
    "pair_examples": 2,
    "batch_size": 2,
    "peer_sets": 2,
    "layers": 2,
    "rounds": 1,
}


def measured(
    bench: Bench, sweep: Sweep, peers: Mapping[str, FullForwards], rounds: int
) -> dict[str, Any]:
    """Check that all variants give the same logits, which is also the warm-up, and time them."""
    checked = sweep.data.part(range(min(CHECKED, len(sweep.data))))
    whole = {
        name: bench.tree_logits(sweep.sets, checked, precision) for name, precision in TREES.items()
    }
    places = [1 + sweep.sets.index(heads) for heads in sweep.sample]
    logits = {name: tree[places] for name, tree in whole.items()}
    for name, engine in ((RESTART, "restart"), (REFERENCE, "reference")):
        logits[name] = bench.engine_logits(engine, sweep.sample, checked)
    for name, made in peers.items():
        logits[name] = made.logits(sweep.sample, checked, bench.batch_size)
    differences = {n: float((own - logits[RAW]).abs().max()) for n, own in logits.items()}
    for name, difference in differences.items():
        if TREES.get(name) != torch.bfloat16 and not difference < MAX_DIFFERENCE:
            raise SystemExit(f"{name}: logits differ from those of {RAW} by {difference:.2g}")
    exact, rounded = whole.values()
    variants = {name: full_forwards(bench, made) for name, made in peers.items()}
    variants |= mechcore_variants(bench)
    check = bench.check_seconds(sweep)
    timed = [
        {name: way.seconds(bench, sweep) for name, way in variants.items()} for _ in range(rounds)
    ]
    plain, shared = forwards_of(sweep) * bench.shape.n_layers, bench.layer_evaluations(sweep.sets)
    return {
        "sweep": sweep.name,
        "sets": len(sweep.sets),
        "sets of full-forward variants": len(sweep.sample),
        "examples": len(sweep.data),
        "batch size": bench.batch_size,
        "positions per token, sorted": positions_per_token(sweep.data, bench.batch_size, True),
        "positions per token, unsorted": positions_per_token(sweep.data, bench.batch_size, False),
        "seconds of each round": timed,
        "layer evaluations": shared,
        "layer evaluations, one forward per set": plain,
        "layer evaluations of restarts": (restarts := bench.restart_evaluations(sweep.sets)),
        "bound": plain / shared,
        "bound of restarts": plain / restarts,
        "largest logit difference to raw hooks": differences,
        "largest effect of a set on a logit": float((exact[1:] - exact[0]).abs().max()),
        "agreement of bfloat16": float((exact.argmax(-1) == rounded.argmax(-1)).double().mean()),
        "answers compared": exact[..., 0].numel(),
        "seconds of the comparison of precisions": check,
    }


def forwards_of(sweep: Sweep) -> int:
    """Layer evaluations with one forward per set and one for the full model."""
    return len(sweep.sets) + 1


def positions_per_token(data: EncodedExamples, batch_size: int, by_length: bool) -> float:
    """Computed positions per token, padding included."""
    masks = [b["attention_mask"] for b in batches_of(data, batch_size, by_length=by_length)]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


# -- tables -------------------------------------------------------------------------------------


def summarise(result: dict[str, Any], memory: Mapping[str, float]) -> None:
    """Add times and ratios of every variant to the measurements."""
    rounds = result["seconds of each round"]
    cells = result["sets"] * result["examples"]
    result["variants"] = [
        {
            "variant": name,
            "ms per set and example": 1000 * statistics.median(r[name] for r in rounds) / cells,
            **{
                f"times as fast as {than}": spread([times[than] / times[name] for times in rounds])
                for than in rounds[0]
            },
            "peak MiB": memory.get(name),
        }
        for name in rounds[0]
    ]


def show(result: Mapping[str, Any], left_out: Mapping[str, str]) -> None:
    """Print one sweep's tables."""
    variants = {row["variant"]: row for row in result["variants"]}
    differences = result["largest logit difference to raw hooks"]
    print(
        f"\n== {result['sweep']}: {result['sets']} sets, {result['examples']} examples in batches "
        f"of {result['batch size']}; rounds: {len(result['seconds of each round'])}; full-forward "
        f"variants run {result['sets of full-forward variants']} of the sets, and their time is "
        f"multiplied up\n"
        f"   positions per token, padding included: {result['positions per token, sorted']:.2f} "
        f"sorted by length, {result['positions per token, unsorted']:.2f} unsorted\n"
    )
    rows = [
        {
            "variant": name,
            "ms per set and example": f"{row['ms per set and example']:.3f}",
            "times as fast as raw hooks": _ratio(row, RAW),
            "logits differ by": f"{differences[name]:.1g}",
            "peak MiB": f"{row['peak MiB']:.0f}" if row["peak MiB"] else "",
        }
        for name, row in variants.items()
    ]
    rows += [{"variant": n, "ms per set and example": reason} for n, reason in left_out.items()]
    print(pd.DataFrame(rows).fillna("").to_string(index=False))
    others = [name for name in variants if name not in TREES]
    table = {tree: [_ratio(variants[tree], name) for name in others] for tree in TREES}
    print("\ntimes as fast as:")
    print(pd.DataFrame(table, index=others).to_string())
    bound = result["bound"]
    shares = [f"{variants[n][f'times as fast as {RAW}'][0] / bound:.0%} by {n}" for n in TREES]
    print(
        f"\nlayer evaluations per batch: {result['layer evaluations']:.0f} (the last layer, for "
        f"one position, not counted) instead of "
        f"{result['layer evaluations, one forward per set']}: at most {bound:.2f} times as fast "
        f"as raw hooks if layers cost the same; reached: {', '.join(shares)}\n"
        f"restarts: {result['layer evaluations of restarts']:.0f} layer evaluations, of the last "
        f"layer the attention: at most {result['bound of restarts']:.2f} times as fast as "
        f"{REFERENCE}; reached: {_ratio(variants[RESTART], REFERENCE)}\n"
        f"bfloat16 gives float32's class in {result['agreement of bfloat16']:.3%} of "
        f"{result['answers compared']} answers (all sets, {CHECKED} examples at most); the largest "
        f"effect of a set on a logit is {result['largest effect of a set on a logit']:.2g}\n"
        "not in the times: the comparison of precisions that a sweep in bfloat16 makes once, "
        f"{result['seconds of the comparison of precisions']:.1f} s"
    )


def _ratio(variant: Mapping[str, Any], than: str) -> str:
    return "{:.2f} ({:.2f}-{:.2f})".format(*variant[f"times as fast as {than}"])


# -- the command --------------------------------------------------------------------------------


def load_peers(bench: Bench) -> tuple[dict[str, FullForwards], dict[str, str]]:
    """The full-forward variants that run here, and why the others do not."""
    peers: dict[str, FullForwards] = {}
    left_out: dict[str, str] = {}
    for name, kind in VARIANTS.items():
        try:
            made = kind(bench.source, bench.means, bench.device)
            if kind.package is not None:
                made.logits([((0, 0), (1, 1))], bench.data.part([0, 1]), 2)
            peers[name] = made
        except NotHere as error:
            left_out[name] = str(error)
        except Exception as error:
            if kind.package is None:
                raise
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            left_out[name] = f"does not work: {type(error).__name__}: {reason}"
    return peers, left_out


def run_alone(bench: Bench, name: str) -> None:
    """Run one variant of the first sweep on its longest batch."""
    sweep = bench.sweeps[0]
    rows = next(sweep.data.batches(bench.batch_size))["index"].tolist()
    sweep = Sweep(sweep.name, sweep.sets, sweep.data.part(rows), sweep.sample)
    if name in VARIANTS:
        made = VARIANTS[name](bench.source, bench.means, bench.device)
        full_forwards(bench, made).seconds(bench, sweep)
    elif name != NOTHING:
        mechcore_variants(bench)[name].seconds(bench, sweep)


def machine(device: str) -> dict[str, Any]:
    """The machine and versions of the measurement."""
    processor = torch.cuda.get_device_name() if device == "cuda" else ""
    information = Path("/proc/cpuinfo")
    if device == "cpu" and information.exists():
        lines = information.read_text().splitlines()
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        processor = f"{names[0]} x {len(names)}" if names else ""
    return {"processor": processor, "threads": torch.get_num_threads(), **versions()}


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=48, help="for single heads")
    parser.add_argument("--pair-examples", type=int, default=12, help="for pairs of heads")
    parser.add_argument("--peer-sets", type=int, default=8, help="sets of full-forward variants")
    add_options(parser)
    parser.add_argument("--scaling", action="store_true", help="cost by examples, sets and layers")
    parser.add_argument("--figure", type=Path, help="where to plot --scaling")
    parser.add_argument(
        "--decoder", action="store_true", help="restarts of a decoder beside whole forwards"
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def compare(settings: Settings, rounds: int, folder: Path, quick: bool) -> dict[str, Any]:
    """Measure and print both sweeps."""
    bench = Bench(settings, folder)
    peers, left_out = load_peers(bench)
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in asdict(settings).items()
        if value is not None and name not in ("cpu_time", "decoder")
    ]
    options += ["--threads", str(torch.get_num_threads()), "--folder", str(folder)]
    names = list(TREES)[:1] if quick else [NOTHING, *peers, *TREES, RESTART, REFERENCE]
    memory = {name: peak_alone(__file__, [*options, "--only", name]) for name in names}
    results: list[dict[str, Any]] = []
    for sweep in bench.sweeps:
        result = measured(bench, sweep, peers, rounds)
        summarise(result, {} if results else memory)
        show(result, left_out)
        results.append(result)
    if NOTHING in memory:
        print(f"\npeak memory of a process with {NOTHING}: {memory[NOTHING]:.0f} MiB")
    return {"sweeps": results, "left out": left_out, "peak MiB": memory}


def decoder(settings: Settings, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Measure and print the engines that run any model, on a decoder's shape."""
    bench, results = Bench(settings, folder), []
    variants = layer_variants(bench)
    for sweep in bench.sweeps:
        checked = sweep.data.part(range(min(CHECKED, len(sweep.data))))
        restart, whole = (
            bench.engine_logits(mode, sweep.sample, checked) for mode in ("restart", "reference")
        )
        timed = [
            {name: way.seconds(bench, sweep) for name, way in variants.items()}
            for _ in range(rounds)
        ]
        ratio = spread([times[REFERENCE] / times[RESTART] for times in timed])
        plain = forwards_of(sweep) * bench.shape.n_layers
        bound = plain / bench.restart_evaluations(sweep.sets)
        difference = float((restart - whole).abs().max())
        if not difference < MAX_DIFFERENCE:
            raise SystemExit(f"{RESTART}: logits differ from those of {REFERENCE} by {difference}")
        print(
            f"\n== {sweep.name}: {len(sweep.sets)} sets, {len(sweep.data)} examples\n   restarts "
            "{:.2f} ({:.2f}-{:.2f}) times as fast as whole forwards".format(*ratio)
            + f", by layer evaluations {bound:.2f}; logits differ by {difference:.1g}"
        )
        results.append({"sweep": sweep.name, "times as fast": ratio, "bound": bound})
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line()
    options = parser.parse_args(arguments)
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args(arguments)
    if (options.model is None) != (options.data is None):
        parser.error("--model and --data belong together")
    settings = Settings(**{f.name: getattr(options, f.name) for f in fields(Settings)})
    torch.set_num_threads(options.threads)
    if options.only:
        run_alone(Bench(settings, options.folder), options.only)
        print(json.dumps(peak(options.device)))
        return
    results: dict[str, Any] = {"machine": machine(options.device), "settings": asdict(settings)}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    if options.cpu_time:
        print("times are processor time of the process")
    print(f"load average at the start: {os.getloadavg()[0]:.1f}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            if options.decoder:
                results["decoder"] = decoder(settings, options.rounds, Path(folder))
            elif options.scaling:
                results["scaling"] = scaling(settings, options.rounds, Path(folder), options.quick)
            else:
                results |= compare(settings, options.rounds, Path(folder), options.quick)
    except MechcoreError as error:
        parser.error(str(error))
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    if options.scaling and options.figure:
        plot(results["scaling"], options.figure)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
