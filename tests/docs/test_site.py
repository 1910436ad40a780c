"""The site builds strictly, leads nowhere that is not there, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest
from helpers import script

import mechcore
from mechcore.report.kinds import REPORTS, schemas_of

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser loads by itself, by tag and attribute."""


def hook(name: str) -> ModuleType:
    """A module of the site's own, which is in no package."""
    for needed in ("mkdocs", "material", "mkdocstrings_handlers.python", "nbconvert"):
        pytest.importorskip(needed, reason="needs the docs extra")
    return script(DOCS / "site" / f"{name}.py")


class Page(HTMLParser):
    """Anchors, links and fetched addresses of a built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if FETCHED.get(tag) in given and given.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; warnings are errors."""
    for needed in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(needed, reason="needs the docs extra")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_pages_and_styles_fetch_nothing_from_other_hosts(
    site: Path, pages: dict[Path, Page]
) -> None:
    assert len(pages) > 35
    for path, page in pages.items():
        for address in page.fetched:
            assert not re.match(r"(?:\w+:)?//", address), f"{path.name} loads {address}"
    for path in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", path.read_text())
        assert outside == [], path.name


def test_links_inside_the_site_lead_to_pages_and_anchors_that_are_there(
    site: Path, pages: dict[Path, Page]
) -> None:
    followed = 0
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the server's root
            continue
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            place, anchor = urldefrag(link)
            target = (path.parent / unquote(place)).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)}: {link}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].anchors, f"{path.relative_to(site)}: {link}"
            followed += 1
    assert followed > 2000


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    names = {name for name in mechcore.__all__ if not name.startswith("__")}
    index = site / "api" / "index.html"
    text = index.read_text(encoding="utf-8")
    linked = dict(re.findall(r'href="([^"]+)"><code>(\w+)</code></a>', text))
    targets = {name: link for link, name in linked.items()}
    assert names == set(targets)
    for name, link in targets.items():
        place, anchor = urldefrag(link)
        assert anchor in pages[(index.parent / place).resolve()].anchors, name
        assert anchor.rsplit(".", 1)[-1] == name


def test_notebooks_are_pages_with_their_outputs_and_can_be_downloaded(site: Path) -> None:
    page = (site / "notebooks" / "02_head_categories.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img[^>]+src="(02_head_categories_files/[^"]+)"', page)
    assert len(pictures) == 4
    for picture in pictures:
        assert (site / "notebooks" / picture).read_bytes().startswith(b"\x89PNG")
    assert '<table border="1" class="dataframe">' in page
    assert 'href="02_head_categories.ipynb"' in page
    kept = REPOSITORY / "notebooks" / "02_head_categories.ipynb"
    assert (site / "notebooks" / kept.name).read_bytes() == kept.read_bytes()


def test_the_reference_of_commands_has_every_command(site: Path) -> None:
    text = (site / "api" / "commands.html").read_text(encoding="utf-8")
    assert "Usage: mechcore run" in text
    assert "--target-sparsities" in text
    assert "mkdocs serve" not in text


def test_the_reference_has_every_module_once() -> None:
    package = REPOSITORY / "mechcore"
    modules = set()
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[0] != "cli" and parts[-1] != "command" and not parts[-1].startswith("_"):
            modules.add(".".join(("mechcore", *parts)))
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    documented = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(modules)


@pytest.mark.parametrize(
    "path",
    [*sorted(DOCS.rglob("*.md")), REPOSITORY / "README.md"],
    ids=lambda path: path.relative_to(REPOSITORY).as_posix(),
)
def test_links_of_the_sources_also_lead_somewhere_in_the_repository(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _ = urldefrag(link)
        if place and not re.match(r"\w+:", link):
            assert (path.parent / place).exists(), link


PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.parent != DOCS / "api"]
"""Those that are written, and not made from docstrings."""


OUTSIDE = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
OUTSIDE.append(REPOSITORY / "data" / "README.md")
"""Pages of the site whose sources are not in docs/."""

READER = re.compile(r"\b[Ff]or (?:anyone|everyone|readers|researchers)\b")


@pytest.mark.parametrize(
    "path", [*PAGES, *OUTSIDE], ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)
def test_a_page_says_at_its_beginning_what_and_whom_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path not in OUTSIDE:
        plain = re.sub(r"^<!--.*-->\n", "", text, flags=re.M)
        title, first, *_ = re.split(r"\n{2,}", plain.strip())
        assert re.fullmatch(r"# .+", title)
        assert not re.match(r"[#|>`!]|[-*] |\d+\. |    ", first), first
        assert len(re.findall(r"\w+", first)) >= 8, first
    prose = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", text).split("```")[0].partition("\n")[2]
    assert READER.search(" ".join(prose.split())[:600]), path.name


def test_the_navigation_has_every_page_once() -> None:
    configuration = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = configuration.split("\nnav:\n")[1].split("\n\n")[0]
    listed = re.findall(r"(\S+\.md)$", navigation, re.M)
    shown = hook("repository")
    assert set(shown.PAGES) == {path.relative_to(REPOSITORY).as_posix() for path in OUTSIDE}
    outside = {name for name in shown.included().values() if name.endswith(".md")}
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages | outside)


OLDER = {"extractive_scores", "dividends", "shapley"}
"""Shortened for the docs."""


def test_every_table_of_every_study_is_on_the_page() -> None:
    page = hook("tables").reference()
    schemas = [table for kind in REPORTS.names() for table in schemas_of({"kind": kind}).values()]
    for schema in schemas:
        assert f"### {schema.name}.csv" in page
        assert f"| `{schema.columns[-1].name}` |" in page


@pytest.mark.parametrize("path", sorted(DOCS.glob("tables/*/*.csv")), ids=lambda path: path.stem)
def test_tables_of_the_docs_are_read_by_their_schemas(path: Path) -> None:
    kind = path.parent.name.partition("-")[0]
    schemas = schemas_of({"kind": kind if kind in REPORTS else None})
    if path.stem in schemas and path.stem not in OLDER:
        table = schemas[path.stem].read(path)
        schemas[path.stem].check(table)
        assert len(table)
