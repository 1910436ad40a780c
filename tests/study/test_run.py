"""Whole runs on the embedded models: what the folder holds, and resuming, replacing, refusing."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import embedded_shape, load_inputs
from made_up_cognitive import write_cognitive_run
from main_study.small_study import leave_out_the_report, results
from safetensors import safe_open

from mechcore import __version__
from mechcore.ablation.effects.changes import ablation_table
from mechcore.analyses import ANALYSES
from mechcore.analyses.ablation import Ablation
from mechcore.analyses.dose import Dose
from mechcore.analyses.heads import Heads, Scores
from mechcore.analyses.paths import Paths
from mechcore.analyses.sweep import Swept, SweptOodMean
from mechcore.components import Component, Mask, ModelShape, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import evaluate
from mechcore.main_study.config import RESERVED, Analyses, StudyConfig
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning import PruneSettings
from mechcore.pruning.attribution import margin_slopes
from mechcore.report.kinds import schemas_of
from mechcore.steps.answers import INJECTED_FILE, SWEEP, Answers, ablations_in
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import Inputs
from mechcore.steps.masks import AcceptMasks, FindMasks, Means
from mechcore.study.run import run_study
from mechcore.study.step import plain
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_encoder_dir

PRUNE = PruneSettings(steps=6, warmup=2, batch_size=8, tolerance=1)
CONFIG = StudyConfig(
    data=DataConfig(max_train=24, max_id=24, max_ood=20),
    prune=PRUNE,
    seeds=(42, 43),
    target_sparsities=(0.3, 0.5),
    n_resamples=20,
    analyses=Analyses(
        heads=Heads(8),
        ablation=Ablation(max_joint=3, max_non_core=4, controls=10),
        paths=Paths(controls=1, max_examples=6),
    ),
)
KINDS = ["describe", "means", "prune", "masks", "answers", "accuracy"]
KINDS += ["smallest", "core", "scores", "heads", "swept", "ood_mean", "sweep", "roles", "flips"]
KINDS += ["ablation", "failure", "paths", "dose", "responses", "rankings"]
STEPS = (Means, FindMasks, AcceptMasks, Answers, Scores, Swept, SweptOodMean)
SCHEMAS = schemas_of({})
OF_CLUSTERS = ("n_clusters", "population", "df")
OPTIONAL = {
    "accuracy": ("balanced_accuracy", "information", "n_subsets", "subsets", "missing"),
    "ablation": SCHEMAS["ablation"].names[-12:],
    "stability": ("ranked_by",),
    **{
        name: [n for n in SCHEMAS[name].names if "other" not in n and n not in OF_CLUSTERS]
        for name in ("sweep", "path_information")
    },
    "subnetworks": ("method", "id_accuracy_macro", "ood_accuracy_macro"),
}
"""Columns that the tables of a run have though others may lack them; these have all of theirs."""
WITH_ALL = ("smallest", "roles", "core")
OF_PATHS = {schema.name for schema in (*Paths.schemas, *Dose.schemas)} - {"core"}
TABLES = OF_PATHS | {
    *("data", "accuracy", "subnetworks", "head_frequency", "head_overlap", "core", "ablation"),
    *("smallest", "sweep", "roles", "flips", "failure", "failure_sets", "stability"),
    *("interactions", "head_categories", "responses"),
}


class Finished:
    """A finished run with what it worked on."""

    def __init__(self, config: StudyConfig, out: Path) -> None:
        self.config, self.out = config, out
        (self.report,) = run_study(config, out)
        self.inputs: Inputs = load_inputs(config.model, config.data, ("train", "id", "ood"))
        self.means = MeanActivations.load(out / "means.safetensors", self.inputs.model)
        self.facts = json.loads((out / "config.json").read_text())
        self.shape = embedded_shape(config.model.embedded)
        self.n_heads, self.n_components = len(self.shape.heads), len(self.shape.components)

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.out / "tables" / f"{name}.csv")

    def masks(self) -> dict[str, Mask]:
        """Read without the package's own reader of subnetworks."""
        masks = {}
        for path in sorted((self.out / "masks").glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                masks[path.stem] = Mask(file.get_tensor("mask"))
        return masks

    def accuracies(self, mask: Mask, split: str) -> pd.DataFrame:
        result = evaluate(self.inputs.model, self.inputs.data[split], mask=mask, means=self.means)
        return result.table().set_index("subset")


@pytest.fixture(scope="module", params=["encoder", pytest.param("decoder", marks=pytest.mark.slow)])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    config = replace(CONFIG, model=ModelConfig(embedded=request.param))
    return Finished(config, tmp_path_factory.mktemp(request.param) / "run")


def test_every_table_has_its_columns_and_every_file_is_there(finished: Finished) -> None:
    out = finished.out
    assert {path.stem for path in (out / "tables").iterdir()} == TABLES
    for name in TABLES - {"head_categories"}:
        schema = SCHEMAS[name]
        more = schema.names if name in WITH_ALL else OPTIONAL.get(name, ())
        expected = [column for column in schema.names if column in {*schema.required, *more}]
        assert list(finished.table(name).columns) == expected, name
    categories = finished.table("head_categories")
    assert {"component", "layer", "head", "category", "in_core"} <= set(categories.columns)
    assert len(categories) == finished.n_heads
    assert finished.report == out / "report.html"
    assert "<html" in (out / "report.html").read_text()[:500]
    assert list((out / "figures").iterdir())
    assert {path.name for path in out.iterdir()} == set(RESERVED)
    assert set(finished.masks()) == {
        f"s{s}-seed{seed}" for s in ("0.30", "0.50") for seed in (42, 43)
    }


def test_the_facts_of_the_run(finished: Finished) -> None:
    facts, config = finished.facts, finished.config
    assert facts["mechcore"] == __version__
    for name in ("torch", "transformer-lens"):
        assert facts["versions"][name] == version(name)
    assert (facts["seeds"], facts["target_sparsities"]) == ([42, 43], [0.3, 0.5])
    assert facts["settings"] | plain(config) == facts["settings"]
    assert list(facts["seconds"]) == KINDS
    mapping = facts["label_mapping"]["id"]
    assert "entailment -> entailment (0)" in mapping
    assert "non-entailment -> non-entailment (1)" in mapping
    assert facts["label_mapping"]["ood"] == mapping
    model = facts["model"]
    shape = (finished.shape.n_layers, finished.shape.n_heads, True)
    assert (model["n_layers"], model["n_heads"], model["has_mlps"]) == shape
    assert model["identity"]["weights"] == ModelIdentity.of(finished.inputs.model).weights
    assert {split: part["n"] for split, part in facts["data"].items()} == {
        split: getattr(config.data, f"max_{split}") for split in ("train", "id", "ood")
    }
    halves = [name for half in tiny_world.OOD_GROUPS.values() for name in half]
    assert sorted(facts["data"]["ood"]["subsets"]) == sorted(halves)


def test_accuracies_are_those_of_evaluate(finished: Finished) -> None:
    table = finished.table("accuracy").query("subsets.isna()")  # not of groups
    names = ["full", *finished.masks()]
    assert table["subnetwork"].unique().tolist() == names
    masks = {"full": Mask.full(finished.inputs.model), **finished.masks()}
    for split, name in itertools.product(("id", "ood"), names):
        rows = table[(table["split"] == split) & (table["subnetwork"] == name)].set_index("subset")
        expected = finished.accuracies(masks[name], split)
        assert list(rows.index) == list(expected.index)
        assert rows["n"].tolist() == expected["n"].tolist()
        for column in ("accuracy", "margin"):
            assert rows[column].to_dict() == pytest.approx(expected[column].to_dict(), abs=1e-4)
        assert (rows["accuracy_low"] <= rows["accuracy"] + 1e-12).all()
        assert (rows["accuracy"] <= rows["accuracy_high"] + 1e-12).all()
    full = table[(table["subnetwork"] == "full") & (table["subset"] == "all")]
    assert full.set_index("split").loc["id", "accuracy"] >= 0.9


def test_the_table_of_subnetworks_describes_the_masks(finished: Finished) -> None:
    table, masks = finished.table("subnetworks"), finished.masks()
    accuracy, n = finished.table("accuracy"), finished.n_components
    width = finished.shape.n_heads
    assert table["subnetwork"].tolist() == list(masks)
    for row in table.itertuples():
        mask = masks[row.subnetwork]
        kept = [Component(la, h if h < width else None) for la, h in mask.values.nonzero().tolist()]
        assert row.kept.split() == [str(c) for c in kept]
        assert row.subnetwork == f"s{row.target_sparsity:.2f}-seed{row.seed}"
        n_heads = sum(component.is_head for component in kept)
        assert (row.heads_kept, row.mlps_kept) == (n_heads, len(kept) - n_heads)
        assert row.sparsity == pytest.approx(1 - len(kept) / n)
        assert abs(n * row.sparsity - n * row.target_sparsity) <= 0.5 + 1e-9
        assert row.head_sparsity == pytest.approx(1 - row.heads_kept / finished.n_heads)
        for split in ("id", "ood"):
            of = (accuracy["subnetwork"] == row.subnetwork) & (accuracy["split"] == split)
            subsets = accuracy[of & (accuracy["subset"] != "all")]["accuracy"]
            assert getattr(row, f"{split}_accuracy_macro") == pytest.approx(subsets.mean())
            overall = accuracy[of & (accuracy["subset"] == "all")]["accuracy"].item()
            assert getattr(row, f"{split}_accuracy") == pytest.approx(overall)
        model, data = finished.inputs.model, finished.inputs.data["id"]
        full = evaluate(model, data).logits.log_softmax(1)
        got = evaluate(model, data, mask=mask, means=finished.means).logits.log_softmax(1)
        kl = torch.nn.functional.kl_div(got, full, reduction="batchmean", log_target=True)
        assert row.kl == pytest.approx(float(kl), rel=1e-3)


def test_the_core_is_what_all_masks_keep(finished: Finished) -> None:
    heads = {name: mask.values[:, :-1] for name, mask in finished.masks().items()}
    shared = torch.stack([*heads.values()]).prod(0).nonzero().tolist()
    expected = [f"L{layer}.H{head}" for layer, head in shared]
    assert expected
    summary = finished.table("core").iloc[0]
    assert summary["heads"].split() == expected
    assert (summary["n_subnetworks"], summary["n_heads"]) == (4, finished.n_heads)
    assert summary["core_size"] == len(expected)
    # Masks of one seed count as one random subnetwork, that of their common heads.
    shares = [
        (heads[f"s0.30-seed{seed}"] * heads[f"s0.50-seed{seed}"]).mean().item() for seed in (42, 43)
    ]
    assert summary["expected_uniform"] == pytest.approx(finished.n_heads * math.prod(shares))
    assert 0 < summary["p_value"] <= 1
    categories = finished.table("head_categories")
    assert categories.loc[categories["in_core"], "component"].tolist() == expected
    shown = json.loads((finished.out / "attention_examples.json").read_text())
    assert [example["component"] for example in shown] == expected


def test_ablations_are_those_of_evaluate(finished: Finished) -> None:
    table, core = finished.table("ablation"), finished.table("core")["heads"][0].split()
    model = finished.inputs.model
    singles = table[table["kind"] == "single"]
    assert singles["set"].unique().tolist() == core
    full = {split: finished.accuracies(Mask.full(model), split) for split in ("id", "ood")}
    chosen = table[table["kind"] != "non-core"]
    for (name, split), rows in chosen.groupby(["set", "split"]):
        parts = parse_components(name.split("+"))
        without = finished.accuracies(Mask.full(model).without(*parts), split)
        rows = rows.set_index("subset")
        assert set(rows.index) == set(without.index)
        assert set(rows["size"]) == {len(parts)}
        for metric in ("accuracy", "margin"):
            change = (without[metric] - full[split][metric]).to_dict()
            assert rows[metric].to_dict() == pytest.approx(without[metric].to_dict(), abs=1e-3)
            assert rows[f"{metric}_change"].to_dict() == pytest.approx(change, abs=1e-3)
    # All pairs of three core heads, the three together, and the whole core.
    sizes = Counter(chosen.loc[chosen["kind"] == "joint"].groupby("set")["size"].first())
    assert sizes == Counter([2, 2, 2, 3, len(core)])
    others = table[table["kind"] == "non-core"]
    assert others["set"].unique().tolist() == ["heads outside the core, of its layers (mean of 4)"]
    assert len(others) == table[["split", "subset"]].drop_duplicates().shape[0]


def test_out_of_domain_the_mean_of_the_texts_there_is_swept_too(finished: Finished) -> None:
    model, data = finished.inputs.model, finished.inputs.data["ood"]
    own = MeanActivations.compute(model, data)
    [path] = (finished.out / "store").rglob(INJECTED_FILE)
    sweep = ablation_table(ablations_in(path.parent, {"ood": "ood"})["ood"], n_resamples=2)
    table = SWEEP.read(finished.out / "tables" / "sweep.csv").query("fill == 'ood_mean'")
    slopes = [margin_slopes(model, data, fill) for fill in (own, finished.means)]
    full = evaluate(model, data, in_domain=False)
    for name in ("L1.H3", "L2.MLP"):
        component = Component.parse(name)
        without = Mask.full(model).without([name])
        other = evaluate(model, data, mask=without, means=own, in_domain=False)
        injected = (slopes[0] - slopes[1])[(..., *ModelShape.of(model).index(component))]
        for subset, members in full.groups():
            here = f"set == '{name}' and subset == '{subset}'"
            change = (other.margin - full.margin)[members].mean()
            assert sweep.query(here)["margin_change"].item() == pytest.approx(change, abs=1e-4)
            wanted = float(injected[members].mean())
            assert table.query(here)["injected_margin"].item() == pytest.approx(wanted, abs=1e-5)


TINY = replace(
    CONFIG,
    data=DataConfig(max_train=16, max_id=20, max_ood=12),
    prune=replace(PRUNE, steps=3),
    n_resamples=10,
    analyses=Analyses(
        heads=Heads(8),
        ablation=Ablation(max_joint=2, max_non_core=1, controls=2),
        paths=None,
        dose=None,  # which takes longer than all the rest
    ),
)
BARE = replace(TINY, analyses=Analyses(heads=None, ablation=None, sweep=None, paths=None))
WHOLE = Counter(
    {"describe": 1, "means": 2, "answers": 6, "prune": 2, "masks": 2, "accuracy": 1, "smallest": 1}
    | {"core": 1, "scores": 1, "heads": 1, "swept": 1, "sweep": 1, "roles": 1, "flips": 1}
    | {"ablation": 1, "ood_mean": 1, "failure": 1, "responses": 1}
)
"""How often each kind of work is done: two sparsities, the seeds of each together."""


class Calls(Counter[str]):
    """Counts jobs done by kind; is interrupted where told to be."""

    fail_at: str | None = None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    counts = Calls()

    def watched(step: Any) -> Any:
        real = step.run

        def run(self: Any, work: Any) -> None:
            counts[step.kind] += type(self) is step  # and not one that does more
            if counts.fail_at == step.kind:
                raise KeyboardInterrupt
            real(self, work)

        return run

    for step in (*STEPS, *(ANALYSES[name] for name in ANALYSES)):
        monkeypatch.setattr(step, "run", watched(step))
    leave_out_the_report(monkeypatch)
    return counts


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_study_goes_on_where_it_was_interrupted(tmp_path: Path, tiny: Path, calls: Calls) -> None:
    out, done = tmp_path / "parts", Counter[str]()
    for failing in ("prune", "heads"):
        calls.fail_at = failing
        with pytest.raises(KeyboardInterrupt):
            run_study(TINY, out)
        assert not (out / "tables").exists()
        assert calls[failing] == 1
        done += calls - Counter([failing])
        calls.clear()
    calls.fail_at = None
    run_study(TINY, out)
    assert calls == WHOLE - done
    assert results(out) == results(tiny)
    calls.clear()
    run_study(TINY, out)
    assert not calls
    assert results(out) == results(tiny)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study without its report; not to be changed."""
    out = tmp_path_factory.mktemp("tiny") / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        run_study(TINY, out)
    return out


@pytest.fixture
def done(tmp_path: Path, tiny: Path, calls: Calls) -> Path:
    """A copy of it, to go on with."""
    return shutil.copytree(tiny, tmp_path / "run")


ABLATED = {"ablation": 1, "failure": 1}


def test_results_of_settings_that_no_longer_hold_are_gone(done: Path, calls: Calls) -> None:
    (done / "tables" / "mine.csv").write_text("x")
    run_study(replace(TINY, seeds=(7,), target_sparsities=(0.5,)), done)
    assert [path.name for path in (done / "masks").iterdir()] == ["s0.50-seed7.safetensors"]
    # What the study did not write stays.
    assert {p.stem for p in (done / "tables").iterdir()} == (TABLES | {"mine"}) - OF_PATHS
    assert json.loads((done / "config.json").read_text())["seeds"] == [7]
    summary = pd.read_csv(done / "tables" / "core.csv").iloc[0]
    assert summary["n_subnetworks"] == 1
    assert math.isnan(summary["spearman_rho"])


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "mine"},
        {"config.json": "[1]", "tables/a.csv": "mine"},
        {"store/mine.txt": "mine"},
    ],
)
def test_a_folder_that_is_no_study_stays_as_it_is(
    tmp_path: Path, calls: Calls, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="the folder is not empty and"):
        run_study(TINY, tmp_path)
    assert contents(tmp_path) == before
    # Nor is anything written where input is bad.
    data = replace(TINY.data, ood_subsets=("none",))
    with pytest.raises(InputError, match="subset 'none' is empty"):
        run_study(replace(TINY, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not calls


def test_variants_get_a_folder_each(tmp_path: Path, tiny: Path, done: Path, calls: Calls) -> None:
    both, store, early = tmp_path / "both", done / "store", encoder_checkpoints()[0][1].name
    variants = {"a": TINY, "b": replace(TINY, model=ModelConfig(checkpoint=early))}
    reports = run_study(replace(TINY, variants=variants), both, store=store)
    assert reports == [both / name / "report.html" for name in "ab"]
    assert calls == WHOLE, "the store has all of a"
    assert results(both / "a") == results(tiny)
    facts = json.loads((both / "b" / "config.json").read_text())
    assert facts["model"]["source"].endswith(early)
    assert {facts["origins"][name] for name in ("variants", "seeds", "prune.steps")} == {"Python"}
    assert not {"method", "model.checkpoint"} & set(facts["origins"])
    # A variant that is no longer part of it goes; a folder of someone else stays.
    (both / "mine").mkdir()
    (both / "mine" / "config.json").write_text("{}")
    calls.clear()
    run_study(replace(TINY, variants={"c": TINY}), both, store=store)
    assert not calls, "the same study by another name"
    assert {path.name for path in both.iterdir()} == {"c", "mine", "study.json"}


def test_other_studies_in_the_folder_stay_as_they_are(done: Path, calls: Calls) -> None:
    run_study(BARE, done / "inner", store=done / "store")
    write_cognitive_run(done / "cog")
    (done / "figures" / "mine").mkdir(parents=True)
    (done / "figures" / "mine" / "study.json").write_text("mine")
    before = {name: contents(done / name) for name in ("inner", "cog", "figures/mine")}
    assert len(before["cog"]) > 5
    run_study(replace(TINY, analyses=replace(TINY.analyses, ablation=None)), done)
    run_study(replace(TINY, variants={"a": TINY}), done)
    # Nor is another study's folder taken for a variant.
    for name in ("inner", "cog"):
        with pytest.raises(InputError, match=rf"{name} holds results of another study"):
            run_study(replace(TINY, variants={name: TINY}), done)
    run_study(TINY, done)
    assert {name: contents(done / name) for name in before} == before
    assert not (done / "a").exists()


def test_an_empty_core(done: Path, calls: Calls) -> None:
    for max_non_core, kinds in ((1, {"non-core"}), (0, set())):
        calls.clear()
        ablation = Ablation(max_joint=2, max_non_core=max_non_core, controls=2)
        wanted = replace(TINY.analyses, ablation=ablation)
        run_study(replace(TINY, target_sparsities=(0.9, 0.96), analyses=wanted), done)
        tables = {path.stem: pd.read_csv(path) for path in (done / "tables").iterdir()}
        assert set(tables["ablation"]["kind"]) == kinds
        columns = [*SCHEMAS["ablation"].required, *OPTIONAL["ablation"]]
        assert list(tables["ablation"].columns) == columns
        assert tables["interactions"].empty
        assert list(tables["interactions"].columns) == SCHEMAS["interactions"].required
    assert calls == Counter(ABLATED)
    assert tables["core"]["core_size"].tolist() == [0]
    assert tables["core"]["heads"].isna().all()
    assert not tables["head_categories"]["in_core"].any()


def test_classes_can_be_named_for_a_generic_checkpoint(tmp_path: Path) -> None:
    """Training labels are not used, so they may be anything."""
    checkpoint = shutil.copytree(tiny_encoder_dir(), tmp_path / "generic")
    content = json.loads((checkpoint / "config.json").read_text())
    content |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    content |= {"label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    (checkpoint / "config.json").write_text(json.dumps(content))
    files = {}
    for split in ("train", "id", "ood"):
        frame = tiny_world.generate(split, 24, 3).frame
        files[split] = str(tmp_path / f"{split}.csv")
        frame.drop(columns="label" if split == "train" else []).to_csv(files[split], index=False)
    unnamed, data = ModelConfig(source=str(checkpoint)), DataConfig(**files)
    named = replace(unnamed, class_names=("entailment", "non-entailment"))
    inputs = load_inputs(named, data, ("train", "id", "ood"))
    wanted = "entailment -> entailment (0); non-entailment -> non-entailment (1)"
    assert inputs.readout("id").mapping == wanted
    with pytest.raises(InputError, match="--class-names"):
        run_study(replace(BARE, model=unnamed, data=data), tmp_path / "unnamed")
    assert not (tmp_path / "unnamed").exists()
