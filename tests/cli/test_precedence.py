"""What beats what: the command line the file, the file the defaults; contradictions are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mechcore.cli import main
from mechcore.errors import MechcoreError
from mechcore.main_study.config import StudyConfig
from mechcore.pruning import PruneSettings
from mechcore.settings import changed
from mechcore.study.executors import Local, OnRay
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


Asked = Callable[[str], tuple[Any, dict[str, Any]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a command would do a study of, and how."""

    def ask(command: str) -> tuple[Any, dict[str, Any]]:
        calls: list[Any] = []

        def catch(settings: Any, *_: Any, **how: Any) -> None:
            calls.append((settings, how))
            raise Stopped

        monkeypatch.setattr("mechcore.study.run.run_study", catch)
        with pytest.raises(Stopped):
            main(command.split())
        return calls[0]

    return ask


def at(settings: Any, where: str) -> Any:
    """A setting by its name in a file."""
    for name in where.split("."):
        settings = getattr(settings, name)
    return settings


def test_what_the_command_line_leaves_out_is_as_in_the_file(asked: Asked) -> None:
    study, _ = asked("run s.yaml")
    assert (study.seeds, study.target_sparsities, study.batch_size) == ((7,), (0.3,), 8)
    assert (study.model.dtype, study.data.max_train, study.data.seed) == ("bfloat16", 16, 5)
    assert (study.prune.steps, study.prune.precision, study.prune.lr) == (30, "bfloat16", 0.1)
    assert asked("demo encoder")[0] == StudyConfig()  # without a file


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
        ("--columns text_a=p,subset=kind", "data.columns", {"text_a": "p", "subset": "kind"}),
        ("--label-map 0=yes,1=no", "data.label_map", {"0": "yes", "1": "no"}),
        ("--ood-subsets so_swap,prep", "data.ood_subsets", ("so_swap", "prep")),
    ],
)
def test_the_command_line_beats_the_file_also_with_a_default(
    asked: Asked, options: str, where: str, wanted: object
) -> None:
    (alone, _), (both, _) = asked("run s.yaml"), asked(f"run s.yaml {options}")
    assert at(both, where) == wanted != at(alone, where)
    if "." not in where:  # and nothing else is another
        assert plain(replace(both, **{where: getattr(alone, where)})) == plain(alone)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("cognitive", {"projection": "auto", "n_test": 1600}),
        ("cognitive --quick", {"projection": "pca", "n_test": 160, "sizes": (100, 400)}),
        ("cognitive --quick --projection auto", {"projection": "auto", "n_test": 160}),
        ("cognitive --quick --test 240 --sizes 100,6400", {"n_test": 240, "sizes": (100, 6400)}),
        (
            "cognitive --quick --steps 1500 --patience 6 --fine-tuned-rates 5e-4,1e-3",
            {"fine_tuned.learning_rates": (5e-4, 1e-3), "fine_tuned.steps": 1500}
            | {"scratch.steps": 1500, "fine_tuned.patience": 6, "scratch.warmup_steps": 5},
        ),
        (
            "extractive --quick",
            {"seeds": (0,), "epochs": (1,), "counterfactuals": 2, "cuts": (1,)},
        ),
        (
            "extractive --quick --seeds 0,1,2 --counterfactuals 10",
            {"seeds": (0, 1, 2), "counterfactuals": 10},
        ),
        (
            "extractive --quick --ordering-epochs 16 --grafting-epochs 3 --replay 0",
            {"ordering.epochs": 16, "ordering.replay": 0, "grafting.epochs": 3, "seeds": (0,)},
        ),
    ],
)
def test_quick_beats_the_defaults_and_options_beat_quick(
    asked: Asked, options: str, wanted: dict[str, Any]
) -> None:
    settings, _ = asked(f"reproduce {options}")
    assert {name: at(settings, name) for name in wanted} == wanted


def test_settings_come_from_the_file_and_the_command_line(asked: Asked) -> None:
    assert asked("demo encoder")[1]["origins"] == {}
    study, how = asked("demo --max-id 60")
    assert (study.model.embedded, study.data.max_train, study.data.max_id) == ("failing", 1000, 60)
    assert study.analyses.repair.rungs == ("threshold", "last-layer")
    assert how["origins"]["data.max_train"] == "file tiny_failing/study.yaml"
    assert how["origins"]["data.max_id"] == "command line"
    assert asked("demo decoder --without sweep")[1]["origins"] == dict.fromkeys(
        ("model.embedded", "analyses.sweep"), "command line"
    )
    names = "model.dtype data.max_train data.max_id data.max_ood data.seed seeds target_sparsities"
    names += " batch_size analyses.ablation.max_non_core resources.cpus"
    study, how = asked("run s.yaml")
    prune = [f"prune.{name}" for name in changed(PruneSettings(), study.prune)]
    assert {"prune.lr", "prune.steps", "prune.precision"} < {*prune}
    wanted = dict.fromkeys([*names.split(), *prune], "file s.yaml")
    assert how["origins"] == wanted
    changes = {"seeds": "command line", "prune.steps": "command line"}
    changes |= {"analyses.fill": "command line", "resources.device": "command line"}
    options = "--seeds 42,43,44 --prune-steps 40 --fill zero --device cpu"
    assert asked(f"run s.yaml {options}")[1]["origins"] == wanted | changes


def test_settings_of_other_kinds_come_from_a_base_and_quick(asked: Asked) -> None:
    _, how = asked("reproduce extractive --base gpt2 --quick --replay 3 --seeds 7")
    origins = how["origins"]
    assert origins["base"] == origins["ordering.learning_rate"] == "--base"
    assert origins["base_steps"] == origins["learning_rates"] == "--quick"
    assert origins["ordering.replay"] == origins["seeds"] == "command line"
    assert "precision" not in origins


def test_options_hold_for_every_variant(here: Path, asked: Asked) -> None:
    text = "\nvariants: {a: {seeds: [1], prune: {steps: 40}}, b: {training: null}}\n"
    (here / "v.yaml").write_text(FILE + text)
    study, _ = asked("run v.yaml --prune-steps 5 --cpus 1")
    a, b = study.each_variant().values()
    assert (a.seeds, b.seeds) == ((1,), (7,))
    assert a.prune == b.prune == replace(b.prune, steps=5)
    assert a.resources.cpus == b.resources.cpus == study.resources.cpus == 1
    study, _ = asked("run v.yaml --seeds 2,3")
    assert [variant.seeds for variant in study.each_variant().values()] == [(2, 3)] * 2


every_kind = pytest.mark.parametrize(
    "kind", ["demo", "reproduce cognitive", "reproduce extractive"]
)


@every_kind
def test_every_kind_of_study_is_done_as_the_options_say(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _, how = asked(f"{kind} --workers 2 --cpus 1 --device cpu --store here")
    assert how["executor"] == Local(2, 1, "cpu")
    assert how["store"] == Path("here")
    monkeypatch.setattr("mechcore.models.devices.check_device", lambda device: None)
    _, how = asked(f"{kind} --workers 1 --gpus 0.5")
    assert how["executor"] == Local(1, None, "cuda")
    pytest.importorskip("ray", reason="Ray is not installed (pip install .[ray])")
    _, how = asked(f"{kind} --executor ray --address host:1 --cpus 2 --gpus 1")
    assert how["executor"] == OnRay("host:1", 2, 1.0, "cuda")


def test_the_demo_does_two_jobs_at_once_where_there_are_cores(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, workers in ((1, 1), (8, 2)):
        monkeypatch.setattr("mechcore.study.executors.n_cores", lambda cores=cores: cores)
        assert asked("demo")[1]["executor"] == Local(workers)


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


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command whose study is done, with a function that logs it; its exit code."""

    def run(command: str, log: Callable[..., Any], *names: str) -> Any:
        modules = ("mechcore.cli.study.show_run", "mechcore.papers.cognitive.command._show_results")
        for name in (*modules, "mechcore.papers.extractive.command._show_results"):
            monkeypatch.setattr(name, lambda folder: None)
        reports = [Path("out") / name / "report.html" for name in names]
        monkeypatch.setattr("mechcore.study.run.run_study", lambda *_, **__: reports)
        monkeypatch.setattr("mechcore.study.tracking.check_can_log", lambda *_: None)
        monkeypatch.setattr("mechcore.study.tracking.log_run", log)
        with pytest.raises(SystemExit) as end:
            main(f"{command} --out out --wandb mine".split())
        return end.value.code

    return run


@every_kind
def test_finished_studies_of_every_kind_are_logged(finished: Any, kind: str) -> None:
    logged: list[Any] = []
    Path("out").mkdir()
    code = finished(
        f"{kind} --wandb-mode online", lambda *run, **how: logged.append((run, how)), ""
    )
    assert code == 0
    assert logged == [((Path("out"),), {"project": "mine", "mode": "online"})]


def test_a_run_that_cannot_be_logged_is_done(
    finished: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise MechcoreError("wandb: the disk is full")

    assert finished("demo", refuse, "first", "second") == 1
    out, err = capsys.readouterr()
    assert "report: out/second/report.html\n" in out
    wanted = "mechcore: error: the run is done, but not logged: wandb: the disk is full; rerun the"
    assert err.startswith(wanted)
    assert err.count("\n") == 1


OWN = f"--model {tiny_encoder_dir()} --train train.csv --id id.csv --ood ood.csv"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --seeds 1", "--model DIR --train FILE --id FILE --ood FILE, or --model DIR --task"),
        (f"accuracy {OWN} --embedded encoder", "--embedded encoder and the model"),
        (f"run {OWN} --device-map auto --device cpu", "--device cpu and device_map auto exclude"),
        (
            "run s.yaml --prune-steps 20 --prune-settings steps=20",
            "--prune-settings: steps also has its own option",
        ),
        ("reproduce cognitive --address auto", "--address needs --executor ray"),
        (
            "reproduce extractive --executor ray --workers 2",
            "--workers is for jobs on this machine",
        ),
        ("reproduce cognitive --wandb-mode online", "--wandb-mode needs --wandb"),
        ("run --wandb-mode offline", "--wandb-mode needs --wandb"),
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
