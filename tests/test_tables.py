"""What a schema checks, reads and shows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechcore.errors import InputError
from mechcore.tables import SEED, Column, Schema, estimate, write_tables

HEADS = Schema(
    "heads",
    "A row per head.",
    (
        Column("component", "text", "name", names={"L0.H0": "the first head"}),
        SEED,
        *estimate("accuracy", "share", "accuracy"),
        Column("in_core", "flag", "whether it is in the core"),
        Column("p", "number", "p-value", shown="small", optional=True),
        Column("mass_*", "number", "attention on a category"),
    ),
)


def heads(**changes):
    row = {"component": "None", "seed": 2**60 + 1, "accuracy": 0.5, "low": np.nan, "high": 0.75}
    return pd.DataFrame([row | {"in_core": True, "mass_first": 0.25} | changes])


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = pd.concat([heads(), heads(component="007", in_core=False)], ignore_index=True)
    write_tables(tmp_path, {"heads": table}, [HEADS])
    back = HEADS.read(tmp_path / "heads.csv")
    pd.testing.assert_frame_equal(back, table, check_dtype=False)
    assert back["seed"].tolist() == [2**60 + 1] * 2
    assert back["in_core"].dtype == bool


def test_missing_seeds_leave_the_others_exact(tmp_path):
    table = pd.concat([heads(), heads()], ignore_index=True)
    table["seed"] = pd.array([2**60 + 1, None], dtype="Int64")
    write_tables(tmp_path, {"heads": table}, [HEADS])
    assert HEADS.read(tmp_path / "heads.csv")["seed"][0] == 2**60 + 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            heads().drop(columns="accuracy"),
            "found the columns .*seed, low, .*; its schema has",
        ),
        (heads(other=1), "found the columns .*other; its schema"),
        (heads(accuracy="half"), "column accuracy"),
        (heads(mass_first="much"), "column mass_first"),
        (heads(in_core="maybe"), "column in_core"),
    ],
)
def test_tables_that_are_not_what_the_schema_says_are_not_written(tmp_path, table, message):
    with pytest.raises(InputError, match=f"table heads: .*{message}"):
        write_tables(tmp_path, {"heads": table}, [HEADS])
    assert not list(tmp_path.iterdir())


def test_tables_without_a_schema_are_written_as_they_are(tmp_path):
    write_tables(tmp_path, {"mine": pd.DataFrame({"x": [1]})}, [HEADS])
    assert (tmp_path / "mine.csv").read_text() == "x\n1\n"


def test_a_file_that_lacks_a_column_or_all_of_them_is_refused(tmp_path):
    (tmp_path / "heads.csv").write_text("component,seed\nL0.H0,1\n")
    with pytest.raises(InputError, match="no column accuracy, low, high, in_core; found component"):
        HEADS.read(tmp_path / "heads.csv")
    (tmp_path / "heads.csv").write_text("\n")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        HEADS.read(tmp_path / "heads.csv")


@pytest.mark.parametrize("cell", ["yes", "1.0", ""])
def test_a_flag_that_is_neither_true_nor_false_is_refused(tmp_path, cell):
    heads(in_core=cell).to_csv(tmp_path / "heads.csv", index=False)
    with pytest.raises(InputError, match=rf"column in_core: found '{cell}'; expected true or"):
        HEADS.read(tmp_path / "heads.csv")


def test_rows_that_are_longer_than_the_header_are_refused(tmp_path):
    """pandas shifts all columns where every row is."""
    names = ",".join(HEADS.required)
    (tmp_path / "heads.csv").write_text(f"{names}\n{','.join(['1'] * 7)}\n")
    assert len(HEADS.required) == 6
    with pytest.raises(InputError, match="rows have more cells than the header"):
        HEADS.read(tmp_path / "heads.csv")


def test_words_where_numbers_should_be_are_refused(tmp_path):
    heads(accuracy="half").to_csv(tmp_path / "heads.csv")
    with pytest.raises(InputError, match=r"heads\.csv: column accuracy: .*expected numbers"):
        HEADS.read(tmp_path / "heads.csv")


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        (HEADS["component"], ["L0.H0"], "the first head"),
        (HEADS["component"], ["L1.H0"], "L1.H0"),
        (HEADS["seed"], [1234567], "1234567"),
        (HEADS["accuracy"], [0.5, 0.25, 0.75], "50.0\u00a0% [25.0, 75.0]"),
        (HEADS["accuracy"], [0.5, np.nan, 0.75], "50.0\u00a0%"),
        (HEADS["accuracy"], [pd.NA], "n/a"),
        (HEADS["in_core"], [True], "yes"),
        (HEADS["p"], [0.0123], "0.012"),
        (Column("n", "whole"), [1234.0], "1,234"),
        (Column("change", "points"), [0.123, -0.01, 0.2], "+12.3 [\u22121.0, +20.0]"),
        (Column("kl", "number", digits=3), [1.23456], "1.235"),
        (Column("rate", "number", shown="exact"), [1e-4], "0.0001"),
        (Column("rate", "number", shown="exact"), [np.nan], "\u2013"),
        (Column("target", "share", shown="exact"), [0.5], "50\u00a0%"),
    ],
)
def test_values_are_shown_by_the_kind_of_their_column(column, values, text):
    assert column.show(*values) == text


def test_headings_have_units():
    assert Column("accuracy_change", "points").heading == "accuracy change (points)"
    assert Column("kl", "number", unit="nats", header="KL").heading == "KL (nats)"
    assert HEADS["accuracy"].called("best").heading == "best"
