"""Studies that train their model first: every architecture from its base to the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import CLASSES, Cases, randomise
from main_study.small_study import leave_out_the_report, results
from study.sources import data_config
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.analyses.heads import Heads
from mechcore.analyses.search import Search
from mechcore.errors import InputError
from mechcore.main_study.config import RESERVED, Analyses, Resources, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.pruning import PruneSettings
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.study.kinds import read_study
from mechcore.study.run import job_table, run_study
from mechcore.training import train_settings
from mechcore.training.loop import Loop

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "minilm-mnli-hans.yaml"
TRAINING = train_settings(
    "quick",
    steps=4,
    batch_size=4,
    warmup_steps=1,
    learning_rate=1e-2,
    evaluate_every=2,
    checkpoint_every=2,
    checkpoint_dtype="float16",
)
SMALL = PruneSettings(steps=3, warmup=0, batch_size=4, tolerance=1)


def study(source: Path, folder: Path) -> StudyConfig:
    return StudyConfig(
        model=ModelConfig(source=str(source), class_names=CLASSES),
        training=TRAINING,
        checkpoints=("training",),
        data=replace(data_config(folder), max_train=6, groups={"one": ("x",)}),
        prune=SMALL,
        seeds=(1, 2),
        target_sparsities=(0.5,),
        n_resamples=5,
        analyses=Analyses(
            heads=Heads(4),
            ablation=Ablation(max_joint=1, max_non_core=1, controls=2),
            paths=None,
            dose=None,
            search=Search(max_size=2, n_pairs=2),
            effective_size=EffectiveSize((0.4,), seeds=(1,), prune=replace(SMALL, steps=2)),
        ),
        resources=Resources(cpus=1),
    )


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_the_report(monkeypatch)


def trained(out: Path) -> Path:
    """The final checkpoint of the study's training."""
    return Path(json.loads((out / "config.json").read_text())["model"]["source"])


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


def accuracy_by_hand(checkpoint: Path, data: Path) -> float:
    """Share of right answers of a plain Hugging Face model, text by text."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    frame, right = pd.read_csv(data), 0
    for row in frame.itertuples():
        inputs = tokenizer(row.text_a, row.text_b, return_tensors="pt")
        if model.config.model_type == "gpt2":
            inputs.pop("token_type_ids", None)
        with torch.no_grad():
            best = int(model(**inputs).logits.argmax())
        right += model.config.id2label[best] == row.label
    return right / len(frame)


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
@pytest.mark.usefixtures("no_drawings")
@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_every_architecture_is_trained_studied_and_reported(
    cases: Cases, tmp_path: Path, architecture: str
) -> None:
    config, out = study(cases.path(architecture), tmp_path), tmp_path / "out"
    (report,) = run_study(config, out)
    text = report.read_text(encoding="utf-8")
    assert "Training" in text
    assert {path.name for path in out.iterdir()} <= set(RESERVED)
    overall = table(out, "accuracy").query("split == 'ood' and subset == 'all'")
    full = overall[overall["subnetwork"] == "full"]
    by_hand = accuracy_by_hand(trained(out), tmp_path / "ood-data.csv")
    assert full["accuracy"].item() == pytest.approx(by_hand)
    history = table(out, "training").query("split == 'ood' and subset == 'all'")
    assert history["step"].tolist() == [2, 4]
    assert history["accuracy"].iloc[-1] == pytest.approx(by_hand)
    sizes = table(out, "mean_effective_size").query("group == 'OOD'")
    assert sizes["checkpoint"].tolist() == [2, 4]
    groups = table(out, "accuracy").query("subnetwork == 'full' and subset == 'OOD'")
    assert sizes["full_accuracy"].iloc[-1] == pytest.approx(groups["accuracy"].item())
    assert set(table(out, "superadditive")["metric"]) == {"accuracy", "margin"}
    before = AutoModelForSequenceClassification.from_pretrained(cases.path(architecture))
    after = AutoModelForSequenceClassification.from_pretrained(trained(out))
    changed = [
        not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert all(changed) or architecture == "bert"  # its pooler's bias may stay
    assert sum(changed) > len(changed) / 2


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
@pytest.mark.usefixtures("no_report")
def test_training_goes_on_where_it_was_interrupted(
    cases: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(study(cases.path("bert"), tmp_path), checkpoints=(), only=("accuracy",))
    run_study(config, tmp_path / "whole")
    losses, compute = [], Loop.compute_loss

    def interrupted(self: Loop, *given: Any, **named: Any) -> Any:
        losses.append(1)
        if len(losses) == 4:
            raise KeyboardInterrupt
        return compute(self, *given, **named)

    monkeypatch.setattr(Loop, "compute_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(config, tmp_path / "out")
    state = job_table(tmp_path / "out")[0].set_index("kind")["state"]
    assert state["train"] == "begun"
    run_study(config, tmp_path / "out")
    assert len(losses) == 4 + 2  # steps 3 and 4 again
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert set(job_table(tmp_path / "out")[0]["state"]) == {"done"}
    run_study(config, tmp_path / "out")
    assert len(losses) == 6


@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
@pytest.mark.usefixtures("no_report")
def test_a_base_whose_classes_are_renumbered_gives_the_same_figures(
    cases: Cases, tmp_path: Path
) -> None:
    """Labels are matched by name: the order of a checkpoint's classes has no effect."""
    order = [2, 0, 1]
    model = AutoModelForSequenceClassification.from_pretrained(cases.path("bert"))
    randomise(model)
    tokenizer = AutoTokenizer.from_pretrained(cases.path("bert"))
    tables = []
    for name, places in (("plain", [0, 1, 2]), ("permuted", order)):
        with torch.no_grad():
            model.classifier.weight.copy_(model.classifier.weight[places])
            model.classifier.bias.copy_(model.classifier.bias[places])
        model.config.id2label = {i: CLASSES[place] for i, place in enumerate(places)}
        model.config.label2id = {CLASSES[place]: i for i, place in enumerate(places)}
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        config = replace(study(tmp_path / name, tmp_path), checkpoints=(), only=("accuracy",))
        run_study(config, tmp_path / f"out-{name}")
        tables.append(table(tmp_path / f"out-{name}", "accuracy"))
    pd.testing.assert_frame_equal(tables[0], tables[1], atol=1e-4)


@pytest.mark.everyday
def test_a_changed_training_changes_every_job(cases: Cases, tmp_path: Path) -> None:
    config = study(cases.path("bert"), tmp_path)
    before = make_plan(config).jobs
    after = make_plan(with_training(config, seed=1)).jobs
    assert not {job.key for job in before} & {job.key for job in after}
    assert {job.step.kind for job in before} >= {"train", "prune", "search", "effective_size"}
    # The training reads all data, and pruning a draw.
    inputs = {job.step.kind: job.contents["train"] for job in before if "train" in job.contents}
    assert inputs["train"]["limit"] is None
    assert inputs["prune"]["limit"] == inputs["means"]["limit"] == 6
    # Other classes of a task are another training.
    files = "".join(f"{split}: {split}-data.csv\n" for split in ("train", "id", "ood"))
    data, keys = DataConfig(task=str(tmp_path / "task.yaml")), []
    for classes in ("[contradiction, entailment, neutral]", "[neutral, entailment, contradiction]"):
        (tmp_path / "task.yaml").write_text(f"{files}classes: {classes}\n")
        model = replace(config.model, class_names=None)
        keys += [{job.key for job in make_plan(replace(config, model=model, data=data)).jobs}]
    assert not keys[0] & keys[1]


@pytest.mark.everyday
@pytest.mark.filterwarnings("ignore::mechcore.errors.MechcoreWarning")
@pytest.mark.usefixtures("no_report")
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    cases: Cases, tmp_path: Path
) -> None:
    config = study(cases.path("bert"), tmp_path)
    other = replace(config, model=replace(config.model, class_names=("yes", "no")))
    for refused, message in (
        (other, "label 'contradiction': not a class"),
        (with_training(config, batch_size=50), "12 examples for batches of 50"),
        (with_training(config, max_length=9999), "max_length 9999: expected 1 to"),
    ):
        with pytest.raises(InputError, match=message):
            run_study(refused, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def with_training(config: StudyConfig, **changes: Any) -> StudyConfig:
    return replace(config, training=replace(TRAINING, **changes))


@pytest.mark.everyday
def test_the_published_study_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MINILM", "NLI_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    config = read_study(PUBLISHED)[1]
    assert config.training is not None
    assert config.analyses.effective_size is not None
    assert config.data.groups["main text"]
