"""What the core costs, in the numbers of the tables."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of, plain
from pages import rows_of, tables_of, with_tables, words_of
from study.sources import checkpoint_like, data_config

from mechcore.analyses.ablation import Ablation
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.report.blocks import Paragraph
from mechcore.report.run_folder import RunFolder
from mechcore.steps.config import ModelConfig


def headlines(run: RunFolder, **tables: pd.DataFrame | None) -> list[str]:
    return headlines_of(Ablation, with_tables(run, **tables))


def test_the_section_draws_and_lists_every_set(run: RunFolder) -> None:
    (section,) = Ablation.sections(run)
    assert (section.id, section.title) == ("ablation", "Ablation")
    assert section.files == ["ablation.csv"]
    names = ["ablation-accuracy", "ablation-margin", "ablation-subsets-1"]
    assert [drawing.name for drawing in drawings_of(section.blocks)] == names
    assert words_of(section.blocks).startswith("Core heads are ablated in the full model, alone")
    sets, controls = tables_of(section.blocks)
    ablation = run.tables["ablation"].query("subset == 'all'")
    assert len(sets.rows) == len(ablation)
    for cells, (_, row) in zip(rows_of(sets), ablation.iterrows(), strict=True):
        ends = (row.margin_change, row.margin_change_low, row.margin_change_high)
        change, low, high = (re.sub(r"^[+-](0\.00)$", r"\1", f"{end:+.2f}") for end in ends)
        assert plain(cells[3]) == f"{change} [{low}, {high}]"
    assert len(controls.rows) == 2 * ablation["n_controls"].notna().sum() == 20
    assert [row[3] for row in rows_of(controls)[:2]] == ["accuracy (points)", "margin (nats)"]
    table = run.tables["interactions"].query("size == 2")
    shares = {
        "shapley": table.assign(shapley=table["interaction"]),
        "dividends": table.assign(dividend=table["interaction"]),
    }
    *_, values, beyond = tables_of(Ablation.blocks(with_tables(run, **shares)))
    assert [values.header[-1], beyond.header[-1]] == ["shapley", "dividend"]
    overall = table[table["subset"] == "all"]
    assert [row[0] for row in values.rows] == [row[0] for row in beyond.rows] == [*overall["set"]]
    row = (overall["metric"] == "margin").argmax()
    expected = overall.iloc[row]["interaction"]
    assert plain(values.rows[row][3]).startswith(f"{expected:+.2f} [")


def test_named_components_and_another_fill_are_stated(run: RunFolder) -> None:
    settings = {"analyses": {"ablation": {"components": ["L0.H0"]}}}
    named = RunFolder(run.path, {**run.config, "settings": settings}, run.tables)
    assert words_of(Ablation.blocks(named)).startswith("Components are ablated in the full model")
    worst, _ = Ablation.headlines(named)
    assert worst.startswith("Of 4 components ablated alone, ")
    for fill, what in (("mean", None), ("zero", "zeros"), ("half", "the output of the fill half")):
        config = {**run.config, "settings": {"analyses": {"fill": fill}}}
        first, *_ = Ablation.blocks(RunFolder(run.path, config, run.tables))
        text = f"Here the output of an ablated component is replaced by {what}, not by its mean."
        assert (first == Paragraph(text, note=True)) == (what is not None)


def test_what_is_named_needs_no_subnetwork(tmp_path: Path) -> None:
    config = StudyConfig(
        model=ModelConfig(source=str(checkpoint_like(tmp_path / "model"))),
        data=data_config(tmp_path / "data"),
        only=("ablation", "interactions"),
    )
    assert "prune" in {job.step.kind for job in make_plan(config).jobs}
    named = replace(config, analyses=Analyses(ablation=Ablation(("L1.H0", "L2.MLP"))))
    kinds = [job.step.kind for job in make_plan(named).jobs]
    assert sorted(kinds) == ["ablation", "describe", "means"]


def test_all_pairs_of_a_few_named_components_are_ablated() -> None:
    assert Ablation().n_joint == 4
    assert Ablation(components=("L0.H0", "L0.H1")).n_joint == 10
    assert Ablation(components=("L0.H0", "L0.H1"), max_joint=0).n_joint == 0


def test_the_heads_with_the_largest_drop_and_rise_are_named(run: RunFolder) -> None:
    worst_sentence, core_sentence = headlines(run)
    ablation = run.tables["ablation"]
    singles = ablation.query("kind == 'single' and split == 'ood' and subset == 'all'")
    worst = singles.loc[singles.accuracy_change.idxmin()]
    assert worst_sentence.startswith(
        f"Of 4 core heads ablated alone, {worst.set} lowers out-of-domain accuracy most: "
        f"{100 * worst.accuracy_change:+.1f} points [{100 * worst.accuracy_change_low:+.1f}, "
        f"{100 * worst.accuracy_change_high:+.1f}] on {worst.data}, to "
        f"{100 * worst.accuracy:.1f} %; in-domain accuracy changes by "
    )
    assert worst_sentence.endswith(
        f". Ablating one of 7 other heads of its layer changes it by "
        f"{100 * worst.accuracy_control_change:+.1f} points on average (p = 0.12 against these "
        "controls). (Not corrected for selection.)"
    )
    outside = ablation.query("split == 'ood' and subset == 'all' and n_controls == 20")
    (whole,) = outside.itertuples()
    assert core_sentence == (
        f"Without the whole core the out-of-domain margin changes by "
        f"{whole.margin_change_beside:+.2f} nats, and without as many other heads of each layer by "
        f"{whole.margin_control_change:+.2f} nats on average (all of 20 sets between "
        f"{whole.margin_control_low:+.2f} nats and {whole.margin_control_high:+.2f} nats, "
        "p = 0.048 against these controls; n = 300)."
    )
    none = ablation["n_controls"].where(ablation["n_controls"].isna(), 0)
    head, core = headlines(run, ablation=ablation.assign(n_controls=none))
    assert core.endswith("too few other heads of each layer for a comparison.")
    assert "of its layer" not in head + "".join(
        headlines(run, ablation=ablation.drop(columns="n_controls"))
    )
    assert not any("raises out-of-domain" in text for text in headlines(run))
    table = run.tables["ablation"].copy()
    first = (table["set"] == run.core[0]) & (table["split"] == "ood") & (table["subset"] == "all")
    for column, value in (("_change", 0.256), ("_change_low", 0.226), ("_change_high", 0.287)):
        table.loc[first, f"accuracy{column}"] = value
    table.loc[first, "accuracy"] = 0.871
    (sentence,) = [
        text for text in headlines(run, ablation=table) if "raises out-of-domain" in text
    ]
    assert sentence.startswith(
        f"Ablating the core head {run.core[0]} raises out-of-domain accuracy: +25.6 points "
        "[+22.6, +28.7] on tiny-ood, to 87.1 %; in-domain accuracy changes by "
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accuracy_change_high": 0.5}, "The interval does not exclude zero, so this may be no ef"),
        (
            {"accuracy_change_low": None, "accuracy_change_high": None},
            r"\[\u2013\] on tiny-ood.*The interval does not exclude zero",
        ),
        ({"accuracy_change": None}, "^Without the whole core"),
        ({"accuracy_change": 0.1}, "^Ablating a single core head does not lower out-of-domain"),
    ],
)
def test_what_is_not_shown_to_be_an_effect_is_called_none(
    run: RunFolder, changes: dict[str, float | None], sentence: str
) -> None:
    table = run.tables["ablation"].assign(**changes).astype(dict.fromkeys(changes, float))
    assert re.search(sentence, headlines(run, ablation=table)[0])


def test_an_empty_core_is_a_result_and_one_without_masks_is_none(run: RunFolder) -> None:
    def words(**tables: pd.DataFrame | None) -> str:
        return words_of(Ablation.blocks(with_tables(run, core=run.tables["core"][:0], **tables)))

    ablation = run.tables["ablation"]
    others = ablation[ablation["kind"] == "non-core"]
    assert words(ablation=others).startswith("The core is empty, so other heads are shown for")
    assert headlines(run, ablation=others) == []
    assert words(ablation=ablation[:0]) == "There was no head to ablate: the core is empty."
    failed = pd.DataFrame({"subnetwork": ["s0.50-seed1"]})
    why = "there is no core because no mask was usable"
    without = words(ablation=ablation[:0], missing_masks=failed, subnetworks=None)
    assert without == f"There was no head to ablate: {why}."
    not_run = Paragraph("Not run: the ablation of core heads from the full model.", note=True)
    assert [*Ablation.blocks(with_tables(run, ablation=None))] == [not_run]
