"""Jobs in processes beside the first: the same results, and what they refuse."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from study.arithmetic import OPERATIONS, Add, Apply, Fail, Read, job, read, write

from mechcore.errors import MechcoreWarning
from mechcore.study.engine import Study, StudyError, perform
from mechcore.study.executors import Local
from mechcore.study.step import Step, Work
from mechcore.study.store import Store


@dataclass(frozen=True)
class Plain(Step):
    """Does nothing."""

    kind: ClassVar[str] = "plain"

    def run(self, work: Work) -> None:
        write(work, 1)


def test_processes_do_what_they_know_and_refuse_the_rest(store: Store, numbers: Path) -> None:
    """Of a failure in a process the study says the same as in this one."""
    one, two = (job(Read(), f"read {i}", path=numbers / str(i)) for i in (0, 1))
    total = job(Add(), "total", one, two)

    @dataclass(frozen=True)
    class Local_(Plain):
        """Of no module."""

    edited = job(Plain(), "edited")
    edited.recipe["code"]["study.test_processes"] = "as it was before the edit"
    OPERATIONS.register("here alone")(abs)
    apply = job(Apply("here alone"), "apply", one)
    jobs = Study([total, apply, job(Local_(), "local"), edited, job(Fail(), "bad")])
    with (
        pytest.warns(MechcoreWarning, match="bad: something is odd"),
        pytest.raises(StudyError) as failure,
    ):
        perform(jobs, store, Local(workers=2, cpus=1), store.path.parent / "out")
    OPERATIONS.remove("here alone")
    found = {each.job.name: each.message for each in failure.value.failures}
    assert set(found) == {"apply", "local", "edited", "bad"}
    assert found.pop("bad") == "it cannot be"
    assert "operation 'here alone': unknown" in found["apply"]
    assert "Local_" in found["local"]
    assert "study/test_processes.py" in found["edited"]
    for message in found.values():
        assert message.startswith("another process lacks code of the first (")
        assert message.endswith("as an entry point, or run with one worker in this process")
    keys = [one.key, two.key, total.key]
    assert store.all_keys() == sorted(keys)
    assert read(store.whole(total.key)) == 1 + 2
    assert os.getpid() not in {store.manifest(key).machine["process"] for key in keys}
    assert store.leftovers() == []
