"""How torch's threads should wait for one another: elapsed and CPU time of a short pruning.

    python benchmarks/waiting.py             # on a quiet machine: it must not be slower
    python benchmarks/waiting.py --beside 3  # beside this many busy processes

Every way to wait runs ``--rounds`` times, in turn, in its own processes; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict

WAYS: dict[str, dict[str, str]] = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "30000 spins": {"GOMP_SPINCOUNT": "30000"},
    "10000 spins": {"GOMP_SPINCOUNT": "10000"},
    "1000 spins": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
_NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "KMP_BLOCKTIME")
_PRUNE = """
import json, os, sys, time
from mechcore import MeanActivations, load_model, prune
from mechcore.pruning import PruneSettings
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir
n = int(sys.argv[1])
model, data = load_model(tiny_encoder_dir()), tiny_world.generate("train", 400, seed=0)
means = MeanActivations.compute(model, data)
settings = lambda n: PruneSettings(steps=n, warmup=n // 2, tolerance=1, precision="float32")
prune(model, data, means, target_sparsities=0.5, seeds=(1, 2, 3), preset=settings(4))
begin, used = time.perf_counter(), sum(os.times()[:2])
prune(model, data, means, target_sparsities=0.5, seeds=(1, 2, 3), preset=settings(n))
print(json.dumps([time.perf_counter() - begin, sum(os.times()[:2]) - used]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=int, default=0, help="busy processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    plain = {name: value for name, value in os.environ.items() if name not in _NAMES}
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.beside)
    ]
    taken: dict[str, list[list[float]]] = defaultdict(list)
    try:
        for _ in range(asked.rounds):
            for way, names in WAYS.items():
                done = subprocess.run(
                    [sys.executable, "-c", _PRUNE, str(asked.steps)],
                    env={**plain, **names},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                taken[way].append(json.loads(done.stdout.splitlines()[-1]))
    finally:
        for process in busy:
            process.kill()
    print(f"{asked.steps} steps beside {asked.beside} busy processes, {os.cpu_count()} cores")
    for way, times in taken.items():
        wall, used = map(statistics.median, zip(*times, strict=True))
        print(
            f"{way:14} {asked.steps / wall:7.1f} steps/s {wall:7.1f} s {used:7.1f} s of processor"
        )


if __name__ == "__main__":
    main()
