"""Interrupted runs end as if nothing had happened; half states and other runs are noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from training.builders import SETTINGS, encoder, evaluations, pairs, train_encoder

from mechcore.errors import InputError
from mechcore.training import TrainSettings, new_model, read_history
from mechcore.training.objectives import Objective
from mechcore.training.run_folder import newest_state, publish
from mechcore.worlds import tiny_world

LONG = replace(SETTINGS, steps=11, evaluate_every=2, checkpoint_every=4, accumulate=2)
DROPOUT = 0.3


class Stop(Exception):
    pass


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Raise in the loss of this batch of training, counted from 1."""
    plain = Objective.logits
    state = {"left": 0}

    def logits(self: Any, model: Any, batch: Any) -> Any:
        if model.training and state["left"]:
            state["left"] -= 1
            if not state["left"]:
                raise Stop
        return plain(self, model, batch)

    def stop(batch: int) -> None:
        state["left"] = batch

    monkeypatch.setattr(Objective, "logits", logits)
    return stop


def run(out: Path, settings: TrainSettings = LONG) -> pd.DataFrame:
    return train_encoder(out, settings, encoder(DROPOUT))


def weights(path: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in path.glob("*/model.safetensors")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    assert sorted(weights(out)) == ["final", "step-0004", "step-0008"]
    assert not (out / "state").exists()
    return out


def assert_same(out: Path, whole: Path, history: pd.DataFrame | None = None) -> None:
    if history is not None:
        pd.testing.assert_frame_equal(history, read_history(whole), check_exact=True)
    pd.testing.assert_frame_equal(read_history(out), read_history(whole), check_exact=True)
    assert weights(out) == weights(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}


def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, whole: Path, stop_at: Callable[[int], None]
) -> None:
    out = tmp_path / "run"
    for batch in (3, 17, 6):  # in step 2, without a state yet, 9 and 11
        stop_at(batch)
        with pytest.raises(Stop):
            run(out)
    assert_same(out, whole, run(out))


def test_what_is_half_written_is_passed_over(
    tmp_path: Path, whole: Path, stop_at: Callable[[int], None]
) -> None:
    out = tmp_path / "run"
    stop_at(13)  # in step 7
    with pytest.raises(Stop):
        run(out)
    (state,) = (out / "state").iterdir()
    assert state.name == "checkpoint-4"
    for step in (8, 12):
        half = shutil.copytree(state, state.with_name(f"checkpoint-{step}"))
        (half / "trainer_state.json").unlink()  # which the Trainer writes last
    (half / "trainer_state.json").touch()
    for name in (".abc.step-0008/step-0008", "step-0008", ".abc.final", "final"):
        (out / name).mkdir(parents=True)
        (out / name / "config.json").write_text("{}")
    assert newest_state(out) == 4
    assert_same(out, whole, run(out))


def test_old_names_of_weights_are_restored(tmp_path: Path, stop_at: Callable[[int], None]) -> None:
    # As bert-base-cased has them; transformers reads them, and stores them as they came.
    publish(encoder(DROPOUT), tiny_world.encoder_tokenizer(), tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, value in load_file(file).items():
        for new, former in old.items():
            name = name.replace(new, former)
        renamed[name] = value
    save_file(renamed, file, {"format": "pt"})

    def run_again(out: Path) -> pd.DataFrame:
        return train_encoder(out, LONG, new_model(tmp_path / "base", seed=0)[0])

    run_again(tmp_path / "whole")
    stop_at(13)
    with pytest.raises(Stop):
        run_again(tmp_path / "run")
    run_again(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")
    model, _ = new_model(tmp_path / "run" / "final", seed=0)
    norm = model.bert.encoder.layer[0].output.LayerNorm.weight
    assert float(norm.detach().sub(1).abs().max()) > 1e-4  # trained, not made anew


def test_a_finished_run_is_not_repeated_and_gives_its_weights(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    model = encoder(DROPOUT)
    history = train_encoder(out, LONG, model)
    pd.testing.assert_frame_equal(history, read_history(whole))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    stored = load_file(out / "final" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    fewer = {"id": evaluations()["id"]}
    other = encoder(DROPOUT)
    torch.nn.init.ones_(other.classifier.bias)
    changes: dict[str, dict[str, Any]] = {
        "learning_rate, seed. Use the same settings": {
            "settings": replace(LONG, learning_rate=2e-3, seed=7)
        },
        "model": {"model": other},
        "examples": {"data": pairs(41)},
        "evaluations": {"held_out": fewer},
    }
    for named, change in changes.items():
        with pytest.raises(InputError, match=f"found another training run.* differ: {named}"):
            train_encoder(out, **{"settings": LONG, "model": encoder(DROPOUT)} | change)
    assert_same(out, whole)


def test_a_damaged_record_of_the_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text("{")
    with pytest.raises(InputError, match=r"training\.json: damaged"):
        run(tmp_path)
