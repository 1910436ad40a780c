"""A lab answers what the functions that it is made of answer, and keeps what took long."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import mechcore
from mechcore import Mask, MeanActivations, as_encoded, categorize_heads, evaluate, load_model
from mechcore.ablation import ablate, component_roles, confirm_roles, information_table, sets
from mechcore.analyses.heads import Heads
from mechcore.analyses.paths import Paths
from mechcore.errors import InputError
from mechcore.lab import Lab
from mechcore.main_study.analyses import Analyses
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.paths.dependence import CORE_DEPENDENCE
from mechcore.pruning import PruneSettings
from mechcore.study.engine import StudyError
from mechcore.study.run import prepare
from mechcore.study.step import in_order
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import encoder_checkpoints, tiny_decoder_dir, tiny_encoder_dir

SMALL = StudyConfig(
    prune=PruneSettings(steps=30, warmup=2, batch_size=4, tolerance=1),
    sparsities=(0.3,),
    n_resamples=20,
    analyses=Analyses(heads=Heads(16), paths=Paths(controls=1, max_examples=10)),
    resources=Resources(cpus=1),
)
FRAMES = {
    role: tiny_world.generate(role, n, seed=5).frame  # type: ignore[arg-type]
    for role, n in (("train", 24), ("id", 140), ("ood", 140))
}


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


# -- what people do in notebooks ------------------------------------------------------------------


def test_rank_heads_out_of_domain(lab: Lab, model: Any, means: MeanActivations) -> None:
    ranked = lab.blame()
    own = MeanActivations.compute(model, FRAMES["ood"])
    answers, tables = {}, []
    for part, role, mean in (("id", "id", means), ("ood", "ood", means), ("ood_mean", "ood", own)):
        found = ablate(model, sets.singles(model), FRAMES[role], mean, role=role)  # type: ignore[arg-type]
        table = information_table(found, n_resamples=20)
        answers[part] = found
        tables.append(table[table["subset"] == "all"])
    inside, outside, other = tables
    expected = component_roles(inside, outside, ood_mean=other)
    expected = confirm_roles(expected, answers).set_index("component")
    assert ranked["information_change_ood"].is_monotonic_increasing
    found = ranked.set_index("component").loc[expected.index]
    assert found.pop("injected_margin").notna().all()
    pd.testing.assert_frame_equal(found, expected)


def test_one_head_in_and_out_of_domain(lab: Lab, model: Any, means: MeanActivations) -> None:
    costs = lab.ablate("L3.H5", ["L0.H1", "L2.MLP"])
    whole = costs[costs["subset"] == "all"].set_index(["role", "set"])
    assert whole.index.get_level_values("role").tolist() == ["ood", "ood", "id", "id"]
    for role in ("id", "ood"):
        full = evaluate(model, FRAMES[role], in_domain=False)
        for name in ("L3.H5", "L0.H1+L2.MLP"):
            mask = Mask.full(model).without(name.split("+"))
            other = evaluate(model, FRAMES[role], mask=mask, means=means)
            change = whole.loc[(role, name), "accuracy_change"]
            assert change == pytest.approx(other.accuracy - full.accuracy)
            change = whole.loc[(role, name), "margin_change"]
            assert change == pytest.approx((other.margin - full.margin).mean(), abs=1e-4)


def test_a_fill_for_one_question(lab: Lab, model: Any) -> None:
    mask = Mask.full(model).without("L0.MLP")
    full = evaluate(model, FRAMES["ood"], in_domain=False)
    other = evaluate(model, FRAMES["ood"], mask=mask, fill="zero", in_domain=False)
    for table in (lab.ablate("L0.MLP", fill="zero"), lab.paths("L0.MLP", "L1.MLP", fill="zero")):
        row = table[(table["role"] == "ood") & (table["subset"] == "all")].iloc[0]
        same = row["margin_change"] == pytest.approx((other.margin - full.margin).mean(), abs=1e-4)
        assert same == ("receiver" not in table)


def test_how_accurate_the_whole_model_is(lab: Lab, model: Any) -> None:
    table = lab.accuracy()
    assert table["role"].drop_duplicates().tolist() == ["ood", "id"]
    for role, part in table.groupby("role"):
        full = evaluate(model, FRAMES[str(role)], in_domain=False).table()
        found = part.set_index("subset").loc[full["subset"]]
        for name in ("n", "accuracy", "margin"):
            np.testing.assert_allclose(found[name], full[name], atol=1e-4)
        assert (found["accuracy_low"] <= found["accuracy"]).all()
        assert (found["accuracy"] <= found["accuracy_high"]).all()


def test_the_core_of_three_seeds(lab: Lab) -> None:
    core = lab.prune(0.3).core
    kept = [{c for c in each.mask.kept if c.is_head} for each in lab.prune(0.3)]
    assert core.n_subnetworks == len(kept) == 3
    assert set(core.heads) == set.intersection(*kept)


def test_removable_heads_and_export(lab: Lab, tmp_path: Path, means: MeanActivations) -> None:
    smallest = lab.smallest(loss=0.99)
    out = smallest.export(tmp_path / "pruned")
    exported = AutoModelForSequenceClassification.from_pretrained(out)
    batch = lab.data["id"].rows([0, 1, 2])
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        logits = exported(**{name: batch[name] for name in names if name in batch}).logits
    model = load_model(tiny_encoder_dir())
    mask = smallest.subnetwork.mask
    expected = evaluate(model, lab.data["id"], mask=mask, means=means).logits[:3]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    (row,) = smallest.losses.to_dict("records")
    change, low = (100 * row[f"id_change{end}"] for end in ("", "_low"))
    assert f"change of accuracy: {change:+.1f} points (at worst {low:+.1f}) in domain, " in repr(
        smallest
    )
    for role in ("id", "ood"):
        full = evaluate(model, FRAMES[role], in_domain=False).accuracy
        pruned = evaluate(model, FRAMES[role], mask=mask, means=means).accuracy
        assert row[f"{role}_change"] == pytest.approx(pruned - full)


def test_paths_and_readers_of_the_core(lab: Lab, model: Any, means: MeanActivations) -> None:
    found = lab.paths("L0.H1+L1.H0", "L1.MLP+answer")
    whole = found[found["subset"] == "all"].set_index(["role", "receiver"])
    assert found["role"].iloc[0] == "ood"
    assert set(whole["senders"]) == {"L0.H1+L1.H0"}
    answers = ablate(model, ["L0.H1+L1.H0>L1.MLP"], FRAMES["ood"], means, role="ood")
    [path] = answers.without
    expected = answers.changes(path, "margin").mean()
    assert whole.loc[("ood", "L1.MLP"), "margin_change"] == pytest.approx(expected, abs=1e-4)
    assert {"information_change", "threshold_change"} <= set(found)
    inputs = lab.paths(["L0.H1"], ["L1.H0"], inputs="qkv")
    assert set(inputs["input"]) == {"q", "k", "v"}
    readers = lab.readers()
    assert list(readers.columns) == CORE_DEPENDENCE.required


def test_what_heads_attend_to(lab: Lab, model: Any) -> None:
    found = lab.heads()
    examples = lab.data["id"].examples.sample(16, SMALL.data.seed)
    expected = categorize_heads(model, examples)
    assert found["category"].tolist() == expected["category"].tolist()
    np.testing.assert_allclose(found["mass_previous"], expected["mass_previous"])


def test_a_decoder_by_prompt(store: Path) -> None:
    prompt, answers = tiny_world.DECODER_PROMPT, tiny_world.DECODER_ANSWERS
    lab = mechcore.open(
        tiny_decoder_dir(), **FRAMES, prompt=prompt, answers=answers, store=store, settings=SMALL
    )
    costs = lab.ablate("L1.H2")
    model = load_model(tiny_decoder_dir())
    encoded = {
        role: as_encoded(model, frame, prompt=prompt, answers=answers)
        for role, frame in FRAMES.items()
    }
    means = MeanActivations.compute(model, encoded["train"])
    full = evaluate(model, encoded["ood"], in_domain=False)
    other = evaluate(model, encoded["ood"], mask=Mask.full(model).without("L1.H2"), means=means)
    (row,) = costs[(costs["role"] == "ood") & (costs["subset"] == "all")].to_dict("records")
    assert row["margin_change"] == pytest.approx((other.margin - full.margin).mean(), abs=1e-4)
    assert full.accuracy > 0.6


def test_attention_on_one_sentence(lab: Lab, model: Any) -> None:
    text = FRAMES["id"]["text_a"].iloc[0]
    view = lab.show_attention(text, ["L0.H1", "L2.H3"])
    assert [each.component for each in view.examples] == ["L0.H1", "L2.H3"]
    ids = lab.tokenizer(text, return_tensors="pt")["input_ids"]
    _, cache = model.run_with_cache(ids)
    pattern = cache["blocks.2.attn.hook_pattern"][0, 3]
    torch.testing.assert_close(torch.tensor(view.examples[1].pattern), pattern, atol=1e-4, rtol=0)
    assert "circuitsvis" in view._repr_html_().lower()


def test_texts_that_flip_without_a_component(lab: Lab, model: Any, means: MeanActivations) -> None:
    roles = lab.blame().set_index("component")["role"]
    for name in ("L0.MLP", roles.index[0]):
        found = lab.flips(name)
        role, part = next(iter(found.groupby("role", sort=False)))
        data = lab.data[str(role)]
        full = evaluate(model, data, in_domain=False)
        mask = Mask.full(model).without(name)
        without = evaluate(model, data, mask=mask, means=means, in_domain=False)
        flipped = np.flatnonzero(full.correct != without.correct)
        size = np.abs(full.margin - without.margin)[flipped]
        assert part["example"].tolist() == flipped[np.argsort(-size)][: len(part)].tolist()
        lost = int((full.correct & ~without.correct).sum())
        assert set(part[f"right_to_wrong_{role}"]) == {lost}
        assert part["text_a"].tolist() == data.examples.frame["text_a"][part["example"]].tolist()
        np.testing.assert_allclose(
            part["margin_without"], without.margin[part["example"].astype(int)], atol=1e-4
        )
    n = len(helpers.embedded_shape().components)
    with pytest.raises(
        InputError, match=rf"L7\.H0 was not ablated; expected one of {n} components"
    ):
        lab.flips("L7.H0")


def test_whether_two_heads_are_redundant(lab: Lab) -> None:
    table = lab.interaction("L0.H2", "L1.H1")
    costs = (
        lab.ablate("L0.H2", "L1.H1", "L0.H2+L1.H1")
        .set_index(["role", "subset", "set"])
        .sort_index()
    )
    assert table["role"].iloc[0] == "ood"
    for row in table.itertuples():
        each = costs.loc[(row.role, row.subset)][f"{row.metric}_change"]
        expected = each["L0.H2+L1.H1"] - each["L0.H2"] - each["L1.H1"]
        assert row.interaction == pytest.approx(expected, abs=1e-9)


# -- what is kept ---------------------------------------------------------------------------------


def test_results_are_those_of_the_main_study(lab: Lab, store: Path, tmp_path: Path) -> None:
    lab.blame()
    lab.heads()
    lab.prune().smallest(loss=0.99)
    pending = prepare(lab.config, tmp_path / "study", store=store).pending
    kinds = {job.step.kind for job in pending}
    assert not kinds & {"means", "prune", "masks", "core", "swept", "sweep", "scores", "answers"}
    assert "heads" in kinds


def test_another_lab_finds_what_was_done(
    lab: Lab, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, roles = lab.prune(0.3).core, lab.blame()
    again = mechcore.open(
        "embedded",
        **{role: frame.to_dict("records") for role, frame in FRAMES.items()},
        store=store,
        settings=SMALL,
    )
    keys = again.store.keys()
    monkeypatch.setattr("mechcore.ablation.sweeping.TreeEngine.run", None)
    assert again.prune(0.3).core == expected
    pd.testing.assert_frame_equal(again.blame(), roles)
    assert again.store.keys() == keys
    assert not set(again.store.unused()) & {job.key for job in again._used.values()}


def test_a_plan_says_in_a_line_how_much_of_it_is_done(lab: Lab) -> None:
    lab.heads()
    plan = lab.plan()
    kinds = dict(re.findall(r"([\w-]+) (\d+ of \d+)", repr(plan)))
    assert (kinds["describe"], kinds["scores"]) == ("0 of 1", "1 of 1")
    n, total = re.findall(r"(\d+) of (\d+) jobs done", repr(plan))[0]
    jobs = {job.key: lab.store.has(job.key) for job in in_order(plan.results)}
    assert (int(n), int(total)) == (sum(jobs.values()), len(jobs))
    assert len(repr(plan)) < 600
    assert "<table" in plan._repr_html_()


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
    number = {"entailment": 1, "non-entailment": 0}
    theirs = {
        role: frame.rename(columns={"text_a": "p", "text_b": "h", "subset": "kind"}).assign(
            label=frame["label"].map(number)
        )
        for role, frame in FRAMES.items()
    }
    theirs["id"].to_csv(tmp_path / "id.csv", index=False)
    lab = mechcore.open(
        "embedded",
        train=theirs["train"],
        id=tmp_path / "id.csv",
        ood=datasets.Dataset.from_pandas(theirs["ood"]),
        columns={"text_a": "p", "text_b": "h", "subset": "kind"},
        label_map={1: "entailment", 0: "non-entailment"},
        store=tmp_path / "store",
    )
    for role in ("id", "ood"):
        found = lab.data[role].examples.frame
        pd.testing.assert_frame_equal(found, FRAMES[role], check_dtype=False)


def test_an_embedded_model_brings_its_data(tmp_path: Path) -> None:
    small = replace(SMALL, data=replace(SMALL.data, max_train=8, max_id=6, max_ood=6))
    for name in ("embedded", "embedded-decoder"):
        lab = mechcore.open(name, store=tmp_path, settings=small)
        assert {role: len(data) for role, data in lab.data.items()} == {
            "train": 8,
            "id": 6,
            "ood": 6,
        }


# -- files that change ----------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkpoint and data of a user, which other programs write to, too."""
    shutil.copytree(tiny_encoder_dir(), tmp_path / "last")
    for role, frame in FRAMES.items():
        frame.head(40).to_csv(tmp_path / f"{role}.csv", index=False)
    return tmp_path


def opened(folder: Path) -> Lab:
    data = {role: folder / f"{role}.csv" for role in FRAMES}
    return mechcore.open(folder / "last", **data, store=folder / "store", settings=SMALL)


QUESTIONS: dict[str, Callable[[Lab], Any]] = {
    "ablate": lambda lab: lab.ablate("L0.H1"),
    "interaction": lambda lab: lab.interaction("L0.H1", "L1.H0"),
    "paths": lambda lab: lab.paths("L0.H1"),
    "blame": lambda lab: lab.blame(),
    "flips": lambda lab: lab.flips("L0.H1"),
    "accuracy": lambda lab: lab.accuracy(),
    "heads": lambda lab: lab.heads(),
    "attention": lambda lab: lab.show_attention("the cats", "L0.H1"),
    "prune": lambda lab: lab.prune(0.3),
    "report": lambda lab: lab.report(lab.store.path.parent / "report"),
    "model": lambda lab: lab.model,
    "means": lambda lab: lab.means,
    "data": lambda lab: lab.data,
}


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("last/model.safetensors", "model .*last"),
        ("last/tokenizer.json", "model .*last"),
        ("train.csv", "train data train"),
        ("ood.csv", "ood data ood"),
    ],
)
def test_a_lab_answers_about_one_checkpoint_and_its_data(
    copied: Path, file: str, named: str
) -> None:
    lab = opened(copied)
    assert lab.means is lab.means
    replaced, (_, other) = copied / file, encoder_checkpoints()[0]
    if file.endswith("safetensors"):
        shutil.copy(other / "model.safetensors", replaced)
    else:
        replaced.write_bytes(replaced.read_bytes() + b"\n")
    for name, ask in QUESTIONS.items():
        with pytest.raises(InputError, match=rf"^lab: the files of {named} changed since .*mech"):
            pytest.fail(f"{name}: {ask(lab)}")
    assert opened(copied).model is not None


def test_a_checkpoint_that_is_gone_is_still_the_one_that_was_opened(copied: Path) -> None:
    lab = opened(copied)
    before = lab.accuracy()
    shutil.rmtree(copied / "last")
    pd.testing.assert_frame_equal(lab.accuracy(), before)


# -- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []  # errors leave nothing behind


def test_without_a_checkpoint_it_says_what_there_is(place: Path) -> None:
    message = r"open: no checkpoint; .*mechcore.open\(.*'embedded' or 'embedded-encoder'"
    with pytest.raises(InputError, match=message):
        mechcore.open()


def test_a_loaded_model_is_no_checkpoint(place: Path) -> None:
    model: Any = load_model(tiny_encoder_dir())
    with pytest.raises(InputError, match="open: checkpoint is a TransformerBridge; expected a dir"):
        mechcore.open(model)


def test_data_of_every_role(place: Path) -> None:
    with pytest.raises(InputError, match="open: train and id missing"):
        mechcore.open("embedded", ood=FRAMES["ood"])
    with pytest.raises(InputError, match=r"id and ood missing; .*, or one of the tasks "):
        mechcore.open("embedded", "nosuchtask")


def test_no_data_are_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ood data: found an empty list; expected a file"):
        mechcore.open("embedded", FRAMES["train"], FRAMES["id"], [], store=tmp_path / "store")


def test_who_is_to_blame_by_a_fill_with_which_paths_cannot_be_cut(
    tmp_path: Path,
) -> None:
    settings = replace(SMALL, analyses=replace(SMALL.analyses, fill="counterfactual"))
    lab = mechcore.open(tiny_encoder_dir(), **FRAMES, settings=settings, store=tmp_path)
    assert len(lab.blame()) > 0
    with pytest.raises(InputError, match="'counterfactual', with which paths cannot be done"):
        lab.readers()


@pytest.mark.both
def test_without_data_only_attention(place: Path) -> None:
    lab = mechcore.open(tiny_encoder_dir())
    assert lab.show_attention(("the cats", "the dogs"), ["L0.H0"]).examples[0].segments[-2] == 1
    with pytest.raises(InputError, match=r"lab: opened without data; expected train, id and ood"):
        lab.blame()


def test_what_fails_is_not_tried_again_with_the_next_question(lab: Lab) -> None:
    with pytest.raises(StudyError, match=r"sparsity 0\.999.* keeps"):
        lab.prune(0.999)
    assert len(lab.prune(0.3)) == 3
    assert [each.name for each in lab.prune(0.3, seeds=0)] == ["s0.30-seed0"]
    with pytest.raises(InputError, match="seed -1: expected a whole number"):
        lab.prune(0.3, seeds=-1)


def test_sets_may_be_written_as_elsewhere(lab: Lab) -> None:
    pd.testing.assert_frame_equal(lab.interaction("L0.H1+L1.H0"), lab.interaction("L0.H1", "L1.H0"))
    shown = lab.show_attention("the cats", "L0.H1+L1.H0")
    assert [each.component for each in shown.examples] == ["L0.H1", "L1.H0"]


def test_settings_are_those_of_a_study(place: Path) -> None:
    with pytest.raises(InputError, match="open: settings are a dict; expected a StudyConfig"):
        mechcore.open("embedded", settings={"seeds": [1]})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"columns": {"text_a": "a"}}, {"label_map": {0: "b"}}])
def test_an_embedded_model_with_its_own_data_maps_nothing(place: Path, given: Any) -> None:
    with pytest.raises(InputError, match="open: columns and label_map are for data of your own"):
        mechcore.open("embedded", **given)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda lab: lab.flips("L1H3"),
            r"'L1H3': not a component.*\(did you mean L1\.H3\?\)",
        ),
        (lambda lab: lab.paths(None), "component None: found NoneType; expected a name"),
        (lambda lab: lab.paths("L0.H1", 5), "receiver 5: cannot be read; write a head as L3.H9"),
        (lambda lab: lab.show_attention("a", None), "component None: not a component name"),
        (lambda lab: lab.interaction(), "interaction: found nothing; expected two"),
        (lambda lab: lab.ablate("L0.H1", fill="zer"), r"'zer': unknown \(did you mean 'zero'"),
        (lambda lab: lab.blame(settings={}), "settings are a dict; expected RoleSettings"),
    ],
)
def test_what_a_method_cannot_take(lab: Lab, ask: Callable[[Lab], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(lab)


def test_questions_that_have_no_answer(lab: Lab) -> None:
    with pytest.raises(InputError, match="blame: no subset 'nowhere'; the data has"):
        lab.blame(subset="nowhere")
    with pytest.raises(InputError, match="ablate: no set; expected at least one"):
        lab.ablate()
    with pytest.raises(InputError, match="ablate: no set; expected at least one"):
        lab.ablate("L0.H1", [])
    with pytest.raises(InputError, match="expected two components or more"):
        lab.interaction("L0.H1")
    for text in (3, None, ("a", "b", "c")):
        with pytest.raises(InputError, match=r"show_attention: found .*; expected a text, or a p"):
            lab.show_attention(text, ["L0.H1"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"within 0 points of accuracy: none; s0\.30-"):
        lab.smallest(loss=0)
    with pytest.raises(InputError, match=r"by is 'size'; expected accuracy or information"):
        lab.smallest(loss=0.99, by="size")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": "premise"}, "columns is a str; expected a dict"),
        ({"label_map": ["entailment", "neutral"]}, "label_map is a list; expected a dict"),
        ({"label_map": {"entailment": 0}}, "'entailment' stands for 0; expected a text"),
    ],
)
def test_what_is_no_mapping_of_names_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        mechcore.open("embedded", **FRAMES, **given, store=tmp_path)
