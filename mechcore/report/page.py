"""One self-contained page that tells what a run found."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from mechcore.files import write_text
from mechcore.report.attention_views import library_script
from mechcore.report.blocks import Gallery, Section, View
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER, read_run
from mechcore.report.sections import method_tables, sections
from mechcore.report.summary import sentences, tiles

REPORT_FILE = "report.html"


def build_report(run: str | Path) -> Path:
    """Make ``report.html`` and ``figures/`` from the tables of a finished run.

    Nothing is computed anew: the page only draws and words what the tables hold. It needs no
    network and no other file; only its links to the tables and figures are relative.

    Args:
        run: folder of the run, with ``config.json`` and ``tables/``.

    Returns:
        Path of the page.

    Raises:
        InputError: ``config.json`` is missing, or a file is not what it should be.
    """
    folder = read_run(run)
    parts = list(sections(folder, Gallery(folder.path)))
    page = environment().get_template("report.html.j2")
    path = folder.path / REPORT_FILE
    text = page.render(
        title=_title(folder.config),
        model=dict(folder.config.get("model") or {}),
        version=folder.config.get("mechcore", ""),
        tiles=tiles(folder),
        sentences=list(sentences(folder)),
        sections=parts,
        method=method_tables(folder.config),
        files=folder.table_files,
        config_file=CONFIG_FILE,
        library=library_script() if any(_has_view(part) for part in parts) else "",
    )
    write_text(path, text)
    return path


def _has_view(section: Section) -> bool:
    return any(isinstance(block, View) for block in section.blocks)


def _title(config: dict[str, Any]) -> str:
    model = config.get("model") or {}
    name = str(model.get("source") or model.get("architecture") or "a model")
    # Two parts: a hub id whole, and more than "final" or "checkpoint-500" of a local path.
    return f"Heuristic core of {'/'.join(name.strip('/').split('/')[-2:])}"


def environment() -> Environment:
    """The templates of pages."""
    environment = Environment(
        loader=PackageLoader("mechcore.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["table_link"] = lambda name: f"{TABLES_FOLDER}/{quote(name)}"
    return environment
