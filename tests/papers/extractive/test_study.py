from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from mechcore.errors import InputError, MechcoreError
from mechcore.papers.extractive.data import facts_table
from mechcore.papers.extractive.facts import city_ordering, city_tasks
from mechcore.papers.extractive.plan import Plan
from mechcore.papers.extractive.report.tables import EXTRACTIVE_TABLES
from mechcore.papers.extractive.settings import EXPERIMENTS, ExtractiveSettings
from mechcore.papers.extractive.study import run
from mechcore.papers.extractive.tuning import TuneSettings
from mechcore.papers.extractive.work import Units, perform
from mechcore.study.store import Store

# The study that all tests read is drawn, what they run besides is not.
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("no_drawings")]

SEEDS = (3, 4)
PER_SEED = 2 + 2 + 2 + 2 + 1 + 1
"""Units: ocr, scores and freezing of two tasks, ordering without and with replay, the other two."""


def word_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    splitter = Whitespace()
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[PAD]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = splitter
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder of 2 layers that knows the words of the cities' tasks."""
    tables = [facts_table(city_tasks(seed), city_ordering(seed)) for seed in SEEDS]
    texts = [text for each in tables for text in (*each["prompt"], *each["completion"])]
    tokenizer = word_tokenizer(texts)
    path = tmp_path_factory.mktemp("checkpoints") / "random base"
    helpers.gpt2_language_model(vocab_size=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def small(base: Path) -> ExtractiveSettings:
    """The smallest study that has every step, of one seed."""
    tuning = TuneSettings(learning_rate=1e-2, epochs=1, batch_size=84)
    return ExtractiveSettings(
        str(base),
        seeds=SEEDS[:1],
        learning_rates=(1e-3, 1e-2),
        epochs=(1,),
        batch_size=10,
        ordering=replace(tuning, replay=4),
        grafting=tuning,
        counterfactuals=2,
        n_resamples=50,
    )


@pytest.fixture(scope="module")
def least(small: ExtractiveSettings) -> ExtractiveSettings:
    """Two seeds of the experiments that depend on one another."""
    return replace(small, seeds=SEEDS, experiments=("ocr", "scores"))


@pytest.fixture(scope="module")
def done(small: ExtractiveSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    run(small, out)
    return out


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mechcore.study.paper.build_report", lambda out: out / "report.html")


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"extractive_{name}.csv")


def manifests(out: Path) -> set[Path]:
    return set(out.glob("store/objects/*/*/manifest.json"))


# -- results --------------------------------------------------------------------------------------


def test_every_experiment_is_there(done: Path, small: ExtractiveSettings) -> None:
    plan = Plan(small, Store(done / "store"))
    assert len(manifests(done)) == len(plan.wanted()) == plan.size == PER_SEED
    assert {path.stem for path in (done / "tables").glob("*.csv")} == set(EXTRACTIVE_TABLES)
    for name, columns in EXTRACTIVE_TABLES.items():
        found = table(done, name.removeprefix("extractive_"))
        assert set(columns.names) <= set(found.columns), name
        if name != "extractive_verdicts":
            assert set(found["seed"]) == {3}
    assert set(table(done, "ordering")["replay"]) == {False, True}
    assert set(table(done, "freezing")["cut"]) == {1}


def test_scores_and_freezing_are_of_the_chosen_setting(
    done: Path, small: ExtractiveSettings
) -> None:
    grid = table(done, "grid")
    assert len(grid) == 2 * 2
    plan = Plan(small, Store(done / "store"))
    for unit in plan.wanted():
        if unit.kind in ("scores", "freezing"):
            task = ("first-hop", "second-hop")[unit.task or 0]
            mine = grid[(grid["task"] == task) & (grid["seed"] == unit.seed) & grid["chosen"]]
            (tuning,) = unit.tuning
            assert mine["learning_rate"].tolist() == [tuning.learning_rate]
            assert tuning.seed == unit.seed
            ranks, frozen = table(done, "ranks"), table(done, "freezing")
            for state, group in (("before", "all"), ("after", "none")):
                where = {"task": task, "seed": unit.seed, "data": "implications"}
                first = ranks.loc[
                    (ranks[list(where)] == pd.Series(where)).all(axis=1) & (ranks["state"] == state)
                ]
                second = frozen.loc[
                    (frozen[list(where)] == pd.Series(where)).all(axis=1)
                    & (frozen["frozen"] == group)
                ]
                assert set(first["mean_rank"]) == set(second["mean_rank"])


def test_the_folder_says_what_was_done(done: Path, small: ExtractiveSettings) -> None:
    config = json.loads((done / "config.json").read_text())
    assert config["kind"] == "extractive"
    assert config["settings"]["learning_rates"] == [0.001, 0.01]
    assert config["settings"]["ordering"]["replay"] == 4
    assert config["model"]["source"] == small.base
    assert config["model"]["n_layers"] == 2
    assert set(config["seconds"]) == {f"extractive {kind}" for kind in EXPERIMENTS}
    assert "ordering with replay seed=3" in config["units"]
    assert "scores second-hop seed=3" in config["units"]
    assert (done / "report.html").is_file()


# -- going on -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_what_is_done_is_not_done_again(
    done: Path, small: ExtractiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    before = manifests(out)

    def never(*_: Any) -> list[str]:
        raise AssertionError("a unit was done again")

    with monkeypatch.context() as patch:
        patch.setattr("mechcore.papers.extractive.study.perform", never)
        run(small, out)
        # Fewer experiments: a table that is no longer made goes.
        run(replace(small, experiments=("ocr", "scores")), out)
    assert not (out / "tables" / "extractive_grafting.csv").exists()
    # Other counterfactuals: only the scores are new.
    run(replace(small, experiments=("ocr", "scores"), counterfactuals=3), out)
    assert len(manifests(out) - before) == 2
    assert manifests(out) > before


@pytest.mark.usefixtures("no_report")
def test_an_interrupted_study_of_two_seeds_goes_on(
    done: Path, least: ExtractiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = 0

    def stopping(*arguments: Any) -> list[str]:
        nonlocal finished
        if finished == 1:
            raise KeyboardInterrupt
        finished += 1
        return perform(*arguments)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("mechcore.papers.extractive.study.perform", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(least, out)
    assert len(manifests(out)) == 1
    run(least, out)
    assert len(manifests(out)) == 2 * 4
    for name in ("ranks", "scores", "sums"):
        both = table(out, name)
        pd.testing.assert_frame_equal(
            both[both["seed"] == 3].reset_index(drop=True), table(done, name)
        )
    # Seeds differ in people and in training.
    assert table(out, "sums")["informative"].nunique() == 4


def test_units_can_be_sent_to_other_processes(small: ExtractiveSettings, done: Path) -> None:
    for unit in Plan(small, Store(done / "store")).wanted():
        again = pickle.loads(pickle.dumps(unit))
        assert (again.key, again.name) == (unit.key, unit.name)


def test_a_tiny_base_comes_before_what_needs_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    settings = ExtractiveSettings(seeds=(3, 4))
    plan = Plan(settings, store)
    assert [unit.name for unit in plan.wanted()] == ["base seed=3", "base seed=4"]
    assert plan.size == 2 * (1 + PER_SEED)
    base = plan.units.base(4)
    with store.making(base.key, "extractive base", base.name, base.recipe) as folder:
        (folder / "made.txt").write_text("made up")
    ready = {unit.name for unit in plan.wanted()}
    assert {"ocr first-hop seed=4", "grafting seed=4", "ordering seed=4"} <= ready
    assert not any("seed=3" in name for name in ready if not name.startswith("base"))
    assert not any(name.startswith(("scores", "freezing")) for name in ready)


# -- keys -----------------------------------------------------------------------------------------


def test_a_key_is_of_everything_that_matters(small: ExtractiveSettings) -> None:
    def key(settings: ExtractiveSettings, kind: str, seed: int = 3, rate: float = 1e-3) -> str:
        tuning = (TuneSettings(rate, seed=seed),)
        task = 0 if kind in ("ocr", "scores", "freezing") else None
        return Units(settings).experiment(kind, seed, tuning, task).key

    changes: dict[str, dict[str, Any]] = {
        "ocr": {"n_resamples": 60},
        "scores": {"counterfactuals": 4},
        "freezing": {"cuts": (1,)},
        "localization": {"compat": "paper"},
    }
    for kind in EXPERIMENTS:
        same = key(small, kind)
        assert key(replace(small, seeds=(3,), learning_rates=(1e-4,)), kind) == same
        assert key(small, kind, seed=4) != same
        assert key(small, kind, rate=2e-3) != same
        assert key(replace(small, precision="bfloat16"), kind) != same
        for other, each in changes.items():
            moved = key(replace(small, **each), kind) != same
            assert moved == (kind == other or (other == "localization" and kind == "scores"))


# -- errors ---------------------------------------------------------------------------------------


def test_other_folders_and_bases_are_refused(small: ExtractiveSettings, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not that of a study of extractive structures"):
        run(small, tmp_path)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="extractive study: 0 workers"):
        run(small, out, workers=0)
    with pytest.raises(InputError, match="no such base"):
        run(replace(small, base=str(tmp_path / "no such base")), out)
    with pytest.raises(InputError, match=r"cuts is \[2\]; the base has 2 layers: expected 1 to 1"):
        run(replace(small, cuts=(2,)), out)
    with pytest.raises(InputError, match="does not know a word of"):
        run(replace(small, seeds=(11,)), out)  # other people
    assert not out.exists()


def test_a_failing_unit_is_named(
    small: ExtractiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> list[str]:
        raise MechcoreError("the loss is nan")

    monkeypatch.setattr("mechcore.papers.extractive.study.perform", failing)
    with pytest.raises(MechcoreError, match=r"ocr first-hop seed=3: the loss is nan"):
        run(small, tmp_path / "out")


def test_half_precision_is_used(
    least: ExtractiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def looking(model: Any, *_: Any, **__: Any) -> Any:
        seen.append(next(model.parameters()).dtype)
        raise MechcoreError("enough")

    monkeypatch.setattr("mechcore.papers.extractive.work.recall", looking)
    with pytest.raises(MechcoreError, match="enough"):
        run(replace(least, precision="bfloat16"), tmp_path / "out")
    assert seen == [torch.bfloat16]
