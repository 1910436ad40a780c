"""The page begins with which components are to blame, in the numbers of the tables."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analyses.shown import drawings_of, plain
from pages import tables_of, with_tables

from mechcore.ablation.effects.confirmation import confirmation
from mechcore.ablation.effects.roles import verdict
from mechcore.analyses.roles import OPEN_ROWS, Roles, in_order
from mechcore.errors import InputError
from mechcore.evaluation.recalibration import CANNOT_TELL
from mechcore.report.blocks import Drawing, Paragraph, Section
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.wording import number


def section_of(run: RunFolder) -> Section:
    (section,) = Roles.sections(run)
    return section


def drawing_of(section: Section) -> Drawing:
    return drawings_of(section.blocks)[0]


def dots_of(section: Section) -> dict[str, Any]:
    return {dot.name: dot for dot in drawing_of(section).spots}


@pytest.fixture(scope="module")
def section(run: RunFolder) -> Section:
    return section_of(run)


@pytest.fixture
def roles(run: RunFolder) -> pd.DataFrame:
    return run.tables["roles"].copy()


def test_the_verdict_and_a_list_of_all_components(
    run: RunFolder, roles: pd.DataFrame, section: Section
) -> None:
    assert section.blocks[0] == Paragraph(verdict(roles), lead=True)
    assert list(Roles.headlines(run)) == [verdict(roles)]
    assert (section.id, section.files) == ("blame", ["roles.csv"])
    first, whole = tables_of(section.blocks)
    assert len(first.rows) == OPEN_ROWS
    assert (first.folded, whole.folded) == (False, True)
    names = [row[0] for row in whole.rows]
    assert len(set(names)) == 36
    assert [row[0] for row in first.rows] == names[:OPEN_ROWS]
    # L0.H3 was made to lose 20 points out of domain, and 3 in domain.
    assert first.rows[0][:3] == ["L0.H3", "needed in both", "yes"]
    assert plain(first.rows[0][3]).startswith("-19.9 [-20.7, -19.2]")
    assert first.header[3] == "information out of domain (points)"


def test_every_component_is_drawn_with_its_changes(roles: pd.DataFrame, section: Section) -> None:
    spots = dots_of(section)
    assert set(spots) == set(roles["component"])
    for _, row in roles.iterrows():
        spot = spots[row["component"]]
        assert spot.x.value == pytest.approx(100 * row["information_change_id"])
        assert spot.x.low == pytest.approx(100 * row["information_change_low_id"])
        assert spot.y.value == pytest.approx(100 * row["information_change_ood"])
        assert spot.y.high == pytest.approx(100 * row["information_change_high_ood"])
        assert spot.labelled == (row["role"] != "no detectable effect")
        assert row["role"] in spot.words


def test_the_change_with_the_out_of_domain_mean_stands_beside(
    run: RunFolder, roles: pd.DataFrame, section: Section
) -> None:
    ends = ("", "_low", "_high")
    own = {f"information_change{e}_ood_mean": roles[f"information_change{e}_ood"] / 2 for e in ends}
    both = section_of(with_tables(run, roles=roles.assign(**own)))
    before, after = (tables_of(part.blocks)[1] for part in (section, both))
    header = "the same with the out-of-domain mean (points)"
    assert after.header == [*before.header[:4], header, *before.header[4:]]
    # Half of 19.9 points (19.2 to 20.7), before these are rounded.
    assert plain(after.rows[0][4]) == "-10.0 [-10.4, -9.6]"
    assert "a role must hold with both" in after.caption
    assert "a role must hold with both" not in before.caption


def test_what_holds_on_the_other_half_stands_in_the_list(
    run: RunFolder, roles: pd.DataFrame, section: Section
) -> None:
    halves = {"confirmed": roles["component"] == "L0.H3", "reason_confirmed": ""}
    for place, change in (("id", -0.02), ("ood", -0.15)):
        halves |= {
            f"halves_found_{place}": 1.0 * halves["confirmed"],
            f"information_change_found_{place}": -0.2,
            f"information_change_confirmed_{place}": change,
            f"information_change_confirmed_se_{place}": 0.01,
        }
    halved = roles.assign(**halves)
    of_halves = section_of(with_tables(run, roles=halved))
    texts, before = (
        [block.text for block in of.blocks if isinstance(block, Paragraph)]
        for of in (of_halves, section)
    )
    assert texts == [verdict(halved), *before[1:], confirmation(halved)]
    assert "carry the generalisation (" in texts[0]
    assert "0 confirmed on held-out halves; 4 carry" in texts[0]
    assert "1 confirmed on held-out halves" in texts[0]
    header = "on the other half"
    first, whole = tables_of(of_halves.blocks)
    for table in (first, whole):
        column = table.header.index(header)
        assert plain(table.rows[0][column]) == "-15.0 out of domain, -2.0 in domain, confirmed"
        assert {row[column] for row in table.rows[1:]} == {""}
    assert header in whole.caption
    assert not any(header in table.header for table in tables_of(section.blocks))


def test_components_without_a_role_come_last_or_are_missing(
    roles: pd.DataFrame, run: RunFolder
) -> None:
    order = in_order(roles)["role"].eq("no detectable effect").tolist()
    assert order == sorted(order)
    assert len(order) == len(roles)
    columns = [name for name in roles if str(name).startswith("information_")]
    roles.loc[roles["component"] == "L0.H0", columns] = float("nan")
    section = section_of(RunFolder(run.path, run.config, {"roles": roles}))
    assert "L0.H0" not in dots_of(section)
    assert "1 of 36 are not drawn" in drawing_of(section).caption


def test_with_one_label_out_of_domain_accuracy_is_drawn_and_said_to_be_ambiguous(
    tmp_path: Path, new_run: Callable[..., Path]
) -> None:
    run = read_run(new_run(tmp_path / "run", sweep=True, roles=True, one_label=True))
    section = section_of(run)
    notes = [block.text for block in section.blocks if isinstance(block, Paragraph) and block.note]
    assert len(notes) == 1
    assert "one label only" in notes[0]
    assert CANNOT_TELL in notes[0]
    ax, dots = drawing_of(section).figure.axes[0], dots_of(section)
    assert ax.get_ylabel() == "accuracy out of domain:\nchange without it (points)"
    assert all(CANNOT_TELL in dot.words for dot in dots.values())
    changes = run.tables["sweep"].query("split == 'ood' and subset == 'all'").set_index("set")
    # Heads of the core have their own ablation, whose made-up numbers differ.
    alone = {name: dot for name, dot in dots.items() if name not in run.core}
    assert len(alone) == 32
    for name, dot in alone.items():
        assert dot.y.value == pytest.approx(100 * changes.at[name, "accuracy_change"])


def test_without_information_accuracy_is_listed(run: RunFolder, roles: pd.DataFrame) -> None:
    figures = [name for name in roles if "_change" in name]
    unknown = roles.assign(role="undecided", sure=False, reason_id="too few", reason_ood="too few")
    unknown[figures] = np.nan
    section = section_of(with_tables(run, roles=unknown))
    first, whole = tables_of(section.blocks)
    start = "The first 10 of 36 components by their effect on accuracy out of domain: "
    assert first.caption.startswith(start)
    assert first.header[3:5] == ["accuracy out of domain (points)", "accuracy in domain (points)"]
    assert run.singles is not None
    overall = run.singles.query("split == 'ood' and subset == 'all'")
    changes = overall.drop_duplicates("set").set_index("set")["accuracy_change"]
    listed = [row[0] for row in whole.rows]
    sizes = [abs(changes[name]) for name in listed]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted(listed) == sorted(roles["component"])
    assert first.rows[0][3].startswith(number(100 * changes[listed[0]], 1, signed=True))


def test_without_a_sweep_there_is_no_section(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = read_run(new_run(tmp_path / "run"))
    assert not [*Roles.sections(run), *Roles.headlines(run)]


def test_roles_of_another_run_stand_beside(
    run: RunFolder, roles: pd.DataFrame, section: Section, tmp_path: Path
) -> None:
    def beside(there: pd.DataFrame | None) -> Section:
        config = {"settings": {"beside": str(tmp_path / "before")}}
        folder = tmp_path / "before"
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text((run.path / "config.json").read_text())
        (folder / "tables" / "roles.csv").unlink(missing_ok=True)
        if there is not None:
            there.to_csv(folder / "tables" / "roles.csv", index=False)
        return section_of(replace(run, config=run.config | config))

    same, before = beside(roles), roles.copy()
    text = f"Compared with before, 0 of {len(roles)} components have other roles."
    assert text in [block.text for block in same.blocks if isinstance(block, Paragraph)]
    assert len(tables_of(same.blocks)) == len(tables_of(section.blocks))
    sure = roles.index[roles["sure"].astype(bool)][0]
    unsure = roles.index[~roles["sure"].astype(bool)][0]
    before.loc[[sure, unsure], "role"] = "harmful out of domain"
    other = beside(before)
    name, role = roles.loc[sure, ["component", "role"]]
    text = f"Compared with before, 2 of {len(roles)} components have other roles. Of those with a "
    text += f"sure role in before: {name} (harmful out of domain, now {role})."
    assert text in [block.text for block in other.blocks if isinstance(block, Paragraph)]
    table = tables_of(other.blocks)[-1]
    assert table.header == ["component", "in before", "sure there", "role", "sure"]
    assert {row[0] for row in table.rows} == {name, roles.loc[unsure, "component"]}
    assert {row[1] for row in table.rows} == {"harmful out of domain"}
    fewer = beside(roles.iloc[1:])
    text = "before has other components, so roles are not compared with those there."
    assert text in [block.text for block in fewer.blocks if isinstance(block, Paragraph)]
    assert len(tables_of(fewer.blocks)) == len(tables_of(section.blocks))
    with pytest.raises(InputError, match="before: found no roles; expected a run of mechcore run"):
        beside(None)
