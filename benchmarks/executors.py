"""A study of twelve seeds, sequentially and on two Ray workers, one thread each.

    python benchmarks/executors.py [--steps 600] [--seeds 12]

Both run the same jobs on the embedded encoder, one after the other in this script, including
loading the model. The time on Ray is that of new workers, which import everything first, and is
given with and without starting the cluster. The masks must be the same.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.pruning import Subnetwork, prune_settings
from mechcore.steps.config import DataConfig
from mechcore.study.engine import perform
from mechcore.study.executors import Executor, Local, OnRay
from mechcore.study.run import prepare

WORKERS = 2


def study(steps: int, n_seeds: int) -> StudyConfig:
    return StudyConfig(
        data=DataConfig(max_id=200, max_ood=200),
        prune=prune_settings("thorough", steps=steps, tolerance=1.0),
        seeds=tuple(range(42, 42 + n_seeds)),
        target_sparsities=(0.5,),
        analyses=Analyses(heads=None, ablation=None, paths=None, dose=None),
    )


def timed(config: StudyConfig, folder: Path, executor: Executor) -> tuple[float, dict[str, Any]]:
    """Seconds for all jobs of a study, and its masks by name."""
    start = time.perf_counter()
    planned, store, _ = prepare(config, folder)
    store.create()
    perform(planned, store, executor, folder)
    seconds = time.perf_counter() - start
    files = (folder / "store" / "objects").glob("*/*/masks/*.safetensors")
    return seconds, {path.name: Subnetwork.load(path).scores for path in files}


def compare(steps: int, n_seeds: int, folder: Path) -> dict[str, float]:
    """Seconds in this process, on new workers of a cluster, and for starting it."""
    import ray

    config = study(steps, n_seeds)
    serial, expected = timed(config, folder / "serial", Local(cpus=1))
    workers = OnRay(cpus=1)  # sets what Ray reads from the environment
    start = time.perf_counter()
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    started = time.perf_counter() - start
    parallel, masks = timed(config, folder / "ray", workers)
    ray.shutdown()
    different = [name for name in expected if not torch.equal(expected[name], masks[name])]
    if different or expected.keys() != masks.keys():
        raise SystemExit(f"other masks on Ray: {', '.join(different)}")
    return {"serial": serial, "ray": parallel, "start": started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = compare(options.steps, options.seeds, Path(folder))
    serial, parallel, start = seconds["serial"], seconds["ray"], seconds["start"]
    print(f"{options.seeds} seeds, {options.steps} steps, one thread a job, same masks")
    print(f"one after another: {serial:.1f} s")
    print(f"{WORKERS} Ray workers:     {parallel:.1f} s, ratio {parallel / serial:.2f}")
    print(f"with its start:    {parallel + start:.1f} s, ratio {(parallel + start) / serial:.2f}")


if __name__ == "__main__":
    main()
