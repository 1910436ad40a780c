"""Which checkpoints a series has, and of which steps."""

from pathlib import Path

import pytest

from mechcore.errors import InputError
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


def checkpoints(root: Path, **weights: str) -> str:
    """Folders that look like checkpoints; ``top`` is the folder of all."""
    for name, text in weights.items():
        folder = root if name == "top" else root / name.replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").touch()
        (folder / "model.safetensors").write_text(text)
    return str(root)


def names_of(*paths: str) -> dict[object, str]:
    found = checkpoint_series(paths, ModelConfig())
    return {step: Path(str(model.source)).name for step, model in found.items()}


def test_a_model_on_top_of_its_checkpoints_is_the_final_one(tmp_path: Path) -> None:
    run = checkpoints(tmp_path / "run", checkpoint_500="a", checkpoint_1000="b", top="c")
    assert [*names_of(run).items()] == [
        ("500", "checkpoint-500"),
        ("1000", "checkpoint-1000"),
        ("final", "run"),
    ]


def test_a_model_on_top_that_is_one_of_its_checkpoints_counts_once(tmp_path: Path) -> None:
    run = checkpoints(tmp_path / "run", checkpoint_500="a", checkpoint_1000="b", top="a")
    assert [*names_of(run).items()] == [(500, "checkpoint-500"), (1000, "checkpoint-1000")]


def test_a_checkpoint_alone_is_one(tmp_path: Path) -> None:
    assert names_of(checkpoints(tmp_path / "mine", top="a")) == {"mine": "mine"}
    assert names_of(checkpoints(tmp_path / "more", top="a", onnx="b")) == {"more": "more"}


def test_steps_are_in_order_where_other_checkpoints_have_none(tmp_path: Path) -> None:
    run = checkpoints(tmp_path, checkpoint_1000="a", checkpoint_500="b", best="c")
    assert [*names_of(run)] == ["500", "1000", "best"]


def test_a_step_and_a_name_that_look_the_same_are_refused(tmp_path: Path) -> None:
    one = checkpoints(tmp_path / "one", checkpoint_500="a")
    with pytest.raises(InputError, match=r"500 and .*checkpoint-500 are both 500"):
        names_of(one, checkpoints(tmp_path / "500", top="b"))
