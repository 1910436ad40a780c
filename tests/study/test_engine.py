"""The engine, on a made-up study of sums: order, growth, failures, reuse, processes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from main_study.small_study import leave_out_the_report
from study.arithmetic import (
    OPERATIONS,
    RESULT,
    SUMS,
    Add,
    Apply,
    Fail,
    Read,
    Settings,
    Sums,
    job,
    read,
    registered,
    write,
)

from mechcore import progress
from mechcore.errors import InputError, MechcoreWarning
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.study.engine import Study, StudyError, perform
from mechcore.study.executors import Local, Receipt, Workers, done, n_cores
from mechcore.study.kinds import STUDIES, read_study
from mechcore.study.run import job_table, run_study
from mechcore.study.step import Job, Step, Work, in_order
from mechcore.study.store import Store, StoreError


@dataclass
class Watched:
    """An executor that notes what is begun."""

    begun: list[str] = field(default_factory=list)
    opened: int = 0

    @contextmanager
    def __call__(self, store: Store) -> Iterator[Workers]:
        self.opened += 1

        def begin(job: Job) -> Future[Receipt]:
            assert all(store.has(need.key) for need in job.needs.values())
            self.begun.append(job.name)
            receipt: Future[Receipt] = Future()
            receipt.set_result(done(job, store, None, "cpu"))
            return receipt

        yield Workers(1, begin)


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_the_report(monkeypatch)


@pytest.fixture
def sums() -> Iterator[str]:
    """The kind of the made-up study, as one that was registered."""
    with registered("sums", Sums) as kind:
        yield kind


@pytest.fixture
def doubled() -> Iterator[str]:
    with registered("doubled", Doubled) as kind:
        yield kind


def do(jobs: Sequence[Job], store: Store, executor: Any) -> None:
    perform(Study(jobs), store, executor, store.path.parent / "out")


def reads(numbers: Path, n: int) -> list[Job]:
    """Reads the first numbers."""
    return [job(Read(), f"read {i}", path=numbers / str(i)) for i in range(n)]


class Costly(Study):
    """Says beforehand what it costs."""

    cost = 6.0


def failures_of(error: StudyError) -> list[tuple[str, str, str | None]]:
    return [(failure.job.name, failure.message, failure.because_of) for failure in error.failures]


def test_needs_come_first_and_each_job_once(store: Store, numbers: Path) -> None:
    one, two = reads(numbers, 2)
    again = job(Read(), "read 0 by another name", path=numbers / "0")
    assert again.key == one.key
    both = job(Add(), "both", one, two)
    total = job(Add(), "total", both, again)
    watched = Watched()
    assert [item.name for item in in_order([total])] == ["read 0", "read 1", "both", "total"]
    do([total], store, watched)
    assert watched.begun == ["read 0", "read 1", "both", "total"]
    assert read(store.whole(total.key)) == 1 + 2 + 1
    manifest = store.manifest(total.key)
    assert (manifest.kind, manifest.name, manifest.recipe) == ("add", "total", total.recipe)


def test_the_plan_grows_with_results(tmp_path: Path, numbers: Path, sums: str) -> None:
    watched = Watched()
    run_study(Settings(str(numbers)), tmp_path / "out", kind=sums, executor=watched)
    wanted = ["read 0", "read 1", "read 2", "total", *(f"one more, {i}" for i in range(3))]
    assert watched.begun == wanted
    table = pd.read_csv(tmp_path / "out" / "tables" / "numbers.csv")
    assert table["number"].tolist() == [7, 8, 9, 10]
    assert (tmp_path / "out" / "last.txt").read_text() == "10"
    jobs, _ = job_table(tmp_path / "out")
    assert jobs["name"].tolist() == wanted
    assert set(jobs["state"]) == {"done"}
    # A sum of one has one more step, one of none has none.
    for text, n in (("-6", 1), ("-7", 0), ("2", 3)):
        (numbers / "3").write_text(text)
        run_study(Settings(str(numbers)), tmp_path / "out", kind=sums)
        assert len(pd.read_csv(tmp_path / "out" / "tables" / "numbers.csv")) == 1 + n


def test_progress_reaches_the_estimated_cost(
    store: Store, numbers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = job(Add(), "total", *reads(numbers, 3))  # as much as the three together
    with progress.shown():
        perform(Costly([total]), store, Local(), Path("out"))
    shown = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    jobs = [("17", "read 0"), ("33", "read 1"), ("50", "read 2"), ("100", "total")]
    assert shown == [f"study: {share} % ({name})" for share, name in jobs]


def test_a_kind_without_a_report_is_refused_before_the_work(tmp_path: Path, sums: str) -> None:
    STUDIES.register("silent")(SUMS)
    try:
        with pytest.raises(InputError, match=r"'silent': unknown.*mechcore\.reports"):
            run_study(Settings(str(tmp_path)), tmp_path / "out", kind="silent")
    finally:
        STUDIES.remove("silent")
    with pytest.raises(InputError, match="kind of study 'sum': unknown"):
        run_study(Settings(str(tmp_path)), tmp_path / "out", kind="sum")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_that_of_one_kind_of_study(
    tmp_path: Path, numbers: Path, sums: str, doubled: str
) -> None:
    out, settings = tmp_path / "out", Settings(str(numbers))
    run_study(settings, out, kind=sums)
    with pytest.raises(InputError, match="a study of kind 'sums'; expected kind 'doubled'"):
        run_study(settings, out, kind=doubled)
    (out / "study.json").write_text("{")
    watched = Watched()
    run_study(settings, out, kind=sums, executor=watched)
    assert watched.begun == []
    assert job_table(out)[0]["state"].eq("done").all()


def test_a_failed_job_holds_up_only_those_that_need_it(store: Store, numbers: Path) -> None:
    one = job(Read(), "read", path=numbers / "0")
    bad = job(Fail("no luck today"), "bad", one)
    after = job(Add(), "after", bad, one)
    last = job(Add(), "last", after)
    free = job(Add(), "free", one)
    watched = Watched()
    with (
        pytest.warns(MechcoreWarning, match="bad: something is odd"),
        pytest.raises(StudyError) as failure,
    ):
        do([last, bad, free], store, watched)
    assert watched.begun == ["read", "bad", "free"]
    assert failures_of(failure.value) == [
        ("bad", "no luck today", None),
        ("after", "needs bad", "bad"),
        ("last", "needs bad", "bad"),
    ]
    message = "study: 1 job failed; 2 that need their results were not started. bad: no luck today."
    assert str(failure.value).startswith(message)
    assert [store.has(item.key) for item in (one, free, bad, after)] == [True, True, False, False]
    assert store.all_keys() == sorted([one.key, free.key])
    assert store.leftovers() == []


@dataclass(frozen=True)
class Raise(Step):
    """Cannot be done."""

    kind: ClassVar[str] = "raise"
    error: ClassVar[Exception]

    def run(self, work: Work) -> None:
        raise self.error


def test_a_store_that_fails_ends_the_study_and_want_of_memory_a_job(
    store: Store, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = reads(numbers, 2)
    watched = Watched()
    monkeypatch.setattr(Raise, "error", OSError(28, os.strerror(28)), raising=False)
    with pytest.raises(StoreError, match=r"No space left on device while writing full; finished"):
        do([before, job(Raise(), "full"), after], store, watched)
    assert watched.begun == ["read 0", "full"]
    assert store.all_keys() == [before.key]
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate it")
    monkeypatch.setattr(Raise, "error", error)
    with pytest.raises(StudyError, match=r"1 job failed. large: .*can't allocate memory"):
        do([job(Raise(), "large"), after], store, Watched())
    assert store.has(after.key)


def test_an_input_that_changes_meanwhile_fails_its_job(store: Store, numbers: Path) -> None:
    gone, changed = reads(numbers, 2)
    (numbers / "0").unlink()
    (numbers / "1").write_text("8")
    with pytest.raises(StudyError) as failure:
        do([gone, changed], store, Local())
    missing, other = (message for _, message, _ in failures_of(failure.value))
    assert "0: no such file; it existed when the study was planned: restore it" in missing
    assert other == "the number files changed while the study ran; rerun it"
    assert store.all_keys() == []


def test_what_is_done_is_not_done_again(
    store: Store, numbers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = reads(numbers, 2)
    do([one], store, Local())
    watched = Watched()
    with progress.shown():
        do([job(Add(), "sum", one, two)], store, watched)
    assert watched.begun == ["read 1", "sum"]
    assert "1 of 3 jobs are already done" in capsys.readouterr().err
    watched = Watched()
    do([job(Add(), "by another name", one, two)], Store(store.path), watched)
    assert watched.opened == 0


def test_a_damaged_result_is_found_and_done_again(tmp_path: Path, numbers: Path, sums: str) -> None:
    out, watched = tmp_path / "out", Watched()
    run_study(Settings(str(numbers)), out, kind=sums)
    keys = job_table(out)[0].set_index("name")["key"]
    result = Store(out / "store").folder(keys["read 1"]) / RESULT
    assert result.read_text() == "2"
    result.write_text("3")
    out = out.rename(tmp_path / "moved")  # another process: this one has seen the file whole
    with pytest.warns(MechcoreWarning, match="read 1: the checksum of result differs.*repeating"):
        run_study(Settings(str(numbers)), out, kind=sums, executor=watched)
    assert watched.begun == ["read 1"]
    assert read(Store(out / "store").whole(keys["read 1"])) == 2


def test_keys_depend_on_all_that_matters_and_nothing_else(numbers: Path) -> None:
    (numbers / "copy").write_bytes((numbers / "0").read_bytes())
    one = job(Read(), "read", path=numbers / "0")
    same = [
        job(Read(), "another name", path=numbers / "0"),
        job(Read(), "read", path=numbers / "copy"),
        job(Read(colour="blue"), "read", path=numbers / "0"),
    ]
    other = [
        job(Read(factor=2), "read", path=numbers / "0"),
        job(Read(), "read", path=numbers / "1"),
        job(Add(), "read", path=numbers / "0"),
        job(Read(), "read", one, path=numbers / "0"),
    ]
    assert {item.key for item in same} == {one.key}
    assert len({item.key for item in (one, *other)}) == 5
    assert one.recipe["settings"] == {"factor": 1}
    assert job(Add(), "sum", one).recipe["needs"] == {"read": one.key}
    assert "study.arithmetic" in one.recipe["code"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a step that is to be edited."""
    path = tmp_path / "with_steps" / "double.py"
    path.parent.mkdir()
    (path.parent / "__init__.py").touch()
    path.write_text("def apply(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    OPERATIONS.register("double")(importlib.import_module("with_steps.double").apply)
    yield path
    OPERATIONS.remove("double")
    for name in ("with_steps", "with_steps.double"):
        del sys.modules[name]


@dataclass(frozen=True)
class Doubled(Study):
    """Reads a file, applies an operation, adds."""

    settings: Settings
    store: Store

    def jobs(self) -> Sequence[Job]:
        one = job(Read(self.settings.factor), "read", path=Path(self.settings.folder) / "0")
        return [job(Add(self.settings.more), "total", job(Apply("double"), "double", one))]


def why(out: Path) -> dict[str, str]:
    """Of the jobs that are to be done again."""
    table, _ = job_table(out)
    assert ((table["why"] != "") == (table["state"] != "done")).all()
    changed = table[table["why"] != ""].set_index("name")["why"]
    return {str(name): str(reason).removeprefix("changed: ") for name, reason in changed.items()}


def test_why_a_job_is_to_be_done_again(
    tmp_path: Path, numbers: Path, package: Path, doubled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, settings = tmp_path / "out", Settings(str(numbers))
    run_study(settings, out, kind=doubled)
    assert why(out) == {}
    (numbers / "0").write_text("5")
    later = {"double": "result of read", "total": "result of double"}
    assert why(out) == {"read": "input number", **later}
    run_study(settings, out, kind=doubled)
    assert why(out) == {}
    package.write_text("def apply(x):\n    return 2 * x + 1\n")
    assert why(out) == {"double": "with_steps/double.py", "total": "result of double"}
    package.write_text("def apply(x):\n    '''Twice.'''\n    return (2 * x)\n")
    assert why(out) == {}
    with monkeypatch.context() as patch:
        patch.setattr("mechcore.study.step._version", lambda package: "9")
        assert why(out)["read"] == (
            "package torch, package transformers, package accelerate and 3 more"
        )


@pytest.mark.parametrize("name", ["workers", "cpus"])
def test_numbers_of_workers_and_cores(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0; expected 1 or more"):
        Local(**{name: 0})
    there = n_cores()
    wanted = f"{name} is {there + 1}, but this machine has {there} cores: using {there}"
    with pytest.warns(MechcoreWarning, match=wanted):
        assert getattr(Local(**{name: there + 1}), name) == there


def test_a_study_has_the_resources_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Local] = []

    def noted(study: Study, store: Store, executor: Local, out: Path) -> None:
        given.append(executor)
        raise InputError("enough")

    monkeypatch.setattr("mechcore.study.run.perform", noted)
    monkeypatch.setattr("mechcore.main_study.study.MainStudy.check", lambda *_: None)
    config = StudyConfig(resources=Resources(cpus=1, device="mps"))
    for executor in (None, Local(cpus=2)):
        with pytest.raises(InputError, match="enough"):
            run_study(config, tmp_path / "out", executor=executor)
    assert given == [Local(cpus=1, device=config.resources.place), Local(cpus=2)]
    # A file may ask for more cores than there are.
    (tmp_path / "s.yaml").write_text("resources: {cpus: 9999}")
    with (
        pytest.warns(MechcoreWarning, match="cpus is 9999"),
        pytest.raises(InputError, match="eno"),
    ):
        run_study(read_study(tmp_path / "s.yaml")[1], tmp_path / "out")
    assert given[-1].cpus == n_cores() < 9999


@dataclass(frozen=True)
class Plain(Step):
    """Does nothing."""

    kind: ClassVar[str] = "plain"

    def run(self, work: Work) -> None:
        write(work, 1)


@pytest.mark.slow
def test_processes_do_what_they_know_and_refuse_the_rest(store: Store, numbers: Path) -> None:
    """Of a failure in a process the study says the same as in this one."""
    one, two = (job(Read(), f"read {i}", path=numbers / str(i)) for i in (0, 1))
    total = job(Add(), "total", one, two)

    @dataclass(frozen=True)
    class Local_(Plain):
        """Of no module."""

    edited = job(Plain(), "edited")
    edited.recipe["code"]["study.test_engine"] = "as it was before the edit"
    OPERATIONS.register("here alone")(abs)
    apply = job(Apply("here alone"), "apply", one)
    jobs = Study([total, apply, job(Local_(), "local"), edited, job(Fail(), "bad")])
    with (
        pytest.warns(MechcoreWarning, match="bad: something is odd"),
        pytest.raises(StudyError) as failure,
    ):
        perform(jobs, store, Local(workers=2, cpus=1), store.path.parent / "out")
    OPERATIONS.remove("here alone")
    messages = {lost.job.name: lost.message for lost in failure.value.failures}
    assert set(messages) == {"apply", "local", "edited", "bad"}
    assert messages.pop("bad") == "it cannot be"
    assert "operation 'here alone': unknown" in messages["apply"]
    assert "Local_" in messages["local"]
    assert "study/test_engine.py" in messages["edited"]
    for message in messages.values():
        assert message.startswith("another process lacks code of the first (")
        assert message.endswith("as an entry point, or run with one worker in this process")
    keys = [one.key, two.key, total.key]
    assert store.all_keys() == sorted(keys)
    assert read(store.whole(total.key)) == 1 + 2
    assert os.getpid() not in {store.manifest(key).machine["process"] for key in keys}
    assert store.leftovers() == []
