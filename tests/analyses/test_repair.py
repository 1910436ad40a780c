"""What the page says of repairs, in the numbers of the tables; and a small study that has them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import transformers as hf
from analyses.shown import headlines_of, plain
from main_study.small_study import CONFIG
from pages import tables_of, with_tables, words_of

from mechcore.analyses.repair import Repair
from mechcore.errors import InputError
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.report.blocks import Drawing
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.steps.config import DataConfig
from mechcore.study.run import run_study

PLACES = ("repaired kinds", "held-out kinds", "in domain")


def ladder(**gains: tuple[float, float, float]) -> pd.DataFrame:
    """Gains by rung and place; half a point to each side is an interval, and 2 points are shown."""
    rows = [{"rung": "none", "place": place, "accuracy": 0.6} for place in PLACES]
    for name, of in gains.items():
        for place, gain in zip(PLACES, of, strict=True):
            shown = "" if abs(gain) < 0.02 else "gain" if gain > 0 else "loss"
            row = {"rung": name.replace("_", "-"), "place": place, "accuracy": 0.6 + gain}
            row |= {"gain": gain, "gain_low": gain - 0.005, "gain_high": gain + 0.005}
            rows.append(row | {"shown": shown})
    frame = pd.DataFrame(rows).assign(n_examples=100, label="all", n=500, runs=6, auc=0.7)
    for name in ("over_threshold", "over_last_layer"):
        frame[[name, f"{name}_low", f"{name}_high"]] = 0.0
    return frame.fillna({"shown": ""})


def headlines(run: RunFolder, table: pd.DataFrame) -> str:
    return " ".join(headlines_of(Repair, with_tables(run, repair=table)))


def test_the_cheapest_shown_gain_is_recommended(run: RunFolder) -> None:
    text = headlines(
        run, ladder(threshold=(0.01, 0, 0), gates=(0.1, 0.03, 0), fine_tune=(0.2, -0.1, 0))
    )
    assert text.startswith(
        "With 100 repair examples (6 runs), gates is the cheapest repair whose gain is shown: "
        "+10.0 points [+9.5, +10.5] on unseen examples of repaired kinds (to 70.0 %), +3.0 points "
        "[+2.5, +3.5] on kinds not repaired (to 63.0 %) and 0.0 points"
    )
    assert (
        "On kinds that were not repaired, a gain is shown for gates, and a loss for fine-tune."
        in text
    )
    assert "The largest gain is that of fine-tune: +20.0 points" in text


def test_what_is_not_shown_or_loses_in_domain_is_not_recommended(run: RunFolder) -> None:
    text = headlines(run, ladder(threshold=(0.01, 0, 0)))
    assert "no repair is recommended, as no gain is shown on repaired kinds." in text
    assert "The largest gain is that of threshold: +1.0 points" in text
    assert "On kinds that were not repaired, no gain is shown." in text
    text = headlines(run, ladder(threshold=(-0.01, 0, 0), gates=(-0.02, 0, 0)))
    assert "The least loss is that of threshold: -1.0 points" in text
    text = headlines(run, ladder(threshold=(0.1, 0, -0.05)))
    assert "as what gains on repaired kinds, threshold, is shown to lose in domain." in text
    assert "no repair is recommended" in headlines(run, ladder(random_heads=(0.1, 0, 0)))
    table = ladder(gates=(0.1, 0.1, 0))
    text = headlines(run, table[table["place"] != "held-out kinds"])
    assert "too few to hold any out, so nothing is known of other kinds" in text
    assert "on kinds not repaired" not in text


def test_the_ladder_and_the_gates_are_shown(run: RunFolder) -> None:
    gates = pd.DataFrame(
        {"component": ["L0.H0", "L0.H1"], "gate": [0.2, 0.9], "low": 0.1, "high": 0.9}
        | {"permuted": 0.8, "sign": ["down", ""]}
    )
    changes = [(a, b, 0.1 if a == b else -0.1) for a in "ab" for b in "ab"]
    transfer = pd.DataFrame(changes, columns=["repaired", "tested", "change"])
    tables = {"repair": ladder(gates=(0.1, 0.1, 0)), "repair_gates": gates}
    filled = with_tables(run, **tables, repair_transfer=transfer)
    (section,) = Repair.sections(filled)
    first, *_ = shown = tables_of(section.blocks)
    assert [row[0] for row in first.rows] == ["none", "gates"]
    assert [*map(plain, first.rows[1][1:4])] == ["70.0 %", "+10.0 [+9.5, +10.5]", "gain"]
    moved = "L0.H0 (0.20) moved farther than with permuted labels in every run"
    assert moved in words_of(section.blocks)
    assert any(table.caption.startswith("Transfer") for table in shown)
    assert [*Repair.blocks(run)] == [*Repair.headlines(run)] == []


def study_of(step: Repair, **data: Any) -> StudyConfig:
    examples = DataConfig(max_train=16, max_id=16, max_ood=80, **data)
    return replace(CONFIG, only=("repair",), data=examples, analyses=Analyses(repair=step))


def test_gains_by_number_of_examples_are_drawn_where_there_are_several(run: RunFolder) -> None:
    few, many = ladder(gates=(0.1, 0.05, 0)), ladder(gates=(0.2, 0.1, 0))
    both = pd.concat([many, few.assign(n_examples=20)], ignore_index=True)
    (section,) = Repair.sections(with_tables(run, repair=both))
    (drawing,) = (block for block in section.blocks if isinstance(block, Drawing))
    repaired, held_out = drawing.figure.axes
    assert repaired.lines[0].get_label() == "gates"
    assert repaired.lines[0].get_xydata() == pytest.approx(np.array([[20, 10], [100, 20]]))
    assert held_out.lines[0].get_ydata() == pytest.approx([5, 10])
    (section,) = Repair.sections(with_tables(run, repair=few))
    assert not any(isinstance(block, Drawing) for block in section.blocks)


@pytest.mark.usefixtures("no_drawings")
def test_a_study_repairs_and_saves_checkpoints(tmp_path: Path) -> None:
    step = Repair(("threshold", "gates"), (24,), 1, 2, 4, guard_examples=8, save=("gates",))
    run_study(study_of(step), tmp_path / "run")
    run = read_run(tmp_path / "run")
    table = run.tables["repair"]
    assert set(table["rung"]) == {"none", "threshold", "gates"}
    assert set(table["place"]) == set(PLACES)
    assert len(run.tables["repair_gates"]) == 28
    saved = tmp_path / "run" / "repaired" / "gates"
    hf.AutoModelForSequenceClassification.from_pretrained(saved)
    assert "What can be repaired?" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("step", "data", "message"),
    [
        (Repair(("mystery",)), {}, "mystery"),
        (Repair(examples=(900,)), {}, "lower --examples"),
        (Repair(), {"ood_label": "entailment"}, "have one label"),
    ],
)
def test_what_cannot_be_repaired_is_refused_before_any_work(
    step: Repair, data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run_study(study_of(step, **data), tmp_path / "run")
