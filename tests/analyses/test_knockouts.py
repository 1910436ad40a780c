"""Knockouts as an analysis: what a run leaves, what is shown of it, and its sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from drawn import check_paper
from helpers import load_inputs
from main_study.small_study import CONFIG, leave_out_the_report
from pages import tables_of

from mechcore.ablation.effects.knockouts import KNOCKOUTS
from mechcore.analyses.knockouts import KnockedOut, Knockouts
from mechcore.attention.knockouts import knockout
from mechcore.components import Mask
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import evaluate
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.masking.means import MeanActivations
from mechcore.report.run_folder import RunFolder
from mechcore.steps.base import Size
from mechcore.study.run import run_study


def study(*categories: str) -> StudyConfig:
    analyses = Analyses(knockouts=Knockouts(categories))
    return replace(CONFIG, analyses=analyses, only=("knockouts",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("knockouts") / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_the_report(patch)
        run_study(study("repeated", "induction"), out)  # of which an encoder has but one
    return out


def test_changes_are_those_of_the_masked_model(finished: Path) -> None:
    table = KNOCKOUTS.read(finished / "tables" / "knockouts.csv")
    assert set(table["category"]) == {"repeated"}
    overall = table[table["subset"] == "all"]
    assert overall.groupby("split")["component"].nunique().to_dict() == {"id": 25, "ood": 25}
    inputs = load_inputs(CONFIG.model, CONFIG.data, ("id", "ood"))
    means = MeanActivations.load(finished / "means.safetensors", inputs.model)
    every, none = [f"L{i}.H{j}" for i in range(4) for j in range(6)], list[str]()
    for name, heads in {"L1.H3": ["L1.H3"], "all heads": every}.items():
        for split in ("id", "ood"):
            data = inputs.encode(inputs.data[split].examples, words=True)
            margins = [
                evaluate(
                    inputs.model,
                    data,
                    mask=Mask.full(inputs.model).without(*ablated),
                    means=means,
                    fill=fill,
                    in_domain=False,
                    class_names=inputs.config.class_names,
                ).margin.mean()
                for ablated, fill in (
                    (none, "mean"),
                    (heads, knockout("repeated")),
                    (heads, "mean"),
                )
            ]
            chosen = (overall["component"] == name) & (overall["split"] == split)
            (row,) = overall[chosen].to_dict("records")
            assert row["margin_change"] == pytest.approx(margins[1] - margins[0], abs=1e-4)
            assert row["margin_change_without"] == pytest.approx(margins[2] - margins[0], abs=1e-4)


def test_categories_are_jobs_of_their_own() -> None:
    plain = study("repeated", "first")
    jobs = make_plan(plain).jobs
    steps = [job.step for job in jobs if isinstance(job.step, (KnockedOut, Knockouts))]
    assert [getattr(step, "category", "") for step in steps] == ["repeated", "first", ""]
    size = Size({"id": 30, "ood": 500}, n_heads=40, n_mlps=5)
    passes = [job.step.passes(job, size) for job in jobs if job.step in steps]  # type: ignore[union-attr]
    # Heads at half a pass each and three sets, of which the last ones run whole; 20 draws on 100
    # texts at most, with what all sweeps of a category run, and a fifth of the heads.
    assert passes == [26 * 530, 26 * 530, 20 * 130 * (4 + 0.5 * 0.2 * 40)]
    dropping = Knockouts(categories=("first",), renormalise=False)
    dropped = make_plan(replace(plain, analyses=replace(plain.analyses, knockouts=dropping))).jobs
    forms = [job.step.renormalise for job in dropped if isinstance(job.step, KnockedOut)]
    assert forms == [False]
    with pytest.raises(InputError, match="no category 'nowhere' to hide; expected some of first"):
        make_plan(study("nowhere"))


def rows() -> pd.DataFrame:
    heads = [
        ("L2.H9", 1, "repeated", 0.92, "supported"),
        ("L2.H9", 1, "first", 0.1, "not supported"),
        ("L1.H1", 1, "repeated", 0.4, "inconclusive"),
        ("core", 6, "repeated", 0.8, "supported"),
    ]
    made = []
    for component, size, category, share, carried in heads:
        row = {"component": component, "size": size, "category": category, "data": "hans"}
        row |= {"split": "ood", "subset": "all", "n": 600, "mass": 0.67, "carried": carried}
        row |= {"share": share, "share_low": share - 0.12, "share_high": share + 0.13}
        row |= {"margin_change": -share * size, "margin_change_without": -size}
        row |= {"control_share": 0.06, "control_mass": 1.0, "p_control": 1 / 21}
        made.append(row)
    return pd.DataFrame(made, columns=KNOCKOUTS.required)


def shown(table: pd.DataFrame) -> RunFolder:
    return RunFolder(Path(), {}, {"knockouts": table})


def test_a_head_and_the_core_in_sentences() -> None:
    assert headlines_of(Knockouts, shown(rows())) == [
        "L2.H9 acts out of domain by attending to repeated keys: hiding them has 92.0 % [80, 105] "
        "of the effect of ablating the head, hiding as much other attention 6.0 %.",
        "Attention to one category is shown to carry most of what a head does to the margin out "
        "of domain for 1 of 2 heads with an effect.",
        "Hiding repeated keys from the whole core has 80.0 % [68, 93] of the effect of ablating it "
        "out of domain, the most of any category.",
    ]
    few = rows().assign(control_mass=0.4)
    assert (
        "hiding all other attention of the same queries (40.0 % as much) 6.0 %."
        in (headlines_of(Knockouts, shown(few))[0])
    )
    assert headlines_of(Knockouts, shown(rows().assign(share=float("nan")))) == []


def test_shares_are_drawn_and_listed() -> None:
    blocks = [*Knockouts.blocks(shown(rows()))]
    (drawing,) = drawings_of(blocks)
    check_paper(drawing.figure)
    (axes, *_) = drawing.figure.axes
    assert sorted(text.get_text() for text in axes.texts) == ["10", "40", "80", "92"]
    (table,) = tables_of(blocks)
    assert [row[0] for row in table.rows] == ["L2.H9", "core", "L2.H9", "L1.H1"]
    assert [*Knockouts.blocks(shown(rows()[:0]))] == []
