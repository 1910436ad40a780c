from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import helpers
import pandas as pd
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mechcore.errors import InputError
from mechcore.papers.extractive.experiments.freezing import Freezing
from mechcore.papers.extractive.experiments.score_maps import Scores
from mechcore.papers.extractive.facts import city_ordering, city_tasks, facts_table
from mechcore.papers.extractive.settings import EXPERIMENTS, ExtractiveSettings
from mechcore.papers.extractive.study import ExtractiveStudy, run
from mechcore.papers.extractive.weights import TuneSettings
from mechcore.report.kinds import schemas_of
from mechcore.study.step import Job
from mechcore.study.store import Store

# Figures are drawn by test_report.py.
pytestmark = pytest.mark.usefixtures("no_drawings")

SEEDS = (3, 4)
PER_SEED = 2 + 2 + 2 + 2 + 1 + 1
"""Jobs: ocr, scores and freezing of two tasks, ordering without and with replay, the other two."""


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
    texts = [text for frame in tables for text in (*frame["prompt"], *frame["completion"])]
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
def done(small: ExtractiveSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    with helpers.undrawn():
        run(small, out)
    return out


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mechcore.study.run.build_report", lambda out: out / "report.html")


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"extractive_{name}.csv")


def manifests(out: Path) -> set[Path]:
    return set(out.glob("store/objects/*/*/manifest.json"))


def jobs_of(settings: ExtractiveSettings, store: Store) -> dict[str, Job]:
    return {job.name: job for job in ExtractiveStudy(settings, store).jobs()}


def test_every_experiment_is_there(done: Path, small: ExtractiveSettings) -> None:
    study = ExtractiveStudy(small, Store(done / "store"))
    jobs = study.jobs()
    assert len(manifests(done)) == len(jobs) == PER_SEED
    assert study.cost == sum(job.step.cost(job) for job in jobs)
    schemas = schemas_of({"kind": "extractive"})
    assert {path.stem for path in (done / "tables").glob("*.csv")} == set(schemas)
    for name, schema in schemas.items():
        frame = table(done, name.removeprefix("extractive_"))
        assert list(frame.columns) == schema.required, name
        if name != "extractive_verdicts":
            assert set(frame["seed"]) == {3}
    assert set(table(done, "ordering")["replay"]) == {False, True}
    assert set(table(done, "freezing")["cut"]) == {1}


def test_scores_and_freezing_are_of_the_chosen_setting(
    done: Path, small: ExtractiveSettings
) -> None:
    grid = table(done, "grid")
    assert len(grid) == 2 * 2
    steps = [job.step for job in jobs_of(small, Store(done / "store")).values()]
    following = [step for step in steps if isinstance(step, (Freezing, Scores))]
    assert len(following) == 4
    for step in following:
        task, seed = step.task, step.tuning.seed
        mine = grid[(grid["task"] == task) & (grid["seed"] == seed) & grid["chosen"]]
        assert mine["learning_rate"].tolist() == [step.tuning.learning_rate]
        ranks, frozen = table(done, "ranks"), table(done, "freezing")
        own = f"task == '{task}' and seed == {seed} and data == 'implications'"
        for state, group in (("before", "all"), ("after", "none")):
            first = ranks.query(f"{own} and state == '{state}'")
            second = frozen.query(f"{own} and frozen == '{group}'")
            assert set(first["mean_rank"]) == set(second["mean_rank"])


def test_scores_and_freezing_come_after_the_choice_and_all_after_their_base(tmp_path: Path) -> None:
    store, chosen = Store(tmp_path / "store"), TuneSettings(0.002, 8, 8, 4)
    store.create()
    study = ExtractiveStudy(ExtractiveSettings(seeds=(3, 4)), store)
    known = {job.name: job for job in study.jobs()}
    assert list(known)[:3] == ["base seed=3", "base seed=4", "ocr first-hop seed=3"]
    assert len(known) == 2 * (1 + PER_SEED - 4)
    bases = {job.needs["base"].name for name, job in known.items() if "ocr" in name}
    assert bases == {"base seed=3", "base seed=4"}
    whole, job = study.cost, known["ocr first-hop seed=4"]
    with store.making(job.key, job.step.kind, job.name, job.recipe) as folder:
        (folder / "chosen.json").write_text(json.dumps(asdict(chosen)))
    new = {job.name: job for job in study.jobs() if job.name not in known}
    assert list(new) == ["freezing first-hop seed=4", "scores first-hop seed=4"]
    for job in new.values():
        assert job.needs == {"base": known["base seed=4"]}
        assert isinstance(job.step, (Freezing, Scores))
        assert job.step.tuning == chosen
    assert study.cost == whole  # as many epochs as were expected


@pytest.mark.usefixtures("no_report")
def test_a_tiny_base_is_pretrained_and_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = replace(ExtractiveSettings().quick(), experiments=("ocr",), base_steps=1)
    run(settings, out)
    assert set(table(out, "ranks")["task"]) == {"first-hop", "second-hop"}
    config = json.loads((out / "config.json").read_text())
    assert set(config["seconds"]) == {"base", "ocr"}
    assert (config["model"]["n_layers"], config["model"]["source"][:4]) == (4, "tiny")


def test_an_edit_of_an_experiment_does_no_other_again(
    small: ExtractiveSettings, done: Path
) -> None:
    own = {
        name: f"mechcore.papers.extractive.experiments.{'recall' if name == 'ocr' else name}"
        for name in EXPERIMENTS
    }
    own |= dict.fromkeys(
        ("scores", "localization"), "mechcore.papers.extractive.experiments.score_maps"
    )
    for job in jobs_of(small, Store(done / "store")).values():
        used = set(job.recipe["code"]) & set(own.values())
        assert used == {own[job.step.kind]}, job.name


def test_other_folders_and_bases_are_refused(small: ExtractiveSettings, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and has no study"):
        run(small, tmp_path)
    out, tokenizer = tmp_path / "out", AutoTokenizer.from_pretrained(small.base)
    with pytest.raises(InputError, match="workers is 0"):
        run(small, out, workers=0)
    single = tmp_path / "single"
    helpers.gpt2_language_model(vocab_size=len(tokenizer), n_layer=1).save_pretrained(single)
    tokenizer.save_pretrained(single)
    for changes, message in (
        ({"base": str(tmp_path / "no such base")}, "no such base"),
        ({"cuts": (2,)}, r"cuts is \[2\]; the base has 2 layers: expected 1 to 1"),
        # before a tiny base is pretrained
        ({"base": None, "cuts": (4,)}, r"cuts is \[4\]; the base has 4 layers: expected 1 to 3"),
        ({"base": str(single), "cuts": None}, "has a single layer, but freezing needs"),
        ({"seeds": (11,)}, "does not know a word of"),  # other people
    ):
        with pytest.raises(InputError, match=message):
            run(replace(small, **changes), out)
    assert not out.exists()
