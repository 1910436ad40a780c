"""One self-contained page that tells what a run found."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mechcore.files import write_text
from mechcore.report.about import NAME, facts
from mechcore.report.attention_views import library_script
from mechcore.report.blocks import Gallery, Section, View
from mechcore.report.embedding import JSON, Download, archive, download, script_json
from mechcore.report.grid import grid_of
from mechcore.report.kinds import NOTHING, report_of
from mechcore.report.method import method_tables
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER, RunFolder, read_run
from mechcore.report.terms import Explainer
from mechcore.wording import short_source

REPORT_FILE = "report.html"

_OF_DATA = ("n", "n_available", "n_cut", "subsets")
"""Facts in ``config.json`` that the section on the data has, too."""
_VARIABLE = re.compile(r"\*(\w+)\*")
_PUNCTUATED = re.compile(r"(<button [^>]*>[^<]*</button>[,.;:)\]]+)")
"""A button and what belongs to it: browsers break lines around buttons, before a comma, too."""


def build_report(run: str | Path, *, figures: Sequence[str] = ("svg", "png")) -> Path:
    """Make the report and ``figures/`` from the tables of a finished run.

    Nothing is computed anew: a report only draws and words what the tables hold. ``report.html``
    needs no network and no other file, and carries the tables.

    Args:
        run: folder of the run, with ``config.json`` and ``tables/``.
        figures: what figures are saved as, some of ``png``, ``svg`` and ``pdf``.

    Returns:
        Path of the report.

    Raises:
        InputError: ``config.json`` is missing, a file is not what it should be, or there is no
            such format of figures.
    """
    folder = read_run(run)
    gallery = Gallery(folder.path, figures)
    study = report_of(folder.config)
    opening = study.opening(folder)
    opening = None if opening is None else gallery.placed(opening)
    parts = [gallery.placed(section) for section in study.sections(folder)]
    path = folder.path / REPORT_FILE
    write_text(path, _html(folder, opening, parts))
    return path


def _html(run: RunFolder, opening: Section | None, parts: Sequence[Section]) -> str:
    study, known = report_of(run.config), facts(run)
    grid = grid_of(run, list(known.about))
    data = {
        "naming": NAME.pattern,
        "heads": {name: asdict(about) for name, about in known.about.items()},
        "shared": known.shared,
        "grid": [asdict(quantity) for quantity in grid.quantities] if grid else [],
    }
    blocks = [block for part in (opening, *parts) if part is not None for block in part.blocks]
    drawn = any(isinstance(block, View) for block in blocks)
    drawn = drawn or any(run.flips_attention)
    return (
        environment(known.about, study.words.terms)
        .get_template("report.html.j2")
        .render(
            title=title(run.config),
            subtitle=subtitle(run.config),
            version=run.config.get("mechcore", ""),
            tiles=list(study.tiles(run)),
            findings=list(study.findings(run)),
            titles={section.id: section.title for section in parts},
            opening=opening,
            sections=parts,
            grid=grid,
            words=study.words,
            nothing=NOTHING,
            method=method_tables(run.config, () if run.filled("data") is None else _OF_DATA),
            downloads=_downloads(run),
            data=Markup(script_json(data)),
            script=Markup(_script()),
            library=library_script() if drawn else "",
        )
    )


def _script() -> str:
    folder = files("mechcore.report").joinpath("templates")
    return folder.joinpath("report.js").read_text(encoding="utf-8")


def _downloads(run: RunFolder) -> list[Download]:
    tables = [run.path / TABLES_FOLDER / name for name in run.table_files]
    found = [download(run.path / CONFIG_FILE, JSON), *map(download, tables)]
    return [archive(tables, "tables.zip"), *found] if tables else found


def title(config: dict[str, Any]) -> str:
    """What a report is called."""
    model = config.get("model") or {}
    # A model that the study trained lies somewhere in its store, which tells nobody anything.
    found = (model.get(each) for each in ("base", "source", "architecture"))
    name = str(next(filter(None, found), "a model"))
    return report_of(config).title(short_source(name), config)


def subtitle(config: dict[str, Any]) -> str:
    """The model in numbers, and what made the report."""
    model = dict(config.get("model") or {})
    text = f"{model['architecture']}, " if "architecture" in model else ""
    if "n_layers" in model and "n_heads" in model:
        mlps = " with MLPs" if model.get("has_mlps") else ""
        text += f"{model['n_layers']} layers \u00d7 {model['n_heads']} heads{mlps}. "
    if about := report_of(config).subtitle:
        text += f"{about}. "
    return f"{text}Made with mechcore {config.get('mechcore', '')}."


def environment(known: Collection[str] = (), terms: Sequence[tuple[str, str]] = ()) -> Environment:
    """The templates of pages.

    Args:
        known: names of components; in texts and tables they become buttons.
        terms: each with its meaning, which shows wherever the page uses it.
    """
    environment = Environment(
        loader=PackageLoader("mechcore.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )

    def button(found: re.Match[str]) -> str:
        name = found[0]
        if name not in known:
            return name
        return f'<button type="button" class="head" data-head="{name}">{name}</button>'

    def linked(text: object) -> Markup:
        html = NAME.sub(button, str(escape(text)))
        return Markup(_PUNCTUATED.sub(r'<span class="whole">\1</span>', html))

    environment.filters["linked"] = linked
    explainer = Explainer(terms)
    environment.filters["explained"] = explainer.explain
    environment.globals["begin"] = explainer.begin
    environment.filters["variables"] = lambda text: Markup(
        _VARIABLE.sub(r"<var>\1</var>", str(escape(text)))
    )
    return environment
