"""Terms carry their meaning, the keyboard stops once a section, and nothing else changes."""

from __future__ import annotations

from markupsafe import Markup

from mechcore.report.terms import Explainer

TERMS = [
    ("Margin", "log-odds *m*"),
    ("Target sparsity and sparsity", "share"),
    ("In domain", "x<y"),
]


def test_the_longest_name_wins_in_any_case_and_spelling() -> None:
    found = Explainer(TERMS).explain(Markup("Margins at a target sparsity, in-domain"))
    assert found == (
        '<abbr title="log-odds m" tabindex="0">Margins</abbr> at a '
        '<abbr title="share" tabindex="0">target sparsity</abbr>, '
        '<abbr title="x&lt;y" tabindex="0">in-domain</abbr>'
    )


def test_the_tab_key_stops_once_in_a_section() -> None:
    explainer = Explainer(TERMS)
    again = '<abbr title="log-odds m">margin</abbr>'
    first = '<abbr title="log-odds m" tabindex="0">margin</abbr>'
    assert explainer.explain(Markup("margin, margin")) == f"{first}, {again}"
    assert explainer.begin() == ""
    assert explainer.explain(Markup("margin")) == first


def test_tags_and_parts_of_words_stay() -> None:
    html = Markup('<a title="margin">marginal</a> <button data-head="x">margin</button> x-margin')
    assert Explainer(TERMS).explain(html) == html


def test_without_terms_nothing_changes() -> None:
    assert Explainer().explain(Markup("a b")) == "a b"
