"""What was run, on what and how: the same tables for every format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mechcore.report.blocks import Table
from mechcore.wording import number, plain


def method_tables(config: Mapping[str, Any], shown: Collection[str] = ()) -> list[Table]:
    """What was run, on what and how, as far as the configuration says.

    Args:
        config: what ``config.json`` holds.
        shown: facts of the data that stand elsewhere on the page, and need not be repeated.
    """
    model = dict(config.get("model") or {})
    run = {key: config[key] for key in ("command", "seeds", "sparsities") if config.get(key)}
    if "label_mapping" in config:
        run["label mapping"] = config["label_mapping"]
    data = [
        (f"{part} {key}".replace("_", " "), value)
        for part, entries in dict(config.get("data") or {}).items()
        for entry in (entries if isinstance(entries, list) else [entries])
        for key, value in _flat(entry if isinstance(entry, dict) else {"name": entry})
        if key.replace(" ", "_") not in shown
    ]
    versions = {"mechcore": config.get("mechcore", ""), **dict(config.get("versions") or {})}
    settings = dict(config.get("settings") or {})
    settings |= {name: config[name] for name in ("prune", "means") if name in config}
    origins = dict(config.get("origins") or {})
    seconds = {
        name: number(value, 1) if isinstance(value, int | float) else value
        for name, value in dict(config.get("seconds") or {}).items()
    }
    groups: Sequence[tuple[str, Iterable[tuple[str, Any]], bool]] = [
        ("Run", _flat(run), False),
        ("Model", _flat(model), False),
        ("Data", data, False),
        ("Settings", _flat(settings), True),
        ("Origins of settings that are not defaults", origins.items(), True),
        ("Versions", versions.items(), False),
        ("Time by step (s)", _flat(seconds), True),
    ]
    tables = []
    for caption, pairs, folded in groups:
        rows = [[name, plain(value)] for name, value in pairs]
        if rows:
            tables.append(Table(caption, ["name", "value"], rows, frozenset({0, 1}), folded))
    return tables


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}: ")
        else:
            yield name, value
