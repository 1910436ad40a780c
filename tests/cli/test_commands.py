"""The command line, run in this process: users' files, and every command."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from main_study.small_study import leave_out_the_report

from mechcore.ablation import find_superadditive
from mechcore.ablation.effects.stability import STABILITY
from mechcore.cli import main
from mechcore.components import Mask
from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.evaluation.evaluate import evaluate, kl
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, load_tokenizer
from mechcore.pruning import Subnetwork
from mechcore.pruning.discretise import layer_matched
from mechcore.steps.masks import FindMasks
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_decoder_dir, tiny_encoder_dir

SIZES = {"train": 40, "id": 30, "ood": 24}
EMBEDDED = helpers.embedded_shape()
N_COMPONENTS = len(EMBEDDED.components)
QUICK = "--seeds 3,4 --target-sparsities 0.4,0.7 --prune-steps 3 --prune-settings tolerance=1"
"""Few steps reach no target, hence the tolerance."""
FEW = """
analyses:
  ablation: {controls: 2}
  paths: {controls: 1, max_examples: 6}
"""
"""What has no option of its own, and would take longer than all the rest."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of the tiny world, also in other formats."""
    folder = tmp_path_factory.mktemp("files")
    frames = {split: tiny_world.generate(split, size, 11) for split, size in SIZES.items()}  # type: ignore[arg-type]
    # Where the heuristic fails.
    frames["ood"] = tiny_world.generate("ood", 2 * SIZES["ood"], 11).labelled("non-entailment")
    for split, examples in frames.items():
        examples.frame.to_csv(folder / f"{split}.csv", index=False)
    frames["train"].frame.to_parquet(folder / "train.parquet", index=False)
    frames["id"].frame.to_csv(folder / "id.tsv", index=False, sep="\t")
    frames["ood"].frame.to_json(folder / "ood.jsonl", orient="records", lines=True)
    (folder / "few.yaml").write_text(FEW)
    return folder


@pytest.fixture(scope="module")
def pruned(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Subnetworks of the files and their accuracies, interrupted and resumed; not to be changed."""
    out, error = tmp_path_factory.mktemp("pruned") / "masks", io.StringIO()
    command = f"accuracy {own(files)} {QUICK} --out {out}"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        with patch.context() as stopped, contextlib.redirect_stderr(error):
            stopped.setattr(FindMasks, "run", interrupted)
            assert call(command) == 130
        assert "Traceback" not in error.getvalue()
        end = "error: interrupted; rerun the same command to resume\n"
        assert error.getvalue().endswith(end)
        assert not (out / "tables").exists()
        assert call(command) == 0
    return out


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the files, without its report; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        assert call(f"run {files}/few.yaml {own(files)} {QUICK} --max-non-core 1 --out {out}") == 0
    return out


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


def call(command: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert isinstance(stop.value.code, int)
    return stop.value.code


def texts(files: Path) -> str:
    return " ".join(f"--{split} {files}/{split}.csv" for split in SIZES)


def own(files: Path) -> str:
    return f"--model {tiny_encoder_dir()} {texts(files)}"


def tables(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.csv"))}


@pytest.mark.both
def test_a_run_on_files(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = (
        f"--model {tiny_encoder_dir()} --train {files}/train.parquet --id {files}/id.tsv "
        f"--ood {files}/ood.jsonl"
    )
    command = f"run {files}/few.yaml {mixed} {QUICK} --max-non-core 2 --out results"
    with monkeypatch.context() as patch:
        leave_out_the_report(patch)
        assert call(command) == 0
    out = capsys.readouterr().out
    assert "report: results/report.html" in out
    assert "all 4 subnetworks" in out
    assert "No role of 28 components is known" in out
    names = {f"s{share}-seed{seed}.safetensors" for share in ("0.40", "0.70") for seed in (3, 4)}
    assert {path.name for path in Path("results/masks").iterdir()} == names
    facts = json.loads(Path("results/config.json").read_text())
    assert {split: data["n"] for split, data in facts["data"].items()} == SIZES
    assert facts["settings"]["model"]["source"] == str(tiny_encoder_dir())
    assert facts["settings"]["prune"]["steps"] == 3
    full = pd.read_csv("results/tables/accuracy.csv").query("subnetwork == 'full'")
    expected = evaluate(load_model(tiny_encoder_dir()), encoded(files / "ood.csv"), in_domain=False)
    accuracy = full[(full["split"] == "ood") & (full["subset"] == "all")]["accuracy"].tolist()
    assert accuracy == [pytest.approx(expected.accuracy)]

    # The report can be made from the folder.
    with helpers.undrawn():
        assert call("report results") == 0
    assert capsys.readouterr().out.strip() == "report: results/report.html"
    before = len(Path("results/report.html").read_text())
    # Run again, it does nothing twice, but writes the report, with its drawings this time.
    monkeypatch.setattr("mechcore.report.blocks.PNG_DPI", 20)
    made = {p: p.stat().st_mtime_ns for p in Path("results/store/objects").rglob("*")}
    assert call(command) == 0
    assert "29 of 29 jobs are already done" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in Path("results/store/objects").rglob("*")} == made
    assert len(Path("results/report.html").read_text()) > before


def encoded(path: Path) -> Any:
    return encode(read_examples(path), load_tokenizer(tiny_encoder_dir()), max_length=64)


@pytest.mark.both
@pytest.mark.usefixtures("no_report")
def test_the_embedded_decoder() -> None:
    small = f"{QUICK} --max-train 12 --max-id 12 --max-ood 16 --max-non-core 1"
    without = "sweep,paths,dose,failure,knockouts,responses"
    assert call(f"demo decoder {small} --without {without} --workers 1 --out out") == 0
    facts = json.loads(Path("out/config.json").read_text())
    assert "GPT2LMHeadModel" in json.dumps(facts["model"]) or facts["model"]["kind"] != "bridge"
    assert facts["settings"]["model"]["embedded"] == "decoder"
    full = pd.read_csv("out/tables/accuracy.csv").query("subnetwork == 'full'")
    assert full[full["subset"] == "all"]["accuracy"].min() > 0.9
    assert not {"sweep", "information", "roles"} & set(tables(Path("out/tables")))


@pytest.mark.everyday
def test_a_study_from_init_to_clean(
    files: Path, capsys: pytest.CaptureFixture[str], no_report: None
) -> None:
    assert call("study init mine.yaml") == 0
    assert capsys.readouterr().out == "study: mine.yaml (edit it, then: mechcore run mine.yaml)\n"
    assert call("study init mine.yaml") == 2
    assert "mine.yaml: already exists" in capsys.readouterr().err
    text = Path("mine.yaml").read_text()
    for before, after in (
        ("max_train: 4000", "max_train: 16"),
        ("max_id: 2000", "max_id: 12"),
        ("max_ood: 2000", "max_ood: 12"),
        ("# steps: 400", "{steps: 3, warmup: 1, batch_size: 4, tolerance: 1}"),
        ("  preset: fast", "#"),
        ("max_examples: 512", "max_examples: 8"),
        ("controls: 99", "controls: 2"),
        ("seeds: [42, 43, 44]", "seeds: [1, 2]"),
        ('components: "all"  #', 'components: "mlps"  #'),
    ):
        assert before in text
        text = text.replace(before, after)
    Path("mine.yaml").write_text(text)
    run = "run mine.yaml --without paths,dose"
    assert call(f"{run} --dry-run") == 0
    printed = capsys.readouterr().out
    assert "27 of 27 jobs known so far remain" in printed
    assert "prune sparsity 0.7, seed 1 2" in printed
    assert not Path("mine").exists()
    assert call(run) == 0
    assert "report: mine/report.html" in capsys.readouterr().out
    singles = pd.read_csv("mine/tables/sweep.csv").query("split == 'id' and subset == 'all'")
    assert singles["set"].tolist() == [f"L{layer}.MLP" for layer in range(EMBEDDED.n_layers)]
    assert call(f"{run} --dry-run") == 0
    assert capsys.readouterr().out == ("all 27 jobs are done; a run would only write the results\n")
    assert call("study status mine --verify") == 0
    printed = capsys.readouterr().out
    assert "27 of 27 jobs are done" in printed
    assert "27 results match their checksums" in printed
    Path("mine.yaml").write_text(text.replace("seeds: [1, 2]", "seeds: [1, 3]"))
    assert call(run) == 0
    assert call("study clean mine --dry-run") == 0
    # Two prunings and their masks, four times answers, accuracies, smallest, core, pictures,
    # failure, ablation, rankings, responses.
    assert "would remove 16 results and 0 leftover files" in capsys.readouterr().out
    before = set(Path("mine/store/objects").glob("*/*"))
    assert call("study clean mine") == 0
    assert len(before) - len(list(Path("mine/store/objects").glob("*/*"))) == 16
    capsys.readouterr()
    assert call("study status mine") == 0
    assert "27 of 27 jobs are done" in capsys.readouterr().out


def test_a_question_alone_repeats_what_a_run_does(whole: Path, pruned: Path) -> None:
    alone, every = tables(pruned / "tables"), tables(whole / "tables")
    assert alone == {name: every[name] for name in alone}
    for path in (whole / "masks").iterdir():
        assert Mask.load(pruned / "masks" / path.name) == Mask.load(path)


@pytest.mark.usefixtures("no_report")
def test_methods(files: Path, pruned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(pruned, "out")  # whose masks are reused
    assert call("methods out") == 0
    table = pd.read_csv("out/tables/methods.csv")
    methods = ["l0", "attribution", "random", "layer-matched"]
    assert table["method"].tolist() == [name for name in methods for _ in range(2)]
    assert table["n"].tolist() == [2, 2, 1, 1, 2, 2, 2, 2]
    single = pd.read_csv(pruned / "tables" / "subnetworks.csv").groupby("target_sparsity")
    over_seeds = single["kl"].agg(["mean", "min", "max"]).to_numpy()
    np.testing.assert_allclose(table.loc[:1, ["kl", "kl_low", "kl_high"]], over_seeds)
    accuracy = single["id_accuracy"].mean().to_numpy()
    np.testing.assert_allclose(table.loc[:1, "id_accuracy"], accuracy)
    # As many heads of each layer as the trained masks keep, others.
    model, data = load_model(tiny_encoder_dir()), encoded(files / "id.csv")
    means = MeanActivations.load("out/means.safetensors", model)
    trained = [Subnetwork.load(f"out/masks/s0.40-seed{seed}.safetensors") for seed in (3, 4)]
    full = evaluate(model, data)
    expected = [
        kl(full.logits, evaluate(model, data, mask=match.mask, means=means).logits).mean().item()
        for match in layer_matched(trained)
    ]
    row = table[table["method"] == "layer-matched"].iloc[0]
    assert row["kl"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert "Lowest in-domain KL from the full model: " in capsys.readouterr().out


@pytest.mark.usefixtures("no_drawings")
def test_effective_size_of_checkpoints(files: Path, whole: Path) -> None:
    (early, path), *_, (last, final) = encoder_checkpoints()
    data = f"--checkpoints {path},{final} {texts(files)}"
    assert call(f"effective-size {data} {QUICK} --tolerance 0.1 --out out") == 0
    frames = {path.stem: pd.read_csv(path) for path in Path("out/tables").iterdir()}
    assert set(frames) == {"data", "full", "grid", "effective_size", "mean_effective_size"}
    means = frames["mean_effective_size"]
    assert means["group"].tolist() == ["ID"] * 2 + ["OOD"] * 2 + ["mixed"] * 2
    steps = means["checkpoint"].unique().tolist()
    assert steps == [early, last]
    grid = frames["grid"]
    masks = [*grid[["target_sparsity", "seed"]].drop_duplicates().itertuples(index=False)]
    assert masks == [(0.4, 3), (0.4, 4), (0.7, 3), (0.7, 4)]
    # The grid's figures are those of a run of the checkpoint.
    own_table = pd.read_csv(whole / "tables" / "accuracy.csv")
    rows = own_table.query("split == 'ood' and subset != 'all' and seed == 3")
    part = grid[(grid["checkpoint"] == steps[1]) & (grid["seed"] == 3)]
    wanted = rows.set_index(["subset", "target_sparsity"])["accuracy"]
    for row in part[part["subset"].str.startswith("ood:")].itertuples():
        assert row.accuracy == wanted[row.subset.removeprefix("ood:"), row.target_sparsity]
    assert Path("out/figures/effective-size.svg").is_file()
    # A study of nothing else has the same.
    settings = json.loads(Path("out/config.json").read_text())["settings"]
    Path("sizes.yaml").write_text(yaml.safe_dump(settings))
    assert call("run sizes.yaml --out study --store out/store") == 0
    assert tables(Path("study/tables")) == tables(Path("out/tables"))


def test_export(files: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, name = f"export {whole} --mask", "s0.40-seed3"
    model, data = load_model(tiny_encoder_dir()), encoded(files / "ood.csv")
    mask = Mask.load(whole / "masks" / f"{name}.safetensors")
    means = MeanActivations.load(whole / "means.safetensors", model)
    options: dict[Any, str] = {"mean": "", "zero": "--fill zero"}
    for fill, option in options.items():
        assert call(f"{command} {name} {option} --out {fill}") == 0
        mine = evaluate(load_model(fill), data)
        masked = evaluate(model, data, mask=mask, means=means, fill=fill)
        torch.testing.assert_close(mine.logits, masked.logits, rtol=0, atol=1e-5)
    assert call(f"{command} {name} --out zero") == 2
    assert "zero: already exists" in capsys.readouterr().err
    assert call(f"{command} s0.40-seed5 --out none") == 2
    assert "no mask 's0.40-seed5' (--mask); expected one of s0.40-s" in capsys.readouterr().err


@pytest.mark.usefixtures("no_report")
def test_ablation_of_components(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"ablation {own(files)} --components L1.H0,2.3,L3.MLP --sets 1.0+0.mlp --subsets"
    assert call(f"{command} --max-joint 0 --controls 2 --resamples 20 --out found") == 0
    assert set(tables(Path("found/tables"))) == {
        *("ablation", "data", "dividends", "interactions", "shapley", "stability"),
    }
    assert not list(Path("found").glob("masks/*"))
    table = pd.read_csv("found/tables/ablation.csv")
    singles = ["L0.MLP", "L1.H0", "L2.H3", "L3.MLP"]
    joint = ["L1.H0+L2.H3+L3.MLP", "L0.MLP+L1.H0", "L1.H0+L2.H3", "L1.H0+L3.MLP", "L2.H3+L3.MLP"]
    kinds = table.drop_duplicates("set").groupby("kind", sort=False)["set"].apply(list)
    assert kinds["single"] == singles
    assert kinds["joint"] == joint
    assert kinds["non-core"][0].startswith("other components (mean of")
    assert pd.read_csv("found/tables/interactions.csv")["set"].unique().tolist() == joint
    assert "components ablated alone, " in capsys.readouterr().out
    # Asked for once more, of interactions too, nothing is done again.
    assert call("interactions found --components L1.H0,2.3,L3.MLP") == 0
    assert "3 of 3 jobs are already done" in capsys.readouterr().err
    rows = table[table["subset"] == "all"].set_index(["split", "set"])
    for split in ("id", "ood"):
        for column, name in (("shapley", "shapley"), ("dividend", "dividends")):
            part = pd.read_csv(f"found/tables/{name}.csv").query("split == @split")
            total = part[part["subset"] == "all"].groupby("metric")[column].sum()
            whole = rows.loc[(split, "L1.H0+L2.H3+L3.MLP")]
            assert total["margin"] == pytest.approx(whole["margin_change"], abs=1e-6)
            assert total["accuracy"] == pytest.approx(whole["accuracy_change"], abs=1e-9)


@pytest.mark.usefixtures("no_report")
def test_a_search_is_that_of_the_function(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "L1.H0,L2.H3,L2.MLP,L3.MLP"
    command = f"search {own(files)} --components {names} --pairs 4 --max-size 2 --search-on id"
    assert call(f"{command} --out found") == 0
    printed = capsys.readouterr().out
    assert {path.name for path in Path("found/tables").iterdir()} == {
        *("data.csv", "superadditive.csv", "screening.csv", "stability.csv")
    }
    model = load_model(tiny_encoder_dir())
    wanted = find_superadditive(
        model,
        encoded(files / "id.csv"),
        MeanActivations.compute(model, encoded(files / "train.csv")),
        components=names.split(","),
        n_pairs=4,
        max_size=2,
    )
    for name, table in (("superadditive", wanted.superadditive), ("screening", wanted.screening)):
        written = pd.read_csv(f"found/tables/{name}.csv")
        pd.testing.assert_frame_equal(written, table, rtol=0, atol=1e-5)
    assert set(wanted.superadditive["split"]) == {"id"}
    stable = STABILITY.read(Path("found/tables/stability.csv"))
    pd.testing.assert_frame_equal(stable, wanted.stability, check_dtype=False, atol=1e-5)
    assert all(name in printed for name in wanted.superadditive["set"])


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


@pytest.mark.usefixtures("no_report")
def test_a_language_model_of_ones_own(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(files / "id.csv")
    frame["text_a"] = "[BOS] " + frame["text_a"] + " [SEP] " + frame["text_b"] + " [ANS]"
    frame.drop(columns="text_b").to_csv("prompts.csv", index=False)
    data = "--train prompts.csv --id prompts.csv --ood prompts.csv"
    command = f"ablation --model {tiny_decoder_dir()} {data} --components L1.H0 --fill zero"
    answers = "--answers entailment=yes,non-entailment=no"
    assert call(f"{command} --prompt {{a}} {answers} --out found") == 0
    rows = pd.read_csv("found/tables/ablation.csv")
    accuracy = rows["accuracy"] - rows["accuracy_change"]
    assert accuracy[rows["subset"] == "all"].min() > 0.9
    capsys.readouterr()
    assert call(f"{command} --out other") == 2
    assert "needs answer words" in capsys.readouterr().err
