"""What the papers' studies share: checkpoints that users bring, results of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from mechcore.components import ModelShape
from mechcore.models.protocol import n_parameters
from mechcore.study.step import (
    TABLES_FOLDER,
    Hasher,
    Input,
    Job,
    Work,
    architecture_code,
    checkpoint_content,
)
from mechcore.study.store import Store
from mechcore.yaml_file import located_folder

S = TypeVar("S", bound=Any)

BASE = "base"
"""What the base is to a job: an input of the user's, or another job's result."""

CHECKPOINT = "checkpoint"

WITH_GRADIENT = 3.0
"""A pass forward and back, in passes forward."""


@dataclass(frozen=True)
class Checkpoint(Input):
    """A checkpoint that jobs read, a directory or hub id."""

    source: str

    def content(self, hash_file: Hasher) -> Any:
        """Digests of its files, or the commit of a hub id."""
        return checkpoint_content(self.source, None, hash_file)

    def uses(self) -> Sequence[object]:
        """See `Input.uses`; the code of its architecture."""
        return architecture_code(self.source, None)


def checkpoint_of(work: Work, made: str = BASE) -> str:
    """Where the model of a job is: what the job ``made`` left, or else the user's base."""
    if made in work.job.needs:
        return str(work.needed(made) / CHECKPOINT)
    base = work.job.inputs[BASE]
    assert isinstance(base, Checkpoint)
    return base.source


def located(settings: S, folder: Path) -> S:
    """Settings with a base that is a directory made absolute, beginning at ``folder``."""
    base = settings.base
    return replace(settings, base=None if base is None else located_folder(base, folder))


def model_facts(model: Any, source: str) -> dict[str, Any]:
    """What ``config.json`` says of a study's base."""
    return {
        "source": source,
        "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
        **asdict(ModelShape.of(model)),
        "d_model": model.cfg.d_model,
        "n_parameters": n_parameters(model),
    }


def gathered(
    store: Store, jobs: Iterable[tuple[Job, Mapping[str, str | int]]]
) -> dict[str, pd.DataFrame]:
    """Tables of finished jobs by name; each job comes with columns to put before the others."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for job, columns in jobs:
        for path in sorted((store.whole(job.key) / TABLES_FOLDER).glob("*.csv")):
            table = pd.read_csv(path)
            for place, (name, value) in enumerate(columns.items()):
                table.insert(place, name, value)
            parts.setdefault(path.stem, []).append(table)
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
