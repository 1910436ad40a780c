"""Read the tables and JSON files of a finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from mechcore.ablation.effects.changes import ABLATION
from mechcore.ablation.settings import OOD_MEAN
from mechcore.attention.examples import ATTENTION_FILE, FLIPS_ATTENTION_FILE, AttentionExample
from mechcore.errors import InputError
from mechcore.report.kinds import schemas_of
from mechcore.tables import PLACE, Schema
from mechcore.wording import visible

CONFIG_FILE = "config.json"
_Examples: TypeAlias = tuple[AttentionExample, ...]
TABLES_FOLDER = "tables"
SINGLE = "single"
"""The kind of sets of one component in tables of ablations."""


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The results of a run; a table is None if its step was not run."""

    path: Path
    config: dict[str, Any]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    attention_examples: tuple[AttentionExample, ...] = ()
    flips_attention: tuple[tuple[AttentionExample, ...], ...] = ()

    @cached_property
    def schemas(self) -> Mapping[str, Schema]:
        """The schemas of the tables of such a run, by name."""
        return schemas_of(self.config)

    @property
    def analyses(self) -> Mapping[str, Any]:
        """Settings of the analyses in ``config.json``."""
        return (self.config.get("settings") or {}).get("analyses") or {}

    @cached_property
    def beside(self) -> RunFolder | None:
        """The run to compare this one with, if the settings name one."""
        path = (self.config.get("settings") or {}).get("beside")
        return read_run(path) if path else None

    def data_facts(self, split: str) -> Mapping[str, Any]:
        """What ``config.json`` says about the data of a split, if anything."""
        facts = (self.config.get("data") or {}).get(split)
        return facts if isinstance(facts, dict) else {}

    def filled(self, name: str) -> pd.DataFrame | None:
        """The table of that name; None if it was not made or has no rows."""
        table = self.table(name)
        return None if table is None or len(table) == 0 else table

    def table(self, name: str) -> pd.DataFrame | None:
        """The table of that name; None if its step was not run."""
        return self.tables.get(name)

    def required(self, name: str) -> pd.DataFrame:
        """The table of that name; raises `InputError` if it was not made or has no rows."""
        if (table := self.filled(name)) is None:
            raise InputError(
                f"{self.path}: found no {name}; expected a run of mechcore run, or one of "
                f"mechcore {name}"
            )
        return table

    @property
    def core(self) -> list[str]:
        """Names of the core heads; empty if there are none or the step was not run."""
        core = self.table("core")
        return [] if core is None else " ".join(core["heads"]).split()

    @property
    def no_masks(self) -> bool:
        """Whether training failed for every mask."""
        return self.filled("missing_masks") is not None and self.filled("subnetworks") is None

    @property
    def no_core(self) -> str:
        """Why there is no core head, as a clause: an empty core is a result, a failure is not."""
        return (
            "there is no core because no mask was usable" if self.no_masks else "the core is empty"
        )

    @property
    def of_one_draw(self) -> bool:
        """Whether all subnetworks come from one seed or ranking and are alike regardless."""
        overlap = self.filled("head_overlap")
        return overlap is not None and bool(overlap["p_value"].isna().all())

    @property
    def accuracy(self) -> pd.DataFrame | None:
        """The rows of ``accuracy`` for subsets; None as for `filled`."""
        return self._accuracy(of_groups=False)

    @property
    def group_accuracy(self) -> pd.DataFrame | None:
        """The rows of ``accuracy`` for groups of subsets; None as for `filled`."""
        return self._accuracy(of_groups=True)

    def _accuracy(self, *, of_groups: bool) -> pd.DataFrame | None:
        table = self.filled("accuracy")
        if table is None or "n_subsets" not in table:
            return None if of_groups else table
        part = table[table["n_subsets"].notna() == of_groups]
        return None if part.empty else part

    @property
    def swept(self) -> pd.DataFrame | None:
        """The rows of ``sweep`` for subsets, with the study's fill; None as for `filled`."""
        table = self.filled("sweep")
        if table is not None and "fill" in table:
            table = table[(table["fill"] != OOD_MEAN) & table["accuracy"].notna()]
        return table

    @property
    def singles(self) -> pd.DataFrame | None:
        """Ablations of single components by name, from ``ablation`` and ``sweep``."""
        ablations = (self.table(ABLATION.name), self.swept)
        tables = [table[table["kind"] == SINGLE] for table in ablations if table is not None]
        if not tables:
            return None
        keys = ["set", *(column.name for column in PLACE)]
        return pd.concat(tables, ignore_index=True).drop_duplicates(keys)

    @property
    def table_files(self) -> list[str]:
        """Names of all CSV files of the run, including those unknown to the report."""
        return sorted(path.name for path in (self.path / TABLES_FOLDER).glob("[!.]*.csv"))


def read_run(path: str | Path) -> RunFolder:
    """Read the folder of a finished run; raises `InputError` if a file is missing or malformed."""
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
    if "model_type" in config:
        raise InputError(f"{path}: found a model; expected the folder of a finished run")
    tables = {
        name: _read(file, schema)
        for name, schema in schemas_of(config).items()
        if (file := path / TABLES_FOLDER / f"{name}.csv").is_file()
    }
    attention = _attention(path / ATTENTION_FILE, _Examples)
    flips = _attention(path / FLIPS_ATTENTION_FILE, tuple[_Examples, ...])
    return RunFolder(path, _visible(config), tables, attention, flips)


def _read(path: Path, schema: Schema) -> pd.DataFrame:
    """A table whose texts are safe to show, so that figures and sentences need not check."""
    table = schema.read(path)
    return table.assign(**{name: table[name].map(visible) for name in schema.texts(table)})


def _visible(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, list):
        return [_visible(item) for item in content]
    if isinstance(content, dict):
        return {visible(key): _visible(value) for key, value in content.items()}
    return content


def _attention(path: Path, kind: Any) -> Any:
    """Attention examples, or tuples of them; none where the run has no such file."""
    try:
        content = _visible(_read_json(path)) if path.is_file() else []
        examples = TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: not a list of attention examples ({where}: {first['msg']})"
        ) from error
    for example in examples if kind is _Examples else sum(examples, ()):
        n = len(example.tokens)
        if [len(row) for row in example.pattern] != [n] * n:
            raise InputError(
                f"{path}: {example.component}: the pattern is not {n} x {n}, like its tokens"
            )
        if not np.isfinite(example.pattern).all():
            raise InputError(f"{path}: {example.component}: the pattern has non-finite values")
    return examples


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: invalid JSON ({error}); run its step again") from error
