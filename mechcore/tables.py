"""The content of a table, described once, next to the function that makes it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mechcore.errors import InputError
from mechcore.files import write_csv
from mechcore.wording import DASH, SPLITS, number, percent, small, span, sparsity, whole

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "flag", "seed", "whole", "number", "share", "points"]
"""Types of columns: ``text``; ``flag``, yes or no; ``seed``, an exact whole number of any size;
``whole``, any other; ``number``; ``share``, from 0 to 1, shown in percent; ``points``, a difference
of two shares, shown in percentage points."""


@dataclass(frozen=True)
class Column:
    """A column of a table, which may lack it if it is ``optional``.

    Attributes:
        name: its name in the file; ``mass_*`` stands for every column that begins with ``mass_``.
        header: its header on a page, without the unit; by default its name.
        digits: decimals shown, if not those of the kind.
        signed: whether positive numbers are shown with a plus.
        shown: ``"exact"`` for settings, with only the decimals they have; ``"small"`` for
            p-values, to two digits; ``"bare"`` for shares in percent without the sign.
        names: displayed names of values; others are shown as they are.
        ends: the columns with the ends of its interval.
    """

    name: str
    kind: Kind
    meaning: str = ""
    unit: str = ""
    header: str = ""
    digits: int | None = None
    signed: bool = False
    shown: Literal["", "exact", "small", "bare"] = ""
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    ends: tuple[str, str] | None = None
    optional: bool = False

    @property
    def heading(self) -> str:
        """Its header on a page, with the unit."""
        unit = self.unit or ("points" if self.kind == "points" else "")
        return (self.header or self.name.replace("_", " ")) + (f" ({unit})" if unit else "")

    def called(self, header: str, **changes: Any) -> Column:
        """The column with another header, or other changes."""
        return replace(self, header=header, **changes)

    def alike(self, name: str, meaning: str, **changes: Any) -> Column:
        """A column with another name and meaning that is displayed like this one."""
        return replace(self, name=name, meaning=meaning, **{"header": "", **changes})

    def matches(self, name: object) -> bool:
        """Whether this describes a column of the given name."""
        if self.name.endswith("*"):
            return str(name).startswith(self.name[:-1])
        return name == self.name

    def show(self, value: Any, low: float = math.nan, high: float = math.nan) -> str:
        """A value as shown on a page, with the ends of its interval if given."""
        if self.kind == "text":
            return self.names.get(value, str(value))
        if self.kind == "flag":
            text = "yes" if value else "no"
            return self.names.get(text, text)
        import pandas as pd

        value, low, high = (math.nan if pd.isna(end) else end for end in (value, low, high))
        text = self._shown(value)
        if math.isfinite(low) and math.isfinite(high):
            text += f" [{self._plain(low)}, {self._plain(high)}]"
        return text

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The column of a table as shown on a page, with intervals if the table has them."""
        parts = [frame[name] for name in (self.name, *(self.ends or ())) if name in frame]
        return [self.show(*row) for row in zip(*parts, strict=True)]

    def between(self, low: float, high: float) -> str:
        """A range as shown on a page, or a single value if both ends look the same."""
        if self.kind == "number":
            return span([low, high])
        return span([low, high], self.show, " to " if self.kind == "points" else DASH)

    def _shown(self, value: float) -> str:
        if self.shown == "small":
            return small(value)
        if self.shown == "exact" and self.kind == "share":
            return sparsity(value)
        if self.kind == "share" and self.shown != "bare":
            return percent(value)
        return self._plain(value)

    def _plain(self, value: float) -> str:
        if self.shown == "exact":
            return f"{value:g}" if math.isfinite(value) else DASH
        if self.kind == "seed":
            return number(value, 0)
        if self.kind == "whole":
            return whole(value)
        if self.kind in ("share", "points"):
            digits = 1 if self.digits is None else self.digits
            return number(100 * value, digits, signed=self.kind == "points" or self.signed)
        return number(value, 2 if self.digits is None else self.digits, signed=self.signed)


def estimate(
    name: str,
    kind: Kind,
    meaning: str,
    *,
    low: str = "low",
    high: str = "high",
    over: str = "over examples",
    optional_ends: bool = False,
    populations: bool = False,
    **options: Any,
) -> tuple[Column, ...]:
    """Columns of a number and its 95 % interval, with ``populations`` also for the other one."""
    ends = {low: f"lower end of the 95 % interval of {name} ({over})", high: "its upper end"}
    columns = [Column(name, kind, meaning, ends=(low, high), **options)]
    options = options | {"header": "", "optional": optional_ends}
    columns += [Column(end, kind, text, **options) for end, text in ends.items()]
    for end, text in ends.items() if populations else ():
        other = re.sub("(low|high)$", r"other_\1", end)
        text = f"{text}, for the other population"
        columns.append(Column(other, kind, text, **options | {"optional": True}))
    return tuple(columns)


@dataclass(frozen=True)
class Schema:
    """The content of one table: its name, what a row describes, and its columns in order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def __getitem__(self, name: str) -> Column:
        """The column of that name."""
        for column in self.columns:
            if column.matches(name):
                return replace(column, name=name)
        raise KeyError(f"{self.name}: no column {name}")

    @property
    def names(self) -> list[str]:
        """Names of its columns, in order."""
        return [column.name for column in self.columns]

    @property
    def required(self) -> list[str]:
        """Names of the columns that are not optional."""
        return [
            column.name for column in self.columns if not (column.optional or "*" in column.name)
        ]

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """A table of rows, without optional columns that no row has."""
        import pandas as pd

        there = {name for row in rows for name in row}
        names = [c.name for c in self.columns if not c.optional or c.name in there]
        return pd.DataFrame(rows, columns=names)

    def after(self, *columns: Column) -> Schema:
        """The schema with further columns before its own."""
        return replace(self, columns=(*columns, *self.columns))

    def named(self, name: str, meaning: str = "", *more: Column) -> Schema:
        """A schema of another name with these columns, and optionally more."""
        return Schema(name, meaning or self.meaning, (*self.columns, *more))

    def check(self, table: pd.DataFrame) -> None:
        """Raise `InputError` unless a table has exactly these columns, of their types."""
        import pandas as pd

        known = all(any(c.matches(name) for c in self.columns) for name in table.columns)
        if not known or {*self.required} - {*table.columns}:
            raise InputError(
                f"table {self.name}: found the columns {', '.join(map(str, table.columns))}; its "
                f"schema has {', '.join(self.names)}: change it or what makes the table"
            )
        for name in table.columns:
            column = self[str(name)]
            try:
                if column.kind == "flag":
                    if not table[name].isin([True, False]).all():
                        raise ValueError("expected true or false")
                elif column.kind != "text":
                    pd.to_numeric(table[name])
            except (ValueError, TypeError) as error:
                raise InputError(f"table {self.name}: column {name}: {error}") from error

    def read(self, path: Path) -> pd.DataFrame:
        """Read a table; empty cells are missing numbers or empty texts. Raises `InputError`."""
        import pandas as pd

        try:
            # Everything as text first: a subset may be called "None", "NA" or "007".
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        except ValueError as error:
            raise InputError(
                f"{path}: cannot be read as CSV ({error}); run its step again"
            ) from error
        if not isinstance(frame.index, pd.RangeIndex):  # pandas takes extra first cells as an index
            raise InputError(f"{path}: rows have more cells than the header; run its step again")
        missing = [name for name in self.required if name not in frame.columns]
        if missing:
            there = ", ".join(map(str, frame.columns))
            raise InputError(
                f"{path}: no column {', '.join(missing)}; found {there}; run its step again with "
                "this version of mechcore"
            )
        for name in frame.columns:
            kinds = [column.kind for column in self.columns if column.matches(name)]
            if kinds and kinds[0] != "text":
                frame[name] = _values(frame[name], kinds[0], f"{path}: column {name}")
        return frame

    def texts(self, table: pd.DataFrame) -> list[str]:
        """Names of the columns of a table that hold words."""
        return [c.name for c in self.columns if c.kind == "text" and c.name in table.columns]


def _values(texts: pd.Series, kind: Kind, where: str) -> pd.Series:
    if kind == "flag":
        known = {"true": True, "1": True, "false": False, "0": False}
        flags = texts.str.lower().map(known)
        if flags.isna().any():
            raise InputError(
                f"{where}: found {texts[flags.isna()].iloc[0]!r}; expected true or false"
            )
        return flags.astype(bool)
    try:
        numbers = _numbers(texts, whole=kind in ("seed", "whole"))
        return numbers.astype(float) if kind == "whole" and numbers.isna().any() else numbers
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: {error}; expected numbers") from error


def _numbers(texts: pd.Series, *, whole: bool) -> pd.Series:
    """Numbers from texts, empty ones missing; ``whole`` ones are exact beyond float64."""
    import pandas as pd

    if not whole:
        return pd.Series([float(text or "nan") for text in texts], texts.index, float)
    values = [int(text) if re.fullmatch(r"\d+", text) else None for text in texts]
    if any(text and number is None for text, number in zip(texts, values, strict=True)):
        return _numbers(texts, whole=False)
    numbers = pd.Series(pd.array(values, dtype="Int64"), index=texts.index)
    return numbers if numbers.isna().any() else numbers.astype("int64")


def write_tables(
    folder: Path, tables: Mapping[str, pd.DataFrame], schemas: Iterable[Schema] = ()
) -> None:
    """Write each table to ``folder/NAME.csv``; raises `InputError` before, if one does not fit."""
    for schema in schemas:
        if schema.name in tables:
            schema.check(tables[schema.name])
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)


DATA = Column("data", "text", "name of the data set")
SPLIT = Column("split", "text", "``id`` (in-domain) or ``ood`` (out-of-domain)", names=SPLITS)
SUBSET = Column("subset", "text", "named part of the data; ``all`` is every example")
PLACE = (DATA, SPLIT, SUBSET)

N = Column("n", "whole", "examples")
CLUSTERS = (
    Column(
        "n_clusters",
        "whole",
        "clusters that the examples come from, if known; with fewer than 8 there is no interval "
        "for other clusters",
        header="clusters",
        optional=True,
    ),
    Column(
        "population",
        "text",
        "population of intervals and p: ``clusters`` for other clusters, such as templates; "
        "``texts`` for other texts of these subsets",
        optional=True,
    ),
)
SEED = Column("seed", "seed", "seed of the training or pruning")
TARGET = Column("target_sparsity", "share", "target sparsity", header="target", shown="exact")
CHECKPOINT = Column("checkpoint", "text", "step or name of the checkpoint")

COMPONENT = Column("component", "text", "name of the head or MLP, such as ``L0.H1``")
LAYER = Column("layer", "whole", "its layer, from 0")
HEAD = Column("head", "whole", "number of the head in its layer; missing for MLPs")
PART = (COMPONENT, LAYER, HEAD)
