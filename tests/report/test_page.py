"""The page says what the tables say, stands alone, and survives hostile and missing content."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pandas as pd
import pytest
from drawn import leave_out_figures
from markupsafe import Markup
from pages import Page, with_tables, words_of
from study_pages import page_of

from mechcore.errors import InputError
from mechcore.report import (
    ablation_figures,
    build_report,
    component_figures,
    figures,
    subnetwork_figures,
)
from mechcore.report.about import grid_of, panels
from mechcore.report.attention_views import library_script
from mechcore.report.kinds import report_of, schemas_of
from mechcore.report.page import Explainer, environment, method_tables
from mechcore.report.run_folder import read_run

FIGURES = {
    figures: "accuracy_by_subset head_frequency ablation_changes ablation_by_subset "
    "head_categories attention_patterns",
    ablation_figures: "interactions interactions_by_subset single_changes",
    component_figures: "scatter graph",
    subnetwork_figures: "head_overlap effective_sizes training_curves",
}


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_figures(monkeypatch, FIGURES)


@pytest.fixture(scope="module")
def rich(rich_page: Path) -> Page:
    return Page(rich_page.read_text(encoding="utf-8"))


def edit(run: Path, table: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = run / "tables" / f"{table}.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)


@pytest.fixture
def copy_of_rich(rich_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rich_run, tmp_path / "run"))


@pytest.mark.everyday
def test_the_page_stands_alone(rich: Page, rich_run: Path) -> None:
    html = (rich_run / "report.html").read_text(encoding="utf-8")
    assert html.count(library_script()) == 1
    own = html.replace(library_script(), "")  # the library holds addresses, and loads nothing
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"base64,[^\"]*", "", own)) == []
    assert all(
        uri.startswith("data:image/svg+xml;base64,") for uri in rich.attributes("img", "src")
    )
    links = [link for link in rich.attributes("a", "href") if link[:1] != "#"]
    beside = [link for link in links if not link.startswith("data:")]
    assert "figures/accuracy.svg" in beside
    assert all((rich_run / link).is_file() for link in beside)
    assert len(own) < 4_000_000


def carried_by(uri: str) -> bytes:
    head, _, content = uri.partition(",")
    return base64.b64decode(content) if head.endswith(";base64") else unquote_to_bytes(content)


def test_the_page_carries_its_tables(rich: Page, rich_run: Path) -> None:
    carried = {
        str(attrs["download"]): carried_by(str(attrs["href"]))
        for tag, attrs in rich.tags
        if tag == "a" and re.match("data:(?!image)", str(attrs.get("href")))
    }
    tables = {path.name: path.read_bytes() for path in (rich_run / "tables").iterdir()}
    assert carried.pop("config.json") == (rich_run / "config.json").read_bytes()
    assert carried == tables
    assert len(tables) == 24
    offered = [name for _, attrs in rich.tags if (name := attrs.get("data-file"))]
    assert {*offered} == {*tables}  # every table with its section


def test_the_page_can_be_read_without_seeing_it(rich: Page) -> None:
    assert rich.headings[0] == 1
    assert rich.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(rich.headings, rich.headings[1:], strict=False))
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in rich.tags}
    images = [attrs for tag, attrs in rich.tags if tag == "img"]
    assert len(images) == 15
    assert all(attrs.get("alt") for attrs in images)
    drawn = [attrs["role"] for tag, attrs in rich.tags if tag == "svg"]
    assert drawn == ["group"] * 2  # of all components, and of paths
    views = rich.attributes("figure", "class")
    assert views == ["view"] * len(views)
    assert len(views) == 1 + 4 + 2  # of the core, of each of its heads, and on texts that flip
    n_figures = len(images) + len(views) + len(drawn)
    assert sum(tag == "figcaption" for tag, _ in rich.tags) == n_figures
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in rich.tags if tag == "th")
    ids = [value for _, attrs in rich.tags if (value := attrs.get("id"))]
    assert len(ids) == len(set(ids))
    targets = [link[1:] for link in rich.attributes("a", "href") if link.startswith("#")]
    assert set(targets) <= set(ids)


def test_the_method_names_what_was_run(rich: Page) -> None:
    facts = ("9f2c41aa70be13d5", "0 <- entailment; 1 <- non-entailment", "label mapping: ood")
    for fact in (*facts, "3.9.0", "0, 1, 2", "lambda learning rate 0.3"):
        assert fact in rich.text
    assert "What the answers of hub/base, trained here depend on" in rich.text


def without_ends(table: pd.DataFrame) -> pd.DataFrame:
    """As of subsets of one example, which have no interval."""
    return table.assign(**{c: None for c in table if str(c).endswith(("low", "high"))})


def test_what_has_no_interval_is_neither_an_effect_nor_none(copy_of_rich: Path) -> None:
    for name in ("accuracy", "ablation", "interactions", "superadditive", "sweep"):
        edit(copy_of_rich, name, without_ends)
    drawn = build_report(copy_of_rich, figures=())  # with its figures
    page = Page(drawn.read_text(encoding="utf-8"))
    dash = "[\u2013]"
    assert "none of the 7 joint sets has an interval, so no direction is shown" in page.text
    assert "none has an interval for the margin on the other half" in page.text
    assert "The interval does not exclude zero, so this may be no effect at all" in page.text
    for claim in ("includes zero", "subadditive", "are superadditive", "nan"):
        assert claim not in page.text, claim
    n_rows = 7 * 2 * 2  # sets, data sets, metrics
    assert len(re.findall(re.escape(dash) + r"\s+not known", page.text)) == n_rows


NOT_MADE_UP = {"missing_masks", "missing_grid_masks", "missing_half_masks", "full", "grid"}
NOT_MADE_UP |= {"smallest", "race"}
NOT_MADE_UP |= {"methods", "dividends", "shapley", "failure", "failure_sets"}
OF_COMPONENTS = {"roles", "head_frequency", "head_categories", "core", "ablation", "sweep"}
OF_COMPONENTS |= {"interactions", "superadditive", "flips", "subnetworks"}


@pytest.mark.usefixtures("no_drawing")
def test_a_missing_table_only_leaves_out_its_step(rich_run: Path) -> None:
    run, study = read_run(rich_run), report_of({})
    whole_steps = {"accuracy", "subnetworks", "core", "ablation", "interactions"}
    whole_steps |= {"head_categories"}
    for table in {*schemas_of({})} - NOT_MADE_UP:
        without = with_tables(run, **{table: None})
        if table in OF_COMPONENTS:
            assert all(panels(without).values())
        assert grid_of(without, ["L0.H0"])
        assert list(study.tiles(without))
        assert list(study.findings(without))
        opening = study.opening(without)
        parts = [*study.sections(without), *([opening] if opening else [])]
        words = " ".join(words_of(part.blocks) for part in parts)
        assert ("Not run:" in words) == (table in whole_steps), table


@pytest.mark.usefixtures("no_drawing")
def test_odd_settings_are_shown_as_they_are(tmp_path: Path) -> None:
    settings = {"seconds": {"prune": "long"}, "model": None, "data": {"train": ["a", None]}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    text = page_of(tmp_path).text
    assert "prune long" in text
    assert "train name a" in text


def test_effective_sizes_are_those_of_the_table(rich: Page) -> None:
    first = "100.0 % at 100 (100 % for 3 of 3 seeds, which had no faithful subnetwork)"
    assert (
        f"The effective size changes over checkpoints from {first} to 69.0 % at 500 on ID and "
        f"{first} to 69.0 % at 500 on OOD."
    ) in rich.text
    # Of 68, 69 and 70 %: Student's t with two degrees of freedom, 4.303, times 1 / sqrt(3).
    assert "OOD 500 69.0 % [66.5, 71.5] 68.0\u201370.0 % 3 of 3 60.0 %" in rich.text
    assert "OOD 100 100.0 % 100.0 % 0 of 3 60.0 %" in rich.text
    assert "ID 500 2 68.0 % 32.0 % 93.0 % 95.0 %" in rich.text


@pytest.mark.usefixtures("no_drawing")
def test_effective_sizes_alone_are_a_page_of_their_own(copy_of_rich: Path) -> None:
    for path in (copy_of_rich / "tables").iterdir():
        if path.stem not in ("data", "effective_size", "mean_effective_size", "full", "grid"):
            path.unlink()
    config = json.loads((copy_of_rich / "config.json").read_text())
    (copy_of_rich / "config.json").write_text(json.dumps(config | {"target_sparsities": []}))
    text = page_of(copy_of_rich).text
    assert "Effective size of hub/base, trained here" in text
    assert "What the answers of" not in text
    assert "Effective size over training" in text
    assert "Not run" not in text
    assert "sparsities 0.5" not in text


@pytest.mark.usefixtures("no_drawing")
def test_facts_about_the_data_appear_once(rich: Page, copy_of_rich: Path) -> None:
    assert "12 of 20,000 texts of tiny-train (training) were cut at 128 tokens." in rich.text
    assert "train n available" not in rich.text
    (copy_of_rich / "tables" / "data.csv").unlink()
    assert "train n available 30000" in page_of(copy_of_rich).text


def test_a_run_with_nothing_but_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = page_of(tmp_path).text
    assert "There are no results" in text
    assert text.count("Not run:") == 6


HOSTILE = "<script>alert('x')</script> & $x^2$ \"q\""


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.everyday
def test_hostile_names_are_escaped(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = new_run(
        tmp_path / "run", subsets=(HOSTILE, "NA"), ood_data="a<b>&c", source="m/<img src=x>"
    )
    (run / "tables" / "<b>&.csv").write_text("a\n1\n")
    page = page_of(run)
    tags = [tag for tag, _ in page.tags]
    assert "b" not in tags
    # Five views, the colours of the grid, the library and our own.
    assert tags.count("script") == 8
    assert len(page.attributes("img", "src")) == 10
    assert HOSTILE in page.text
    assert "What the answers of m/<img src=x> depend on" in page.text
    assert "NA 500" in page.text
    assert "<b>&.csv" in page.attributes("a", "download")


@pytest.mark.usefixtures("no_drawing")
def test_tables_without_rows_leave_a_note(copy_of_rich: Path) -> None:
    for table in ("core", "ablation", "interactions"):
        edit(copy_of_rich, table, lambda frame: frame[:0])
    assert "There was no head to ablate" in page_of(copy_of_rich).text


def test_the_same_tables_give_the_same_page(tmp_path: Path, new_run: Callable[..., Path]) -> None:
    run = new_run(tmp_path / "run", core=())
    first = build_report(run, figures=()).read_bytes()
    assert build_report(run, figures=()).read_bytes() == first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "invalid JSON"),
        ("config.json", "[]", "found a list; expected an object"),
        (
            "config.json",
            '{"model_type": "bert"}',
            "found a model; expected the folder of a finished run",
        ),
        ("tables/screening.csv", "set,predicted\nL0.H0,0\n", "no column interaction"),
        ("tables/screening.csv", "set,predicted,interaction\na,x,0\n", "column predicted"),
        ("attention_examples.json", '[{"component": "L0.H0"}]', "not a list of attention examples"),
        (
            "attention_examples.json",
            '[{"component": "L0.H0", "category": "x", "tokens": ["a", "b"], "segments": [0, 0],'
            ' "pattern": [[1.0]]}]',
            "L0.H0: the pattern is not 2 x 2",
        ),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=r"config\.json: not found.*let the run finish first"):
        build_report(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_run(tmp_path)
    named = Path(name).name if "model_type" not in content else str(tmp_path)
    assert named in str(error.value)


def test_no_line_begins_with_the_comma_after_a_component() -> None:
    linked = environment(known={"L0.H1", "L1.H0"}).filters["linked"]
    first, second = (
        f'<button type="button" class="head" data-head="{name}">{name}</button>'
        for name in ("L0.H1", "L1.H0")
    )
    assert linked("L0.H1, L9.H9, L1.H0: x L0.H1+L1.H0 <") == (
        f'<span class="whole">{first},</span> L9.H9, <span class="whole">{second}:</span> x '
        f"{first}+{second} &lt;"
    )


def test_settings_say_where_they_came_from() -> None:
    origins = {"seeds": "command line", "prune.steps": "file s.yaml"}
    config = {"settings": {"seeds": [1], "prune": {"steps": 9}}, "origins": origins}
    tables = {table.caption: table for table in method_tables(config)}
    rows = tables["Origins of settings that are not defaults"].rows
    assert rows == [["seeds", "command line"], ["prune.steps", "file s.yaml"]]
    captions = [table.caption for table in method_tables({"settings": {"seeds": [1]}})]
    assert captions == ["Settings", "Versions"]


TERMS = [
    ("Margin", "log-odds *m*"),
    ("Target sparsity and sparsity", "share"),
    ("In domain", "x<y"),
]


def test_the_longest_name_wins_in_any_case_and_spelling() -> None:
    text = Explainer(TERMS).explain(Markup("Margins at a target sparsity, in-domain"))
    assert text == (
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
