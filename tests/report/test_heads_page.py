"""The page on what heads attend to: its sentences and figures are those of the table."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from mechcore.attention import AttentionExample, LabelAgreement, Thresholds
from mechcore.report.attention_views import library_script
from mechcore.report.heads_page import agreement_sentence, build_heads_page

EXAMPLE = AttentionExample(
    component="L0.H0",
    category="next",
    tokens=["[CLS]", "a", "[SEP]", "a", "[SEP]"],
    segments=[-1, 0, -1, 1, -1],
    pattern=[[0.2] * 5] * 5,
)


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "component": ["L0.H0", "L0.H1", "L1.H0", "L1.H1"],
            "layer": [0, 0, 1, 1],
            "head": [0, 1, 0, 1],
            "category": ["next", "mixed", "next", "two_back"],
            "n_examples": 40,
            "entropy": [0.5, 1.234, 0.5, 0.5],
            "mass_next": [0.812, 0.1, 0.5, 0.1],
            "ratio_next": [9.87, 1.0, 6.0, 1.0],
            "mass_two_back": [0.1, 0.1, 0.1, 0.7],
            "ratio_two_back": [1.0, 1.0, 1.0, 8.0],
            "mass_other": [0.1, 0.8, 0.4, 0.2],
            "ratio_other": [0.1, 0.8, 0.4, 0.2],
        }
    )


def text_of(page: Path) -> str:
    html = page.read_text(encoding="utf-8").replace(library_script(), "")
    html = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def build(path: Path, table: pd.DataFrame, **options: object) -> Path:
    shown = {
        "next": [EXAMPLE, replace(EXAMPLE, component="L1.H0")],
        "two_back": [replace(EXAMPLE, component="L1.H1")],
        "mixed": [replace(EXAMPLE, component="L0.H1")],
    }
    return build_heads_page(
        path,
        table,
        shown,
        model="my-<model>",
        data="mnli",
        **options,  # type: ignore[arg-type]
    )


def test_sentences(tmp_path: Path, table: pd.DataFrame) -> None:
    text = text_of(build(tmp_path / "heads.html", table))
    assert "What the heads of my-&lt;model&gt; attend to" in text
    assert "4 heads on 40 examples of mnli" in text
    assert "a mass of at least 0.25 and at least 3 times" in text
    assert "2 heads that attend to the token after." in text
    assert "1 head that attends to two_back." in text
    assert "L0.H0: 0.81, 9.9 times uniform" in text
    assert "L1.H0: 0.50, 6.0 times uniform" in text
    assert "L0.H1: entropy 1.23 nats" in text
    assert "kappa" not in text
    headings = re.findall(r"<h2[^>]*>([^<]+)</h2>", (tmp_path / "heads.html").read_text())
    assert headings == ["All heads", "next (2)", "two_back (1)", "mixed (1)", "Table"]


def test_thresholds_and_agreement_are_told(tmp_path: Path, table: pd.DataFrame) -> None:
    page = build(
        tmp_path / "heads.html",
        table,
        thresholds=Thresholds(0.4, 5),
        agreement=LabelAgreement(4, 0.75, 0.6),
    )
    assert "a mass of at least 0.4 and at least 5 times" in text_of(page)
    assert "the same for 75.0 % of the heads (Cohen&#39;s kappa 0.60)" in text_of(page)


def test_agreement_of_labels_that_are_all_alike_is_told_in_words() -> None:
    assert agreement_sentence(LabelAgreement(4, 1.0, float("nan"))) == (
        "Labels from the two halves of the examples are the same for 100.0 % of the heads "
        "(Cohen's kappa is not defined: all labels are alike)."
    )


def test_one_file_with_the_library_once(tmp_path: Path, table: pd.DataFrame) -> None:
    page = build(tmp_path / "heads.html", table)
    html = page.read_text(encoding="utf-8")
    assert html.count(library_script()) == 1
    assert html.count("CircuitsVis.render(place.id") == 4
    own = re.sub(r"base64,[^\"]*", "", html.replace(library_script(), ""))
    assert re.findall(r"(?:https?:)?//[a-z]", own) == []
    assert list(tmp_path.iterdir()) == [page]
    places = re.findall(r'id="([^"]+)"', own)
    assert len(places) == len(set(places))
    links = re.findall(r'href="#([^"]+)"', own)
    assert set(links) <= set(places)


def test_the_same_table_gives_the_same_page(tmp_path: Path, table: pd.DataFrame) -> None:
    first, second = (build(tmp_path / name, table).read_bytes() for name in ("a.html", "b.html"))
    assert first == second
