"""The Markdown report, read by a Markdown parser: the words of the page, and nothing hidden."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mechcore.errors import InputError
from mechcore.report import build_report
from mechcore.report.markdown import escaped

HOSTILE = (
    "<script>alert(1)</script>",
    "a|b|c",
    "*bold* _under_ `code` ~~gone~~",
    "[link](javascript:alert(1)) ![x](http://x.test/y.png)",
    "<http://x.test>",
    "&lt;b&gt; &amp; \\",
    "# no heading",
    "1. no list",
    "- no list",
    "=== ---",
    "$x^2$",
    "snake_case_name",
)


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or ()]


def text_of(token: Token) -> str:
    return "".join(child.content for child in token.children or ())


@pytest.fixture(scope="module")
def tokens(rich_run: Path, rich_page: Path) -> list[Token]:
    path = build_report(rich_run, formats=("md",), figures=("png",))
    assert path == rich_run / "report.md"
    return parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_show_as_they_are(text: str) -> None:
    paragraph, content, _ = parse(escaped(text))
    assert paragraph.type == "paragraph_open"
    assert {child.type for child in content.children or ()} <= {"text", "text_special"}
    assert text_of(content) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_stay_in_their_cell(text: str) -> None:
    cell = escaped(text, inside=True)
    found = parse(f"| {cell} | {cell} |\n| :-- | --: |\n| {cell} | {cell} |")
    cells = [token for token in found if token.type == "inline"]
    assert [text_of(token) for token in cells] == [text] * 4


def test_lines_and_edges_are_one_line() -> None:
    assert escaped("  a\n\n# b\t c ") == "a # b c "


def test_headings_are_those_of_the_page(tokens: list[Token]) -> None:
    headings = [
        (token.tag, text_of(tokens[i + 1]))
        for i, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    assert headings[0] == ("h1", "Heuristic core of hub/base, trained here")
    assert [title for tag, title in headings if tag == "h2"] == [
        "Which components are to blame?",
        "Summary",
        "Data",
        "Training",
        "Accuracy",
        "Subnetworks",
        "What can go?",
        "Heuristic core",
        "Stability",
        "Who reads the core",
        "What heads attend to",
        "Ablation",
        "Interactions",
        "Search for superadditive sets",
        "Effective size over training",
        "Method",
        "Files",
    ]


def test_figures_and_tables_lie_beside_it(tokens: list[Token], rich_run: Path) -> None:
    images = [str(token.attrs["src"]) for token in inline(tokens) if token.type == "image"]
    assert len(images) == 15
    assert all(re.fullmatch(r"figures/[a-z0-9-]+\.png", image) for image in images)
    links = [str(token.attrs["href"]) for token in inline(tokens) if token.type == "link_open"]
    assert {"config.json", "tables/core.csv"} <= set(links)
    assert all((rich_run / path).is_file() for path in [*images, *links])


def test_words_and_numbers_are_those_of_the_tables(tokens: list[Token], rich_run: Path) -> None:
    texts = [text_of(token) for token in tokens if token.type == "inline"]
    core = pd.read_csv(rich_run / "tables/core.csv")["component"]
    sentence = f"4 of 32 heads are in all 6 subnetworks: {', '.join(core)}."
    assert sum(sentence in text for text in texts) == 2  # in the summary and in its section
    sweep = pd.read_csv(rich_run / "tables/sweep.csv").query("subset == 'all' and role == 'ood'")
    for _, row in sweep.iterrows():
        assert row["set"] in texts
        ends = f"[{-row.margin_drop_high:+.2f}, {-row.margin_drop_low:+.2f}]"
        cell = f"{-row.margin_drop:+.2f} {ends}".replace("-", "\u2212")
        assert re.sub(r"[+\u2212]0\.00", "0.00", cell) in texts
    emphasised = [token for token in inline(tokens) if token.type == "em_open"]
    assert len(emphasised) == 9  # the variables of the method


def test_hostile_names_make_no_markup(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = new_run(
        tmp_path / "run",
        subsets=HOSTILE,
        ood_data=HOSTILE[0],
        id_data=(HOSTILE[3],),
        source=HOSTILE[2],
        n_layers=1,
        n_heads=2,
        core=(),
        seeds=(0,),
    )
    (run / "tables" / "](x) <b>.csv").write_text("a\n1\n")
    text = build_report(run, formats=("md",), figures=("svg",)).read_text(encoding="utf-8")
    tokens = parse(text)
    kinds = {token.type for token in [*tokens, *inline(tokens)]}
    assert not {"html_block", "html_inline", "code_inline", "fence", "code_block"} & kinds
    assert not {"s_open", "hr", "ordered_list_open"} & kinds
    links = [str(token.attrs["href"]) for token in inline(tokens) if token.type == "link_open"]
    assert all(link == "config.json" or link.startswith("tables/") for link in links)
    assert "tables/%5D%28x%29%20%3Cb%3E.csv" in links
    texts = [text_of(token) for token in tokens if token.type == "inline"]
    assert all(hostile in texts for hostile in HOSTILE)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) > 8
    for table in tables:  # no cell has fallen apart
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_markdown_needs_a_figure_it_can_show(rich_run: Path) -> None:
    with pytest.raises(InputError, match="found pdf; Markdown shows svg or png: add one"):
        build_report(rich_run, formats=("html", "md"), figures=("pdf",))
