"""Interactions of core heads, in the numbers of the table."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from pages import rows_of, tables_of, with_tables, words_of
from study.sources import checkpoint_like, data_config

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.interactions import Interactions
from mechcore.errors import InputError
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.report.blocks import Paragraph
from mechcore.report.run_folder import RunFolder
from mechcore.steps.config import ModelConfig


def sentences(run: RunFolder, **changes: Any) -> list[str]:
    """The sentences with columns changed; numbers that are None are missing."""
    table = run.tables["interactions"].assign(**changes)
    return headlines_of(Interactions, with_tables(run, interactions=table))


@pytest.mark.parametrize(("metric", "scale", "digits"), [("accuracy", 100, 1), ("margin", 1, 2)])
def test_superadditive_sets_are_counted_from_the_intervals(
    run: RunFolder, metric: str, scale: float, digits: int
) -> None:
    table = run.tables["interactions"].query("split == 'ood' and subset == 'all'")
    part = table[table["metric"] == metric]
    top = part[part.high < 0].sort_values("interaction").iloc[0]
    name = "the margin" if metric == "margin" else metric
    (sentence,) = [
        text for text in sentences(run) if text.startswith(f"On {name} out-of-domain (tiny-")
    ]
    assert (
        f"{(part.high < 0).sum()} of {len(part)} joint sets are superadditive and "
        f"{(part.low > 0).sum()} subadditive (interval excludes zero, adjusted p at most 0.05)"
    ) in sentence
    ends = f"[{scale * top.low:+.{digits}f}, {scale * top.high:+.{digits}f}]"
    value = f"an interaction of {scale * top.interaction:+.{digits}f}"
    assert re.search(rf"{re.escape(value)} (points|nats) {re.escape(ends)}", sentence)


def test_the_section_draws_and_lists_every_set(run: RunFolder) -> None:
    (section,) = Interactions.sections(run)
    assert (section.id, section.files) == ("interactions", ["interactions.csv"])
    assert [*map(Paragraph, Interactions.headlines(run))] == section.blocks[:2]
    names = ["interactions", "interactions-subsets"]
    assert [drawing.name for drawing in drawings_of(section.blocks)] == names
    (table,) = tables_of(section.blocks)
    overall = run.tables["interactions"].query("subset == 'all'")
    assert [row[0] for row in rows_of(table)] == overall["set"].tolist()
    assert table.folded == (len(overall) > 40)
    table = run.tables["interactions"]
    size = table["interaction"].abs()
    chosen = table.query("split == 'ood' and subset == 'all' and metric == 'margin'")
    largest = chosen.loc[chosen["interaction"].abs().idxmax(), "set"]
    which = "the whole core (4 heads)" if largest.count("+") > 1 else largest
    margin, _ = sentences(run, interaction=size, low=size / 2, high=size + 0.01)
    assert f"The largest absolute interaction is that of {which}: " in margin


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict", "counts"),
    [
        (-1.0, 1.0, 0.01, "includes zero", "0 of 7 joint sets are superadditive and 0 subadd"),
        (-1.0, -0.01, 0.06, "not after correction", "0 of 7 joint sets are superadditive and 0"),
        (*[float("nan")] * 2, 0.01, "not known", "none of the 7 joint sets has an interval"),
        (-0.5, -0.01, 0.01, "superadditive", "7 of 7 joint sets are superadditive and 0 subadd"),
        (0.01, 0.5, 0.01, "subadditive", "0 of 7 joint sets are superadditive and 7 subadditive"),
    ],
)
def test_a_direction_is_stated_where_the_interval_shows_it(
    run: RunFolder, low: float, high: float, p: float, verdict: str, counts: str
) -> None:
    changes = {"low": low, "high": high, "p_adjusted": p, "floor": False}
    assert all(counts in sentence for sentence in sentences(run, **changes))
    table = run.tables["interactions"].assign(**changes)
    (shown,) = tables_of(Interactions.blocks(with_tables(run, interactions=table)))
    assert {row[-1] for row in rows_of(shown)} == {verdict}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("floor", "to lose: there the interaction on accuracy is underestimated."),
        ("ceiling", "to gain: there sets may wrongly look superadditive on accuracy."),
    ],
)
def test_joint_changes_that_saturate_are_marked(run: RunFolder, end: str, words: str) -> None:
    table = run.tables["interactions"].assign(floor=False, ceiling=False)
    clear, marked = (
        with_tables(run, interactions=table.assign(**{end: at_end})) for at_end in (False, True)
    )
    margin, accuracy = Interactions.headlines(marked)
    said = "The joint change saturates for 7 of 7, as accuracy has little or nothing left"
    assert accuracy.endswith(f" {said} {words}")
    assert "saturates" not in margin + words_of(Interactions.blocks(clear))
    (shown,) = tables_of(Interactions.blocks(marked))
    assert all(("; change saturates" in row[-1]) == ("accuracy" in row[2]) for row in shown.rows)
    first, second = (drawings_of(Interactions.blocks(of))[0].caption for of in (clear, marked))
    assert "Hollow marks" in second
    assert "Hollow marks" not in first


def test_without_joint_sets_the_reason_is_given(run: RunFolder) -> None:
    def words(**tables: pd.DataFrame | None) -> str:
        return words_of(Interactions.blocks(with_tables(run, **tables)))

    none = run.tables["interactions"][:0]
    nothing = "There is no interaction to report: "
    assert words(interactions=none) == f"{nothing}fewer than two core heads were ablated."
    failed = pd.DataFrame({"subnetwork": ["s0.50-seed1"]})
    without = words(interactions=none, missing_masks=failed, subnetworks=None)
    assert without == f"{nothing}there is no core because no mask was usable."
    assert words(interactions=None) == "Not run: the joint ablation of sets of core heads."


def test_asked_for_alone_they_come_from_the_ablation_of_the_core(tmp_path: Path) -> None:
    config = StudyConfig(
        model=ModelConfig(source=str(checkpoint_like(tmp_path / "model"))),
        data=data_config(tmp_path / "data"),
        only=("interactions",),
    )
    (part,) = make_plan(config).parts
    assert isinstance(part.jobs["interactions"].step, Ablation)
    assert "core" in part.jobs["interactions"].needs
    assert "paths" not in part.jobs
    without = replace(config, analyses=Analyses(ablation=None))
    with pytest.raises(InputError, match="interactions needs ablation, which this study leaves"):
        make_plan(without)
    (part,) = make_plan(replace(without, only=())).parts
    assert "interactions" not in part.jobs
