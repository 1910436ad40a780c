"""Responses, in the numbers of a made-up table."""

from typing import Any

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from drawn import check_paper
from pages import rows_of, tables_of, with_tables

from mechcore.ablation.effects.responses import RESPONSES
from mechcore.ablation.effects.roles import OUT_ONLY
from mechcore.analyses.responses import Responses
from mechcore.report.blocks import Paragraph
from mechcore.report.run_folder import RunFolder

WITHIN = (
    *(("full", "full", "id", "overlap", 0.5), ("L0.H3", "component", "id", "overlap", -0.4)),
    *(("L0.H3", "component", "ood", "negation", -0.7), ("L1.H5", "component", "ood", "span", 0.6)),
    *(("L2.H2", "component", "ood", "span", 0.01), ("core", "core", "id", "overlap", -0.3)),
    *(("core", "core", "ood", "span", 0.5), ("s0.50-seed1", "subnetwork", "ood", "span", 0.9)),
)
"""Set, kind, split, feature and rho; those of 0.01 are not shown."""
SHARES = (("all", 0.3), ("span", 0.2), ("span and overlap", 0.25), ("overlap", 0.1))


def responses() -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for name, kind, split, feature, rho in WITHIN:
        row: dict[str, Any] = {"set": name, "kind": kind, "size": 1, "data": f"tiny-{split}"}
        row |= {"split": split, "subset": "all", "n": 50, "label": "no", "classes": "0"}
        row |= {"feature": feature, "p_adjusted": 0.9 if rho == 0.01 else 0.01, "p": 0.001}
        for what, value in (("rho", rho), ("partial", rho / 2), ("slope", 2 * rho)):
            row |= {what: value, f"{what}_low": value - 0.1, f"{what}_high": value + 0.1}
        rows.append(row)
    for split in ("id", "ood"):
        for feature, share in SHARES:
            row = {"set": "core", "kind": "core", "size": 4, "data": f"tiny-{split}", "n": 100}
            row |= {"split": split, "subset": "all", "label": "all", "classes": ""}
            row |= {"feature": feature, "share": share, "p": 0.01}
            rows.append(row | {"share_low": share - 0.15, "share_high": share + 0.15})
    return RESPONSES.frame(rows)


@pytest.fixture
def complete(run: RunFolder) -> RunFolder:
    roles = run.tables["roles"].copy()
    roles["role"] = "needed in both"
    roles.loc[roles["component"].isin(["L0.H3", "L1.H5", "L2.H2"]), "role"] = OUT_ONLY
    return with_tables(run, responses=responses(), roles=roles)


def test_the_strongest_response_what_explains_the_core_and_the_verdict(complete: RunFolder) -> None:
    assert headlines_of(Responses, complete) == [
        "2 of 3 components respond to the texts, most L0.H3: the change in margin without it falls "
        "with negation (rho -0.70 [-0.80, -0.60], -0.35 given the full model's margin; no, out of "
        "domain).",
        "In domain, features explain 30.0 % [15.0, 45.0] of the variance of the change in margin "
        "without the core: span and overlap 25.0 % [10.0, 40.0] and span 20.0 % [5.0, 35.0].",
        "Out of domain, features explain 30.0 % [15.0, 45.0] of the variance of the change in "
        "margin without the core: span and overlap 25.0 % [10.0, 40.0] and span 20.0 % "
        "[5.0, 35.0].",
        "That the core computes shallow features is inconclusive: no response to a feature is "
        "shown on both.",
        "1 of 3 components needed out of domain only respond most to another feature there than "
        "the core: L0.H3 (negation).",
    ]


def test_its_section(complete: RunFolder) -> None:
    (section,) = Responses.sections(complete)
    assert section.files == ["responses.csv"]
    assert [*map(Paragraph, Responses.headlines(complete))] == section.blocks[:5]
    (drawing,), (table,) = drawings_of(section.blocks), tables_of(section.blocks)
    check_paper(drawing.figure)
    panels = [ax for ax in drawing.figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["in-domain: no", "out-of-domain: no"]
    sets = ["full", "core", "L0.H3", "L1.H5"]
    assert [text.get_text() for text in panels[1].get_yticklabels()] == sets
    assert panels[1].images[0].get_array()[2].tolist() == [None, -0.7, None]
    # No subnetwork, the strongest first, one row for each set and data set.
    cells = [row[:4] for row in rows_of(table)]
    assert [*cells[0]] == ["L0.H3", "tiny-ood (out-of-domain)", "no", "negation"]
    assert [row[0] for row in cells] == ["L0.H3", "L1.H5", "full", "core", "L0.H3", "core"]
    assert rows_of(table)[0][4].startswith("\u22120.70 [")


def test_without_a_core_or_roles_components_alone_are_reported(complete: RunFolder) -> None:
    table = responses()
    alone = with_tables(complete, responses=table[table["kind"] != "core"])
    assert len(headlines_of(Responses, alone)) == 1
    assert not [*Responses.sections(with_tables(complete, responses=None))]
