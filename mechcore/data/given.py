"""Examples as Python has them; functions that need examples take any of these.

A file, a folder that ``datasets`` saved, a `Source` or a list of them; the name or YAML file of a
task; a DataFrame, ``datasets.Dataset`` or list of dicts with `mechcore.data.formats.KNOWN_COLUMNS`;
`Examples`; and, where labels do not matter, a list of texts or of pairs of texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechcore.data.examples import ALL, Examples
from mechcore.data.readers import examples_of, with_labels
from mechcore.data.sources import Source, read_sources, table_of_dataset
from mechcore.data.task import TASKS, find_task
from mechcore.errors import InputError, shown
from mechcore.yaml_file import YAML

if TYPE_CHECKING:
    import pandas as pd

EXPECTED = (
    "a file, the name of a task, a DataFrame, a datasets.Dataset, a list of dicts (one a "
    "row) or Examples"
)


def given_examples(
    data: Any,
    split: str,
    *,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    labelled: bool = True,
) -> Examples | None:
    """The examples that ``data`` are or name; None where the module does not list it.

    ``split`` is what they are for, ``"train"``, ``"id"`` or ``"ood"``, and the name of rows; for
    the other options see `mechcore.data.readers.examples_of`.
    """
    if isinstance(data, Examples):
        place = f"examples {data.name!r}"
        return replace(data, frame=with_labels(place, data.frame, label_map, labelled))
    if sources := given_sources(data, split, columns, label_map):
        return read_sources(sources, labelled=labelled)
    table = given_table(data)
    if table is not None:
        return examples_of(
            table,
            f"{split} data",
            name=split,
            columns=columns,
            label_map=label_map,
            labelled=labelled,
        )
    texts = _texts(data)
    if texts is not None and labelled:
        raise InputError(f"{split} data: found texts without labels; expected {EXPECTED}")
    return texts


def given_sources(
    data: Any,
    split: str,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
) -> tuple[Source, ...]:
    """The sources that ``data`` name; none where the examples are in memory."""
    if isinstance(data, Source):
        data = [data]
    elif isinstance(data, (str, PathLike)):
        data = getattr(find_task(fspath(data)), split) if is_task(data) else [_file(fspath(data))]
    if not isinstance(data, (list, tuple)) or not all(
        isinstance(source, Source) for source in data
    ):
        return ()
    return tuple(
        replace(
            source,
            columns={**(columns or {}), **source.columns},
            label_map={**(label_map or {}), **source.label_map},
        )
        for source in data
    )


def _file(path: str) -> Source:
    path = str(Path(path).expanduser())
    if not path.strip() or not Path(path).exists():
        raise InputError(
            f"data: {shown(repr(path))} is neither a file nor a task, of which there are "
            f"{', '.join(TASKS)}; expected {EXPECTED}: texts of your own go into a list"
        )
    return Source(path=path)


def is_task(data: Any) -> bool:
    """Whether ``data`` is the name of a task or the file of one; `InputError` if it is both."""
    if not isinstance(data, (str, PathLike)):
        return False
    name = fspath(data)
    if name in TASKS and Path(name).exists():
        raise InputError(f"{name}: is a task and a file; write ./{name} for the file")
    return name in TASKS or name.endswith(YAML)


def given_table(data: Any) -> pd.DataFrame | None:
    """Rows in memory as a table, numbered from 0; None where ``data`` are something else."""
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return data.reset_index(drop=True)
    if isinstance(data, Mapping) and data and all(hasattr(v, "features") for v in data.values()):
        raise InputError(
            f"data: found a {type(data).__name__} with the splits {', '.join(data)}; expected one "
            f"of them: data[{next(iter(data))!r}]"
        )
    if hasattr(data, "features") and hasattr(data, "to_pandas"):
        return table_of_dataset(data, "data")
    rows = isinstance(data, Sequence) and bool(data) and not isinstance(data, str)
    if rows and all(isinstance(row, Mapping) and "input_ids" not in row for row in data):
        return pd.DataFrame(list(data))
    return None


def _texts(data: Any) -> Examples | None:
    """Texts or pairs of texts as examples without labels; None for what is neither."""
    import pandas as pd

    if hasattr(data, "tolist"):  # a Series, an array
        data = data.tolist()
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        return None
    pairs = [(text, "") if isinstance(text, str) else text for text in data]
    if not all(
        isinstance(p, (tuple, list)) and len(p) == 2 and all(isinstance(t, str) for t in p)
        for p in pairs
    ):
        return None
    frame = pd.DataFrame(list(pairs), columns=["text_a", "text_b"])
    return Examples("texts", frame.assign(label="", subset=ALL))
