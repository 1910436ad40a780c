"""Sources of examples: files, folders saved by ``datasets``, and data sets of the hub."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from mechcore.data.examples import ALL, CLUSTER, Examples
from mechcore.data.formats import check_roles, kind_of_file
from mechcore.data.labels import normal_name
from mechcore.data.readers import (
    data_name,
    examples_of,
    read_examples,
    with_label_names,
)
from mechcore.errors import InputError, MechcoreWarning, reason, shown, warn
from mechcore.yaml_file import located_folder, located_path

if TYPE_CHECKING:
    import pandas as pd

DICT_FILE = "dataset_dict.json"
SAVED = (DICT_FILE, "state.json")
"""Files in a folder saved by ``datasets``: with several splits, and with a single one."""

_LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Source:
    """Where some examples come from, and how they are read.

    Attributes:
        path: a file, see `mechcore.data.readers.read_examples`, or a folder saved by ``datasets``
            (``save_to_disk``). Give exactly one of ``path`` and ``dataset``.
        dataset: id of a data set on the Hugging Face hub, or a folder with that layout.
        config: configuration of a data set, such as ``"mnli"`` of GLUE.
        split: the split, if a data set or saved folder has several.
        revision: branch, tag or commit of a data set.
        columns, label_map, skip_empty: see `mechcore.data.readers.examples_of`.
        labels: keep only examples with these labels; case, ``-`` and ``_`` do not matter.
        subsets: keep only these subsets.
        subset: the subset of all its examples.
        max, seed: number of examples to draw, see `mechcore.data.examples.Examples.sample`.

    Raises:
        InputError: settings contradict each other, or a value is out of range.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    path: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_map: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    subsets: tuple[str, ...] = ()
    subset: str | None = None
    max: int | None = None
    seed: int = 0
    skip_empty: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.path, os.PathLike):
            object.__setattr__(self, "path", os.fspath(self.path))
        if (self.path is None) == (self.dataset is None):
            raise InputError(
                f"source: path is {shown(repr(self.path))} and dataset {shown(repr(self.dataset))};"
                " expected exactly one of them"
            )
        if self.path is not None and (self.config or self.revision):
            raise InputError(
                f"source {self.path}: config and revision belong to a dataset, not to a path; "
                "leave them out"
            )
        for name in ("labels", "subsets"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"source: {name} is {getattr(self, name)!r}; expected a list")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_roles(self.columns)
        if self.max is not None and self.max < 1:
            raise InputError(f"source: max is {self.max}; expected 1 or more, or leave it out")
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise InputError(f"source: seed is {self.seed}; expected one from 0 to {_LARGEST_SEED}")

    @property
    def name(self) -> str:
        """The name of its examples in tables."""
        if self.path is not None:
            parts = [data_name(self.path)]
        else:
            parts = [self.config or data_name(str(self.dataset))]
        return "-".join([*parts, self.split] if self.split else parts)

    def located(self, folder: Path) -> Source:
        """The same source with a relative path made absolute, relative to ``folder``."""
        if self.path is not None:
            return replace(self, path=located_path(self.path, folder))
        return replace(self, dataset=located_folder(str(self.dataset), folder))

    @property
    def place(self) -> str:
        """The location of its examples, for messages."""
        parts = [self.config, self.split, self.revision]
        details = ", ".join(part for part in parts if part is not None)
        return f"{self.path or self.dataset}{f' ({details})' if details else ''}"


def read_sources(sources: Sequence[Source], *, labelled: bool = True) -> Examples:
    """The examples of all sources, in order, named by `sources_name`.

    With several sources, a source without subsets becomes one subset with the source's name.

    Raises:
        InputError: a source is missing or unreadable, a label or subset to keep does not
            occur, or two sources are incompatible.
    """
    import pandas as pd

    if not sources:
        raise InputError("sources: found none; expected at least one")
    parts = [_read(source, labelled) for source in sources]
    if len(parts) > 1:
        parts = _with_subsets(sources, parts)
    frame = pd.concat([part.frame for part in parts])
    if CLUSTER in frame:  # not every source has them
        frame[CLUSTER] = frame[CLUSTER].fillna("")
    return Examples(sources_name(sources), frame)


def at_most(n: int | None, examples: Examples, seed: int, name: str, advice: str) -> Examples:
    """At most ``n`` examples (None: all), drawn by subset, with a warning of omitted ones."""
    drawn = examples if n is None else examples.sample(n, seed)
    if len(drawn) < len(examples):
        warn(
            f"{name}: {len(drawn)} of {len(examples)} drawn at random, by subset, with seed "
            f"{seed}; {advice}"
        )
    return drawn


def sources_name(sources: Sequence[Source]) -> str:
    """The name of the data of these sources in tables."""
    return "+".join(source.name for source in sources)


def sources_content(sources: Sequence[Source], hasher: Callable[[Path], str]) -> list[dict]:
    """The content of the sources and how it is read, as JSON values, independent of location.

    Files count by their digests, data sets by the digest of their examples: a branch can change,
    and a cache can be outdated.
    """
    contents = [_held(source, hasher) | _reading(source) for source in sources]
    if len(sources) > 1:
        for source, content in zip(sources, contents, strict=True):
            content["subset"] = source.subset or {"default": source.name}
    return contents


@lru_cache(maxsize=64)
def _fingerprint(source: str, files: tuple[tuple[str, int, int], ...]) -> str:
    """Digest of all examples of a source, given as JSON; cached while its files are unchanged."""
    with warnings.catch_warnings():  # they are repeated when the examples are used
        warnings.simplefilter("ignore", MechcoreWarning)
        return _read(Source(**json.loads(source)), labelled=False).fingerprint


def _held(source: Source, hasher: Callable[[Path], str]) -> dict[str, Any]:
    place = Path(source.path or str(source.dataset))
    if source.path is not None and not place.is_dir():
        kind = kind_of_file(place)
        return {"sha256": hasher(place), "format": kind}
    every = replace(source, label_map={}, labels=(), subsets=(), subset=None, max=None)
    stats = ((str(file), file.stat()) for file in sorted(place.rglob("*")) if file.is_file())
    state = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
    return {"examples": _fingerprint(json.dumps(asdict(every)), state)}


def _reading(source: Source) -> dict[str, Any]:
    """The non-default settings for making examples from a source."""
    settings = asdict(source)
    for name in ("path", "dataset", "config", "split", "revision"):
        del settings[name]
    if source.max is None:
        del settings["seed"]
    return {
        name: sorted(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value or name in ("columns", "label_map", "seed")
    }


def _read(source: Source, labelled: bool) -> Examples:
    examples = _all_of(source, labelled)
    for column, wanted in (("label", source.labels), ("subset", source.subsets)):
        key = normal_name if column == "label" else str
        keys = examples.frame[column].map(key)
        if missing := [name for name in wanted if key(name) not in set(keys)]:
            names = examples.label_names if column == "label" else examples.subset_names
            raise InputError(
                f"{source.place}: no example with {column} {', '.join(map(repr, missing))}; "
                f"{column}s are {shown(', '.join(names), 600)}"
            )
        if wanted:
            kept = keys.isin([key(name) for name in wanted])
            examples = Examples(examples.name, examples.frame[kept])
    if source.subset is not None:
        examples = Examples(examples.name, examples.frame.assign(subset=source.subset))
    name, advice = f"examples of {source.place}", "leave out max to take all"
    return at_most(source.max, examples, source.seed, name, advice)


def _with_subsets(sources: Sequence[Source], parts: Sequence[Examples]) -> list[Examples]:
    """The examples of several sources, where each without subsets gets its own subset."""
    named: list[Examples] = []
    owners: dict[str, Source] = {}
    for source, part in zip(sources, parts, strict=True):
        if source.subset is None and part.subset_names == [ALL]:
            part = Examples(part.name, part.frame.assign(subset=source.name))
        clash = [
            name
            for name in part.subset_names
            if name in owners and (source.subset is None or owners[name].subset is None)
        ]
        if clash:
            raise InputError(
                f"{source.place} and {owners[clash[0]].place} both have a subset {clash[0]!r}; "
                "name the subset of each (subset), with the same name to merge them"
            )
        if part.two_segments != parts[0].two_segments:
            raise InputError(
                f"{source.place} and {sources[0].place}: one has pairs of texts, the other single "
                "texts; expected the same of all sources"
            )
        owners |= dict.fromkeys(part.subset_names, source)
        named.append(part)
    return named


def _all_of(source: Source, labelled: bool) -> Examples:
    """All examples of a source, with the subsets they have there."""
    how: dict[str, Any] = {
        "name": source.name,
        "columns": source.columns,
        "label_map": source.label_map,
        "labelled": labelled,
        "skip_empty": source.skip_empty,
    }
    if source.path is not None and not Path(source.path).is_dir():
        if source.split is not None:
            raise InputError(
                f"{source.path}: not a folder, so there is no split {source.split!r}; leave it out"
            )
        return read_examples(source.path, **how)
    data = _hub_data(source) if source.path is None else _saved_data(source, Path(source.path))
    return examples_of(table_of_dataset(data, source.place), source.place, **how)


def table_of_dataset(data: Any, place: str) -> pd.DataFrame:
    """A table of a data set, with label names if it has them."""
    features = (data.features or {}).items()  # a stream may have none
    names = {column: getattr(feature, "names", None) for column, feature in features}
    return with_label_names(place, data.to_pandas(), names)


def _saved_data(source: Source, path: Path) -> Any:
    from datasets import load_from_disk

    try:
        data = load_from_disk(str(path))
    except Exception as error:  # of any of the packages below
        raise InputError(
            f"{path}: cannot be read: {reason(error)}; expected a file, or a folder saved by "
            "`datasets` (save_to_disk); name a folder with the layout of the hub as the dataset of "
            "a task's source"
        ) from error
    if isinstance(data, dict):
        return data[_one_split(source, list(data))]
    if source.split is not None:
        raise InputError(f"{path}: has no splits, found split {source.split!r}; leave it out")
    return data


def _one_split(source: Source, splits: Sequence[str]) -> str:
    if source.split is None and len(splits) == 1:
        return splits[0]
    if source.split is None or source.split not in splits:
        raise InputError(
            f"{source.path or source.dataset}: split is {source.split!r}; expected one of "
            f"{', '.join(splits)}"
            + ("" if source.path is None else f": name its folder, {Path(source.path) / splits[0]}")
        )
    return source.split


def _hub_data(source: Source) -> Any:
    from datasets import load_dataset

    how = {"split": source.split, "revision": source.revision}
    try:
        data = load_dataset(source.dataset, source.config, **how)
    except ValueError as error:  # no such configuration or split
        raise InputError(f"data set {source.place}: {reason(error)}") from error
    except Exception as error:  # of any of the packages below
        raise InputError(
            f"data set {source.place}: cannot be loaded: {reason(error)}. There is no network, or "
            "no such data set; without a network it must be in the cache of `datasets`, or give "
            "files instead (path; for a named task, folder)"
        ) from error
    return data if source.split is not None else data[_one_split(source, list(data))]
