"""No more threads than the machine has cores, whoever asks for them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch

from mechcore.cli import main
from mechcore.errors import MechcoreWarning
from mechcore.study.pool import cores_each


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of threads that torch is told to use; it never gets them."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    return found


@pytest.mark.parametrize("where", ["option", "file"])
def test_a_study_takes_all_cores_at_most(
    tmp_path: Path,
    asked: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "data: {max_train: 8, max_id: 8, max_ood: 8}\nseeds: [1]\nsparsities: [0.5]\n"
    cpus = "resources: {cpus: 9999}\n" if where == "file" else ""
    Path("s.yaml").write_text(text + cpus)
    words = ["run", "s.yaml", "--dry-run", *(["--cpus", "9999"] if where == "option" else [])]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    there = os.cpu_count()
    assert max(asked) <= (there or 1) < 9999
    warning = f"cpus is 9999, but this machine has {there} cores: going on with {there}"
    assert warning in capsys.readouterr().err


def test_studies_of_papers_take_all_cores_at_most() -> None:
    there = os.cpu_count() or 1
    with pytest.warns(MechcoreWarning, match="cognitive study: threads is 9999, but this machine"):
        assert cores_each("cognitive study", 1, 9999) == there
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cores_each("cognitive study", 1, there) == there
