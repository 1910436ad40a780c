"""What beats what: the command line the file, the file the defaults; contradictions are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechcore.cli import main
from mechcore.errors import MechcoreError
from mechcore.main_study.config import StudyConfig
from mechcore.papers.cognitive import CognitiveSettings
from mechcore.papers.extractive.settings import ExtractiveSettings
from mechcore.study.executors import Local
from mechcore.study.ray_executor import OnRay
from mechcore.study.step import plain
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir

FILE = """\
model: {dtype: bfloat16}
data: {max_train: 16, max_id: 12, max_ood: 12, seed: 5}
prune: {preset: paper, steps: 30, precision: bfloat16}
seeds: [7]
target_sparsities: [0.3]
batch_size: 8
analyses: {ablation: {max_non_core: 3}}
resources: {cpus: 1}
"""


class Stopped(Exception):
    """Instead of a study."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(FILE)
    for split in ("train", "id", "ood"):
        tiny_world.generate(split, 16, 3).frame.to_csv(f"{split}.csv", index=False)  # type: ignore[arg-type]
    return tmp_path


def settings_of(monkeypatch: pytest.MonkeyPatch, command: str) -> Any:
    """What a command would do a study of."""
    return asked_by(monkeypatch, command)[0]


def asked_by(monkeypatch: pytest.MonkeyPatch, command: str) -> tuple[Any, dict[str, Any]]:
    """What a command would do a study of, and how."""
    found: list[Any] = []

    def catch(settings: Any, *_: Any, **how: Any) -> None:
        found.append((settings, how))
        raise Stopped

    monkeypatch.setattr("mechcore.study.run.run_study", catch)
    with pytest.raises(Stopped):
        main(command.split())
    return found[0]


def test_what_the_command_line_leaves_out_is_as_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study: StudyConfig = settings_of(monkeypatch, "run s.yaml")
    assert (study.seeds, study.target_sparsities, study.batch_size) == ((7,), (0.3,), 8)
    assert (study.model.dtype, study.data.max_train, study.data.seed) == ("bfloat16", 16, 5)
    assert (study.prune.steps, study.prune.precision, study.prune.lr) == (30, "bfloat16", 0.1)


@pytest.mark.parametrize(
    ("options", "where", "wanted"),
    [
        ("--seeds 42,43,44", "seeds", (42, 43, 44)),
        ("--target-sparsities 0.5,0.7", "target_sparsities", (0.5, 0.7)),
        ("--batch-size 64", "batch_size", 64),
        ("--dtype float32", "model.dtype", "float32"),
        ("--max-id 0", "data.max_id", None),
        ("--prune-steps 400", "prune.steps", 400),
        ("--prune-preset fast", "prune.lr", 0.07),
        ("--prune-settings lr=0.2", "prune.lr", 0.2),
        ("--max-non-core 16", "analyses.ablation.max_non_core", 16),
        ("--cpus 2", "resources.cpus", 2),
    ],
)
def test_the_command_line_beats_the_file_also_with_a_default(
    monkeypatch: pytest.MonkeyPatch, options: str, where: str, wanted: object
) -> None:
    alone: StudyConfig = settings_of(monkeypatch, "run s.yaml")
    both: StudyConfig = settings_of(monkeypatch, f"run s.yaml {options}")

    def at(study: Any) -> Any:
        for name in where.split("."):
            study = getattr(study, name)
        return study

    assert at(both) == wanted != at(alone)
    if "." not in where:  # and nothing else is another
        assert plain(replace(both, **{where: getattr(alone, where)})) == plain(alone)


def test_without_a_file_all_is_as_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, "demo") == StudyConfig()


# -- --quick --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", {"projection": "auto", "n_test": 1600}),
        ("--quick", {"projection": "pca", "n_test": 160, "sizes": (100, 400)}),
        ("--quick --projection auto", {"projection": "auto", "n_test": 160}),
        ("--quick --projection umap --test 240", {"projection": "umap", "n_test": 240}),
        ("--quick --sizes 100,400,1600,6400 --seeds 0,1,2", {"sizes": (100, 400, 1600, 6400)}),
    ],
)
def test_quick_beats_the_defaults_and_options_beat_quick(
    monkeypatch: pytest.MonkeyPatch, options: str, wanted: dict[str, Any]
) -> None:
    found: CognitiveSettings = settings_of(monkeypatch, f"reproduce cognitive {options}")
    assert {name: getattr(found, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("--quick", {"seeds": (0,), "epochs": (1,), "counterfactuals": 2, "cuts": (1,)}),
        ("--quick --seeds 0,1,2 --counterfactuals 10", {"seeds": (0, 1, 2), "counterfactuals": 10}),
        ("--quick --epochs 8 --cuts 2", {"epochs": (8,), "cuts": (2,), "seeds": (0,)}),
    ],
)
def test_quick_of_extractive(
    monkeypatch: pytest.MonkeyPatch, options: str, wanted: dict[str, Any]
) -> None:
    found: ExtractiveSettings = settings_of(monkeypatch, f"reproduce extractive {options}")
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_options_of_trainings_beat_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings_of(
        monkeypatch,
        "reproduce cognitive --quick --steps 1500 --patience 6 --fine-tuned-rates 5e-4,1e-3",
    )
    for arm in (found.fine_tuned, found.scratch):
        assert (arm.steps, arm.patience, arm.warmup_steps) == (1500, 6, 5)
    assert found.fine_tuned.learning_rates == (5e-4, 1e-3)
    found = settings_of(
        monkeypatch,
        "reproduce extractive --quick --ordering-epochs 16 --grafting-epochs 3 --replay 0",
    )
    assert (found.ordering.epochs, found.ordering.replay, found.grafting.epochs) == (16, 0, 3)


# -- where settings came from ----------------------------------------------------------------------


def origins_of(monkeypatch: pytest.MonkeyPatch, command: str) -> dict[str, str]:
    found: dict[str, str] = asked_by(monkeypatch, command)[1]["origins"]
    return found


def test_settings_come_from_the_file_and_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert origins_of(monkeypatch, "demo") == {}
    assert origins_of(monkeypatch, "demo decoder --without sweep") == dict.fromkeys(
        ("model.embedded", "analyses.sweep"), "command line"
    )
    wanted = dict.fromkeys(
        ("model.dtype", "data.max_train", "data.max_id", "data.max_ood", "data.seed", "seeds",
         "target_sparsities", "batch_size", "analyses.ablation.max_non_core", "resources.cpus"),
        "file s.yaml",
    )  # fmt: skip
    prune = ("steps", "steps_per_percent", "ramp", "ramp_per_percent", "warmup", "batch_size", "lr")
    prune += ("lr_lambda", "weight_decay", "dropout", "log_alpha_mean", "sparsity")
    prune += ("discretisation", "precision")
    wanted |= dict.fromkeys((f"prune.{name}" for name in prune), "file s.yaml")
    assert origins_of(monkeypatch, "run s.yaml") == wanted
    changes = {"seeds": "command line", "prune.steps": "command line"}
    changes |= {"analyses.fill": "command line", "resources.device": "command line"}
    options = "--seeds 42,43,44 --prune-steps 40 --fill zero --device cpu"
    assert origins_of(monkeypatch, f"run s.yaml {options}") == wanted | changes


def test_settings_of_other_kinds_come_from_a_base_and_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = origins_of(monkeypatch, "reproduce extractive --base gpt2 --quick --replay 3 --seeds 7")
    assert found["base"] == found["ordering.learning_rate"] == "--base"
    assert found["base_steps"] == found["learning_rates"] == "--quick"
    assert found["ordering.replay"] == found["seeds"] == "command line"
    assert "precision" not in found


def test_options_hold_for_every_variant(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\nvariants: {a: {seeds: [1], prune: {steps: 40}}, b: {training: null}}\n"
    (here / "v.yaml").write_text(FILE + text)
    study: StudyConfig = settings_of(monkeypatch, "run v.yaml --prune-steps 5 --cpus 1")
    a, b = study.each_variant().values()
    assert (a.seeds, b.seeds) == ((1,), (7,))
    assert a.prune == b.prune == replace(b.prune, steps=5)
    assert a.resources.cpus == b.resources.cpus == study.resources.cpus == 1
    study = settings_of(monkeypatch, "run v.yaml --seeds 2,3")
    assert [each.seeds for each in study.each_variant().values()] == [(2, 3)] * 2


# -- how studies are done --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["demo", "reproduce cognitive", "reproduce extractive"])
def test_every_kind_of_study_is_done_as_the_options_say(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _, how = asked_by(monkeypatch, f"{kind} --workers 2 --cpus 1 --device cpu --store here")
    assert how["executor"] == Local(2, 1, "cpu")
    assert how["store"] == Path("here")
    monkeypatch.setattr("mechcore.models.devices.check_device", lambda device: None)
    _, how = asked_by(monkeypatch, f"{kind} --workers 1 --gpus 0.5")
    assert how["executor"] == Local(1, None, "cuda")


@pytest.mark.parametrize("kind", ["demo", "reproduce cognitive", "reproduce extractive"])
def test_every_kind_of_study_can_be_given_to_ray(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install .[ray])")
    _, how = asked_by(monkeypatch, f"{kind} --executor ray --address host:1 --cpus 2 --gpus 1")
    assert how["executor"] == OnRay("host:1", 2, 1.0, "cuda")


@pytest.mark.parametrize(
    ("command", "job"),
    [
        ("demo --seeds 1 --target-sparsities 0.5", "prune"),
        ("reproduce cognitive --quick --arms base --workers 1", "decoding base"),
        ("reproduce extractive --quick --experiments ocr", "ocr first-hop seed=0"),
    ],
)
def test_a_dry_run_lists_the_jobs_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, job: str
) -> None:
    before = sorted(here.iterdir())
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--dry-run"])
    shown = capsys.readouterr()
    assert end.value.code == 0, shown.err
    assert job in shown.out
    assert " jobs" in shown.out
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("kind", ["demo", "reproduce cognitive", "reproduce extractive"])
def test_finished_studies_of_every_kind_are_logged(
    here: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    logged: list[Any] = []
    (here / "out").mkdir()
    modules = ("mechcore.cli.study.show_run", "mechcore.papers.cognitive.command._show_results")
    for name in (*modules, "mechcore.papers.extractive.command._show_results"):
        monkeypatch.setattr(name, lambda folder: None)
    monkeypatch.setattr("mechcore.study.tracking.check_can_log", lambda *_: None)
    monkeypatch.setattr(
        "mechcore.study.tracking.log_run", lambda run, **how: logged.append((run, how))
    )
    monkeypatch.setattr(
        "mechcore.study.run.run_study", lambda *_, **__: [Path("out") / "report.html"]
    )
    with pytest.raises(SystemExit) as end:
        main(f"{kind} --out out --wandb mine --wandb-mode online".split())
    assert end.value.code == 0
    assert logged == [(Path("out"), {"project": "mine", "mode": "online"})]


def test_a_run_that_cannot_be_logged_is_done(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(run: Path, **_: Any) -> str:
        if run.name == "first":
            raise MechcoreError("wandb: the disk is full")
        return "there"

    monkeypatch.setattr("mechcore.cli.study.show_run", lambda folder: None)
    monkeypatch.setattr("mechcore.study.tracking.check_can_log", lambda *_: None)
    monkeypatch.setattr("mechcore.study.tracking.log_run", refuse)
    reports = [Path("out") / name / "report.html" for name in ("first", "second")]
    monkeypatch.setattr("mechcore.study.run.run_study", lambda *_, **__: reports)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", "out", "--wandb", "mine"])
    assert end.value.code == 1
    out, err = capsys.readouterr()
    assert "report: out/second/report.html\nWeights & Biases: there\n" in out
    assert err == (
        "mechcore: error: the run is done, but not logged: wandb: the disk is full; rerun the same "
        "command to log it, which does none of the work again\n"
    )


# -- contradictions -------------------------------------------------------------------------------

OWN = f"--model {tiny_encoder_dir()} --train train.csv --id id.csv --ood ood.csv"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --seeds 1", "--model DIR --train FILE --id FILE --ood FILE, or --model DIR --task"),
        (f"accuracy {OWN} --embedded encoder", "--embedded encoder and the model"),
        (f"run {OWN} --device-map auto --device cpu", "--device cpu and device_map auto exclude"),
        (
            "run s.yaml --prune-steps 20 --prune-settings steps=20",
            "--prune-settings: steps is given as an option",
        ),
        ("reproduce cognitive --address auto", "--address is for --executor ray"),
        (
            "reproduce extractive --executor ray --workers 2",
            "--workers is for jobs on this machine",
        ),
        ("reproduce cognitive --wandb-mode online", "--wandb-mode is for --wandb"),
        ("run --wandb-mode offline", "--wandb-mode is for --wandb"),
        ("run s.yaml --wandb-mode online", "--wandb-mode is for --wandb"),
        ("run --prune-settings lr=1,lr=2", "--prune-settings 'lr=1,lr=2': lr occurs twice"),
        (f"run {OWN} --columns text_a=text_a,text_a=text_b", "text_a occurs twice"),
        (f"run {OWN} --label-map 0=entailment,0=neutral", "0 occurs twice"),
    ],
)
def test_contradictions_are_refused_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    before = sorted(here.iterdir())
    with pytest.raises(SystemExit) as end:
        main(command.split())
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("mechcore: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert sorted(here.iterdir()) == before
