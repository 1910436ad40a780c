"""The page in a real browser: by mouse, by keyboard, on paper, without scripts, and attacked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pytest
from browsing import Seen, browser
from pages import tables_of

from mechcore.attention import AttentionExample
from mechcore.report import build_report
from mechcore.report.about import panels
from mechcore.report.attention_views import attention_view
from mechcore.report.blocks import Paragraph
from mechcore.report.run_folder import read_run

Open: TypeAlias = Callable[..., AbstractContextManager[Any]]
SECTIONS = "main > section > details"
CONTRAST = """() => {
  const rgba = (text) => {
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a === undefined ? 1 : a];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const poor = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let n = 0;
  while (walker.nextNode()) {
    const owner = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !owner.checkVisibility()) continue;
    if (owner.closest("script, style, noscript, .canvas")) continue;
    const [a, b] = [light(rgba(getComputedStyle(owner).color)), light(behind(owner))];
    n += 1;
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([owner.outerHTML.slice(0, 120), ratio]);
  }
  return {n, poor};
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def opened(chromium: Any) -> Open:
    """Open a page in a fresh profile; what it asked for or complained of fails the test.

    Its sections are opened, unless they are to stay ``folded``.
    """

    @contextmanager
    def open_(
        path: Path, fragment: str = "", folded: bool = False, **options: Any
    ) -> Iterator[Any]:
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        context = chromium.new_context(**options)
        page, seen = context.new_page(), Seen()
        seen.watch(page)
        page.goto(path.as_uri() + fragment)
        if not folded:
            page.evaluate(
                f"document.querySelectorAll('{SECTIONS}').forEach((d) => {{ d.open = true; }})"
            )
        yield page
        seen.check(path)
        context.close()

    return open_


@pytest.fixture
def rich(opened: Open, rich_page: Path) -> Open:
    """Open the page of the rich run."""
    return partial(opened, rich_page)


def about(page: Any) -> str:
    """The text of the panel, or nothing where it is closed."""
    return page.locator("#about").inner_text() if page.locator("#about").is_visible() else ""


def focused(page: Any) -> Any:
    return page.evaluate(
        "[document.activeElement.id, document.activeElement.dataset.head, "
        "!!document.activeElement.closest('#grid')]"
    )


def pressed(page: Any) -> set[str]:
    return set(
        page.locator('[data-head][aria-pressed="true"]').evaluate_all(
            "all => all.map((each) => each.dataset.head)"
        )
    )


def cell(page: Any, name: str) -> Any:
    return page.locator(f'#grid [data-head="{name}"]')


def test_the_page_opens_with_the_answers_and_a_link_opens_its_section(rich: Open) -> None:
    with rich(folded=True) as page:
        sections = page.locator(SECTIONS)
        assert sections.count() > 10
        assert page.locator(f"{SECTIONS}[open]").count() == 0
        assert page.locator("#blame .story li").count() == 1
        assert page.locator("#blame svg").is_visible()
        table = page.locator("#blame .scroll").first
        assert table.evaluate("node => node.scrollWidth <= node.clientWidth")
        for link in (page.locator("nav a[href='#core']"), page.locator("#summary .more").first):
            target = page.locator(link.get_attribute("href"))
            link.click()
            assert target.locator("> details").get_attribute("open") is not None
        page.keyboard.press("Escape")
        page.locator("#blame [data-head]").first.click()
        assert about(page).startswith("About ")
    with rich("#stability", folded=True) as page:
        assert page.locator("#stability h2").is_visible()
        assert page.locator("#stability > details").get_attribute("open") is not None


# -- choosing a head ---------------------------------------------------------------------------


def test_a_click_shows_all_about_a_head_and_marks_it_everywhere(rich: Open, rich_run: Path) -> None:
    lead, *blocks = panels(read_run(rich_run))["L1.H5"]
    assert isinstance(lead, Paragraph)
    with rich() as page:
        assert about(page) == ""
        cell(page, "L1.H5").click()
        assert about(page).startswith("About L1.H5")
        assert focused(page) == ["about-title", None, False]
        assert page.url.endswith("#L1.H5")
        assert pressed(page) == {"L1.H5"}
        everywhere = page.locator('[data-head="L1.H5"]')
        assert everywhere.count() > 20
        marked = page.locator("tr.marked")
        assert marked.count() > 5
        assert all("L1.H5" in text for text in marked.all_text_contents())
        core = page.locator("#core tbody tr")
        assert core.nth(1).get_attribute("class") == "marked"
        assert page.locator("#about-title").get_attribute("aria-live") == "polite"
        assert page.locator("#about-body p").first.text_content() == lead.text
        captions = page.locator("#about-body caption").all_text_contents()
        assert captions == [table.caption for table in tables_of(blocks)]


def test_a_head_can_be_chosen_wherever_it_is_named(rich: Open) -> None:
    with rich() as page:
        for where in ("#summary li", "#core tbody th", "#categories tbody th"):
            button = page.locator(f'{where} [data-head="L2.H2"]').first
            button.click()
            assert about(page).startswith("About L2.H2"), where
            button.click()  # again: no longer chosen
            assert about(page) == ""
            assert pressed(page) == set()
            assert "#" not in page.url


def test_attention_is_drawn_in_the_panel_and_in_its_section(rich: Open) -> None:
    with rich("#L3.H0") as page:
        drawing = page.locator("#about-body figure canvas, #about-body figure svg").first
        page.locator("#about-body figure").scroll_into_view_if_needed()
        drawing.wait_for()
        assert drawing.bounding_box()["width"] > 200
        view = page.locator("#attention-heads")
        assert view.inner_text() == ""  # not before it is near
        view.scroll_into_view_if_needed()
        page.locator("#attention-heads img, #attention-heads canvas").first.wait_for()
        assert "L2.H2" in view.inner_text()


def test_texts_that_flip_without_a_head_are_in_its_panel_with_its_attention(rich: Open) -> None:
    with rich("#L0.H3") as page:
        text = re.sub(r"\s+", " ", about(page))
        assert "Answers that flip without it: 9 out of domain" in text
        assert "so_swap 3 saw L0.H3 \u2016 a bird" in text
        drawings = page.locator("#about-body figure")
        assert drawings.count() == 3  # on two of the texts, and on one example
        drawings.nth(1).scroll_into_view_if_needed()
        drawings.nth(1).locator("svg, canvas").first.wait_for()
        assert page.locator("#about-body").evaluate("e => e.scrollWidth - e.clientWidth") <= 0
        cell(page, "L0.MLP").click()
        assert page.locator("#about-body figure").count() == 0
        cell(page, "L3.H7").click()
        assert "No answer flips without it." in about(page)


def test_a_saved_view_draws_itself(opened: Open, tmp_path: Path) -> None:
    n = len(HOSTILE)
    example = AttentionExample("L0.H1", "previous", list(HOSTILE), [0] * n, [[1 / n] * n] * n)
    path = attention_view([example, example]).save(tmp_path / "view.html")
    with opened(path) as page:
        page.locator("[id^=attention-]").locator("canvas, svg").first.wait_for()
        assert page.evaluate("window.pwned") is None


# -- keyboard and screen readers ---------------------------------------------------------------


def test_arrow_keys_move_in_the_grid_and_enter_chooses(rich: Open) -> None:
    with rich() as page:
        page.locator("#colour-by").focus()
        page.keyboard.press("Tab")
        assert focused(page) == ["", "L0.H0", True]
        for key, name in (
            ("ArrowRight", "L0.H1"),
            ("ArrowDown", "L1.H1"),
            ("ArrowLeft", "L1.H0"),
            ("ArrowLeft", "L1.H0"),
            ("ArrowUp", "L0.H0"),
            ("End", "L0.MLP"),
            ("ArrowDown", "L1.MLP"),
            ("Home", "L1.H0"),
        ):
            page.keyboard.press(key)
            assert focused(page) == ["", name, True]
        assert page.locator('#grid [tabindex="0"]').count() == 1
        page.keyboard.press("Enter")
        assert about(page).startswith("About L1.H0")
        assert focused(page)[0] == "about-title"
        page.keyboard.press("Escape")
        assert about(page) == ""
        assert focused(page) == ["", "L1.H0", True]


def test_the_buttons_of_the_panel(rich: Open) -> None:
    with rich() as page:
        sentence = page.locator('#summary [data-head="L0.H3"]').first
        sentence.click()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert focused(page)[0] == "about-next"
        page.keyboard.press("Enter")
        assert about(page).startswith("About L0.H4")
        assert focused(page)[0] == "about-next"
        for _ in range(5):
            page.locator("#about-previous").click()
        assert about(page).startswith("About L3.MLP")  # around the end
        page.locator("#about-close").click()
        assert about(page) == ""
        assert sentence.evaluate("node => node === document.activeElement")


def test_everything_that_acts_has_a_name_and_names_in_the_panel_lead_on(rich: Open) -> None:
    with rich("#L0.H3") as page:
        nameless = page.locator("button, select, a, [role=region], [role=group]").evaluate_all(
            """all => all.filter((each) => !(each.textContent.trim() || each.ariaLabel
                || each.getAttribute("aria-labelledby"))).map((each) => each.outerHTML)"""
        )
        assert nameless == []
        assert cell(page, "L0.H3").get_attribute("aria-label") == (
            "L0.H3, kept by 3 of 3 seeds, in the core"
        )
        page.locator('#about-body [data-head="L1.H5"]').first.click()
        assert about(page).startswith("About L1.H5")
        assert pressed(page) == {"L1.H5"}
        page.keyboard.press("Escape")
        assert focused(page) == ["", "L1.H5", True]  # nothing had led there: its cell


# -- the fragment of the address ---------------------------------------------------------------


def test_the_fragment_chooses_a_component_and_others_nothing(rich: Open) -> None:
    with rich("#summary") as page:
        for fragment in ("#summary", "#constructor", "#L9.H9", "#%3Cimg%20src=x%3E"):
            page.evaluate("(text) => { location.hash = text; }", fragment)
            page.wait_for_timeout(50)
            assert about(page) == "", fragment
        for name in ("L2.H2", "L0.H1"):
            page.evaluate("(text) => { location.hash = text; }", f"#{name}")
            page.wait_for_function(
                "(text) => document.querySelector('#about-title').textContent.endsWith(text)",
                arg=name,
            )
        page.evaluate("location.hash = '#method'")
        assert about(page).startswith("About L0.H1")


# -- every component as a dot, and terms -------------------------------------------------------


def test_dots_tell_what_they_are_by_mouse_and_in_the_order_of_the_list_by_keyboard(
    rich: Open,
) -> None:
    with rich() as page:
        dot, tip = page.locator('#blame .dot[data-head="L0.H3"]'), page.locator("#tip")
        assert not tip.is_visible()
        dot.hover()
        assert tip.inner_text() == dot.get_attribute("aria-label")
        assert tip.inner_text().startswith("L0.H3, needed in both. information in domain")
        dot.click()
        assert about(page).startswith("About L0.H3")
    with rich() as page:
        rows = page.locator("#blame table").first.locator("tbody th").all_inner_texts()
        dots = page.locator('#blame .dot[tabindex="0"]')
        assert dots.count() == 1
        dots.focus()
        assert focused(page)[1] == rows[0]
        page.keyboard.press("ArrowRight")
        assert focused(page)[1] == rows[1]
        assert page.locator("#tip").inner_text().startswith(f"{rows[1]}, ")
        page.keyboard.press("Enter")
        assert about(page).startswith(f"About {rows[1]}")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert about(page) == ""
        assert focused(page)[1] == rows[1]


def test_the_keyboard_goes_through_the_graph_and_terms(rich: Open) -> None:
    with rich() as page:
        graph, tip = page.locator("#readers .canvas"), page.locator("#tip")
        assert graph.locator('.dot[tabindex="0"]').count() == 1
        graph.locator('.dot[tabindex="0"]').focus()
        assert focused(page)[1] == "L2.H2"  # loses most without the core
        assert tip.inner_text().startswith("L2.H2, in the core. Paths from the core cut")
        lit = graph.locator(".edge.highlighted").evaluate_all(
            "all => all.map((e) => e.dataset.ends)"
        )
        assert len(lit) > 2
        assert all("0" in ends.split() for ends in lit)  # those of the first dot
        assert graph.locator(".edge").count() > len(lit)
        page.keyboard.press("ArrowRight")
        assert focused(page)[1] == "L3.H0"
        page.keyboard.press("End")
        assert focused(page)[1] == "answer"
        page.keyboard.press("Enter")
        assert about(page) == ""  # it is no component
        page.locator("#blame abbr", has_text="information").first.focus()
        assert "after one bias per label has been refitted" in tip.inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()


# -- the grid's colours ------------------------------------------------------------------------


def test_the_grid_shows_the_chosen_quantity(rich: Open, rich_run: Path) -> None:
    sweep = pd.read_csv(rich_run / "tables/sweep.csv").query("subset == 'all' and split == 'ood'")
    margin = dict(zip(sweep["set"], sweep["margin_change"], strict=True))
    most = max(margin, key=lambda name: abs(margin[name]))
    with rich() as page:
        before = cell(page, most).evaluate("node => node.style.background")
        page.locator("#colour-by").select_option(
            label="change in margin (nats), out-of-domain: tiny-ood"
        )
        for name, change in margin.items():
            if name not in ("L0.H3", "L1.H5", "L2.H2", "L3.H0"):  # these have their own ablation
                shown = cell(page, name).inner_text().replace("\u2212", "-")
                assert shown == f"{change:.1f}".replace("-0.0", "0.0")
        colour = cell(page, most).evaluate("node => node.style.background")
        assert colour != before
        assert page.locator("#grid-legend li").count() == 5
        page.locator("#colour-by").select_option(label="what it attends to")
        labels = pd.read_csv(rich_run / "tables/head_categories.csv")
        for _, row in labels.iterrows():
            label = cell(page, row["component"]).get_attribute("aria-label")
            assert f"attends to: {row['category']}" in label
        legend = page.locator("#grid-legend li").all_inner_texts()
        assert sorted(legend) == sorted(labels["category"].unique())
        assert cell(page, "L0.MLP").get_attribute("aria-label") == "L0.MLP, no value"


# -- light, dark, small, paper, no scripts -----------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(rich: Open, scheme: str) -> None:
    with rich("#L0.H3", color_scheme=scheme, reduced_motion="reduce") as page:
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        texts = page.evaluate(CONTRAST)
        assert texts["n"] > 1000
        assert texts["poor"] == []
        # Figures are dark on white in either scheme, also what circuitsvis writes.
        drawn = page.locator("#attention-heads")
        drawn.scroll_into_view_if_needed()
        drawn.locator("h3").first.wait_for()
        inks = drawn.locator("h3").evaluate_all("all => all.map((e) => getComputedStyle(e).color)")
        assert set(inks) == {"rgb(28, 33, 40)"}
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_all_tables_are_on_paper(rich: Open) -> None:
    with rich("#L0.H3", folded=True) as page:
        page.evaluate(
            """addEventListener("beforeprint", () => {
                const all = [...document.querySelectorAll("main table")];
                window.printed = [all.length, all.filter((each) => each.checkVisibility()).length];
            })"""
        )
        paper = page.pdf(format="A4")
        assert paper.startswith(b"%PDF")
        n, shown = page.evaluate("window.printed")
        assert n == shown > 20
        assert page.locator("main details[open]").count() == 0  # as it was
        page.emulate_media(media="print")
        assert not page.locator("nav").is_visible()
        position = "node => getComputedStyle(node).position"
        assert page.locator("#about").evaluate(position) == "static"


def test_without_scripts_the_page_is_complete(rich: Open, rich_run: Path) -> None:
    with rich(folded=True, java_script_enabled=False) as page:
        assert page.locator("main").is_visible()
        assert not page.locator("#about").is_visible()
        page.locator("#heads summary").first.click()
        assert "Choosing needs JavaScript" in page.locator("#heads").inner_text()
        assert page.locator("#grid button").count() == 36
        assert page.locator("img").count() == 15
        tables = [path.name for path in (rich_run / "tables").iterdir()]
        links = [page.locator(f'#files a[download="{name}"]') for name in tables]
        assert all(link.get_attribute("href").startswith("data:text/csv") for link in links)


def test_tables_and_pictures_come_from_the_page_itself(
    opened: Open, rich_page: Path, rich_run: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "sent by mail.html"
    alone.write_bytes(rich_page.read_bytes())
    with opened(alone, accept_downloads=True) as page:
        for link, original in (
            ('#accuracy a[data-file="accuracy.csv"]', "tables/accuracy.csv"),
            ('#files a[download="core.csv"]', "tables/core.csv"),
            ("#accuracy a[data-picture]", "figures/accuracy.svg"),
        ):
            with page.expect_download() as download:
                page.locator(link).click()
            assert download.value.suggested_filename == Path(original).name
            assert Path(download.value.path()).read_bytes() == (rich_run / original).read_bytes()


# -- hostile content ---------------------------------------------------------------------------

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'>",
    "`${window.pwned=1}`",
    "a\u2028window.pwned=1\u2029",
    "\u202egnp.exe\u202c\u200f",
    "x" * 300,
    "' onmouseover=\"window.pwned=1\" '",
    "javascript:window.pwned=1",
    "|a|b| *c* [l](javascript:window.pwned=1)",
    "</style></svg><svg onload=window.pwned=1>",
    "{{ 7*7 }}{% raw %}",
    "a--><script>window.pwned=1</script><!--",
    "bell\x07 and $x^2$ L0.H3",
)


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory, new_run: Callable[..., Path]) -> Path:
    run = new_run(
        tmp_path_factory.mktemp("report") / "hostile",
        subsets=HOSTILE,
        id_data=(HOSTILE[1],),
        ood_data=HOSTILE[0],
        source=f"{HOSTILE[6]}/{HOSTILE[9].replace('/', '')}",
        n_layers=2,
        n_heads=4,
        core=("L0.H3", "L1.H1"),
        seeds=(0,),
        roles=True,
        smallest=True,
    )
    n = len(HOSTILE)
    marked = {"tokens": HOSTILE, "segments": [0] * n, "pattern": [[1 / n] * n] * n}
    path = run / "attention_examples.json"
    examples = [
        example | marked | {"category": HOSTILE[0]} for example in json.loads(path.read_text())
    ]
    path.write_text(json.dumps(examples))
    path = run / "flips_attention.json"
    flips = [[example | marked for example in of_rank] for of_rank in json.loads(path.read_text())]
    path.write_text(json.dumps(flips))
    path = run / "tables" / "flips.csv"
    names = ("text_a", "text_b", "label", "answer", "subset", "data")
    table = pd.read_csv(path).assign(**dict(zip(names, HOSTILE, strict=False)))
    table.to_csv(path, index=False)
    path = run / "tables" / "head_categories.csv"
    table = pd.read_csv(path).rename(columns=lambda name: name.replace("repeated", HOSTILE[1]))
    table.assign(category=HOSTILE[: len(table)]).to_csv(path, index=False)
    (run / "tables" / "<img src=x onerror=window.pwned=1>.csv").write_text("a\n1\n")
    build_report(run, figures=("svg",))
    return run


def test_hostile_texts_do_nothing_and_show_as_they_are(opened: Open, hostile_run: Path) -> None:
    with opened(hostile_run / "report.html", "#L0.H3") as page:
        for name in page.locator("#grid [data-head]").evaluate_all(
            "all => all.map((each) => each.dataset.head)"
        ):
            if about(page).split("\n")[0] != f"About {name}":
                cell(page, name).click()
            assert about(page).startswith(f"About {name}")
        for option in range(page.locator("#colour-by option").count()):
            page.locator("#colour-by").select_option(index=option)
        page.locator("#attention-heads").scroll_into_view_if_needed()
        page.locator("#attention-heads img, #attention-heads canvas").first.wait_for()
        cell(page, "L1.H1").click()
        page.locator("#about-body figure").first.scroll_into_view_if_needed()
        page.locator("#about-body figure svg, #about-body figure canvas").first.wait_for()
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.evaluate("window.pwned") is None
        texts = page.locator("body").inner_text() + page.locator("#about").inner_text()
        for hostile in HOSTILE[:3] + HOSTILE[5:12]:
            assert hostile in texts
        for escaped in ("a\\u2028window", "\\u202egnp.exe\\u202c\\u200f", "bell\\x07 and $x^2$"):
            assert escaped in texts
        foreign = "main script, main svg:not(.canvas svg), main iframe"
        assert page.locator(foreign).count() <= 1


def test_long_words_do_not_widen_the_page(opened: Open, hostile_run: Path) -> None:
    with opened(hostile_run / "report.html", "#L0.H3") as page:
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_labels_leave_figures_whole(chromium: Any, hostile_run: Path) -> None:
    page = chromium.new_page()
    for path in sorted((hostile_run / "figures").glob("*.svg")):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.tagName") == "svg"
        assert page.evaluate("document.querySelectorAll('script, parsererror').length") == 0
        assert page.evaluate("window.pwned") is None
    page.goto((hostile_run / "report.html").as_uri())
    broken = "[...document.images].filter((each) => !each.complete || !each.naturalWidth).length"
    assert page.evaluate(broken) == 0
    page.close()
