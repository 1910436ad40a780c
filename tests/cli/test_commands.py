"""The command line, run in this process: users' files, every command, and bad input."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
import yaml
from transformers import BertModel

import mechcore
from mechcore import categorize_heads
from mechcore.ablation import ablate, find_superadditive
from mechcore.ablation.deciding import DECISIONS
from mechcore.ablation.engines import TreeEngine
from mechcore.ablation.information import INFORMATION
from mechcore.ablation.stability import SEARCH_STABILITY
from mechcore.analyses.ablation import CoreAblation
from mechcore.cli import main
from mechcore.cli.ablation import SetOptions
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.models.model_identity import ModelIdentity
from mechcore.paths.dependence import CORE_DEPENDENCE
from mechcore.paths.search import PATH_SCREENING
from mechcore.paths.tables import PATH_INFORMATION, PATHS
from mechcore.pruning import Subnetwork
from mechcore.steps.masks import FindMasks
from mechcore.study.step import Work
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_decoder_dir, tiny_encoder_dir

SIZES = {"train": 40, "id": 30, "ood": 24}
EMBEDDED = helpers.embedded_shape()
N_COMPONENTS = len(EMBEDDED.components)
KINDS = ("csv", "tsv", "jsonl", "parquet")
QUICK = "--seeds 3,4 --sparsities 0.4,0.7 --prune-steps 3 --prune-settings tolerance=1"
"""Few steps reach no target, hence the tolerance."""
FEW = """
analyses:
  ablation: {controls: 2}
  paths: {controls: 1, max_examples: 6}
"""
"""What has no option of its own, and would take longer than all the rest."""


def write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of the tiny world in every format, and a few broken ones."""
    folder = tmp_path_factory.mktemp("files")
    for role, size in SIZES.items():
        frame = tiny_world.generate(role, size, 11).frame  # type: ignore[arg-type]
        if role == "ood":  # where the heuristic fails
            frame = tiny_world.generate("ood", 2 * size, 11).labelled("non-entailment").frame
        for kind in KINDS:
            write(frame, folder / f"{role}.{kind}")
    write(frame.drop(columns="label"), folder / "no-label.csv")
    write(frame.drop(columns="text_a"), folder / "no-text.csv")
    write(frame.assign(label="maybe"), folder / "other-label.csv")
    write(frame.assign(label=1), folder / "numbers.csv")
    write(frame.iloc[:0], folder / "empty.csv")
    (folder / "broken.parquet").write_text("not parquet")
    (folder / "notes.docx").write_text("text")
    (folder / "few.yaml").write_text(FEW)
    return folder


@pytest.fixture(scope="module")
def pruned(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Masks pruned on the files; not to be changed."""
    out = tmp_path_factory.mktemp("pruned") / "masks"
    assert call(f"prune {own(files)} {QUICK} --out {out}") == 0
    return out


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the files, without its report; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        assert call(f"run {files}/few.yaml {own(files)} {QUICK} --max-non-core 1 --out {out}") == 0
    return out


@pytest.fixture(scope="module")
def other_means(files: Path) -> Path:
    """Means of a checkpoint other than the final one."""
    path = files / "other-means.safetensors"
    (_, step), *_ = encoder_checkpoints()
    code = call(f"means --model {step} --train {files}/train.csv --out {path}")
    assert code == 0
    return path


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model: no classification head."""
    path = tmp_path_factory.mktemp("headless")
    config = hf.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    hf.BertForMaskedLM(config).save_pretrained(path)
    helpers.word_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder, so that nothing written goes unseen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes longer than all the rest."""
    leave_out_the_report(monkeypatch)


def leave_out_the_report(patch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("mechcore.study.run")
    patch.setattr(module, "build_report", lambda out: out / "report.html")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for sweeps."""
    module = importlib.import_module("mechcore.report.ablation_figures")
    monkeypatch.setattr(module, "save_figures", lambda folder, tables: [])


def call(command: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert isinstance(stop.value.code, int)
    return stop.value.code


def own(files: Path, kind: str = "csv") -> str:
    data = " ".join(f"--{role} {files}/{role}.{kind}" for role in SIZES)
    return f"--model {tiny_encoder_dir()} {data}"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def tables(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.csv"))}


# -- the main job ---------------------------------------------------------------------------------


@pytest.mark.both
def test_a_run_on_files(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = (
        f"--model {tiny_encoder_dir()} --train {files}/train.parquet --id {files}/id.tsv "
        f"--ood {files}/ood.jsonl"
    )
    command = f"run {files}/few.yaml {mixed} {QUICK} --max-non-core 2 --out results"
    with helpers.undrawn():
        assert call(command) == 0
    out = capsys.readouterr().out
    assert "report: results/report.html" in out
    assert "in all 4 subnetworks" in out
    assert "components ablated alone" in out
    for name in ("s0.40-seed3", "s0.40-seed4", "s0.70-seed3", "s0.70-seed4"):
        assert Path(f"results/masks/{name}.safetensors").is_file()
    facts = json.loads(Path("results/config.json").read_text())
    assert {role: each["n"] for role, each in facts["data"].items()} == SIZES
    assert facts["settings"]["model"]["source"] == str(tiny_encoder_dir())
    assert facts["settings"]["prune"]["steps"] == 3
    full = pd.read_csv("results/tables/accuracy.csv").query("subnetwork == 'full'")
    expected = evaluate(load_model(tiny_encoder_dir()), encoded(files / "ood.csv"), in_domain=False)
    found = full[(full["role"] == "ood") & (full["subset"] == "all")]["accuracy"].tolist()
    assert found == [pytest.approx(expected.accuracy)]

    # The report can be made again from the folder.
    report = Path("results/report.html")
    before = report.read_text()
    report.unlink()
    with helpers.undrawn():
        assert call("study report results") == 0
    assert capsys.readouterr().out.strip() == "report: results/report.html"
    assert len(report.read_text()) == len(before)
    # Run again, it does nothing twice, but writes the report, with its drawings this time.
    monkeypatch.setattr("mechcore.report.blocks.PNG_DPI", 20)
    made = {p: p.stat().st_mtime_ns for p in Path("results/store/objects").rglob("*")}
    assert call(command) == 0
    assert "26 of 26 jobs were done before" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in Path("results/store/objects").rglob("*")} == made
    assert len(report.read_text()) > len(before)


def encoded(path: Path) -> Any:
    return encode(read_examples(path), load_tokenizer(tiny_encoder_dir()), max_length=64)


def test_all_formats_give_the_same_results(files: Path, pruned: Path) -> None:
    train, id_, ood = KINDS[1:]
    data = f"--train {files}/train.{train} --id {files}/id.{id_} --ood {files}/ood.{ood}"
    assert call(f"prune --model {tiny_encoder_dir()} {data} {QUICK} --out found") == 0
    found = tables(Path("found/tables"))
    assert sorted(found) == ["accuracy", "accuracy_spread", "group_accuracy", "subnetworks"]
    assert found == tables(pruned / "tables")


def test_the_same_results_from_columns_and_labels_of_other_names(files: Path, pruned: Path) -> None:
    renamed = {"text_a": "first", "text_b": "second", "label": "truth", "subset": "kind"}
    for role in SIZES:
        frame = pd.read_csv(files / f"{role}.csv").rename(columns=renamed)
        frame["truth"] = frame["truth"].map({"entailment": "0", "non-entailment": "1"})
        frame.to_csv(f"{role}.csv", index=False)
    columns = ",".join(f"{role}={name}" for role, name in renamed.items())
    names = "--label-map 0=entailment,1=non-entailment"
    command = f"prune {own(Path())} {QUICK} --out renamed --columns {columns} {names}"
    assert call(command) == 0
    assert tables(Path("renamed/tables")) == tables(pruned / "tables")


@pytest.mark.both
@pytest.mark.usefixtures("no_report")
def test_the_embedded_models(capsys: pytest.CaptureFixture[str]) -> None:
    small = f"{QUICK} --max-train 12 --max-id 12 --max-ood 16 --max-non-core 1"
    assert call(f"demo decoder {small} --out decoder") == 0
    facts = json.loads(Path("decoder/config.json").read_text())
    assert "GPT2LMHeadModel" in json.dumps(facts["model"]) or facts["model"]["kind"] != "bridge"
    assert facts["settings"]["model"]["embedded"] == "decoder"
    full = pd.read_csv("decoder/tables/accuracy.csv").query("subnetwork == 'full'")
    assert full[full["subset"] == "all"]["accuracy"].min() > 0.9
    assert call(f"demo {small} --without sweep --out encoder --ood-subsets so_swap,prep") == 0
    rows = pd.read_csv("encoder/tables/accuracy.csv").query("role == 'ood'")
    assert set(rows["subset"]) == {"so_swap", "prep", "all"}
    assert Path("decoder/tables/roles.csv").is_file()
    assert not {"sweep", "information", "roles"} & set(tables(Path("encoder/tables")))


@pytest.mark.usefixtures("no_report")
def test_run_again_to_go_on_or_to_change(
    files: Path, whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"run {files}/few.yaml {own(files)} {QUICK} --max-non-core 1"

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CoreAblation, "run", interrupted)
        capsys.readouterr()
        assert call(f"{command} --out parts") == 130
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.endswith("error: interrupted; give the same command again to go on\n")
    assert not Path("parts/tables").exists()
    with monkeypatch.context() as patch:
        patch.setattr(FindMasks, "run", interrupted)
        assert call(f"{command} --out parts") == 0
    assert tables(Path("parts/tables")) == tables(whole / "tables")
    assert call(f"{command.replace('3,4', '3,5')} --out parts") == 0
    names = {path.stem for path in Path("parts/masks").iterdir()}
    assert names == {"s0.40-seed3", "s0.40-seed5", "s0.70-seed3", "s0.70-seed5"}


def test_a_study_from_init_to_clean(
    files: Path, capsys: pytest.CaptureFixture[str], no_report: None
) -> None:
    assert call("study init mine.yaml") == 0
    assert capsys.readouterr().out == "study: mine.yaml (edit it, then: mechcore run mine.yaml)\n"
    assert call("study init mine.yaml") == 2
    assert "mine.yaml: exists already" in capsys.readouterr().err
    text = Path("mine.yaml").read_text()
    for before, after in (
        ("max_train: 4000", "max_train: 16"),
        ("max_id: 2000", "max_id: 12"),
        ("max_ood: 2000", "max_ood: 12"),
        ("# steps: 400", "{steps: 3, warmup: 1, batch_size: 4, tolerance: 1}"),
        ("  preset: fast", "#"),
        ("max_examples: 512", "max_examples: 8"),
        ("controls: 99", "controls: 2"),
        ("controls: 20\n", "controls: 1\n"),
        ("max_examples: 300", "max_examples: 6"),
        ("seeds: [42, 43, 44]", "seeds: [1, 2]"),
        ("components: all  #", "components: mlps  #"),
    ):
        assert before in text
        text = text.replace(before, after)
    Path("mine.yaml").write_text(text)
    assert call("run mine.yaml --dry-run") == 0
    told = capsys.readouterr().out
    assert "26 of 26 jobs known by now are to do" in told
    assert "prune sparsity 0.7, seed 1 2" in told
    assert not Path("mine").exists()
    assert call("run mine.yaml") == 0
    assert "report: mine/report.html" in capsys.readouterr().out
    singles = pd.read_csv("mine/tables/sweep.csv").query("role == 'id' and subset == 'all'")
    assert singles["set"].tolist() == [f"L{layer}.MLP" for layer in range(EMBEDDED.n_layers)]
    assert call("run mine.yaml --dry-run") == 0
    assert capsys.readouterr().out == ("all 26 jobs are done; a run would only write the results\n")
    assert call("study status mine --verify") == 0
    told = capsys.readouterr().out
    assert "26 of 26 jobs are done" in told
    assert "26 results are what was written" in told
    Path("mine.yaml").write_text(text.replace("seeds: [1, 2]", "seeds: [1, 3]"))
    assert call("run mine.yaml") == 0
    assert call("study clean mine --dry-run") == 0
    # Two prunings and their masks, four times answers, accuracies, smallest, core, pictures,
    # ablation, paths.
    assert "would remove 14 results and 0 leftover files" in capsys.readouterr().out
    before = set(Path("mine/store/objects").glob("*/*"))
    assert call("study clean mine") == 0
    assert len(before) - len(list(Path("mine/store/objects").glob("*/*"))) == 14
    capsys.readouterr()
    assert call("study status mine") == 0
    assert "26 of 26 jobs are done" in capsys.readouterr().out


def test_a_target_out_of_reach_is_a_failed_step(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"prune {own(files)} --seeds 3 --sparsities 0.9 --prune-steps 2 --out masks") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    start = (
        "mechcore: error: pruning: 1 of 1 masks failed: the sparsity of target 0.9, seed 3 ended"
    )
    assert last.startswith(start)
    assert not Path("masks/masks").exists()


def test_masks_that_others_failed_beside_are_kept(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"prune {own(files)} --seeds 3 --sparsities 0.1,0.9 --prune-steps 2 --out masks"
    assert call(f"{command} --prune-settings tolerance=0.2") == 1
    assert "1 of 2 masks failed: the sparsity of target 0.9" in capsys.readouterr().err
    assert [path.name for path in Path("masks/masks").iterdir()] == ["s0.10-seed3.safetensors"]


# -- the single steps -----------------------------------------------------------------------------


def test_means(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"means --model {tiny_encoder_dir()} --train {files}/train.csv"
    assert call(f"{command} --out a/means.safetensors") == 0
    data, model = encoded(files / "train.csv"), load_model(tiny_encoder_dir())
    n_tokens = sum(map(len, data.input_ids))
    assert f"means of {n_tokens} tokens: a/means.safetensors" in capsys.readouterr().out
    found = MeanActivations.load("a/means.safetensors", model)
    torch.testing.assert_close(found.z, MeanActivations.compute(model, data).z)
    assert call(f"{command} --per-position --out positions.safetensors") == 0
    assert MeanActivations.load("positions.safetensors", model).per_position
    assert call(f"{command} --include-padding --out padded.safetensors") == 0
    assert MeanActivations.load("padded.safetensors", model).counts > n_tokens


def test_prune_repeats_what_a_run_does(files: Path, whole: Path, pruned: Path) -> None:
    found = tables(whole / "tables")
    assert tables(pruned / "tables") == {
        name: found[name]
        for name in ("accuracy", "accuracy_spread", "group_accuracy", "subnetworks")
    }
    for path in (whole / "masks").iterdir():
        assert Mask.load(pruned / "masks" / path.name) == Mask.load(path)
    assert call(f"prune {own(files)} {QUICK} --means {whole}/means.safetensors --out again") == 0
    assert tables(Path("again/tables")) == tables(pruned / "tables")


@pytest.mark.parametrize("method", ["attribution", "random"])
def test_prune_by_other_methods(
    files: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"prune {own(files)} --seeds 3,4 --sparsities 0.4,0.7 --prune-method {method}"
    assert call(f"{command} --out masks") == 0
    said = f"{method}: is without chance; one mask serves for all seeds" in capsys.readouterr().err
    assert said == (method != "random")
    table = pd.read_csv("masks/tables/subnetworks.csv")
    seeds = ["3", "4"] if method == "random" else ["0"]
    names = [f"{method}-s{share}-seed{seed}" for share in ("0.40", "0.70") for seed in seeds]
    identity = ModelIdentity.of(load_model(tiny_encoder_dir()))
    assert table["subnetwork"].tolist() == names
    assert set(table["method"]) == {method}
    for row in table.itertuples():
        found = Subnetwork.load(f"masks/masks/{row.subnetwork}.safetensors")
        assert " ".join(map(str, found.mask.kept)) == row.kept
        assert found.mask.identity is not None
        assert not found.mask.identity.differences(identity)


def test_an_interrupted_pruning_goes_on(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"prune {own(files)} --seeds 3 --sparsities 0.4 --prune-steps 6"
    command += " --prune-settings tolerance=1,save_every=2"
    assert call(f"{command} --out whole") == 0
    training: Any = importlib.import_module("mechcore.pruning.mask_training").MaskTraining
    real, steps = training.update, iter(range(100))

    def update(self: Any, *arguments: Any) -> None:
        if next(steps) == 3:
            raise KeyboardInterrupt
        real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training, "update", update)
        assert call(f"{command} --out parts") == 130
    assert "--resume" in capsys.readouterr().err
    assert Path("parts/pruning.safetensors").is_file()
    assert call(f"{command} --out parts") == 2  # in use
    assert call(f"{command.replace('steps 6', 'steps 8')} --out parts --resume") == 2
    assert "is that of another run: steps differ" in capsys.readouterr().err
    assert call(f"{command} --out parts --resume") == 0
    assert contents(Path("parts")).keys() == contents(Path("whole")).keys()
    assert tables(Path("parts/tables")) == tables(Path("whole/tables"))
    a, b = (Subnetwork.load(f"{name}/masks/s0.40-seed3.safetensors") for name in ("parts", "whole"))
    assert torch.equal(a.log_alpha, b.log_alpha)
    assert a.history.equals(b.history)
    assert call(f"{command} --out parts --resume") == 2
    assert "nothing to resume" in capsys.readouterr().err


def test_compare(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"compare {own(files)} {QUICK} --out out") == 0
    table = pd.read_csv("out/tables/methods.csv")
    methods = ["l0", "attribution", "random", "layer-matched"]
    assert table["method"].tolist() == [name for name in methods for _ in range(2)]
    assert table["n"].tolist() == [2, 2, 1, 1, 2, 2, 2, 2]
    single = pd.read_csv("out/tables/subnetworks.csv")
    for row in table.itertuples():
        own_rows = single[
            (single["method"] == row.method) & (single["target_sparsity"] == row.target_sparsity)
        ]
        assert row.kl == pytest.approx(own_rows["kl"].mean())
        assert (row.kl_low, row.kl_high) == (own_rows["kl"].min(), own_rows["kl"].max())
        assert row.id_accuracy == pytest.approx(own_rows["id_accuracy"].mean())
    assert len(list(Path("out/masks").iterdir())) == len(single) == 14
    assert {path.name for path in Path("out/figures").iterdir()} == {
        "kl-by-sparsity.png",
        "kl-by-sparsity.svg",
    }
    assert "layer-matched" in capsys.readouterr().out


@pytest.mark.usefixtures("no_drawings")
def test_effective_size_of_checkpoints(
    files: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (early, path), *_, (last, final) = encoder_checkpoints()
    series = f"{path},{final}"
    data = " ".join(f"--{role} {files}/{role}.csv" for role in SIZES)
    command = f"effective-size --checkpoints {series} {data} {QUICK} --tolerance 0.1"
    real = FindMasks.run

    def interrupted(step: FindMasks, work: Work) -> None:
        if f"checkpoint {early}" not in work.job.name:
            raise KeyboardInterrupt
        real(step, work)

    with monkeypatch.context() as patch:
        patch.setattr(FindMasks, "run", interrupted)
        assert call(f"{command} --out out") == 130
    assert call(f"{command} --out out") == 0
    found = {path.stem: pd.read_csv(path) for path in Path("out/tables").iterdir()}
    assert set(found) == {"data", "full", "grid", "effective_size", "mean_effective_size"}
    means = found["mean_effective_size"]
    assert means["group"].tolist() == ["ID"] * 2 + ["OOD"] * 2 + ["mixed"] * 2
    steps = means["checkpoint"].unique().tolist()
    assert steps == [early, last]
    grid = found["grid"]
    assert grid[["seed", "sparsity"]].drop_duplicates().to_numpy().tolist() == [
        [3, 0.4],
        [4, 0.4],
        [3, 0.7],
        [4, 0.7],
    ]
    # The grid's figures are those of a run of the checkpoint.
    own_table = pd.read_csv(whole / "tables" / "accuracy.csv")
    rows = own_table.query("role == 'ood' and subset != 'all' and seed == 3")
    part = grid[(grid["checkpoint"] == steps[1]) & (grid["seed"] == 3)]
    wanted = rows.set_index(["subset", "target_sparsity"])["accuracy"]
    for row in part[part["subset"].str.startswith("ood:")].itertuples():
        assert row.accuracy == wanted[row.subset.removeprefix("ood:"), row.sparsity]
    assert Path("out/figures/effective-size.svg").is_file()
    # A study of nothing else has the same.
    settings = json.loads(Path("out/config.json").read_text())["settings"]
    Path("sizes.yaml").write_text(yaml.safe_dump(settings))
    assert call("run sizes.yaml --out study --store out/store") == 0
    assert tables(Path("study/tables")) == tables(Path("out/tables"))


def test_export(files: Path) -> None:
    model = load_model(tiny_encoder_dir())
    mask = Mask.full(model).without("L0.H1", "L1.MLP")
    mask.save("mask.safetensors")
    mask.save("mask.json")
    command = f"export --model {tiny_encoder_dir()} --mask mask.safetensors"
    assert call(f"{command} --train {files}/train.csv --out pruned") == 0
    by_hand = command.replace(".safetensors", ".json")
    assert call(f"{by_hand} --train {files}/train.csv --out by-hand") == 0
    assert call(f"{command} --fill zero --out zeroed") == 0
    data = encoded(files / "ood.csv")
    means = MeanActivations.compute(model, encoded(files / "train.csv"))
    for folder, fill in (("pruned", "mean"), ("by-hand", "mean"), ("zeroed", "zero")):
        mine = evaluate(load_model(folder), data)
        masked = evaluate(model, data, mask=mask, means=means, fill=fill)
        torch.testing.assert_close(mine.logits, masked.logits, rtol=0, atol=1e-5)


def test_export_warns_of_means_that_the_mask_was_not_found_with(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"--model {tiny_encoder_dir()}"
    pruning = "--prune-method attribution --sparsities 0.5 --seeds 0"
    assert call(f"prune {model} --train {files}/train.csv {pruning} --out masks") == 0
    (mask,) = Path("masks/masks").iterdir()
    capsys.readouterr()
    for train, out in (("train", "same"), ("id", "other")):
        command = f"export {model} --mask {mask} --train {files}/{train}.csv"
        assert call(f"{command} --out {out}") == 0
        said = capsys.readouterr().err
        assert ("found with means over other data" in said) == (train == "id")
    assert call(f"export {model} --mask masks/masks --train {files}/id.csv --out none") == 2
    assert "masks/masks: is a folder; name one of the mask files in it" in capsys.readouterr().err


def test_heads(files: Path) -> None:
    command = f"heads --model {tiny_encoder_dir()} --data {files}/id.csv --max-examples 10"
    assert call(f"{command} --out heads.csv") == 0
    assert call(f"{command} --out heads.json") == 0
    table = pd.read_csv("heads.csv")
    assert table["component"].tolist() == [str(head) for head in EMBEDDED.heads]
    assert set(table["n_examples"]) == {10}
    masses = table[[column for column in table if column.startswith("mass_")]]
    assert ((masses >= 0) & (masses <= 1)).all(axis=None)
    rows = json.loads(Path("heads.json").read_text())
    assert [row["component"] for row in rows] == table["component"].tolist()
    assert [row["category"] for row in rows] == table["category"].tolist()
    assert [row["mass_previous"] for row in rows] == pytest.approx(
        table["mass_previous"].tolist(), abs=1e-6
    )
    examples = read_examples(files / "id.csv").sample(10, 0)
    data = encode(examples, load_tokenizer(tiny_encoder_dir()), max_length=48, words=True)
    expected = categorize_heads(load_model(tiny_encoder_dir()), data)
    pd.testing.assert_frame_equal(
        table.fillna({"also": ""}), expected, rtol=1e-5, atol=1e-7, check_dtype=False
    )


def test_heads_with_explanations(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"heads --model {tiny_decoder_dir()} --data {files}/id.csv --max-examples 20"
    command += " --min-mass 0.2 --min-ratio 1.5 --explain 0.0,L1.H2"
    assert call(f"{command} --out heads.csv") == 0
    shown = capsys.readouterr().out
    table = pd.read_csv("heads.csv")
    counts = table["category"].value_counts()
    assert len(counts) > 1
    for label, count in counts.items():
        assert f"{label} {count} " in shown
    assert "Labels from the two halves of the examples are the same for" in shown
    for head in ("L0.H0", "L1.H2"):
        label = table.set_index("component")["category"][head]
        assert f"\n{head} is {label}: " in shown
    assert "mass of at least 0.2 and 1.5 times" in shown


def test_heads_of_an_encoder_without_a_head(files: Path) -> None:
    model = BertModel.from_pretrained(tiny_encoder_dir(), add_pooling_layer=False)
    model.save_pretrained("body")
    load_tokenizer(tiny_encoder_dir()).save_pretrained("body")
    for name, source in (("body", "body"), ("whole", tiny_encoder_dir())):
        command = f"heads --model {source} --data {files}/id.csv --max-examples 10"
        assert call(f"{command} --out {name}.csv") == 0
    pd.testing.assert_frame_equal(pd.read_csv("body.csv"), pd.read_csv("whole.csv"), rtol=1e-5)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("fill", ["mean", "resample"])
def test_ablate(files: Path, fill: Any) -> None:
    command = f"ablate {own(files)} --components L1.H0,2.3,L3.MLP --fill {fill} --resamples 20"
    assert call(f"{command} --out found") == 0
    found = pd.read_csv("found/ablation.csv")
    sets = ["L1.H0", "L2.H3", "L3.MLP", "L1.H0+L2.H3+L3.MLP"]
    assert found["set"].unique().tolist() == sets
    interactions = pd.read_csv("found/interactions.csv")
    assert interactions["set"].unique().tolist() == sets[3:]
    if fill == "resample":
        return
    model = load_model(tiny_encoder_dir())
    means = MeanActivations.compute(model, encoded(files / "train.csv"))
    rows = found[found["subset"] == "all"].set_index(["role", "set"])
    information = INFORMATION.read(Path("found/information.csv"))
    assert information["set"].unique().tolist() == sets
    assert set(information["role"]) == {"id", "ood"}
    assert information["reason"].str.startswith(("too few examples", "one label only")).all()
    for role in ("id", "ood"):
        data = encoded(files / f"{role}.csv")
        full = evaluate(model, data, in_domain=False)
        for name in sets:
            mask = Mask.full(model).without(*name.split("+"))
            without = evaluate(model, data, mask=mask, means=means, fill=fill)
            row = rows.loc[(role, name)]
            assert row["accuracy_change"] == pytest.approx(without.accuracy - full.accuracy)
            margin = without.margin.mean() - full.margin.mean()
            assert row["margin_change"] == pytest.approx(margin, abs=1e-3)
    assert call(command.replace(",L3.MLP", " --no-joint") + " --out alone") == 0
    assert set(pd.read_csv("alone/ablation.csv")["kind"]) == {"single"}
    assert pd.read_csv("alone/interactions.csv").empty


def test_paths(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    means = "--means means.safetensors"
    assert (
        call(f"means --model {tiny_encoder_dir()} --train {files}/train.csv --out {means[8:]}") == 0
    )
    command = f"paths {own(files)} {means} --resamples 20"
    assert call(f"{command} --senders 1.0,2.3 --receivers 2.3,3.1,3.mlp,answer --out found") == 0
    found = PATHS.read(Path("found/paths.csv"))
    information = PATH_INFORMATION.read(Path("found/path_information.csv"))
    ends = [(f"L1.H0{also}", to) for also, to in (
        ("", "L2.H3"), ("+L2.H3", "L3.H1"), ("+L2.H3", "L3.MLP"), ("+L2.H3", "answer")
    )]  # fmt: skip
    for table in (found, information):
        rows = table.query("subset == 'all' and role == 'ood'")
        assert list(zip(rows["senders"], rows["receiver"], strict=True)) == ends
    assert sorted(path.name for path in Path("found").iterdir()) == [
        *("path_information.csv", "paths.csv")
    ]
    model = load_model(tiny_encoder_dir())
    data, cut = encoded(files / "ood.csv"), ["L1.H0+L2.H3>L3.MLP"]
    answers = ablate(model, cut, data, MeanActivations.load("means.safetensors"), role="ood")
    row = found.set_index(["role", "subset", "receiver"]).loc[("ood", "all", "L3.MLP")]
    [path] = answers.without
    assert row["margin_change"] == pytest.approx(answers.changes(path, "margin").mean(), abs=1e-4)
    shown = capsys.readouterr().out
    assert "negative: worse so" in shown
    change = f"{row['margin_change']:+.2f}".replace("-", "\u2212")
    assert any("L3.MLP" in line and f" {change} " in line for line in shown.splitlines())
    # Each sender in turn, by inputs; and beside random heads.
    more = "--senders 1.0,2.3 --receivers 3.1 --each --inputs qkv --out each"
    assert call(f"{command} {more}") == 0
    each = PATHS.read(Path("each/paths.csv")).query("subset == 'all' and role == 'id'")
    assert set(zip(each["senders"], each["input"], strict=True)) == {
        (sender, what) for sender in ("L1.H0", "L2.H3") for what in "qkv"
    }
    assert call(f"{command} --senders 1.0,2.3 --receivers 3.1 --controls 3 --out beside") == 0
    beside = CORE_DEPENDENCE.read(Path("beside/core_dependence.csv"))
    assert set(beside["receiver"]) == {"L3.H1"}
    assert set(beside["n_controls"]) == {3}
    assert set(beside["role"]) == {"id", "ood"}
    assert not list(Path("beside").glob("*.safetensors*"))


def test_a_search_for_paths(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"paths {own(files)} --max-train 20 --resamples 20 --senders 0.mlp,1.0,1.mlp --each"
    command += " --receivers 2.mlp,3.1,answer --find 2 --measured 5 --out found"
    assert call(command) == 0
    screening = PATH_SCREENING.read(Path("found/path_screening.csv")).set_index("set")
    assert len(screening) == 9
    assert screening["margin_change"].count() == 5
    found = PATHS.read(Path("found/paths.csv")).query("subset == 'all'")
    assert set(found["role"]) == {"ood"}
    assert set(found["set"]) == set(screening["margin_change"].abs().nlargest(2).index)
    examples = len(encoded(files / "ood.csv"))
    assert examples // 2 <= found["n"].iloc[0] <= examples // 2 + 4  # half of every subset
    assert sorted(path.name for path in Path("found").iterdir()) == [
        *("path_information.csv", "path_screening.csv", "paths.csv")
    ]
    shown = capsys.readouterr().out
    assert "9 sets of paths: 4 screened out by derivatives" in shown
    assert all(each in shown for name in found["set"] for each in name.split(">"))


SHAPE = ModelShape(4, 3)
HEADS = [f"L{layer}.H{head}" for layer in range(4) for head in range(3)]
MLPS = [f"L{layer}.MLP" for layer in range(4)]


@pytest.mark.parametrize(
    ("options", "single", "joint"),
    [
        ({"components": "heads"}, HEADS, []),
        ({"components": "mlps", "joint": True}, MLPS, []),
        ({"components": "all"}, [*HEADS, *MLPS], []),
        ({"components": "L2.H1,1.0"}, ["L1.H0", "L2.H1"], ["L1.H0+L2.H1"]),
        ({"components": "L2.H1,1.0,2.1", "joint": False}, ["L1.H0", "L2.H1"], []),
        ({"components": "2.1"}, ["L2.H1"], []),
        (
            {"components": "mlps,0.0", "pairs": True, "joint": False},
            ["L0.H0", *MLPS],
            [
                *("L0.H0+L0.MLP", "L0.H0+L1.MLP", "L0.H0+L2.MLP", "L0.H0+L3.MLP"),
                *("L0.MLP+L1.MLP", "L0.MLP+L2.MLP", "L0.MLP+L3.MLP", "L1.MLP+L2.MLP"),
                *("L1.MLP+L3.MLP", "L2.MLP+L3.MLP"),
            ],
        ),
        (
            {"components": "1.0,2.1,3.mlp", "subsets": True, "pairs": True},
            ["L1.H0", "L2.H1", "L3.MLP"],
            ["L1.H0+L2.H1", "L1.H0+L3.MLP", "L2.H1+L3.MLP", "L1.H0+L2.H1+L3.MLP"],
        ),
        (
            {"sets": "L1.H0+2.1, 0.mlp+L2.H1 ,0.2"},
            ["L0.H2", "L0.MLP", "L1.H0", "L2.H1"],
            ["L1.H0+L2.H1", "L0.MLP+L2.H1"],
        ),
        (
            {"core": "core.csv", "components": "0.2"},
            ["L0.H2", "L1.H1", "L2.MLP"],
            ["L0.H2+L1.H1+L2.MLP"],
        ),
        (
            {"core": "run", "sets_file": "sets.txt", "joint": False},
            ["my own", "L1.H1", "L2.MLP", "L3.H0"],
            ["a pair", "L1.H1+L3.H0"],
        ),
        ({"core": "run", "sets_file": "joint.txt"}, ["L1.H1", "L2.MLP"], ["whole core"]),
    ],
)
def test_which_sets_are_ablated(here: Path, options: Any, single: Any, joint: Any) -> None:
    (here / "run" / "tables").mkdir(parents=True)
    for name in ("core.csv", "run/tables/core.csv"):
        (here / name).write_text("component,layer\nL1.H1,1\nL2.MLP,2\n")
    (here / "sets.txt").write_text("my own: L0.H0\na pair: L1.H1 L0.H0\nL3.H0 L1.H1\n")
    (here / "joint.txt").write_text("whole core: L1.H1 L2.MLP\n")
    options = {k: Path(v) if k in ("core", "sets_file") else v for k, v in options.items()}
    found = SetOptions(**options).kinds(SHAPE, seed=0)
    kinds = {str(each): kind for each, kind in found.items()}
    assert sorted(n for n, kind in kinds.items() if kind == "single") == sorted(single)
    assert [n for n, kind in kinds.items() if kind == "joint"] == joint


def test_two_sets_of_one_name(here: Path) -> None:
    (here / "sets.txt").write_text("same: L0.H0 L1.H0\nsame: L0.H0 L1.H1\n")
    with pytest.raises(InputError, match="same is given more than once"):
        SetOptions(sets_file=here / "sets.txt").kinds(SHAPE, seed=0)


def test_random_controls_of_what_is_named() -> None:
    named: list[dict[str, Any]] = [{"components": "1.0,1.1,3.mlp"}, {"sets": "1.0+3.mlp,1.1"}]
    for options in named:
        kinds = SetOptions(**options, controls=4).kinds(ModelShape(4, 6), seed=1)
        drawn = [each for each, kind in kinds.items() if kind == "random"]
        assert [str(each) for each in drawn] == [f"random {i}" for i in range(1, 5)]
        for each in drawn:
            assert [c.layer for c in each.components if c.is_head] == [1, 1]
            assert len(each) == 3
            assert not {Component(1, 0), Component(1, 1), Component(3)} & set(each.components)


def test_random_controls_are_none_of_the_sets_named() -> None:
    own = SetOptions(components="0.0", sets="L0.H1,L0.H2")
    kinds = replace(own, controls=1).kinds(ModelShape(1, 4), seed=0)
    assert {each.name or str(each): kind for each, kind in kinds.items()} == {
        "L0.H0": "single",
        "L0.H1": "single",
        "L0.H2": "single",
        "random 1": "random",
    }
    with pytest.raises(InputError, match="only 1 different ones found, 2 wanted"):
        replace(own, controls=2).kinds(ModelShape(1, 4), seed=0)


@pytest.mark.usefixtures("no_figures")
def test_ablate_sets_from_everywhere(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run/tables").mkdir(parents=True)
    Path("run/tables/core.csv").write_text("component\nL1.H0\nL2.H3\nL3.MLP\n")
    Path("sets.csv").write_text("set\nL0.H1+L1.H0\n")
    sets = "--core run --subsets --sets L0.H2+L3.H0 --sets-file sets.csv --controls 2"
    assert call(f"ablate {own(files)} {sets} --fill zero --resamples 20 --out found") == 0
    assert {path.name for path in Path("found").iterdir()} == {
        # Not all subsets of all, so without dividends.
        *("ablation.csv", "interactions.csv", "interaction_stability.csv", "information.csv")
    }
    table = pd.read_csv("found/ablation.csv").drop_duplicates("set").set_index("set")
    kinds = table["kind"].to_dict()
    assert sorted(name for name, kind in kinds.items() if kind == "single") == [
        *("L0.H1", "L0.H2", "L1.H0", "L2.H3", "L3.H0", "L3.MLP")
    ]
    joint = [
        *("L1.H0+L2.H3", "L1.H0+L3.MLP", "L2.H3+L3.MLP", "L1.H0+L2.H3+L3.MLP"),
        *("L0.H2+L3.H0", "L0.H1+L1.H0"),
    ]
    assert [name for name, kind in kinds.items() if kind == "joint"] == joint
    assert [name for name, kind in kinds.items() if kind == "random"] == ["random 1", "random 2"]
    assert table.loc["random 1", "size"] == 3
    together = pd.read_csv("found/interactions.csv")
    assert together["set"].unique().tolist() == joint
    assert set(together["role"]) == {"id", "ood"}
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*joint, "random 2", "tables and figures: found"])
    [members] = re.findall(r"^random 1: (L[\w.]+\+L[\w.]+\+L[\w.]+)$", shown, re.M)
    rows = pd.read_csv("found/ablation.csv").query("subset == 'all' and role == 'ood'")
    rows = rows.set_index("set")
    model = load_model(tiny_encoder_dir())
    mask = Mask.full(model).without(members.split("+"))
    without = evaluate(model, files / "ood.csv", mask=mask, fill="zero", in_domain=False)
    assert rows.loc["random 1", "accuracy"] == pytest.approx(without.accuracy)
    [line] = re.findall(r"^L1\.H0 +ood +(.*)", shown, re.M)
    changes = [
        f"{name}_change{end}" for name in ("accuracy", "margin") for end in ("", "_low", "_high")
    ]
    scale = np.repeat([100, 1], 3)
    numbers = [
        float(text) for text in re.findall(r"[-+]?\d+(?:\.\d+)?", line.replace("\u2212", "-"))
    ]
    expected = scale * rows.loc["L1.H0", changes].to_numpy(dtype=float)
    np.testing.assert_allclose(numbers[2:8], expected, atol=0.051)


@pytest.mark.usefixtures("no_figures")
def test_ablate_all_subsets(files: Path) -> None:
    command = f"ablate {own(files)} --components 1.0,2.3,3.mlp --subsets --resamples 20"
    assert call(f"{command} --out found") == 0
    found = {name: pd.read_csv(f"found/{name}.csv") for name in ("dividends", "shapley")}
    whole = pd.read_csv("found/ablation.csv").query("size == 3 and subset == 'all'")
    assert whole["role"].tolist() == ["id", "ood"]
    for row in whole.itertuples():
        for column, table in (("shapley", found["shapley"]), ("dividend", found["dividends"])):
            part = table[(table["role"] == row.role) & (table["subset"] == "all")]
            total = part.groupby("metric")[column].sum()
            assert total["margin"] == pytest.approx(row.margin_change, abs=1e-6)
            assert total["accuracy"] == pytest.approx(row.accuracy_change, abs=1e-9)


def test_ablate_draws_with_the_seed_of_the_data(files: Path) -> None:
    command = f"ablate {own(files)} --components L0.H1 --fill resample --resamples 5"
    for seed in (1, 2):
        assert call(f"{command} --data-seed {seed} --out seed{seed}") == 0
    first, second = (pd.read_csv(f"seed{seed}/ablation.csv") for seed in (1, 2))
    assert (first["margin_change"] != second["margin_change"]).any()


def test_ablate_every_head_and_draw(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechcore.report.blocks.PNG_DPI", 20)
    Path("sets.txt").write_text("first: 0.0 0.1\nsecond: 0.0 0.2\nthird: 0.1 0.2\n")
    command = f"ablate {own(files)} --components heads --sets-file sets.txt --fill zero"
    assert call(f"{command} --resamples 5 --out found") == 0
    table = pd.read_csv("found/ablation.csv")
    assert table.loc[table["kind"] == "single", "set"].nunique() == len(EMBEDDED.heads)
    assert {path.name for path in Path("found/figures").iterdir()} == {
        f"single-changes-{metric}.{end}"
        for metric in ("accuracy", "margin")
        for end in ("png", "svg")
    }
    together = pd.read_csv("found/interactions.csv")
    assert together["set"].unique().tolist() == ["first", "second", "third"]
    shown = capsys.readouterr().out
    assert f"the 20 of {len(EMBEDDED.heads) + 3} sets with the lowest changes in margin" in shown
    worst = table[table["subset"] == "all"].groupby("set")["margin_change"].min()
    assert worst.idxmin() in shown
    assert worst.idxmax() not in shown


@pytest.mark.usefixtures("no_figures")
def test_precisions_agree(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"ablate {own(files)} --components 1.0,2.3,3.mlp --pairs --resamples 20"
    for name, options in {"float32": "", "bfloat16": "--precision bfloat16"}.items():
        capsys.readouterr()
        assert call(f"{command} {options} --out {name}") == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "on a sample of" in line]
        assert len(lines) == (2 if name == "bfloat16" else 0)
    for line, role in zip(lines, ("id", "ood"), strict=True):
        share = re.fullmatch(
            rf"bfloat16: ([0-9.]+) % of the answers on a sample of {role} are those of float32",
            line,
        )
        assert share is not None
        assert 90 < float(share[1]) <= 100
    unsure = ["p", "p_adjusted", "superadditive", "floor", "ceiling"]  # may turn on a last digit
    for table in ("ablation", "interactions"):
        tree, coarse = (
            pd.read_csv(f"{name}/{table}.csv").drop(columns=unsure, errors="ignore")
            for name in ("float32", "bfloat16")
        )
        assert not tree.equals(coarse)
        ends = [column for column in tree if column.endswith(("low", "high"))]  # of few examples
        pd.testing.assert_frame_equal(
            tree.drop(columns=ends), coarse.drop(columns=ends), rtol=0, atol=0.3
        )


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_sweep_goes_on(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"ablate {own(files)} --components 1.0,2.3,3.mlp --subsets --resamples 20"
    command += " --batch-size 8"
    assert call(f"{command} --out whole") == 0
    tree: Any = importlib.import_module("mechcore.ablation.engines").TreeEngine
    real, done = tree.run, []

    def stopping(after: int) -> Any:
        def run(self: Any, *arguments: Any) -> None:
            if len(done) == after:
                raise KeyboardInterrupt
            done.append(arguments[:2])
            real(self, *arguments)

        return run

    states = ["parts/sweep-id.safetensors", "parts/sweep-ood.safetensors"]
    for after, resume, left in ((2, "", states[:1]), (5, " --resume", states)):
        with monkeypatch.context() as patch:
            patch.setattr(tree, "run", stopping(after))
            capsys.readouterr()
            assert call(f"{command} --out parts{resume}") == 130
        wanted = (
            "mechcore: error: interrupted; give the same command again with --resume to go on\n"
        )
        assert capsys.readouterr().err.endswith(wanted)
        assert sorted(map(str, Path("parts").iterdir())) == left
    before = contents(Path("parts"))
    assert call(f"{command} --out parts") == 2  # in use
    assert "parts: exists already" in capsys.readouterr().err
    for other, differs in (("1.0,2.3", "sets"), ("1.0,2.3,3.mlp --fill zero", "means, fill")):
        assert call(f"{command.replace('1.0,2.3,3.mlp', other)} --out parts --resume") == 2
        assert f"that of another run: {differs} differ" in capsys.readouterr().err
    assert contents(Path("parts")) == before
    with monkeypatch.context() as patch:
        patch.setattr(tree, "run", stopping(100))
        assert call(f"{command} --out parts --resume") == 0
    # 30 and 24 examples are four and three batches; none of them ran twice.
    assert len(done) == 7
    assert contents(Path("parts")) == contents(Path("whole"))
    assert call(f"{command} --out parts --resume") == 2
    assert "nothing to resume, there is no sweep-id.safetensors" in capsys.readouterr().err


def test_a_sweep_interrupted_while_drawing_need_not_run_again(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    command = f"ablate {own(files)} --components 1.0,2.3 --fill zero --resamples 5"
    command += " --no-joint --out found"
    drawing: Any = importlib.import_module("mechcore.report.ablation_figures")
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "save_figures", interrupted)
        assert call(command) == 130
    tree: Any = importlib.import_module("mechcore.ablation.engines").TreeEngine
    monkeypatch.setattr(drawing, "save_figures", lambda folder, tables: [])
    monkeypatch.setattr(tree, "run", interrupted)
    assert call(f"{command} --resume") == 0
    files_left = {path.name for path in Path("found").iterdir()}
    assert files_left == {
        *("ablation.csv", "information.csv", "interactions.csv", "interaction_stability.csv")
    }


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("by", ["screening", "exact"])
def test_a_search_is_that_of_the_function(
    files: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    names = "L1.H0,L2.H3,L2.MLP,L3.MLP"
    command = f"search {own(files)} --components {names} --pairs 4 --max-size 2 --search-on id"
    assert call(f"{command} --screening-by {by} --out found") == 0
    printed = capsys.readouterr().out
    assert {path.name for path in Path("found/tables").iterdir()} == {
        *("data.csv", "superadditive.csv", "screening.csv", "search_stability.csv")
    }
    model = load_model(tiny_encoder_dir())
    wanted = find_superadditive(
        model,
        encoded(files / "id.csv"),
        MeanActivations.compute(model, encoded(files / "train.csv")),
        components=names.split(","),
        n_pairs=4,
        max_size=2,
        screening_by=by,
    )
    for name, table in (("superadditive", wanted.found), ("screening", wanted.screening)):
        written = pd.read_csv(f"found/tables/{name}.csv")
        pd.testing.assert_frame_equal(written, table, rtol=0, atol=1e-5)
    assert set(wanted.found["role"]) == {"id"}
    stable = SEARCH_STABILITY.read(Path("found/tables/search_stability.csv"))
    pd.testing.assert_frame_equal(stable, wanted.stability, check_dtype=False, atol=1e-5)
    assert all(name in printed for name in wanted.found["set"])


@pytest.mark.usefixtures("no_report")
def test_a_race_that_was_interrupted_goes_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"search {own(files)} --components L1.H0,L2.H3,L3.MLP --max-size 2 --all"
    command += " --bound 4 --least 0.2 --batch-size 8"
    assert call(f"{command} --out whole") == 0
    table = DECISIONS.read(Path("whole/tables/race.csv"))
    assert table["decision"].tolist() == ["within"] * 3
    real, parts = TreeEngine.run, []

    def stopping(self: Any, part: int, *more: Any) -> None:
        if len(parts) == 1:
            raise KeyboardInterrupt
        parts.append(part)
        real(self, part, *more)

    with monkeypatch.context() as patch:
        patch.setattr(TreeEngine, "run", stopping)
        assert call(f"{command} --out parts") == 130
    assert call(f"{command} --out parts") == 0
    assert tables(Path("parts/tables")) == tables(Path("whole/tables"))


@pytest.mark.usefixtures("no_report")
def test_a_question_asked_in_the_folder_of_a_run_is_answered_there(
    files: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, "run")
    before = tables(Path("run/tables"))
    keys = {path.name for path in Path("run/store/objects").glob("*/*")}
    assert call("smallest run --loss 0.3") == 0
    after = tables(Path("run/tables"))
    assert set(after) == set(before)
    assert {name for name in after if after[name] != before[name]} == {"smallest"}
    assert len({path.name for path in Path("run/store/objects").glob("*/*")} - keys) == 1
    assert "Smallest subnetwork within 30 points of accuracy" in capsys.readouterr().out


def test_ablate_races_single_components(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"ablate {own(files)} --components L1.H0,L2.H3,L2.MLP,L3.MLP --no-joint --race"
    assert call(f"{command} --largest 1 --out found") == 0
    shown = capsys.readouterr().out
    assert [path.name for path in Path("found").iterdir()] == ["race.csv"]
    table = DECISIONS.read(Path("found/race.csv"))
    assert table.groupby("role")["decision"].value_counts().to_dict() == {
        ("id", "top"): 1,
        ("id", "rest"): 3,
        ("ood", "top"): 1,
        ("ood", "rest"): 3,
    }
    for role, part in table.groupby("role"):
        best = part.set_index("set")["effect"].idxmax()
        assert part.set_index("set").loc[best, "decision"] == "top"
        assert f"{role}: " in shown


def test_swapped_labels_are_noticed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swap = "entailment=non-entailment,non-entailment=entailment"
    command = f"ablate {own(files)} --components L1.H0 --fill zero --label-map {swap}"
    assert call(f"{command} --out found") == 0
    lines = capsys.readouterr().err.splitlines()
    (warning,) = [line for line in lines if "warning" in line]
    assert warning.startswith("mechcore: warning: in-domain accuracy 0.")
    assert "non-entailment -> non-entailment (1)" in warning


def test_a_language_model_of_ones_own(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(files / "id.csv")
    frame["text_a"] = "[BOS] " + frame["text_a"] + " [SEP] " + frame["text_b"] + " [ANS]"
    frame.drop(columns="text_b").to_csv("prompts.csv", index=False)
    data = "--train prompts.csv --id prompts.csv --ood prompts.csv"
    command = f"ablate --model {tiny_decoder_dir()} {data} --components L1.H0 --fill zero"
    answers = "--answers entailment=yes,non-entailment=no"
    assert call(f"{command} --prompt {{a}} {answers} --out found") == 0
    rows = pd.read_csv("found/ablation.csv")
    accuracy = rows["accuracy"] - rows["accuracy_change"]
    assert accuracy[rows["subset"] == "all"].min() > 0.9
    capsys.readouterr()
    assert call(f"{command} --out other") == 2
    assert "needs answer words" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"mechcore {mechcore.__version__}\n"
    assert call("--help") == 0
    shown = capsys.readouterr().out
    commands = "run means prune core heads ablate interactions paths study train-world"
    for command in commands.split():
        assert command in shown
        assert call(f"{command} --help") == 0
        assert "--help" in capsys.readouterr().out


# -- bad input ------------------------------------------------------------------------------------

Refused = Callable[..., None]


@pytest.fixture
def refused(
    files: Path, headless: Path, other_means: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Check that a command is refused in one line and leaves nothing behind."""

    def check(command: str, message: str) -> None:
        places = {
            "own": own(files),
            "data": own(files).split(maxsplit=2)[2],
            "final": tiny_encoder_dir(),
            "files": files,
            "headless": headless,
            "means": other_means,
            "decoder": tiny_decoder_dir(),
        }
        before = contents(here), sorted(here.rglob("*"))
        capsys.readouterr()
        # A lone '' stands for an empty argument.
        arguments = [a if a != "''" else "" for a in command.format(**places).split()]
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        out, err = capsys.readouterr()
        # Options of one's own stand behind others that they replace.
        err = re.sub(
            r"mechcore: warning: --[a-z-]+ is given 2 times; the last one counts\n", "", err
        )
        assert len(err.splitlines()) == 1, err
        assert err.startswith("mechcore: error: ")
        assert message.format(**places) in err
        assert out == ""
        assert (contents(here), sorted(here.rglob("*"))) == before

    return check


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--train {files}/nosuch.csv", "{files}/nosuch.csv: no such file"),
        ("--id {files}", "{files}: a folder without"),
        ("--ood {files}/no-label.csv", "no-label.csv: no column for label"),
        ("--train {files}/no-text.csv", "no-text.csv: no column for text_a"),
        ("--id {files}/empty.csv", "empty.csv: no labelled example"),
        ("--id {files}/broken.parquet", "broken.parquet: cannot be read as .parquet"),
        ("--id {files}/notes.docx", "notes.docx: unknown kind of file"),
        ("--id {files}/other-label.csv", "label 'maybe': not a class of the checkpoint"),
        ("--ood {files}/other-label.csv", "label 'maybe': not a class of the checkpoint"),
        ("--ood {files}/numbers.csv", "numbers have no agreed meaning"),
        ("--ood-subsets nosuch", "subset 'nosuch' is empty; subsets are so_swap"),
        ("--ood-subsets prep,nosuch", "subset 'nosuch' is empty"),
        ("--ood-label nosuch", "no example with label 'nosuch' (--ood-label)"),
        ("--columns label=nosuch", "no column 'nosuch'"),
        ("--columns truth=label", "columns: unknown role 'truth'; roles are text_a"),
        ("--columns label", "--columns 'label': expected NAME=VALUE pairs"),
        ("--class-names a", "1 given (a), but the checkpoint has 2 classes"),
        (
            "--max-id -1",
            "--max-id is -1; expected a whole number from 1 to 2147483647, or 0 for all",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "prune"])
def test_bad_data(refused: Refused, command: str, options: str, message: str) -> None:
    refused(f"{command} {{own}} {options} --out deep/results", message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{own} --sparsities 1.0", "sparsity 1.0: expected a share of components in [0, 1)"),
        ("{own} --sparsities 0.5,-0.1", "sparsity -0.1: expected a share"),
        ("{own} --sparsities 50", "in [0, 1); did you mean 0.5 (50 %)?"),
        ("{own} --sparsities nan", "sparsity nan: expected a share"),
        ("{own} --sparsities abc", "--sparsities 'abc': expected numbers"),
        ("{own} --sparsities ''", "sparsities []: expected at least one"),
        ("{own} --sparsities 0.5,0.50", "sparsities [0.5, 0.5]: expected at least one, each once"),
        ("{own} --seeds 1,x", "--seeds '1,x': expected numbers"),
        ("{own} --seeds 1.5", "--seeds '1.5': expected numbers"),
        ("{own} --seeds 1,1", "seeds [1, 1]: expected at least one, each once"),
        ("{own} --seeds -1", "seed -1: expected a whole number"),
        ("{own} --data-seed -1", "--data-seed is -1; expected a whole number"),
        ("{own} --prune-steps 0", "--prune-steps"),
        ("{own} --prune-steps many", "'--prune-steps': expected a whole number ("),
        ("{own} --batch-size 0", "--batch-size"),
        ("{own} --max-length 0", "--max-length"),
        ("{own} --backend nosuch", "--backend"),
        ("{own} --nosuch", "No such option: --nosuch"),
        ("{own} extra.yaml more", "unexpected extra argument"),
        ("--model {final} --id {files}/id.csv --ood {files}/ood.csv", "missing --train"),
        ("--model {final}", "missing --train"),
        ("--model {files}/nosuch {data}", "{files}/nosuch: no such directory"),
        ("--model ./nosuch {data}", "checkpoint ./nosuch: no such directory"),
        ("--model nobody/nothing {data}", "nobody/nothing: neither a local checkpoint nor"),
        ("--model {files} {data}", "no config.json in this directory"),
        ("--model {files}/id.csv {data}", "id.csv: is a file; expected a directory"),
        ("--model {headless} {data}", "BertForMaskedLM, which has no classification"),
        ("--model {decoder} {data}", "needs answer words for the labels"),
        ("{own} --prompt {{a}} ", "is a classifier, which reads its texts without a prompt"),
        (
            "--model {decoder} {data} --prompt {{a}} --answers entailment=yes,non-entailment=no",
            "expected the places {{a}} and {{b}}, each once",
        ),
        (
            "--model {decoder} {data} --class-names a,b",
            "language model, whose classes are its",
        ),
        ("--embedded decoder --prompt {{a}}{{b}}", "are for checkpoints of your own"),
        ("{own} --answers yes", "--answers 'yes': expected NAME=VALUE pairs"),
    ],
)
@pytest.mark.parametrize("command", ["run", "prune"])
def test_bad_options(refused: Refused, command: str, options: str, message: str) -> None:
    refused(f"{command} {options}", message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run {data}", "run: no model; name one with its data (--model DIR"),
        ("prune {data}", "files were given without --model"),
        *(
            (f"{command} {options}", message)
            for command in ("demo", "prune")
            for options, message in (
                ("--ood-subsets nosuch", "subset 'nosuch' is empty; subsets are so_swap"),
                ("--ood-label nosuch", "no example with label 'nosuch' (--ood-label)"),
            )
        ),
    ],
)
def test_bad_options_without_a_model(refused: Refused, command: str, message: str) -> None:
    refused(command, message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run none.yaml", "none.yaml: no such file; mechcore study init writes one"),
        ("run study.json", "study.json: no such file"),
        ("run {own} --address auto", "--address is for --executor ray"),
        ("run {own} --device tpu", "device is 'tpu'; expected cpu, mps, cuda"),
        pytest.param(
            "run {own} --device cuda",
            "device cuda: this machine has none",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
        ("study status .", "no study in this folder (no study.json)"),
        ("study clean .", "no study in this folder (no study.json)"),
        ("study init study.json", "expected a file that ends in .yaml, .yml"),
        ("nosuch", "No such command 'nosuch'"),
        ("ablate {own}", "--components"),
        ("ablate {own} --components L9.H0", "component L9.H0: out of range"),
        ("ablate {own} --components L0.H8", "component L0.H8: out of range"),
        ("ablate {own} --components L1.H0,6.MLP", "component L6.MLP: out of range"),
        ("ablate {own} --components head3", "component 'head3': not a component name"),
        (
            "ablate {own} --components L1H3 --max-ood 5",
            "(did you mean L1.H3?)",
        ),
        (
            "paths {own} --senders a1.h3 --max-ood 5",
            "(did you mean L1.H3?)",
        ),
        ("paths {own} --senders L1.H3 --receivers L2H3 --max-ood 5", "(did you mean L2.H3?)"),
        ("search {own} --components L1H3 --max-ood 5", "did you mean L1.H3?"),
        (
            "heads --model {final} --data {files}/id.csv --max-examples 5 --explain L1H3",
            "did you mean L1.H3?",
        ),
        (
            "ablate {own} \u2013components L1.H0",
            "'\u2013components' has a dash or quotes from a text proc",
        ),
        (
            "core “masks”",
            "'“masks”' has a dash or quotes from a text processor: write masks",
        ),
        ("core ~/no-such-masks", f"{Path.home()}/no-such-masks: no such file"),
        ("core m --out=~/no-such/masks", "m: no such file"),
        ("ablate {own} --components ,", "no component"),
        ("ablate {own} --sets L0.H1,+", "--sets '+': names no component; expected some, as in L1"),
        ("ablate {own} --components L0.H1 --controls 1000000", "--controls"),
        (
            "ablate {own} --components L0.H1 --controls 500",
            f"only {EMBEDDED.n_heads - 1} different ones found, 500 want",
        ),
        (
            "compare {own} --sparsities 0.995",
            f"sparsity 0.995: keeps none of the model's {N_COMPONENTS} components",
        ),
        (
            "prune {own} --sparsities 0.5,0.995",
            f"sparsity 0.995: keeps none of the model's {N_COMPONENTS} components",
        ),
        ("ablate {own} --components L1.H0 --means {means}", "computed on another model"),
        ("ablate {own} --components L1.H0 --means {files}/id.csv", "not means written by mechcore"),
        ("ablate {own} --components L1.H0 --means nosuch", "means file nosuch: no such file"),
        ("ablate {own} --components L1.H0 --fill nosuch", "fill 'nosuch': unknown"),
        ("ablate {own} --components L1.H0 --precision half", "--precision"),
        ("ablate {own} --components L1.H0 --resamples 0", "--resamples"),
        ("ablate {own} --components L1.H0 --resume", "nothing to resume"),
        ("ablate {own} --components L1.H0 --controls -1", "--controls"),
        ("ablate {own} --components heads --controls 2", "of 0 other components wanted"),
        ("ablate {own} --components L1.H0 --pairs", "sizes [2] of 1 different components"),
        ("ablate {own} --components heads --subsets", "give sizes, or at most 10 components"),
        ("paths {own}", "no sender; name some with --senders or --core"),
        ("paths {own} --senders head3", "component 'head3': not a component name"),
        ("paths {own} --senders L9.H0", "component L9.H0: out of range"),
        ("paths {own} --senders L1.H0 --receivers L2", "receiver 'L2': cannot be read"),
        ("paths {own} --senders L1.H0 --receivers ,", "no sender runs before any receiver"),
        ("paths {own} --senders L1.H0 --receivers L1.H2", "no sender runs before any receiver"),
        ("paths {own} --senders L1.H0 --inputs o", "--inputs"),
        ("paths {own} --senders L1.H0 --each --controls 2", "--controls: stand beside receivers"),
        ("paths {own} --senders L1.H0 --inputs q --controls 2", "--controls: stand beside recei"),
        ("paths {own} --senders L1.H0 --controls 2 --find 3", "--find: takes no --controls"),
        (
            "paths {own} --senders L1.H0 --find 30 --measured 3",
            "--find: is 30, more than the 3 that are measured; raise --measured",
        ),
        ("paths {own} --senders L1.MLP --controls 2", "core: found L1.MLP; expected heads"),
        (
            "paths {own} --senders L1.H0 --receivers answer --controls 2",
            "found the answer only",
        ),
        ("paths {own} --senders L1.H0 --resume", "nothing to resume"),
        ("ablate {own} --core nosuch", "core table nosuch: no such file"),
        ("ablate {own} --core {files}", "no such file; expected core.csv or a run's folder"),
        ("ablate {own} --core {files}/id.csv", "id.csv: no column component; found text_a"),
        ("ablate {own} --core {files}/id.parquet", "id.parquet: cannot be read"),
        ("ablate {own} --sets L0.H0+head3", "component 'head3': not a component name"),
        ("ablate {own} --sets L0.H0+L9.H0", "component L9.H0: out of range"),
        ("ablate {own} --sets-file nosuch", "sets file nosuch: no such file"),
        ("ablate {own} --sets-file {files}/id.csv", "id.csv: cannot be read (no column 'set'"),
        ("ablate {own} --sets-file {files}/notes.docx", "notes.docx, line 1: component 'text'"),
        ("search {own} --components L1.H0", "search: 1 component; expected at least two"),
        ("search {own} --components L1.H0,L1.H1", "max_size is 3; expected 2 to the 2"),
        ("search {own} --components L1.H0,L9.H1", "component L9.H1: out of range"),
        ("search {own} --components head3", "component 'head3': not a component name"),
        ("search {own} --subset nosuch", "search: no subset 'nosuch'; the data has so_swap"),
        ("search {own} --max-size 1", "--max-size"),
        ("search {own} --pairs 0", "--pairs"),
        ("search {own} --search-on train", "--search-on"),
        ("prune {own} --means {means}", "computed on another model"),
        ("prune {own} --prune-settings nosuch=1", "unknown setting 'nosuch'; expected steps"),
        ("prune {own} --prune-settings lr=fast", "pruning: lr is 'fast'; expected a number"),
        ("prune {own} --prune-settings clip=-1", "pruning: clip is -1; expected a number from 0"),
        ("prune {own} --prune-preset nosuch", "--prune-preset"),
        ("prune {own} --prune-method layer-matched", "mechcore compare does"),
        ("prune {own} --resume", "nothing to resume, there is no pruning.safetensors"),
        (
            "compare {own} --methods l0,nosuch",
            "pruning method 'nosuch': unknown",
        ),
        ("compare {own} --methods layer-matched", "name l0 among them, too"),
        ("effective-size --checkpoints {files} {data}", "is no checkpoint and has none in it"),
        ("effective-size --embedded decoder", "the embedded decoder has no series"),
        ("effective-size {own} --seeds 1", "only: effective_size has nothing to do in this study"),
        ("roles nosuch.yaml", "nosuch.yaml: no such file"),
        ("roles {files}", "no study in this folder"),
        ("dose {own} --components 0", "--components is 0; expected a whole number from 1"),
        ("export --model {final}", "--mask is missing"),
        ("export --model {final} --mask nosuch", "mask file nosuch: no such file"),
        ("export --mask {means}", "not a mask written by mechcore"),
        ("means --model {final}", "--train"),
        ("means --model {final} --train {files}/nosuch.csv", "nosuch.csv: no such file"),
        (
            "means --model {final} --train {files}/id.csv --include-padding --per-position",
            "cannot be combined",
        ),
        ("heads --model {final}", "--data is missing"),
        ("heads --data {files}/id.csv", "files were given without --model"),
        ("means --train {files}/id.csv", "files were given without --model"),
        ("means --out {files}", "exists already"),
        ("means --out {files}/id.csv/means.safetensors", "cannot be written"),
        ("heads --model {final} --data {files}/nosuch.csv", "nosuch.csv: no such file"),
        ("heads --out heads.txt", "heads.txt: expected the ending .csv or .json"),
        ("heads --min-mass 0", "thresholds: mass is 0.0; expected a share of attention"),
        ("heads --min-ratio 0.5", "thresholds: ratio is 0.5; expected a multiple"),
        (
            "heads --max-examples 2 --explain L9.H9",
            "--explain: L9.H9 is no head of the model, which has "
            f"layers 0-{EMBEDDED.n_layers - 1} with heads 0-{EMBEDDED.n_heads - 1}, L0.H0",
        ),
        ("study report nosuch", "nosuch/config.json: not found"),
        ("study report {files}", "config.json: not found"),
    ],
)
def test_bad_commands(refused: Refused, command: str, message: str) -> None:
    refused(command, message)


@pytest.mark.parametrize(
    "command",
    [
        "run {own}",
        "prune {own}",
        "ablate {own} --components L1.H0",
    ],
)
def test_a_folder_in_use_is_left_alone(refused: Refused, here: Path, command: str) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("text")
    message = "the folder is not empty" if command.startswith("run") else "exists already"
    refused(f"{command} --out mine", f"mine: {message}")


@pytest.mark.parametrize("command", ["run {own}", "prune {own}", "means", "heads"])
def test_a_file_in_the_way_is_left_alone(refused: Refused, here: Path, command: str) -> None:
    (here / "mine.csv").write_text("text")
    refused(f"{command} --out mine.csv", "mine.csv: ")
