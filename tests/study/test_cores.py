"""No more threads than the machine has cores, whoever asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechcore.cli import main
from mechcore.errors import InputError
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.study.engine import Study
from mechcore.study.executors import Local, n_cores
from mechcore.study.run import run_study
from mechcore.study.store import Store


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Local]:
    """Executors that studies are given; no study is done."""
    found: list[Local] = []

    def perform(study: Study, store: Store, executor: Local, out: Path) -> None:
        found.append(executor)
        raise InputError("enough")

    monkeypatch.setattr("mechcore.study.run.perform", perform)
    monkeypatch.setattr("mechcore.main_study.study.MainStudy.check", lambda *_: None)
    return found


@pytest.mark.parametrize("where", ["option", "file"])
def test_a_study_takes_all_cores_at_most(
    tmp_path: Path,
    given: list[Local],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "data: {max_train: 8, max_id: 8, max_ood: 8}\nseeds: [1]\ntarget_sparsities: [0.5]\n"
    cpus = "resources: {cpus: 9999}\n" if where == "file" else ""
    Path("s.yaml").write_text(text + cpus)
    words = ["run", "s.yaml", *(["--cpus", "9999"] if where == "option" else [])]
    with pytest.raises(SystemExit):
        main(words)
    there = n_cores()
    assert [executor.cpus for executor in given] == [there]
    assert there < 9999
    warning = f"cpus is 9999, but this machine has {there} cores: using {there}"
    assert warning in capsys.readouterr().err


def test_a_study_from_python_has_the_resources_of_its_settings(
    tmp_path: Path, given: list[Local]
) -> None:
    config = StudyConfig(resources=Resources(cpus=1, device="mps"))
    for executor in (None, Local(cpus=2)):
        with pytest.raises(InputError, match="enough"):
            run_study(config, tmp_path / "out", executor=executor)
    assert given == [Local(cpus=1, device=config.resources.place), Local(cpus=2)]
