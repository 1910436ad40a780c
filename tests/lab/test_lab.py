"""A lab answers what the functions that it is made of answer, and keeps what took long."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import mechcore
from mechcore import Mask, MeanActivations, categorize_heads, evaluate, load_model
from mechcore.ablation import (
    ComponentSet,
    ablate,
    component_roles,
    confirm_roles,
    information_table,
    sets,
)
from mechcore.analyses.heads import Heads
from mechcore.analyses.paths import Paths
from mechcore.components import Component
from mechcore.errors import InputError
from mechcore.lab import Lab
from mechcore.lab.questions import written
from mechcore.main_study.config import Analyses, Resources, StudyConfig
from mechcore.models.encoded import as_encoded
from mechcore.pruning import PruneSettings
from mechcore.settings import entries
from mechcore.study.engine import StudyError
from mechcore.study.run import prepare
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_decoder_dir, tiny_encoder_dir

SMALL = StudyConfig(
    prune=PruneSettings(steps=6, warmup=2, batch_size=4, tolerance=1),
    target_sparsities=(0.3,),
    n_resamples=20,
    analyses=Analyses(heads=Heads(16), paths=Paths(controls=1, max_examples=10)),
    resources=Resources(cpus=1),
)
FRAMES = {
    split: tiny_world.generate(split, n, seed=5).frame  # type: ignore[arg-type]
    for split, n in (("train", 24), ("id", 100), ("ood", 100))
}
"""Enough examples of each label to measure information."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab") / "store"


@pytest.fixture(scope="module")
def lab(store: Path) -> Lab:
    return mechcore.open("embedded", **FRAMES, store=store, settings=SMALL)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(tiny_encoder_dir())


@pytest.fixture(scope="module")
def means(model: Any) -> MeanActivations:
    return MeanActivations.compute(model, FRAMES["train"])


def test_rank_heads_out_of_domain(lab: Lab, model: Any, means: MeanActivations) -> None:
    ranked = lab.blame().table
    own = MeanActivations.compute(model, FRAMES["ood"])
    answers: dict[str, Any] = {}
    for part, split, mean in (("id", "id", means), ("ood", "ood", means), ("ood_mean", "ood", own)):
        answers[part] = ablate(model, sets.singles(model), FRAMES[split], mean, split=split)  # type: ignore[arg-type]
    tables = [information_table(part, n_resamples=20) for part in answers.values()]
    inside, outside, other = (table[table["subset"] == "all"] for table in tables)
    expected = component_roles(inside, outside, ood_mean=other)
    expected = confirm_roles(expected, answers).set_index("component")
    rows = ranked.set_index("component").loc[expected.index]
    assert rows.pop("injected_margin").notna().all()
    pd.testing.assert_frame_equal(rows, expected)


def test_what_heads_attend_to(lab: Lab, model: Any) -> None:
    heads = lab.heads().table
    examples = lab.data["id"].examples.sample(16, SMALL.data.seed)
    expected = categorize_heads(model, examples)
    assert heads["category"].tolist() == expected["category"].tolist()
    np.testing.assert_allclose(heads["mass_previous"], expected["mass_previous"])


def test_a_decoder_by_prompt(store: Path) -> None:
    reading: Any = {"prompt": tiny_world.DECODER_PROMPT, "answers": tiny_world.DECODER_ANSWERS}
    frames = {split: frame.head(24) for split, frame in FRAMES.items()}
    lab = mechcore.open(tiny_decoder_dir(), **frames, **reading, store=store, settings=SMALL)
    costs = lab.sweep(components="mlps").table.query("set == 'L1.MLP' and fill == 'mean'")
    model = load_model(tiny_decoder_dir())
    train, data = (as_encoded(model, frames[split], **reading) for split in ("train", "ood"))
    means = MeanActivations.compute(model, train)
    full = evaluate(model, data, in_domain=False)
    other = evaluate(model, data, mask=Mask.full(model).without("L1.MLP"), means=means)
    (row,) = costs[(costs["split"] == "ood") & (costs["subset"] == "all")].to_dict("records")
    assert row["margin_change"] == pytest.approx((other.margin - full.margin).mean(), abs=1e-4)
    assert full.accuracy > 0.6


def test_attention_on_one_sentence(lab: Lab, model: Any) -> None:
    text = FRAMES["id"]["text_a"].iloc[0]
    view = lab.show_attention(text, ["L0.H1", "L2.H3"])
    assert [example.component for example in view.examples] == ["L0.H1", "L2.H3"]
    ids = lab.tokenizer(text, return_tensors="pt")["input_ids"]
    _, cache = model.run_with_cache(ids)
    pattern = cache["blocks.2.attn.hook_pattern"][0, 3]
    torch.testing.assert_close(torch.tensor(view.examples[1].pattern), pattern, atol=1e-4, rtol=0)
    assert "circuitsvis" in view._repr_html_().lower()


def test_texts_that_flip_without_a_component(lab: Lab, model: Any, means: MeanActivations) -> None:
    flips = lab.flips().table
    for name in ("L0.MLP", flips["component"].iloc[0]):
        rows = flips[flips["component"] == name]
        split, part = next(iter(rows.groupby("split", sort=False)))
        data, mask = lab.data[str(split)], Mask.full(model).without(name)
        full = evaluate(model, data, in_domain=False)
        without = evaluate(model, data, mask=mask, means=means, in_domain=False)
        flipped = np.flatnonzero(full.correct != without.correct)
        size = np.abs(full.margin - without.margin)[flipped]
        examples = part["example"].astype(int)
        assert examples.tolist() == flipped[np.argsort(-size)][: len(part)].tolist()
        lost = int((full.correct & ~without.correct).sum())
        assert set(part[f"right_to_wrong_{split}"]) == {lost}
        assert part["text_a"].tolist() == data.examples.frame["text_a"][examples].tolist()
        np.testing.assert_allclose(part["margin_without"], without.margin[examples], atol=1e-4)


def test_an_answer_shows_headline_figure_and_table(lab: Lab, tmp_path: Path) -> None:
    answer = lab.roles()
    assert repr(answer).startswith(f"Answer(roles: {answer.headline} Tables: roles (28 rows)")
    page = answer._repr_html_()
    places = [page.index(part) for part in (answer.headline, "<img", "<table", "28 rows")]
    assert places == sorted(places)
    assert page.count("<tr") <= 21
    lab.heads().plot().savefig(tmp_path / "heads.pdf")  # a grid
    with pytest.raises(InputError, match="smallest has no figure; its tables are smallest"):
        lab.smallest().plot()
    assert "<img" not in lab.smallest()._repr_html_()


def test_settings_for_one_question(lab: Lab) -> None:
    assert lab.blame(alpha=0.2, components="mlps").table["component"].str.contains("MLP").all()
    assert lab.smallest(loss=0.5).table["limit"].tolist() == [0.5, 0.5]
    with pytest.raises(InputError, match="roles: no setting 'alhpa'; expected components, ood_m"):
        lab.roles(alhpa=0.1)
    with pytest.raises(InputError, match="core: no setting 'target_sparsities'; it has none"):
        lab.core(target_sparsities=0.5)
    with pytest.raises(InputError, match="smallest: loss is 5; expected"):
        lab.smallest(loss=5)


def test_components_may_be_objects_or_one_alone() -> None:
    head, entry = Component.parse("L0.H1"), entries(Paths)["senders"]
    for given in ("L0.H1", head, [head], ("L0.H1",), ComponentSet((head,))):
        assert written(given, entry) == ("L0.H1",)


def test_results_are_those_of_the_main_study(lab: Lab, store: Path, tmp_path: Path) -> None:
    lab.roles()
    lab.core()
    lab.heads()
    _, _, pending = prepare(lab.config, tmp_path / "study", store=store)
    kinds = {job.step.kind for job in pending}
    assert not kinds & {"means", "prune", "masks", "core", "swept", "sweep", "scores"}
    assert "dose" in kinds


def test_another_lab_finds_what_was_done(
    lab: Lab, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, roles = lab.subnetworks(), lab.roles().table
    records = {split: frame.to_dict("records") for split, frame in FRAMES.items()}
    again = mechcore.open("embedded", **records, store=store, settings=SMALL)
    keys = again.store.all_keys()
    monkeypatch.setattr("mechcore.ablation.sweeps.TreeEngine.run", None)
    assert [core.mask for core in again.subnetworks()] == [core.mask for core in trained]
    pd.testing.assert_frame_equal(again.roles().table, roles)
    assert again.store.all_keys() == keys
    assert not set(again.store.unused()) & {job.key for job in again._used.values()}


def test_a_report_is_a_path_and_a_link(lab: Lab, place: Path, monkeypatch: Any) -> None:
    written = place / "my report" / "report.html"
    monkeypatch.setattr("mechcore.lab.questions.run_study", lambda *_, **__: [written])
    path = lab.report(place / "my report")
    assert path == written
    assert os.fspath(path) == str(written)
    assert path.parent.name == "my report"
    html = f'<a href="my%20report/report.html" target="_blank">{written}</a>'
    assert path._repr_html_() == html


def test_columns_and_meanings_of_labels_are_those_of_files(tmp_path: Path) -> None:
    renamed = {"text_a": "p", "text_b": "h", "subset": "kind"}
    number = {"entailment": 1, "non-entailment": 0}
    theirs = {
        split: frame.rename(columns=renamed).assign(label=frame["label"].map(number))
        for split, frame in FRAMES.items()
    }
    theirs["id"].to_csv(tmp_path / "id.csv", index=False)
    lab = mechcore.open(
        "embedded",
        train=theirs["train"],
        id=tmp_path / "id.csv",
        ood=datasets.Dataset.from_pandas(theirs["ood"]),
        columns=renamed,
        label_map={value: name for name, value in number.items()},
        store=tmp_path / "store",
    )
    for split in ("id", "ood"):
        table = lab.data[split].examples.frame
        pd.testing.assert_frame_equal(table, FRAMES[split], check_dtype=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkpoint and data of a user, which other programs write to, too."""
    shutil.copytree(tiny_encoder_dir(), tmp_path / "last")
    for split, frame in FRAMES.items():
        frame.head(40).to_csv(tmp_path / f"{split}.csv", index=False)
    return tmp_path


def opened(folder: Path) -> Lab:
    data = {split: folder / f"{split}.csv" for split in FRAMES}
    return mechcore.open(folder / "last", **data, store=folder / "store", settings=SMALL)


QUESTIONS: dict[str, Callable[[Lab], Any]] = {
    "roles": lambda lab: lab.roles(),
    "attention": lambda lab: lab.show_attention("the cats", "L0.H1"),
    "subnetworks": lambda lab: lab.subnetworks(),
    "report": lambda lab: lab.report(lab.store.path.parent / "report"),
    "model": lambda lab: lab.model,
    "means": lambda lab: lab.means,
    "data": lambda lab: lab.data,
}


def test_a_lab_answers_about_one_checkpoint_and_its_data(copied: Path) -> None:
    weights = encoder_checkpoints()[0][1] / "model.safetensors"
    for file, named in (
        ("last/model.safetensors", "model .*last"),
        ("last/tokenizer.json", "model .*last"),
        ("train.csv", "train data train"),
        ("ood.csv", "ood data ood"),
    ):
        lab, replaced = opened(copied), copied / file
        assert len(lab.means.z)  # the first question
        before = replaced.read_bytes()
        own = file.endswith("safetensors")
        replaced.write_bytes(weights.read_bytes() if own else before + b"\n")
        for name, ask in QUESTIONS.items():
            wanted = rf"^lab: the files of {named} changed since .*mech"
            with pytest.raises(InputError, match=wanted):
                pytest.fail(f"{name}: {ask(lab)}")
        replaced.write_bytes(before)


def test_a_checkpoint_that_is_gone_is_still_the_one_that_was_opened(copied: Path) -> None:
    lab = opened(copied)
    before = lab.show_attention("the cats", "L0.H1").examples
    shutil.rmtree(copied / "last")
    assert lab.show_attention("the cats", "L0.H1").examples == before


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []  # errors leave nothing behind


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((3,), {}, "open: checkpoint is a int; expected a dir"),
        (("embedded",), {"ood": FRAMES["ood"]}, "open: train and id missing"),
        (("embedded", "nosuch"), {}, r"id and ood missing; .*, or one of the tasks "),
        (
            ("embedded",),
            {"columns": {"text_a": "a"}},
            "columns and label_map apply to your own data",
        ),
        (("embedded",), {"label_map": {0: "b"}}, "columns and label_map apply to your own data"),
    ],
)
def test_what_cannot_be_opened(place: Path, given: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mechcore.open(*given, **options)


@pytest.mark.both
def test_without_data_only_attention(place: Path) -> None:
    lab = mechcore.open(tiny_encoder_dir())
    assert lab.show_attention(("the cats", "the dogs"), ["L0.H0"]).examples[0].segments[-2] == 1
    with pytest.raises(InputError, match=r"lab: opened without data; expected train, id and ood"):
        lab.roles()


def test_what_fails_is_not_tried_again_with_the_next_question(lab: Lab) -> None:
    with pytest.raises(StudyError, match=r"sparsity 0\.999.* keeps"):
        lab.subnetworks(0.999)
    assert len(lab.subnetworks(0.3)) == 3
    assert [core.name for core in lab.subnetworks(0.3, seeds=0)] == ["s0.30-seed0"]
    with pytest.raises(InputError, match="seed -1: expected a whole number"):
        lab.subnetworks(0.3, seeds=-1)
