"""Studies on Ray: the same results, and workers that die."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from main_study.small_study import CONFIG, files, results

from mechcore.errors import InputError
from mechcore.study import executors
from mechcore.study.executors import OnRay
from mechcore.study.run import run_study
from mechcore.study.store import Store

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install .[ray])")
psutil = pytest.importorskip("psutil", reason="psutil, to find workers, is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers, kept for all tests of this file; `OnRay` takes the cluster that is there.

    Ray takes it from us that there are two GPUs, and hands them out.
    """
    OnRay()  # sets what Ray reads from the environment
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_the_same_results_as_in_process(whole: Path, tmp_path: Path) -> None:
    run_study(CONFIG, tmp_path / "ray", executor=OnRay())
    assert results(tmp_path / "ray") == results(whole)
    assert files(tmp_path / "ray") == files(whole)
    manifests = (tmp_path / "ray" / "store" / "objects").glob("*/*/manifest.json")
    made = [json.loads(path.read_text()) for path in manifests]
    pruned = {manifest["machine"]["process"] for manifest in made if manifest["kind"] == "prune"}
    assert len(pruned) == 2, "both workers took part"
    assert {manifest["machine"]["cores"] for manifest in made} == {1}

    def loads() -> tuple[int, int]:  # inside, so that workers need not import this file
        from mechcore.steps.bench import _benches

        return os.getpid(), sum(len(bench.loads) for bench in _benches.values())

    counts = dict(ray.get([ray.remote(num_cpus=1)(loads).remote() for _ in range(8)]))
    assert counts.keys() & pruned
    assert {counts.get(pid, 1) for pid in pruned} == {1}, "each loaded the model once"


def workers() -> list[Any]:
    """Processes that do jobs just now."""
    known = psutil.process_iter(["name", "cmdline"])
    named = ((p, " ".join(p.info["cmdline"] or [p.info["name"]])) for p in known)
    return [process for process, words in named if "ray::done_elsewhere" in words]


@pytest.mark.usefixtures("cluster")
def test_a_worker_killed_in_the_middle_of_a_job(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    partial = out / "store" / "partial"
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        """Wait until a pruning has saved its state, then kill every worker at it."""
        while not over.is_set() and not killed:
            if any(partial.glob("*/[!.]*.safetensors")):
                for process in workers():
                    process.kill()
                    killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run_study(CONFIG, out, executor=OnRay())
    finally:
        over.set()
        killer.join()
    assert killed
    assert results(out) == results(whole)
    assert files(out) == files(whole)


@pytest.mark.usefixtures("cluster")
def test_more_than_the_cluster_has(tmp_path: Path) -> None:
    for executor, message in (
        (OnRay(cpus=64), "requests 64 CPU, but the cluster has 2 in total"),
        (OnRay(gpus=3, device="cuda"), "requests 3 GPU, but the cluster has 2"),
    ):
        with pytest.raises(InputError, match=message), executor(Store(tmp_path)):
            pass


@pytest.mark.usefixtures("cluster")
def test_a_job_on_cuda_has_one_gpu_and_sees_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(*_: Any) -> Any:
        given = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
        return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","), ray.get_gpu_ids(), given

    monkeypatch.setattr(executors, "done_elsewhere", seen)
    job: Any = None
    with OnRay(cpus=1, device="cuda")(Store(tmp_path)) as workers:
        assert workers.capacity == 2 * 2, "as many wait as run"
        visible, given, n_gpus = workers.begin(job).result()
    assert (len(visible), n_gpus) == (1, 1)
    assert visible == [str(gpu) for gpu in given]
    for executor, expected in ((OnRay(gpus=0.25, device="cuda"), 0.25), (OnRay(), 0)):
        with executor(Store(tmp_path)) as workers:
            assert workers.begin(job).result()[2] == expected


def test_what_no_ray_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="device is cuda:1; expected cuda, since Ray gives every job"
    ):
        OnRay(device="cuda:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install mechcore\[ray\]"):
        OnRay()
