"""Views drawn by circuitsvis: what they are given, and that pages need nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import circuitsvis
import pytest
from pages import Page

from mechcore.attention import AttentionExample
from mechcore.errors import InputError
from mechcore.report import attention_views
from mechcore.report.attention_views import attention_view, library_script, marked_tokens

PAIR = AttentionExample(
    component="L0.H1",
    category="previous",
    tokens=["[CLS]", "a", "[SEP]", "a", "[SEP]"],
    segments=[-1, 0, -1, 1, -1],
    pattern=[[0.2] * 5] * 5,
)
ONE = replace(PAIR, segments=[-1, 0, -1, 0, -1], causal=True)
HOSTILE = "</script><b>&\"'"


def calls(html: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Place, element and properties of every drawing."""
    drawings = []
    for script in Page(html).scripts:
        if (place := re.search(r'getElementById\("([^"]+)"\)', script)) is None:
            continue
        drawn = re.search(r"CircuitsVis\.render\(place\.id, CircuitsVis\.(\w+), (.*)\);\n", script)
        assert drawn is not None
        drawings.append((place[1], drawn[1], json.loads(drawn[2])))
    return drawings


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No view was shown yet."""
    monkeypatch.setattr(attention_views._Shown, "library", False)


def test_heads_together() -> None:
    second = replace(PAIR, component="L2.H0", category="", pattern=[[0, 1, 0, 0, 0]] * 5)
    ((place, element, props),) = calls(attention_view([PAIR, second]).html("mine"))
    assert (place, element) == ("mine-heads", "AttentionHeads")
    assert props["attention"] == [PAIR.pattern, second.pattern]
    assert props["attentionHeadNames"] == ["L0.H1 previous", "L2.H0"]
    assert props["tokens"] == ["[CLS]", "a\u2081", "[SEP]", "a\u2082", "[SEP]"]
    assert props["maskUpperTri"] is False
    assert (props["minValue"], props["maxValue"]) == (0, 1)
    ((_, element, props),) = calls(attention_view([PAIR]).html("alone"))
    assert (element, props["attention"]) == ("AttentionPattern", PAIR.pattern)


def test_one_segment_is_not_marked() -> None:
    assert marked_tokens(ONE) == ONE.tokens


def test_every_view_has_places_of_its_own() -> None:
    view = attention_view([ONE])
    assert calls(view.html())[0][0] != calls(view.html())[0][0]
    assert view.html("same") == view.html("same")


def test_hostile_tokens_stay_in_their_script() -> None:
    hostile = replace(PAIR, tokens=[HOSTILE] * 5, category=HOSTILE)
    html = attention_view([hostile] * 2).html()
    parsed = Page(html)
    assert [tag for tag, _ in parsed.tags] == ["div", "div", "script"]
    assert calls(html)[0][2]["attentionHeadNames"] == [f"L0.H1 {HOSTILE}"] * 2
    assert calls(html)[0][2]["tokens"][1] == HOSTILE + "\u2081"


@pytest.mark.usefixtures("new_process")
def test_a_notebook_gets_the_library_once() -> None:
    shown = [attention_view([PAIR])._repr_html_() for _ in range(3)]
    assert [html.count(library_script()) for html in shown] == [1, 0, 0]
    assert all(len(calls(html)) == 1 for html in shown)


def test_the_library_is_that_of_circuitsvis_and_one_script() -> None:
    script = library_script()
    folder = Path(str(circuitsvis.__file__)).parent
    source = (folder / "dist" / "cdn" / "iife.js").read_text(encoding="utf-8")
    assert script.replace("<\\/script", "</script").count(source) == 1
    assert [tag for tag, _ in Page(script).tags] == ["script"]
    assert script.count("</script") == 1
    assert script.endswith("</script>")


def test_a_saved_page_holds_all_it_needs(tmp_path: Path) -> None:
    path = attention_view([PAIR]).save(tmp_path / "deep" / "view.html")
    html = path.read_text(encoding="utf-8")
    assert html.count(library_script()) == 1
    assert len(calls(html)) == 1
    tags = Page(html).tags
    assert not {"link", "img", "iframe"} & {tag for tag, _ in tags}
    assert not any("src" in attrs for _, attrs in tags)
    assert "<title>Attention of L0.H1</title>" in html


def test_a_view_says_what_it_shows_in_words() -> None:
    assert repr(attention_view([PAIR, ONE])) == "AttentionView(L0.H1 previous, L0.H1 previous)"


def test_errors() -> None:
    with pytest.raises(InputError, match="no head; expected at least one"):
        attention_view([])
    with pytest.raises(InputError, match="1 titles for 2 heads"):
        attention_view([PAIR, PAIR], titles=["one"])
    with pytest.raises(InputError, match="different tokens"):
        attention_view([PAIR, replace(PAIR, tokens=["x"] * 5)])
