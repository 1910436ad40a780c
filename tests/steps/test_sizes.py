"""Which checkpoints a series has, and of which steps."""

from pathlib import Path

import pytest

from mechcore.steps.config import ModelConfig
from mechcore.steps.sizes import checkpoint_series
from mechcore.training.history import write_records


def trained(out: Path, folders: tuple[str, ...], best: int | None) -> str:
    """What a training of six steps leaves, so far as a series reads it."""
    for name in folders:
        (out / name).mkdir(parents=True)
        (out / name / "config.json").touch()
    records = [
        {"step": step, "loss": 1.0, "accuracy": {"id": {"all": 0.5}}, "seconds": 0.0}
        for step in (2, 4, 6)
    ]
    write_records(out, records, best)
    return str(out)


@pytest.mark.parametrize(
    ("folders", "best", "expected"),
    [
        (("step-2", "step-4", "final"), None, {2: "step-2", 4: "step-4", 6: "final"}),
        (("step-4", "final"), 2, {2: "final", 4: "step-4"}),
        (("step-2", "step-4", "final"), 2, {2: "step-2", 4: "step-4"}),
        (("step-2", "step-4", "step-6", "final"), 6, {2: "step-2", 4: "step-4", 6: "step-6"}),
    ],
    ids=["no patience", "best not kept else", "best kept else", "best is last"],
)
def test_final_is_of_the_step_whose_weights_it_has(
    tmp_path: Path, folders: tuple[str, ...], best: int | None, expected: dict[int, str]
) -> None:
    found = checkpoint_series([trained(tmp_path / "run", folders, best)], ModelConfig())
    names = {step: Path(str(model.source)).name for step, model in found.items()}
    assert list(names.items()) == list(expected.items())


def test_final_alone_has_the_best_step(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", ("step-4", "final"), 4)
    assert list(checkpoint_series([f"{run}/final"], ModelConfig())) == [4]
