from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from mechcore.errors import InputError, NotFiniteError
from mechcore.papers.cognitive import ArmTraining, CognitiveSettings, run
from mechcore.papers.cognitive.arms import MakeModel, Run, make_model, right_answers
from mechcore.papers.cognitive.steps import Base
from mechcore.papers.cognitive.study import CognitiveStudy
from mechcore.papers.cognitive.text import ANSWERS, PROMPT, tiny_tokenizer
from mechcore.papers.cognitive.trials import generate
from mechcore.study.store import Store
from mechcore.training import answering

# Figures are for test_report.py, and test_command.py draws a page.
pytestmark = pytest.mark.usefixtures("no_drawings")

MODELS = 1 + 2 * 2
TRAININGS = 2 * 2 * (2 + 1)


@pytest.fixture(scope="module")
def done(small: CognitiveSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    with helpers.undrawn():
        run(small, out)
    return out


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


def manifests(out: Path) -> set[Path]:
    return set(out.glob("store/objects/*/*/manifest.json"))


def test_all_trainings_and_models_are_there(done: Path, small: CognitiveSettings) -> None:
    training, curve = table(done, "cognitive_training"), table(done, "cognitive_curve")
    assert len(training) == TRAININGS
    assert len(manifests(done)) == 1 + TRAININGS + 3 * MODELS
    chosen = training[training["chosen"]]
    assert len(chosen) == 2 * 2 * 2
    assert len(curve) == 1 + len(chosen)
    for (arm, n), part in training.groupby(["arm", "n"]):
        grid = part[part["seed"] == 3]
        assert sorted(grid["learning_rate"]) == [1e-3, 1e-2]
        best = grid.loc[grid["dev_accuracy"] == grid["dev_accuracy"].max(), "learning_rate"].min()
        assert set(part.loc[part["chosen"], "learning_rate"]) == {best}, (arm, n)
    assert (training["steps"] <= training["last_step"]).all()


def test_every_analysis_is_of_every_model(done: Path) -> None:
    models = table(done, "cognitive_models")
    keys = sorted(models[["arm", "seed"]].to_records(index=False).tolist())
    assert len(keys) == MODELS
    for name in (
        *("ablation", "mass", "attention", "attention_change", "decoding", "svm", "check"),
        *("selectivity", "terms", "projection", "silhouette"),
    ):
        frame = table(done, f"cognitive_{name}")
        assert sorted({*frame[["arm", "seed"]].to_records(index=False).tolist()}) == keys, name
    assert table(done, "cognitive_verdicts")["claim"].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_accuracies_are_those_of_the_checkpoint(done: Path, small: CognitiveSettings) -> None:
    """Against the checkpoint of the store, loaded by transformers alone."""
    study = CognitiveStudy(small, Store(done / "store"))
    chosen = next(candidate for candidate in study.chosen() if candidate.arm == "scratch")
    folder = study.store.whole(study.model(chosen).key) / "checkpoint"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    trials = generate(small.n_test, 0, split="test")
    tokenizer = tiny_tokenizer()
    ids = torch.tensor(tokenizer(trials.frame["text"].tolist())["input_ids"])
    with torch.no_grad():
        logits = model(ids).logits[:, -1]
    left, right = (tokenizer.convert_tokens_to_ids(word) for word in ("left", "right"))
    says_right = logits[:, right] > logits[:, left]
    correct = (says_right == torch.tensor((trials.frame["label"] == "right").tolist())).numpy()
    incongruent = ~trials.frame["congruent"].to_numpy()
    result = study.result(chosen)
    assert result is not None
    any_word = logits.argmax(dim=1).numpy() == [
        tokenizer.convert_tokens_to_ids(label) for label in trials.frame["label"]
    ]
    for name, hits in (
        ("accuracy", correct),
        ("incongruent", correct[incongruent]),
        ("congruent", correct[~incongruent]),
        ("unrestricted", any_word),
    ):
        assert result[name] == pytest.approx(hits.mean())
    assert result["low"] <= result["accuracy"] <= result["high"]
    assert 0 < result["accuracy"] < 1


def test_the_folder_says_what_was_done(done: Path) -> None:
    config = json.loads((done / "config.json").read_text())
    assert (config["kind"], config["settings"]["sizes"]) == ("cognitive", [8, 16])
    assert config["seeds"] == [3, 4]
    assert config["seconds"].keys() == {"model", "ablation", "decoding", "units"}
    assert len(config["jobs"]) == len(manifests(done))
    assert config["model"]["n_layers"] == config["model"]["n_heads"] == 2
    assert len(list((done / "figures").glob("*.png"))) > 3


def test_arms_begin_where_they_should(small: CognitiveSettings, base: Path) -> None:
    stored = AutoModelForCausalLM.from_pretrained(base).state_dict()

    def weights(run: Run) -> dict[str, Any]:
        return make_model(Base.of(small.base), run)[0].state_dict()

    fine_tuned = weights(Run("fine_tuned", 8, 3, 1e-3))
    assert all(torch.equal(fine_tuned[name], stored[name]) for name in stored)
    first, again = weights(Run("scratch", 8, 3, 1e-3)), weights(Run("scratch", 16, 3, 1e-2))
    other = weights(Run("scratch", 8, 4, 1e-3))
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], stored[name])


def test_logits_that_are_not_finite_are_no_answers(small: CognitiveSettings) -> None:
    model, tokenizer = make_model(Base.of(small.base), Run("base"))
    with torch.no_grad():
        model.get_output_embeddings().weight[:] = float("inf")
    objective = answering(model, tokenizer, PROMPT, ANSWERS)
    with pytest.raises(NotFiniteError, match=r"^logits: not finite"):
        right_answers(model, objective, generate(8, 0, split="test"))


def never(*_: Any) -> None:
    raise AssertionError("something was done again")


def test_an_interrupted_training_goes_on_from_what_it_left(
    done: Path, small: CognitiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the training is over, before the model is measured."""
    made = Run("scratch", 8, 3, 1e-2)
    step, base = MakeModel.of(small, made), Base.of(small.base)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mechcore.papers.cognitive.arms.right_answers", killed)
        with pytest.raises(KeyboardInterrupt):
            step.make(base, tmp_path / "partial", tmp_path / "first")
    monkeypatch.setattr("mechcore.training.run.Loop", never)
    step.make(base, tmp_path / "partial", tmp_path / "again")
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    assert result == CognitiveStudy(small, Store(done / "store")).result(made)


def test_what_cannot_be_studied_is_refused_before_any_training(
    small: CognitiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MakeModel, "run", never)
    for changes, message in (
        ({"base": str(tmp_path / "no such base")}, "no such base"),
        ({"rendering": "signed"}, "cannot write prompts like"),
        (
            {"decoded_layers": (0, 2)},
            r"decoded_layers is \[0, 2\]; the base has 2 layers: expected 0 to 1",
        ),
    ):
        with pytest.raises(InputError, match=message):
            run(replace(small, **changes), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def keys_of(settings: CognitiveSettings) -> dict[str, str]:
    """Keys of the jobs of one model, by their kind."""
    study = CognitiveStudy(settings, Store(Path(settings.base or "") / "no store"))
    jobs = [study.model(SCRATCH), *(study.analysis(a, SCRATCH) for a in study.analyses)]
    return {job.step.kind: job.key for job in jobs}


SCRATCH = Run("scratch", 8, 3, 1e-3)
ALL = {"model", "ablation", "decoding", "units"}
CHANGES: list[tuple[dict[str, Any], set[str]]] = [
    ({"sizes": (8, 32), "threshold": 0.8, "seeds": (3, 5)}, set()),
    ({"n_dev": 24}, ALL),
    ({"n_test": 88}, ALL),
    ({"random_order": True}, ALL),
    ({"scratch": ArmTraining((1e-3,), steps=5, warmup_steps=0)}, ALL),
    ({"fine_tuned": ArmTraining((1e-3,), steps=5, warmup_steps=0)}, set()),
    ({"n_analysis": 48}, ALL - {"model"}),
    ({"sweep_precision": "bfloat16"}, {"ablation"}),
    ({"shuffles": 20}, {"decoding"}),
    ({"decoded_layers": (0, 1)}, {"decoding"}),
    ({"alpha": 0.05}, {"units"}),
    ({"projection": "auto"}, {"units"}),
]


def test_a_change_redoes_what_depends_on_it(small: CognitiveSettings) -> None:
    before = keys_of(small)
    for changes, redone in CHANGES:
        after = keys_of(replace(small, **changes))
        assert {kind for kind in before if before[kind] != after[kind]} == redone, changes


def test_keys_are_of_what_computes(small: CognitiveSettings, tmp_path: Path) -> None:
    study = CognitiveStudy(small, Store(tmp_path / "store"))
    recipes = {step.kind: study.analysis(step, Run("base")).recipe for step in study.analyses}
    assert {"scikit-learn", "umap-learn"} <= recipes["units"]["versions"].keys()
    assert "scikit-learn" in recipes["decoding"]["versions"]
    # An edit of an analysis trains nothing again, nor does one of ablation decode again.
    room = "mechcore.papers.cognitive"
    trained = study.model(SCRATCH).recipe["code"]
    assert {f"{room}.arms", f"{room}.trials", "mechcore.training.loop"} <= trained.keys()
    for name in ("ablation", "attention", "decoding", "svm", "units", "settings", "study"):
        assert f"{room}.{name}" not in trained
    assert {f"{room}.ablation", f"{room}.attention"} <= recipes["ablation"]["code"].keys()
    assert f"{room}.decoding" not in recipes["ablation"]["code"]
    assert f"{room}.ablation" not in recipes["decoding"]["code"]


def test_the_cost_is_that_of_all_jobs_in_the_end(
    done: Path, small: CognitiveSettings, tmp_path: Path
) -> None:
    study = CognitiveStudy(small, Store(done / "store"))
    assert study.cost == pytest.approx(sum(job.step.cost(job) for job in study.jobs()))
    begun = CognitiveStudy(small, Store(tmp_path / "store"))
    assert begun.cost == study.cost
    assert len(begun.jobs()) < len(study.jobs())
