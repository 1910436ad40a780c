"""Jobs in processes beside the first: the same results, and what they refuse."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from study.arithmetic import (
    OPERATIONS,
    Apply,
    Fail,
    Read,
    Settings,
    Sums,
    job,
    registered,
    write,
)

from mechcore.errors import MechcoreWarning
from mechcore.study.engine import Jobs, StudyError, perform
from mechcore.study.executors import Local
from mechcore.study.run import run_study
from mechcore.study.step import Step, Work
from mechcore.study.store import Store


def test_processes_give_the_same_results(
    tmp_path: Path, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechcore.study.run.build_report", lambda out: out / "report.html")
    settings, out = Settings(str(numbers)), tmp_path / "out"
    with registered("sums", Sums) as kind:
        run_study(settings, tmp_path / "one", kind=kind)
        run_study(settings, out, kind=kind, executor=Local(workers=2, cpus=1))
    for name in ("tables/numbers.csv", "last.txt"):
        assert (out / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    stores = [Store(tmp_path / name / "store") for name in ("one", "out")]
    assert stores[0].all_keys() == stores[1].all_keys()
    made = [stores[1].manifest(key).machine["process"] for key in stores[1].all_keys()]
    assert os.getpid() not in made
    assert stores[1].leftovers() == []


@dataclass(frozen=True)
class Plain(Step):
    """Does nothing."""

    kind: ClassVar[str] = "plain"

    def run(self, work: Work) -> None:
        write(work, 1)


def test_processes_refuse_what_they_do_not_know(store: Store, numbers: Path) -> None:
    """And do the rest; of a failure in a process the study says the same as in this one."""
    one = job(Read(), "read", path=numbers / "0")

    @dataclass(frozen=True)
    class Local_(Plain):
        """Of no module."""

    edited = job(Plain(), "edited")
    edited.recipe["code"]["study.test_processes"] = "as it was before the edit"
    OPERATIONS.register("here alone")(abs)
    apply = job(Apply("here alone"), "apply", one)
    jobs = Jobs([apply, job(Local_(), "local"), edited, job(Fail(), "bad")])
    with (
        pytest.warns(MechcoreWarning, match="bad: something is odd"),
        pytest.raises(StudyError) as failure,
    ):
        perform(jobs, store, Local(workers=2), store.path.parent / "out")
    OPERATIONS.remove("here alone")
    found = {each.job.name: each.message for each in failure.value.failures}
    assert set(found) == {"apply", "local", "edited", "bad"}
    assert found.pop("bad") == "it cannot be"
    assert "operation 'here alone': unknown" in found["apply"]
    assert "Local_" in found["local"]
    assert "study/test_processes.py" in found["edited"]
    for message in found.values():
        assert message.startswith("another process finds other things than the first (")
        assert message.endswith("as an entry point, or run with one worker in this process")
    assert store.all_keys() == [one.key]
