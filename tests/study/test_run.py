"""Whole runs on the embedded models: what the folder holds, and resuming, replacing, refusing."""

from __future__ import annotations

import importlib
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
from helpers import embedded_shape
from made_up_cognitive import write_cognitive_run
from safetensors import safe_open

from mechcore.ablation.effects.changes import ablation_table
from mechcore.analyses import ANALYSES
from mechcore.analyses.ablation import Ablation
from mechcore.analyses.dose import Dose
from mechcore.analyses.heads import Heads, Scores
from mechcore.analyses.paths import Paths
from mechcore.analyses.sweep import Swept, SweptOodMean
from mechcore.components import Component, Mask, ModelShape, parse_components
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.evaluation.evaluate import evaluate
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.masking.means import MeanActivations
from mechcore.models.model_identity import ModelIdentity
from mechcore.pruning import PruneSettings
from mechcore.pruning.attribution import margin_slopes
from mechcore.report.kinds import schemas_of
from mechcore.steps import masks
from mechcore.steps.answers import (
    INFORMATION_OOD_MEAN,
    INJECTED_FILE,
    Answers,
    ablations_in,
)
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import Inputs, load_inputs
from mechcore.study.engine import StudyError
from mechcore.study.run import run_study
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_encoder_dir

(STEP, EARLY), *_, (LAST, _) = encoder_checkpoints()

PRUNE = PruneSettings(steps=6, warmup=2, batch_size=8, tolerance=1)
CONFIG = StudyConfig(
    data=DataConfig(max_train=48, max_id=40, max_ood=40),
    prune=PRUNE,
    seeds=(42, 43),
    target_sparsities=(0.3, 0.5),
    n_resamples=40,
    analyses=Analyses(
        heads=Heads(8),
        ablation=Ablation(max_joint=3, max_non_core=4, controls=10),
        paths=Paths(controls=2, max_examples=16),
    ),
)
KINDS = ["describe", "means", "prune", "masks", "answers", "accuracy"]
KINDS += ["smallest", "core", "scores", "heads", "swept", "ood_mean", "sweep", "roles", "flips"]
KINDS += ["ablation", "failure", "paths", "dose"]
STEPS = {
    step.kind: step
    for step in (
        *(masks.Means, masks.FindMasks, masks.AcceptMasks, Answers, Scores),
        *(Swept, SweptOodMean, *(ANALYSES[name] for name in ANALYSES)),
    )
}
SCHEMAS = schemas_of({})
OPTIONAL = {
    "accuracy": ("balanced_accuracy", "information"),
    "subnetworks": ("method", "id_accuracy_macro", "ood_accuracy_macro"),
    "core": ("rate_low",),
    "core_summary": ("low_sparsity", "high_sparsity"),
    "accuracy_spread": ("std", "balanced_accuracy_spread", "information_spread"),
}
"""Columns that the tables of a run have though others may lack them; these have all of theirs."""
WITH_ALL = ("smallest", "roles")
OF_PATHS = {schema.name for schema in (*Paths.schemas, *Dose.schemas)}
TABLES = OF_PATHS | {
    *("data", "group_accuracy", "accuracy", "subnetworks", "head_frequency", "head_overlap"),
    *("accuracy_spread", "core", "core_summary", "ablation", "ablation_controls", "smallest"),
    *("sweep", "information", "information_ood_mean", "roles", "flips", "failure", "failure_sets"),
    *("stability", "interaction_stability", "interactions", "head_categories"),
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
        found = {}
        for path in sorted((self.out / "masks").glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                found[path.stem] = Mask(file.get_tensor("mask"))
        return found

    def accuracies(self, mask: Mask, split: str) -> pd.DataFrame:
        result = evaluate(self.inputs.model, self.inputs.data[split], mask=mask, means=self.means)
        return result.table().set_index("subset")


@pytest.fixture(scope="module", params=["encoder", pytest.param("decoder", marks=pytest.mark.slow)])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    config = replace(CONFIG, model=ModelConfig(embedded=request.param))
    return Finished(config, tmp_path_factory.mktemp(request.param) / "run")


# -- what a run leaves ----------------------------------------------------------------------------


def test_every_table_has_its_columns(finished: Finished) -> None:
    assert {path.stem for path in (finished.out / "tables").iterdir()} == TABLES
    for name in TABLES - {"head_categories"}:
        schema = SCHEMAS[name]
        more = schema.names if name in WITH_ALL else OPTIONAL.get(name, ())
        expected = [column for column in schema.names if column in {*schema.required, *more}]
        assert list(finished.table(name).columns) == expected, name
    categories = finished.table("head_categories")
    assert {"component", "layer", "head", "category", "in_core"} <= set(categories.columns)
    assert len(categories) == finished.n_heads


def test_the_other_files(finished: Finished) -> None:
    out = finished.out
    assert finished.report == out / "report.html"
    assert "<html" in (out / "report.html").read_text()[:500]
    assert list((out / "figures").iterdir())
    assert {p.name for p in out.iterdir()} == {
        *("config.json", "means.safetensors", "masks", "tables", "figures"),
        *("attention_examples.json", "flips_attention.json"),
        *("report.html", "study.json", "store"),
    }
    assert set(finished.masks()) == {"s0.30-seed42", "s0.30-seed43", "s0.50-seed42", "s0.50-seed43"}


def test_the_facts_of_the_run(finished: Finished) -> None:
    facts = finished.facts
    assert facts["mechcore"] == version("mechcore")
    assert facts["versions"]["torch"] == version("torch")
    assert facts["versions"]["transformer-lens"] == version("transformer-lens")
    assert (facts["seeds"], facts["target_sparsities"]) == ([42, 43], [0.3, 0.5])
    assert facts["settings"]["prune"]["steps"] == 6
    assert facts["settings"]["data"]["max_ood"] == 40
    assert facts["settings"]["model"]["embedded"] == finished.config.model.embedded
    assert list(facts["seconds"]) == KINDS
    mapping = facts["label_mapping"]["id"]
    assert "entailment -> entailment (0)" in mapping
    assert "non-entailment -> non-entailment (1)" in mapping
    assert facts["label_mapping"]["ood"] == mapping
    model = facts["model"]
    shape = (finished.shape.n_layers, finished.shape.n_heads, True)
    assert (model["n_layers"], model["n_heads"], model["has_mlps"]) == shape
    assert model["identity"]["weights"] == ModelIdentity.of(finished.inputs.model).weights
    assert {split: each["n"] for split, each in facts["data"].items()} == {
        "train": 48,
        "id": 40,
        "ood": 40,
    }
    halves = [name for half in tiny_world.OOD_GROUPS.values() for name in half]
    assert sorted(facts["data"]["ood"]["subsets"]) == sorted(halves)


def test_accuracies_are_those_of_evaluate(finished: Finished) -> None:
    table = finished.table("accuracy")
    names = ["full", *finished.masks()]
    assert table["subnetwork"].unique().tolist() == names
    model = finished.inputs.model
    for split, (name, mask) in [
        (r, each)
        for r in ("id", "ood")
        for each in {"full": Mask.full(model), **finished.masks()}.items()
    ]:
        rows = table[(table["split"] == split) & (table["subnetwork"] == name)].set_index("subset")
        expected = finished.accuracies(mask, split)
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
        assert (row.heads_kept, row.mlps_kept) == (
            sum(c.is_head for c in kept),
            sum(not c.is_head for c in kept),
        )
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
    masks = list(finished.masks().values())
    shared = (
        torch.stack([m.values[:, : finished.shape.n_heads] for m in masks])
        .prod(0)
        .nonzero()
        .tolist()
    )
    expected = [f"L{layer}.H{head}" for layer, head in shared]
    assert expected
    core, summary = finished.table("core"), finished.table("core_summary").iloc[0]
    assert core["component"].tolist() == expected
    assert core[["layer", "head"]].to_numpy().tolist() == shared
    assert set(core["n_subnetworks"]) == {4}
    assert (summary["n_subnetworks"], summary["n_heads"]) == (4, finished.n_heads)
    assert summary["core_size"] == len(expected)
    # Masks of one seed count as one random subnetwork, that of their common heads.
    of_seed: dict[str, list[torch.Tensor]] = {}
    for name, mask in finished.masks().items():
        heads = mask.values[:, : finished.shape.n_heads]
        of_seed.setdefault(name.partition("-seed")[2], []).append(heads)
    shares = [torch.stack(heads).prod(0).mean().item() for heads in of_seed.values()]
    assert len(shares) == 2
    assert summary["expected_uniform"] == pytest.approx(finished.n_heads * math.prod(shares))
    assert 0 < summary["p_value"] <= 1
    categories = finished.table("head_categories")
    assert categories.loc[categories["in_core"], "component"].tolist() == expected
    shown = json.loads((finished.out / "attention_examples.json").read_text())
    assert [each["component"] for each in shown] == expected


def test_ablations_are_those_of_evaluate(finished: Finished) -> None:
    table, core = finished.table("ablation"), finished.table("core")["component"].tolist()
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


def test_out_of_domain_the_mean_of_the_texts_there_is_swept_beside_that_of_training(
    finished: Finished,
) -> None:
    model, data = finished.inputs.model, finished.inputs.data["ood"]
    own = MeanActivations.compute(model, data)
    [path] = (finished.out / "store").rglob(INJECTED_FILE)
    sweep = ablation_table(ablations_in(path.parent, {"ood": "ood"})["ood"], n_resamples=2)
    table = INFORMATION_OOD_MEAN.read(finished.out / "tables" / "information_ood_mean.csv")
    slopes = [margin_slopes(model, data, each) for each in (own, finished.means)]
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


# -- going on, and doing again what changed -------------------------------------------------------

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
    | {"ablation": 1, "ood_mean": 1, "failure": 1}
)
"""How often each kind of work is done: two sparsities, the seeds of each together."""


class Calls(Counter[str]):
    """Counts the jobs that are done by kind, and fails where it is told to."""

    fail_at: str | None = None
    error: BaseException = KeyboardInterrupt()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()

    def watched(step: Any) -> Any:
        real = step.run

        def run(self: Any, work: Any) -> None:
            found[step.kind] += type(self) is step  # and not one that does more
            if found.fail_at == step.kind:
                raise found.error
            real(self, work)

        return run

    for step in STEPS.values():
        monkeypatch.setattr(step, "run", watched(step))
    leave_out_the_report(monkeypatch)
    return found


def leave_out_the_report(patch: pytest.MonkeyPatch) -> None:
    """It takes longer than all the rest."""
    module: Any = importlib.import_module("mechcore.study.run")
    patch.setattr(module, "build_report", lambda out: out / "report.html")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def results(folder: Path) -> dict[str, Any]:
    """Everything but notes on the run; of tensors their values, as headers have no fixed order."""
    found: dict[str, Any] = {}
    for name, data in contents(folder).items():
        if name.startswith("store/") or name in ("config.json", "study.json"):
            continue
        found[name] = data
        if name.endswith(".safetensors"):
            with safe_open(folder / name, framework="pt") as file:
                tensors = {key: file.get_tensor(key).tolist() for key in sorted(file.keys())}
                found[name] = (file.metadata(), tensors)
    return found


@pytest.mark.parametrize("failing", ["prune", "heads"])
def test_a_study_goes_on_where_it_was_interrupted(
    tmp_path: Path, tiny: Path, calls: Calls, failing: str
) -> None:
    calls.fail_at = failing
    with pytest.raises(KeyboardInterrupt):
        run_study(TINY, tmp_path / "parts")
    assert not (tmp_path / "parts" / "tables").exists()
    assert calls[failing] == 1
    done = calls - Counter([failing])
    calls.clear()
    calls.fail_at = None
    run_study(TINY, tmp_path / "parts")
    assert calls == WHOLE - done
    assert results(tmp_path / "parts") == results(tiny)
    calls.clear()
    run_study(TINY, tmp_path / "parts")
    assert not calls
    assert results(tmp_path / "parts") == results(tiny)


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


def counts(**jobs: int) -> Counter[str]:
    return Counter(jobs)


ABLATED = {"ablation": 1, "failure": 1}
OF_SUBNETWORKS = counts(accuracy=1, smallest=1, core=1, heads=1, **ABLATED)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"target_sparsities": (0.3,)}, OF_SUBNETWORKS),
        ({"n_resamples": 11}, counts(smallest=1, sweep=1, roles=1, flips=1, **ABLATED)),
        ({"analyses": replace(TINY.analyses, ablation=None)}, counts(failure=1)),
        (
            {"prune": replace(TINY.prune, tolerance=0.9)},
            counts(masks=2, answers=4) + OF_SUBNETWORKS,
        ),
    ],
)
def test_a_change_redoes_what_depends_on_it(
    tmp_path: Path, done: Path, calls: Calls, change: dict[str, Any], again: Counter[str]
) -> None:
    """Of every setting, see ``tests/steps/test_plan.py``."""
    changed = replace(TINY, **change)
    run_study(changed, done)
    assert calls == again
    if again == counts(prune=2, masks=2, answers=4) + OF_SUBNETWORKS:
        run_study(changed, tmp_path / "new")
        assert results(done) == results(tmp_path / "new")
    calls.clear()
    run_study(TINY, done)
    assert not calls, "what the first study made is still there"


def test_results_of_settings_that_no_longer_hold_are_gone(done: Path, calls: Calls) -> None:
    (done / "tables" / "mine.csv").write_text("x")
    run_study(replace(TINY, seeds=(7,), target_sparsities=(0.5,)), done)
    assert [path.name for path in (done / "masks").iterdir()] == ["s0.50-seed7.safetensors"]
    # What the study did not write stays.
    assert {p.stem for p in (done / "tables").iterdir()} == (TABLES | {"mine"}) - OF_PATHS
    assert json.loads((done / "config.json").read_text())["seeds"] == [7]
    summary = pd.read_csv(done / "tables" / "core_summary.csv").iloc[0]
    assert summary["n_subnetworks"] == 1
    assert math.isnan(summary["spearman_rho"])


def test_a_damaged_result_is_found_and_done_again(tmp_path: Path, done: Path, calls: Calls) -> None:
    before = results(done)
    (answers,) = [
        path
        for path in (done / "store" / "objects").glob("*/*/answers.safetensors")
        if "full model" in (path.parent / "manifest.json").read_text()
        and '"split": "ood"' in (path.parent / "manifest.json").read_text()
    ]
    data = bytearray(answers.read_bytes())
    data[-1] ^= 1
    answers.write_bytes(data)
    # Another process: this one has seen the file whole.
    moved = done.rename(tmp_path / "moved")
    with pytest.warns(MechcoreWarning, match=r"full model.*the checksum of answers.safetensors"):
        run_study(TINY, moved)
    assert calls == counts(answers=1)
    assert results(moved) == before


def test_studies_share_a_store(tmp_path: Path, calls: Calls) -> None:
    run_study(BARE, tmp_path / "one", store=tmp_path / "store")
    calls.clear()
    run_study(replace(BARE, target_sparsities=(0.3,)), tmp_path / "two", store=tmp_path / "store")
    assert calls == counts(accuracy=1, smallest=1, core=1)
    assert not (tmp_path / "two" / "store").exists()


def test_a_job_that_fails_costs_only_what_needs_it(done: Path, calls: Calls) -> None:
    analyses = replace(TINY.analyses, heads=Heads(7))
    config = replace(TINY, target_sparsities=(0.3,), analyses=analyses)
    calls.fail_at, calls.error = "scores", MechcoreError("no heads today")
    with pytest.raises(
        StudyError, match=r"1 job failed; 1 that need their results were not begun. head"
    ) as e:
        run_study(config, done)
    assert [each.job.step.kind for each in e.value.failures] == ["scores", "heads"]
    assert "no heads today" in str(e.value)
    assert calls == OF_SUBNETWORKS + counts(scores=1) - counts(heads=1)
    calls.clear()
    calls.fail_at = None
    run_study(config, done)
    assert calls == counts(scores=1, heads=1)


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "mine"},
        {"config.json": "{}"},
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
    with pytest.raises(InputError, match="the folder is not empty and is no"):
        run_study(TINY, tmp_path)
    assert contents(tmp_path) == before
    assert not calls


def test_bad_input_is_found_before_anything_is_written(tmp_path: Path, calls: Calls) -> None:
    data = replace(TINY.data, ood_subsets=("none",))
    with pytest.raises(InputError, match="subset 'none' is empty"):
        run_study(replace(TINY, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- variants, and checkpoints -------------------------------------------------------------------


def test_variants_get_a_folder_each(tmp_path: Path, tiny: Path, calls: Calls) -> None:
    variants = {"a": TINY, "b": replace(TINY, model=ModelConfig(checkpoint=EARLY.name))}
    reports = run_study(replace(TINY, variants=variants), tmp_path / "both")
    assert reports == [tmp_path / "both" / name / "report.html" for name in "ab"]
    assert calls == WHOLE + WHOLE
    assert results(tmp_path / "both" / "a") == results(tiny)
    facts = json.loads((tmp_path / "both" / "b" / "config.json").read_text())
    assert facts["model"]["source"].endswith(EARLY.name)
    assert {facts["origins"][name] for name in ("variants", "seeds", "prune.steps")} == {"Python"}
    assert not {"method", "model.checkpoint"} & set(facts["origins"])
    # A variant that is no longer part of it goes; a folder of someone else stays.
    (tmp_path / "both" / "mine").mkdir()
    (tmp_path / "both" / "mine" / "config.json").write_text("{}")
    calls.clear()
    run_study(replace(TINY, variants={"c": TINY}), tmp_path / "both")
    assert not calls, "the same study by another name"
    assert {path.name for path in (tmp_path / "both").iterdir()} == {
        *("c", "mine", "store", "study.json")
    }


def test_other_studies_in_the_folder_stay_as_they_are(done: Path, calls: Calls) -> None:
    run_study(BARE, done / "inner", store=done / "store")
    write_cognitive_run(done / "cog")
    facts = json.loads((done / "cog" / "config.json").read_text())
    facts |= {"units": {"base": "ab"}, "seconds": {"train": 1.0}}
    (done / "cog" / "config.json").write_text(json.dumps(facts))
    (done / "figures" / "mine").mkdir(parents=True)
    (done / "figures" / "mine" / "study.json").write_text("mine")
    before = {name: contents(done / name) for name in ("inner", "cog", "figures/mine")}
    assert len(before["cog"]) > 5
    run_study(replace(TINY, analyses=replace(TINY.analyses, ablation=None)), done)
    run_study(replace(TINY, variants={"a": TINY}), done)
    assert {name: contents(done / name) for name in before} == before
    # Nor is another study's folder taken for a variant.
    for name in ("inner", "cog"):
        with pytest.raises(InputError, match=rf"{name} holds the results of another study"):
            run_study(replace(TINY, variants={name: TINY}), done)
    run_study(TINY, done)
    assert {name: contents(done / name) for name in before} == before
    assert not (done / "a").exists()


# -- unusual runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A study with an empty core; it may be gone on with."""
    out = shutil.copytree(tiny, tmp_path_factory.mktemp("empty") / "run")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        run_study(replace(TINY, target_sparsities=(0.9, 0.96)), out)
    return out


@pytest.mark.parametrize("max_non_core", [0, 2])
def test_an_empty_core(empty: Path, calls: Calls, max_non_core: int) -> None:
    ablation = Ablation(max_joint=2, max_non_core=max_non_core)
    wanted = replace(TINY.analyses, ablation=ablation)
    run_study(replace(TINY, target_sparsities=(0.9, 0.96), analyses=wanted), empty)
    assert calls == counts(**ABLATED)
    tables = {path.stem: pd.read_csv(path) for path in (empty / "tables").iterdir()}
    assert tables["core"].empty
    assert tables["core_summary"]["core_size"].tolist() == [0]
    assert not tables["head_categories"]["in_core"].any()
    assert set(tables["ablation"]["kind"]) == ({"non-core"} if max_non_core else set())
    assert list(tables["ablation"].columns) == SCHEMAS["ablation"].required
    assert tables["interactions"].empty
    assert list(tables["interactions"].columns) == SCHEMAS["interactions"].required


# -- configurations -------------------------------------------------------------------------------


def test_classes_can_be_named_for_a_generic_checkpoint(tmp_path: Path) -> None:
    """Training labels are not used, so they may be anything."""
    checkpoint = tmp_path / "generic"
    shutil.copytree(tiny_encoder_dir(), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    config |= {"label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    for split in ("train", "id", "ood"):
        frame = tiny_world.generate(split, 24, 3).frame
        if split == "train":
            frame = frame.drop(columns="label")
        frame.to_csv(tmp_path / f"{split}.csv", index=False)
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "id", "ood")}
    config_of_run = replace(
        BARE,
        model=ModelConfig(source=str(checkpoint), class_names=("entailment", "non-entailment")),
        data=DataConfig(**files),
    )
    run_study(config_of_run, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "tables" / "accuracy.csv")
    full = table.query("subnetwork == 'full' and split == 'id' and subset == 'all'")
    assert full["accuracy"].item() > 0.9
    unnamed = replace(config_of_run, model=ModelConfig(source=str(checkpoint)))
    with pytest.raises(InputError, match="--class-names"):
        run_study(unnamed, tmp_path / "unnamed")
    assert not (tmp_path / "unnamed").exists()
