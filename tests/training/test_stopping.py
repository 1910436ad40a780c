"""Training with a patience: when it ends, which weights it keeps, and how it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from training.builders import SETTINGS, encoder, evaluations, train_encoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mechcore.errors import InputError
from mechcore.training import (
    TrainSettings,
    accuracies,
    best_step,
    classification,
    loop,
    read_history,
)
from mechcore.training.loop import Recorder
from mechcore.training.run_folder import has_ended, newest_state, standing

WATCHED = replace(
    SETTINGS, steps=20, evaluate_every=2, checkpoint_every=6, checkpoint_dtype="float32", patience=2
)
# States are of steps 6 (with the weights of 4) and 12 (with those of 10). What comes after 14 would
# be better, and is never seen: 12 is worse than 10, and 14 no better.
ID = {2: 0.5, 4: 0.6, 6: 0.55, 8: 0.7, 10: 0.8, 12: 0.75, 14: 0.8, 16: 1.0, 18: 1.0, 20: 1.0}
OOD = {2: 0.1, 4: 0.4, 6: 0.4, 8: 0.4, 10: 0.9, 12: 0.9, 14: 0.9, 16: 0.9, 18: 0.9, 20: 0.9}
DROPOUT = 0.3

Script = dict[str, Mapping[int, float]]


class Stop(Exception):
    pass


@contextmanager
def scripted() -> Iterator[Script]:
    """Let evaluations find the accuracies of tables, by data set and step."""
    tables: Script = {"id": ID, "ood": OOD}
    now = {"step": 0}
    plain = Recorder.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **options: Any) -> None:
        now["step"] = state.global_step
        plain(self, args, state, control, **options)

    def find(model: Any, objective: Any, encoded: Any) -> dict[str, float]:
        return {"all": tables[encoded.examples.name][now["step"]]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "on_step_end", on_step_end)
        patch.setattr(loop, "accuracies", find)
        yield tables


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as tables:
        yield tables


def run(out: Path, settings: TrainSettings = WATCHED, model: Any = None) -> pd.DataFrame:
    return train_encoder(out, settings, encoder(DROPOUT) if model is None else model)


def weights(out: Path, name: str = "final") -> bytes:
    return (out / name / "model.safetensors").read_bytes()


def watched(history: pd.DataFrame) -> pd.Series[float]:
    """Accuracies of the first data set by step."""
    rows = history.query("dataset == 'id' and subset == 'all'")
    return rows.set_index("step")["accuracy"]


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a patience that keeps the weights of each evaluation."""
    out = tmp_path_factory.mktemp("every") / "run"
    run(out, replace(WATCHED, patience=None, checkpoint_every=2))
    assert len({weights(out, path.name) for path in out.glob("step-*")}) == 9
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a patience that was never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with scripted():
        run(out)
    return out


# -- by hand --------------------------------------------------------------------------------------


def recorded(values: Sequence[float]) -> list[dict[str, Any]]:
    """Evaluations of steps 10, 20, ..."""
    return [{"step": 10 * i, "accuracy": {"id": {"all": v}}} for i, v in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "best", "waited"),
    [
        ([0.5], 10, 0),
        ([0.0, 0.0], 10, 1),  # even the worst first evaluation is the best so far
        ([0.5, 0.6, 0.6], 20, 1),  # a tie is no improvement
        ([0.5, 0.6, 0.4, 0.61], 40, 0),
        ([0.5, 0.4, 0.5, 0.3], 10, 3),
    ],
)
def test_best_and_wait(values: list[float], best: int, waited: int) -> None:
    settings = TrainSettings(steps=90, patience=3, watch="id")
    assert standing(recorded(values), settings) == (best, waited)
    assert has_ended(recorded(values), settings, 90) is (waited == 3)


def test_the_last_step_is_the_end_in_any_case() -> None:
    for patience in (None, 5):
        settings = TrainSettings(steps=20, patience=patience, watch=patience and "id")
        assert not has_ended([], settings, 20)
        assert not has_ended(recorded([0.5]), settings, 20)
        assert has_ended(recorded([0.5, 0.6]), settings, 20)
    assert standing(recorded([0.5]), TrainSettings(steps=20)) is None


# -- whole runs -----------------------------------------------------------------------------------


def test_it_ends_after_the_patience_with_the_weights_of_the_best_evaluation(
    whole: Path, every_step: Path
) -> None:
    accuracy = watched(read_history(whole))
    assert accuracy.to_dict() == {step: ID[step] for step in (2, 4, 6, 8, 10, 12, 14)}
    assert best_step(whole) == 10
    # The other run took all steps: until here the learning rate was the same.
    assert weights(whole) == weights(every_step, "step-0010")
    # Checkpoints after the best stay.
    names = {"step-0006", "step-0012", "final", "history.json", "training.json"}
    assert {path.name for path in whole.iterdir()} == names
    assert weights(whole, "step-0012") == weights(every_step, "step-0012")


def test_another_data_set_can_be_watched_and_the_model_gets_its_best(
    tmp_path: Path, script: Script, every_step: Path
) -> None:
    model = encoder(DROPOUT)
    history = run(tmp_path / "run", replace(WATCHED, watch="ood"), model)  # no better at 6 and 8
    assert history["step"].max() == 8
    assert best_step(tmp_path / "run") == 4
    assert weights(tmp_path / "run") == weights(every_step, "step-0004")
    stored = load_file(every_step / "step-0004" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


def test_a_patience_that_is_never_exhausted_keeps_the_best_of_all_steps(tmp_path: Path) -> None:
    # True accuracies, of weights as stored.
    settings = replace(
        WATCHED, steps=8, checkpoint_every=2, checkpoint_dtype="bfloat16", patience=9
    )
    out = tmp_path / "run"
    accuracy = watched(run(out, settings))
    assert accuracy.index.tolist() == settings.checkpoint_steps(40) == [2, 4, 6, 8]
    assert {path.name for path in out.glob("step-*")} == {f"step-000{n}" for n in (2, 4, 6, 8)}
    best = accuracy.idxmax()  # the first of the highest
    assert best_step(out) == best
    assert weights(out) == weights(out, f"step-000{best}")
    model = AutoModelForSequenceClassification.from_pretrained(out / "final")
    objective = classification(model, AutoTokenizer.from_pretrained(out / "final"))
    assert accuracies(model, objective, objective.encode(evaluations()["id"]))["all"] == (
        accuracy.max()
    )


def test_there_must_be_what_is_to_be_watched(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match="patience is 2, but there are no evaluation data to watc"):
        train_encoder(out, WATCHED, held_out={})
    with pytest.raises(InputError, match=r"watch is 'dev'; .* data set: id, ood"):
        run(out, replace(WATCHED, watch="dev"))
    assert not out.exists()


# -- interruptions --------------------------------------------------------------------------------


def test_a_run_that_is_interrupted_keeps_the_best_weights(
    tmp_path: Path, whole: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Recorder.on_save

    def stop_at_12(self: Any, args: Any, state: Any, control: Any, **options: Any) -> None:
        if state.global_step == 12:
            raise Stop
        plain(self, args, state, control, **options)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_save", stop_at_12)
        with pytest.raises(Stop):
            run(out)
    assert newest_state(out) == 12
    assert best_step(out) == 10
    pd.testing.assert_frame_equal(run(out), read_history(whole), check_exact=True)
    for name in ("final", "step-0006", "step-0012"):
        assert weights(out, name) == weights(whole, name)


def test_a_best_step_that_was_not_evaluated_is_an_error(tmp_path: Path) -> None:
    text = '{"evaluations": [{"step": 2, "loss": 1, "accuracy": {}}], "best": 4}'
    (tmp_path / "history.json").write_text(text)
    with pytest.raises(InputError, match=r"step 4, the best, was not evaluated"):
        best_step(tmp_path)
    with pytest.raises(InputError, match=r"history\.json: not found"):
        best_step(tmp_path / "none")
