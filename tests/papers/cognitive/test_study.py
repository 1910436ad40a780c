from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from mechcore.papers.cognitive.plan import Plan
from mechcore.papers.cognitive.work import Units, perform
from transformers import AutoModelForCausalLM

from mechcore.errors import InputError, MechcoreError
from mechcore.papers.cognitive import CognitiveSettings, run
from mechcore.papers.cognitive.arms import Run, make_model, right_answers
from mechcore.papers.cognitive.trials import ANSWERS, PROMPT, generate, tiny_tokenizer
from mechcore.study.store import Store
from mechcore.training import answering

# The study that all tests read is drawn, what they run besides is not.
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("no_drawings")]

MODELS = 1 + 2 * 2
TRAININGS = 2 * 2 * (2 + 1)


@pytest.fixture(scope="module")
def done(small: CognitiveSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    run(small, out)
    return out


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


def manifests(out: Path) -> set[Path]:
    return set(out.glob("store/objects/*/*/manifest.json"))


# -- results --------------------------------------------------------------------------------------


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
    names = {path.stem for path in (done / "tables").glob("*.csv")}
    analyses = {
        *("ablation", "mass", "attention", "attention_drop", "decoding", "svm", "check"),
        *("selectivity", "terms", "projection", "silhouette"),
    }
    assert {f"cognitive_{name}" for name in analyses} < names
    for name in analyses:
        found = table(done, f"cognitive_{name}")
        assert sorted({*found[["arm", "seed"]].to_records(index=False).tolist()}) == keys, name
    assert table(done, "cognitive_verdicts")["claim"].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_accuracies_are_those_of_the_checkpoint(done: Path, small: CognitiveSettings) -> None:
    """Against the checkpoint of the store, loaded by transformers alone."""
    plan = Plan(small, Store(done / "store"))
    chosen = next(each for each in plan.chosen() if each.arm == "scratch")
    folder = plan.store.whole(plan.units.model(chosen).key) / "checkpoint"
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
    result = plan.result(chosen)
    assert result is not None
    assert result["accuracy"] == pytest.approx(correct.mean())
    assert result["incongruent"] == pytest.approx(correct[incongruent].mean())
    assert result["congruent"] == pytest.approx(correct[~incongruent].mean())
    any_word = logits.argmax(dim=1).numpy() == [
        tokenizer.convert_tokens_to_ids(label) for label in trials.frame["label"]
    ]
    assert result["unrestricted"] == pytest.approx(any_word.mean())
    assert result["low"] <= result["accuracy"] <= result["high"]


def test_the_folder_says_what_was_done(done: Path, small: CognitiveSettings) -> None:
    config = json.loads((done / "config.json").read_text())
    assert config["kind"] == "cognitive"
    assert config["settings"]["sizes"] == [8, 16]
    assert config["model"]["n_layers"] == config["model"]["n_heads"] == 2
    assert (done / "report.html").read_text().count("<h2") > 5
    assert len(list((done / "figures").glob("*.png"))) > 3


# -- arms -----------------------------------------------------------------------------------------


def test_arms_begin_where_they_should(small: CognitiveSettings, base: Path) -> None:
    stored = AutoModelForCausalLM.from_pretrained(base).state_dict()

    def weights(run: Run) -> dict[str, Any]:
        return make_model(small, run)[0].state_dict()

    fine_tuned = weights(Run("fine_tuned", 8, 3, 1e-3))
    assert all(torch.equal(fine_tuned[name], stored[name]) for name in stored)
    first, again = weights(Run("scratch", 8, 3, 1e-3)), weights(Run("scratch", 16, 3, 1e-2))
    other = weights(Run("scratch", 8, 4, 1e-3))
    name = "transformer.h.0.attn.c_attn.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], stored[name])


def test_answers_of_the_two_words_and_of_all(small: CognitiveSettings) -> None:
    model, tokenizer = make_model(small, Run("base"))
    trials = generate(80, 0, split="test")
    found = right_answers(model, answering(model, tokenizer, PROMPT, ANSWERS), trials)
    assert found["congruent"].tolist() == trials.frame["congruent"].tolist()
    assert (found["restricted"] >= found["unrestricted"]).all()
    assert 0 < found["restricted"].mean() < 1


# -- going on -------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(
    done: Path, small: CognitiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    before = manifests(out)

    def never(*_: Any) -> list[str]:
        raise AssertionError("a unit was done again")

    with monkeypatch.context() as patch:
        patch.setattr("mechcore.papers.cognitive.study.perform", never)
        run(small, out)
    # Other selectivity tests: only their units are new.
    run(replace(small, permutations=120), out)
    assert len(manifests(out) - before) == MODELS
    assert manifests(out) > before


@pytest.fixture
def least(small: CognitiveSettings) -> CognitiveSettings:
    return replace(small, arms=("fine_tuned",), sizes=(8,), seeds=(3,))


def of_least(out: Path, name: str) -> pd.DataFrame:
    """The part of a table that the least study has as well."""
    found = table(out, name)
    wanted = found[(found["arm"] == "fine_tuned") & (found["seed"] == 3)]
    return wanted[wanted["n"] == 8].reset_index(drop=True)


def test_an_interrupted_study_goes_on(
    done: Path, least: CognitiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = 0

    def stopping(*arguments: Any) -> list[str]:
        nonlocal finished
        if finished == 1:
            raise KeyboardInterrupt
        finished += 1
        return perform(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("mechcore.papers.cognitive.study.perform", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(least, tmp_path / "out")
    assert len(manifests(tmp_path / "out")) == 1
    run(least, tmp_path / "out")
    assert len(manifests(tmp_path / "out")) == 2 + 3
    found = table(tmp_path / "out", "cognitive_training")
    pd.testing.assert_frame_equal(found, of_least(done, "cognitive_training"))


def test_processes_side_by_side_find_the_same(
    done: Path, least: CognitiveSettings, tmp_path: Path
) -> None:
    run(least, tmp_path / "out", workers=2, threads=1)
    found = table(tmp_path / "out", "cognitive_training")
    pd.testing.assert_frame_equal(found, of_least(done, "cognitive_training"))


def test_a_table_that_is_no_longer_made_goes(done: Path, small: CognitiveSettings) -> None:
    stale = done / "tables" / "cognitive_old.csv"
    stale.write_text("arm\nbase\n")
    run(small, done)
    assert not stale.exists()


# -- errors ---------------------------------------------------------------------------------------


def test_other_folders_and_bases_are_refused(small: CognitiveSettings, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and is not that of a cognitive study"):
        run(small, tmp_path)
    with pytest.raises(InputError, match="0 workers"):
        run(small, tmp_path / "out", workers=0)
    with pytest.raises(InputError, match="no such base"):
        run(replace(small, base=str(tmp_path / "no such base")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_the_words_is_refused(
    small: CognitiveSettings, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot write prompts like"):
        run(replace(small, rendering="signed"), tmp_path / "out")


def test_a_failing_unit_is_named(
    small: CognitiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> list[str]:
        raise MechcoreError("the loss is nan")

    monkeypatch.setattr("mechcore.papers.cognitive.study.perform", failing)
    with pytest.raises(MechcoreError, match=r"model .* n=16 seed=3 rate=.*: the loss is nan"):
        run(small, tmp_path / "out")


def test_a_key_is_of_everything_that_matters(small: CognitiveSettings) -> None:
    made = Run("scratch", 8, 3, 1e-3)
    key = Units(small).model(made).key
    assert Units(replace(small, sizes=(8, 32), threshold=0.8)).model(made).key == key
    for changes in ({"n_dev": 24}, {"n_test": 88}, {"random_order": True}):
        assert Units(replace(small, **changes)).model(made).key != key
    analysis = Units(small).analysis("units", made).key
    assert Units(replace(small, shuffles=3)).analysis("units", made).key == analysis
    assert Units(replace(small, alpha=0.05)).analysis("units", made).key != analysis
    decoding = Units(small).analysis("decoding", made).key
    assert Units(replace(small, decoded_layers=(1,))).analysis("decoding", made).key != decoding
    # What they are computed with changes their results.
    assert Units(small).analysis("units", Run("base")).recipe["numerics"].keys() == {
        "scikit-learn",
        "umap-learn",
    }
