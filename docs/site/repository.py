"""Files of the repository outside docs/ become part of the site, under the same links.

A page of docs/ links to them as it would on the repository, such as ``../README.md``. Notebooks
become pages, with the outputs that are in them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = "docs"
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "data/README.md": "embedded-models.md",
}
"""Path in the repository and page of the site."""

_LINK = re.compile(r"\]\((?!\w+:|#|/)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def included() -> dict[str, str]:
    """Everything from outside docs/: path in the repository, path in the site."""
    notebooks = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    return (
        PAGES
        | {"CITATION.cff": "CITATION.cff"}
        | {f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in notebooks}
    )


def on_files(files: Files, config: Any) -> Files:
    """Add them to the site."""
    for source, target in included().items():
        path = REPOSITORY / source
        parts: dict[str, str | bytes] = {target: path.read_text(encoding="utf-8")}
        if path.suffix == ".ipynb":
            parts = page_of(path, target) | {source: parts[target]}
        for name, content in parts.items():
            files.append(File.generated(config, name, content=content))
    return files


def page_of(notebook: Path, target: str) -> dict[str, str | bytes]:
    """A notebook as the page ``target`` with its pictures, by their paths in the site."""
    pictures = f"{notebook.stem}_files"
    body, resources = MarkdownExporter().from_notebook_node(
        nbformat.read(notebook, as_version=4), resources={"output_files_dir": pictures}
    )
    folder = posixpath.dirname(target)
    page = f'{body}\n<a href="{notebook.name}">Download this notebook</a>.\n'
    return {target: page} | {
        f"{folder}/{name}": data for name, data in resources["outputs"].items()
    }


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links between files of the repository to their places in the site."""
    sources = {target: source for source, target in included().items()}
    uri = page.file.src_uri
    return relocated(markdown, sources.get(uri, f"{DOCS}/{uri}"), uri)


def relocated(markdown: str, source: str, target: str) -> str:
    """Markdown of the repository's file ``source`` with links as of the site's page ``target``."""
    places = included()

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        place = places.get(path)
        if place is None and path.startswith(f"{DOCS}/"):
            place = path.removeprefix(f"{DOCS}/")
        if place is None:  # mkdocs says which link it cannot follow
            return match[0]
        return f"]({posixpath.relpath(place, posixpath.dirname(target))}{match['anchor'] or ''})"

    return _LINK.sub(replace, markdown)
