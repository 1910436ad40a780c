"""What commands print of their tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mechcore.ablation.confirmed import confirmation
from mechcore.ablation.roles import COMPONENT_ROLES, HARMFUL_OUT, NONE, verdict
from mechcore.attention import LabelAgreement
from mechcore.cli.components import agreement_sentence
from mechcore.cli.shared import run_table, show, show_core, show_roles
from mechcore.files import write_csv


def shown(
    frame: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int = 80,
) -> list[str]:
    """The lines of a table on a terminal of that width, without what pads them."""
    monkeypatch.setenv("COLUMNS", str(width))
    show(frame)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_whole_numbers_of_a_run_are_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = pd.array([0, 12, None], dtype="Int64")
    frame = pd.DataFrame(
        {
            "arm": ["base", "scratch", "mean"],
            "seed": seeds,
            "n": [6400, 100, 100],
            "accuracy": [1.0, 0.0, None],
            "matched": [True, False, True],
        }
    )
    (tmp_path / "tables").mkdir()
    write_csv(tmp_path / "tables" / "models.csv", frame)
    assert shown(run_table(tmp_path, "models"), capsys, monkeypatch) == [
        "arm      seed     n  accuracy  matched",
        "──────────────────────────────────────",
        "base        0  6400     1.000  True",
        "scratch    12   100     0.000  False",
        "mean            100            True",
    ]


def test_a_dash_stands_for_an_interval_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = float("nan")
    frame = pd.DataFrame(
        {"subset": ["a", "b"], "seed": [nan, 1.0], "low": [nan, 0.25], "drop_high": [nan, 0.5]}
    )
    dash = "\u2013"
    lines = [line.split() for line in shown(frame, capsys, monkeypatch)]
    assert lines[1] == ["subset", "seed", "low", "high"]
    assert lines[3:] == [["a", dash, dash], ["b", "1.000", "0.250", "0.500"]]
    (tmp_path / "tables").mkdir()
    write_csv(tmp_path / "tables" / "t.csv", frame)
    assert (tmp_path / "tables" / "t.csv").read_text().splitlines()[1] == "a,,,"
    found = shown(run_table(tmp_path, "t"), capsys, monkeypatch)
    assert found[3].split() == ["a", dash, dash]


def test_only_texts_go_on_in_the_next_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"what it is": ["a long sentence"], "accuracy_drop": [-0.25], "n": [1600]})
    assert shown(frame, capsys, monkeypatch, width=28) == [
        "              accuracy",
        "what it is        drop     n",
        "────────────────────────────",
        "a long          -0.250  1600",
        "sentence",
    ]


def test_names_are_shown_letter_by_letter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"set": ["[red]L1.H0", ":smile:"]})
    assert shown(frame, capsys, monkeypatch)[2:] == ["[red]L1.H0", ":smile:"]


def roles(n: int, gain: float = 0.05) -> pd.DataFrame:
    """So many components that are harmful out of domain, the first the most, and one idle."""
    rows = []
    for i in range(n + 1):
        row = dict.fromkeys(COMPONENT_ROLES.names, 0.0) | {"component": f"L{i}.H0", "sure": True}
        row |= dict.fromkeys(("open", "reason_id", "reason_ood", "explanation"), "")
        row["role"] = NONE if i == n else HARMFUL_OUT
        row["information_drop_ood"] = 0.0 if i == n else i / 1000 - gain
        rows.append(row)
    return pd.DataFrame(rows, columns=COMPONENT_ROLES.names)


@pytest.mark.parametrize(("n", "listed"), [(0, 0), (2, 2), (15, 15), (18, 15)])
def test_roles_are_listed_up_to_a_number_and_then_counted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    listed: int,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "tables" / "roles.csv"
    path.parent.mkdir()
    table = roles(n)
    write_csv(path, table)
    show_roles(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("L")]
    assert [row[0] for row in rows] == [f"L{i}.H0" for i in range(listed)]
    if rows:
        assert " ".join(rows[0][1:]).startswith("harmful out of domain yes 0.0 [0.0, 0.0] +5.0 [")
    more = f"and {n - listed} more with a role: {path}"
    assert (more in lines) == (n > listed)
    assert lines[-1] == verdict(table)


def test_what_the_halves_confirm_is_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    halves = {"confirmed": True, "reason_confirmed": ""}
    for place in ("id", "ood"):
        halves |= {f"halves_found_{place}": 1, f"information_drop_found_{place}": -0.05}
        halves |= {f"information_drop_confirmed_{place}": -0.04}
        halves |= {f"information_drop_confirmed_se_{place}": 0.01}
    table = roles(1).assign(**halves)
    write_csv(tmp_path / "tables" / "roles.csv", table)
    show_roles(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [verdict(table), confirmation(table)]


def test_a_run_without_a_sweep_has_no_roles_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_roles(tmp_path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("n", "subnetworks", "advice"),
    [
        (1, "1 subnetwork", "; one subnetwork is its own core: take several seeds"),
        (3, "3 subnetworks", ""),
    ],
)
def test_the_core_in_a_sentence(
    n: int, subnetworks: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"n_subnetworks": n, "n_heads": 8, "expected_by_chance": 2.0, "p_value": 1.0}
    show_core(pd.DataFrame({"component": ["L0.H1", "L1.H0"]}), pd.DataFrame([facts]))
    assert capsys.readouterr().out == (
        f"heuristic core of {subnetworks}: 2 of 8 heads (L0.H1 L1.H0); 2 expected by chance with "
        f"as many heads of each layer, p = 1{advice}\n"
    )


def test_a_set_goes_on_in_the_next_line_between_its_members(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"set": ["L1.H0+L2.H10+L3.MLP", "L0.H1"], "drop": [0.5, 0.25]})
    assert shown(frame, capsys, monkeypatch, width=28)[2:] == [
        "L1.H0+L2.H10+L3.MLP  0.500",
        "L0.H1                0.250",
    ]
    assert shown(frame, capsys, monkeypatch, width=20)[2:] == [
        "L1.H0+L2.H10+  0.500",
        "L3.MLP",
        "L0.H1          0.250",
    ]
    assert shown(frame, capsys, monkeypatch, width=15)[2:] == [
        "L1.H0+   0.500",
        "L2.H10+",
        "L3.MLP",
        "L0.H1    0.250",
    ]


def test_agreement_of_labels_that_are_all_alike_is_told_in_words() -> None:
    assert agreement_sentence(LabelAgreement(4, 1.0, float("nan"))) == (
        "Labels from the two halves of the examples are the same for 100.0 % of the heads "
        "(Cohen's kappa is not defined: all labels are alike)."
    )
