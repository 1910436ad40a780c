"""Read the tables and JSON files of a finished run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.attention.examples import AttentionExample
from mechcore.errors import InputError
from mechcore.files import read_csv
from mechcore.report.columns import Columns
from mechcore.report.kinds import tables_of
from mechcore.wording import visible

CONFIG_FILE = "config.json"
_OBJECTS = ("model", "data", "settings", "versions", "seconds")
TABLES_FOLDER = "tables"
SINGLE = "single"
"""The kind of sets of one component in tables of ablations."""
ATTENTION_FILE = "attention_examples.json"
CATEGORIES = ("repeated", "previous", "next", "separator", "first", "self", "induction")
"""Categories that have their own columns in ``head_categories.csv``; ``mixed`` has none."""


_WHERE = ("data", "role", "subset")
_ABLATION = Columns(
    ("set", "kind", *_WHERE),
    (
        "size",
        "n",
        "accuracy",
        "accuracy_drop",
        "accuracy_drop_low",
        "accuracy_drop_high",
        "margin",
        "margin_drop",
        "margin_drop_low",
        "margin_drop_high",
        "kl",
    ),
)
_INTERACTIONS = Columns(
    ("set", *_WHERE, "metric"),
    (
        "size",
        "n",
        "joint_drop",
        "sum_of_single_drops",
        "interaction",
        "low",
        "high",
        "p",
        "p_adjusted",
    ),
    ("superadditive", "floor", "ceiling"),
)
TABLES: Mapping[str, Columns] = {
    "accuracy": Columns(
        ("subnetwork", *_WHERE),
        ("target_sparsity", "seed", "n", "accuracy", "accuracy_low", "accuracy_high", "margin"),
    ),
    "subnetworks": Columns(
        ("subnetwork", "kept"),
        (
            "target_sparsity",
            "seed",
            "sparsity",
            "head_sparsity",
            "heads_kept",
            "mlps_kept",
            "kl",
            "id_accuracy",
            "ood_accuracy",
        ),
    ),
    "missing_masks": Columns(("subnetwork", "reason"), ("target_sparsity", "seed")),
    "missing_grid_masks": Columns(
        ("checkpoint", "subnetwork", "reason"), ("target_sparsity", "seed")
    ),
    "head_frequency": Columns(
        ("component",), ("layer", "head", "target_sparsity", "n_seeds", "count", "frequency")
    ),
    "joint_frequency": Columns(
        (), ("low_sparsity", "high_sparsity", "low_count", "high_count", "n_heads")
    ),
    "head_overlap": Columns(("first", "second"), ("shared", "either", "jaccard", "expected")),
    "accuracy_spread": Columns(
        _WHERE, ("target_sparsity", "n_seeds", "full", "mean", "std", "low", "high", "spread")
    ),
    "group_accuracy": Columns(
        ("subnetwork", "role", "group", "subsets", "missing"),
        ("target_sparsity", "seed", "accuracy", "n_subsets"),
    ),
    "data": Columns((*_WHERE, "label"), ("n", "share")),
    "training": Columns(_WHERE, ("step", "loss", "accuracy")),
    "core": Columns(("component",), ("layer", "head", "n_subnetworks")),
    "core_summary": Columns(
        (),
        (
            "n_subnetworks",
            "n_heads",
            "core_size",
            "expected_by_chance",
            "p_value",
            "spearman_rho",
            "spearman_p",
        ),
        optional=("low_sparsity", "high_sparsity"),
    ),
    "ablation": _ABLATION,
    "sweep": _ABLATION,
    "interactions": _INTERACTIONS,
    "superadditive": replace(_INTERACTIONS, optional=("interaction_in_search",)),
    "screening": Columns(("set",), ("predicted", "interaction")),
    "effective_size": Columns(
        ("group", "checkpoint"),
        ("seed", "effective_size", "sparsity", "accuracy", "full_accuracy"),
        ("faithful",),
    ),
    "mean_effective_size": Columns(
        ("group", "checkpoint"),
        ("effective_size", "low", "high", "n_seeds", "n_faithful", "full_accuracy"),
    ),
    "head_categories": Columns(
        ("component", "category"), ("layer", "head", "entropy", "n_examples"), ("in_core",)
    ),
}
SEED = "seed"
_PER_CATEGORY = ("mass_", "low_", "high_", "uniform_", "ratio_", "sd_", "share_", "examples_")


@dataclass(frozen=True, eq=False)
class RunFolder:
    """What a run left behind; a table is None where its step was not run."""

    path: Path
    config: dict[str, Any]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    attention_examples: tuple[AttentionExample, ...] = ()

    def table(self, name: str) -> pd.DataFrame | None:
        """The table of that name; None where its step was not run."""
        return self.tables.get(name)

    @property
    def core(self) -> list[str]:
        """Names of the core heads; empty where there are none or the step was not run."""
        core = self.table("core")
        return [] if core is None else core["component"].tolist()

    @property
    def singles(self) -> pd.DataFrame | None:
        """Ablations of single components by name, from ``ablation`` and ``sweep``."""
        found = [self.table(name) for name in ("ablation", "sweep")]
        tables = [table[table["kind"] == SINGLE] for table in found if table is not None]
        if not tables:
            return None
        return pd.concat(tables, ignore_index=True).drop_duplicates(["set", *_WHERE])

    @property
    def table_files(self) -> list[str]:
        """Names of all CSV files of the run, also those the report does not know."""
        return sorted(path.name for path in (self.path / TABLES_FOLDER).glob("[!.]*.csv"))


def read_run(path: str | Path) -> RunFolder:
    """Read the folder of a finished run.

    Raises:
        InputError: ``config.json`` is missing, or a file cannot be read as what it should be.
    """
    path = Path(path)
    config_path = path / CONFIG_FILE
    if not config_path.is_file():
        raise InputError(
            f"{config_path}: not found; expected the folder of a finished run, which holds "
            f"{CONFIG_FILE} beside {TABLES_FOLDER}/; check the path, or let the run finish first"
        )
    config = _read_json(config_path)
    if not isinstance(config, dict):
        raise InputError(f"{config_path}: found a {type(config).__name__}; expected an object")
    for name in _OBJECTS:
        if not isinstance(config.get(name) or {}, dict):
            kind = type(config[name]).__name__
            raise InputError(f"{config_path}: {name}: found a {kind}; expected an object")
    known = tables_of(config)
    tables = {
        name: _visible_text(read_table(file, columns), columns)
        for name, columns in known.items()
        if (file := path / TABLES_FOLDER / f"{name}.csv").is_file()
    }
    return RunFolder(path, _visible(config), tables, _read_attention(path / ATTENTION_FILE))


def _visible_text(table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Here, so that no figure, sentence or page has to think of it."""
    return table.assign(**{name: table[name].map(visible) for name in columns.text})


def _visible(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, list):
        return [_visible(each) for each in content]
    if isinstance(content, dict):
        return {visible(key): _visible(value) for key, value in content.items()}
    return content


def read_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Read one CSV table; empty cells are missing numbers, and never anything in text columns.

    Raises:
        InputError: a column is missing or holds something else than it should.
    """
    try:
        # Everything as text first: a subset may well be called "None", "NA" or "007".
        frame = read_csv(path, dtype=str, keep_default_na=False)
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame(columns=pd.Index(columns.names), dtype=str)
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error}); run its step again") from error
    if len(frame) == 0:
        frame = frame.reindex(columns=[*dict.fromkeys([*columns.names, *frame.columns])])
    missing = [name for name in columns.names if name not in frame.columns]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(map(str, frame.columns))}; "
            "run its step again with this version of mechcore"
        )
    numbers = [
        *columns.numbers,
        *(name for name in columns.optional if name in frame.columns),
        *(name for name in frame.columns if str(name).startswith(_PER_CATEGORY)),
    ]
    for name in numbers:
        try:
            frame[name] = _numbers(frame[name], whole=name == SEED)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{path}: column {name}: {error}; expected numbers") from error
    for name in columns.flags:
        frame[name] = frame[name].str.lower().isin(["true", "1"]).astype(bool)
    return frame


def _numbers(texts: pd.Series, *, whole: bool) -> pd.Series:
    """Numbers of texts, empty ones missing; where they are ``whole``, exact beyond float64."""
    if not whole:
        return texts.mask(texts == "").astype(float)
    found = [int(text) if re.fullmatch(r"\d+", text) else None for text in texts]
    if any(text and number is None for text, number in zip(texts, found, strict=True)):
        return _numbers(texts, whole=False)
    numbers = pd.Series(pd.array(found, dtype="Int64"), index=texts.index)
    return numbers if numbers.isna().any() else numbers.astype("int64")


def _read_attention(path: Path) -> tuple[AttentionExample, ...]:
    if not path.is_file():
        return ()
    content = _read_json(path)
    try:
        examples = tuple(
            AttentionExample(
                component=visible(str(entry["component"])),
                category=visible(str(entry["category"])),
                tokens=[visible(str(token)) for token in entry["tokens"]],
                segments=[int(segment) for segment in entry["segments"] or []],
                pattern=[[float(value) for value in row] for row in entry["pattern"]],
                causal=bool(entry.get("causal", False)),
            )
            for entry in content
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a list of attention examples ({error!r})") from error
    for example in examples:
        n = len(example.tokens)
        if [len(row) for row in example.pattern] != [n] * n:
            raise InputError(
                f"{path}: {example.component}: the pattern is not {n} x {n}, as its tokens are"
            )
        if not all(math.isfinite(value) for row in example.pattern for value in row):
            raise InputError(f"{path}: {example.component}: the pattern has values not finite")
    return examples


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not readable as JSON ({error}); run its step again") from error
