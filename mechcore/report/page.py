"""One self-contained page with the results of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mechcore.files import write_text
from mechcore.report.about import NAME, grid_of, panels
from mechcore.report.attention_views import library_script
from mechcore.report.blocks import JSON, Gallery, Table, View, download, script_json
from mechcore.report.kinds import report_of
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER, read_run
from mechcore.wording import number, plain, short_source

REPORT_FILE = "report.html"

_VARIABLE = re.compile(r"\*(\w+)\*")
_TAG = re.compile(r"(<button.*?</button>|<[^>]*>)")
_PUNCTUATED = re.compile(r"(<button [^>]*>[^<]*</button>[,.;:)\]]+)")
"""A button with the punctuation after it: browsers may otherwise break the line between them."""


def build_report(folder: str | Path, *, figures: Sequence[str] = ("svg", "png")) -> Path:
    """Make ``report.html``, one file, and ``figures/`` of a run; raises `InputError` if damaged."""
    run = read_run(folder)
    gallery, study, about = Gallery(run.path, figures), report_of(run.config), panels(run)
    opening = study.opening(run)
    opening = None if opening is None else gallery.placed(opening)
    parts = [gallery.placed(section) for section in study.sections(run)]
    grid = grid_of(run, list(about))
    sections = [part.blocks for part in (opening, *parts) if part is not None]
    drawn = any(isinstance(b, View) for blocks in (*sections, *about.values()) for b in blocks)
    tables = [run.path / TABLES_FOLDER / name for name in run.table_files]
    page = environment(about, study.words.terms).get_template("report.html.j2")
    html = page.render(
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
        method=method_tables(run.config, run.filled("data") is not None),
        downloads=[download(run.path / CONFIG_FILE, JSON), *map(download, tables)],
        panels=about,
        quantities=Markup(script_json([asdict(q) for q in grid.quantities])) if grid else "",
        library=library_script() if drawn else "",
    )
    path = run.path / REPORT_FILE
    write_text(path, html)
    return path


def title(config: dict[str, Any]) -> str:
    """The title of a report."""
    model = config.get("model") or {}
    # The path of a model that the study trained, somewhere in its store, is no useful name.
    names = (model.get(key) for key in ("base", "source", "architecture"))
    name = str(next(filter(None, names), "a model"))
    return report_of(config).title(short_source(name), config)


def subtitle(config: dict[str, Any]) -> str:
    """The model's architecture and size, and the version of mechcore."""
    model = dict(config.get("model") or {})
    text = f"{model['architecture']}, " if "architecture" in model else ""
    if "n_layers" in model and "n_heads" in model:
        mlps = " with MLPs" if model.get("has_mlps") else ""
        text += f"{model['n_layers']} layers \u00d7 {model['n_heads']} heads{mlps}. "
    if about := report_of(config).subtitle:
        text += f"{about}. "
    return f"{text}Made with mechcore {config.get('mechcore', '')}."


def environment(known: Collection[str] = (), terms: Sequence[tuple[str, str]] = ()) -> Environment:
    """The templates of pages; ``known`` components become buttons, ``terms`` get tooltips."""
    environment = Environment(
        loader=PackageLoader("mechcore.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )

    def button(match: re.Match[str]) -> str:
        name = match[0]
        html = f'<button type="button" class="head" data-head="{name}">{name}</button>'
        return html if name in known else name

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


class Explainer:
    """Adds the meaning of terms as tooltips; the Tab key stops at the first use in each section."""

    def __init__(self, terms: Sequence[tuple[str, str]] = ()) -> None:
        self._meanings = {
            name.lower().replace("-", " "): _VARIABLE.sub(r"\1", meaning)
            for names, meaning in terms
            for name in names.split(" and ")
        }
        longest_first = sorted(self._meanings, key=len, reverse=True)
        either = "|".join(re.escape(name).replace(r"\ ", "[- ]") for name in longest_first)
        self._naming = re.compile(rf"(?<![\w-])({either})(s?)(?![\w-])", re.IGNORECASE)
        self._met: set[str] = set()

    def begin(self) -> str:
        """Start a section; returns an empty string for use in templates."""
        self._met.clear()
        return ""

    def explain(self, html: Markup) -> Markup:
        """HTML in which every term outside buttons carries its meaning."""
        if not self._meanings:
            return html
        pieces = _TAG.split(str(html))
        pieces[::2] = [self._naming.sub(self._term, piece) for piece in pieces[::2]]
        return Markup("".join(pieces))

    def _term(self, match: re.Match[str]) -> str:
        name = match[1].lower().replace("-", " ")
        stop = "" if name in self._met else ' tabindex="0"'
        self._met.add(name)
        return f'<abbr title="{escape(self._meanings[name])}"{stop}>{match[0]}</abbr>'


def method_tables(config: Mapping[str, Any], data_shown: bool = False) -> list[Table]:
    """Tables of a run by its ``config.json``, without facts that a section on data shows."""
    shown = ("n", "n_available", "n_cut", "subsets") if data_shown else ()
    run = {key: config[key] for key in ("command", "seeds", "target_sparsities") if config.get(key)}
    names = ("model", "data", "settings", "origins", "versions", "seconds")
    parts = {name: dict(config.get(name) or {}) for name in names}
    data = [
        (f"{part} {key}".replace("_", " "), value)
        for part, entries in parts["data"].items()
        for entry in (entries if isinstance(entries, list) else [entries])
        for key, value in _flat(entry if isinstance(entry, dict) else {"name": entry})
        if key.replace(" ", "_") not in shown
    ]
    seconds = {
        name: number(value, 1) if isinstance(value, int | float) else value
        for name, value in parts["seconds"].items()
    }
    groups: Sequence[tuple[str, Iterable[tuple[str, Any]], bool]] = [
        ("Run", _flat(run | {"label mapping": config.get("label_mapping") or {}}), False),
        ("Model", _flat(parts["model"]), False),
        ("Data", data, False),
        ("Settings", _flat(parts["settings"]), True),
        ("Origins of settings that are not defaults", parts["origins"].items(), True),
        ("Versions", {"mechcore": config.get("mechcore", ""), **parts["versions"]}.items(), False),
        ("Time by step (s)", _flat(seconds), True),
    ]
    return [
        Table(caption, ["name", "value"], rows, frozenset({0, 1}), folded)
        for caption, pairs, folded in groups
        if (rows := [[name, plain(value)] for name, value in pairs])
    ]


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: ")
        else:
            yield name, value
