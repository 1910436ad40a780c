"""Made-up tables: every combination of some values, and random numbers for all other columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from mechcore.report.kinds import schemas_of
from mechcore.tables import Schema


def cells(**columns: Iterable[Any]) -> pd.DataFrame:
    """A row for every combination of values."""
    return pd.MultiIndex.from_product(columns.values(), names=columns).to_frame(index=False)


def named_components(parts: pd.DataFrame) -> pd.DataFrame:
    """With the kinds and names of components; head -1 is the MLP of a layer."""
    heads = parts["head"].map(lambda head: "MLP" if head < 0 else f"H{head}")
    names = "L" + parts["layer"].astype(str) + "." + heads
    return parts.assign(kind=np.where(parts["head"] < 0, "mlp", "head"), component=names)


def filled(schema: Schema, rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The rows with all columns of a schema; intervals lie around their values."""
    rows = rows.reset_index(drop=True)
    for column in schema.columns:
        if column.name not in rows:
            values: dict[str, Any] = {
                "share": rng.uniform(0.55, 0.95, len(rows)),
                "points": rng.uniform(-0.05, 0.05, len(rows)),
                "number": rng.uniform(0, 1, len(rows)),
            }
            other = {"whole": 20, "flag": True, "text": column.name}
            rows[column.name] = (values | other)[column.kind]
        for end, shift in zip(column.ends or (), (-0.02, 0.02), strict=False):
            if end not in rows:
                rows[end] = rows[column.name] + shift
    return rows[schema.names]


def write_run(path: Path, config: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> Path:
    """The folder of a run; ``tables`` are by their names without the kind."""
    (path / "tables").mkdir(parents=True)
    rng, schemas = np.random.default_rng(1), schemas_of(config)
    for name, rows in tables.items():
        schema = schemas[f"{config['kind']}_{name}"]
        filled(schema, rows, rng).to_csv(path / "tables" / f"{schema.name}.csv", index=False)
    versions = {"python": "3.11.2", "torch": "2.9.0", "transformer-lens": "3.9.0"}
    model = {"source": "checkpoints/tiny-gpt", "architecture": "GPT2LMHeadModel"}
    whole = {"mechcore": "0.1.0", "versions": versions, "seconds": {"training": 112.0}, **config}
    whole["model"] = model | dict(config["model"])
    (path / "config.json").write_text(json.dumps(whole))
    return path


def verdicts(titles: Iterable[str], others: Mapping[int, str]) -> pd.DataFrame:
    """Supported, but for the claims that have another verdict."""
    table = pd.DataFrame({"title": list(titles)})
    table["claim"] = table.index + 1
    table["verdict"] = [others.get(claim, "supported") for claim in table["claim"]]
    table["figure"] = [f"This is the sentence of claim {claim}." for claim in table["claim"]]
    return table


Change: TypeAlias = Callable[[dict[str, pd.DataFrame]], None]


def put(table: pd.DataFrame, column: str, values: Any, **where: Any) -> None:
    """Change a column in the rows that have these values; a sequence goes over them in order."""
    chosen = np.ones(len(table), dtype=bool)
    for name, value in where.items():
        chosen &= (table[name] == value).to_numpy()
    assert chosen.any()
    table.loc[chosen, column] = values


def change(name: str, column: str, values: Any, **where: Any) -> Change:
    """`put` into a table of that name."""
    return lambda tables: put(tables[name], column, values, **where)


def several(
    make: Callable[..., Change], name: str, values: Mapping[str, Any], **where: Any
) -> list[Change]:
    """Changes of several columns of a table."""
    return [make(name, column, value, **where) for column, value in values.items()]
