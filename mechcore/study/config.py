"""What a run is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from mechcore.errors import InputError
from mechcore.pruning.settings import PruneSettings, check_runs

Embedded = Literal["encoder", "decoder"]

MAX_DATA_SEED = 2**32
"""What numpy's generators take."""


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how to read its answers.

    Attributes:
        source: checkpoint directory or hub id; None for the embedded model.
        embedded: which embedded model to use when there is no source.
        checkpoint: which checkpoint of the embedded encoder.
        backend: see `mechcore.load_model`.
        class_labels: names of the classifier's classes in index order; None reads ``id2label``.
        prompt: for language models, see `mechcore.tasks.encoding.encode`.
        answers: for language models, the answer word of each label.
        max_length: longest input in tokens.
    """

    source: str | None = None
    embedded: Embedded = "encoder"
    checkpoint: str = "final"
    backend: Literal["bridge", "hooked"] = "bridge"
    class_labels: tuple[str, ...] | None = None
    prompt: str | None = None
    answers: Mapping[str, str] | None = None
    max_length: int = 128


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how much of it.

    Attributes:
        train: training examples, for means and pruning.
        id: in-domain test examples.
        ood: out-of-domain test examples.
        columns: which column serves as what, see `mechcore.tasks.readers.read_examples`.
        label_names: meanings of labels, likewise.
        ood_label: keep only out-of-domain examples of this label.
        ood_subsets: keep only these out-of-domain subsets.
        max_train: draw at most this many training examples; None takes all.
        max_id: likewise for in-domain test examples.
        max_ood: likewise for out-of-domain test examples.
        seed: of these draws, not negative.
    """

    train: str | None = None
    id: str | None = None
    ood: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_names: Mapping[str, str] = field(default_factory=dict)
    ood_label: str | None = None
    ood_subsets: tuple[str, ...] = ()
    max_train: int | None = 4000
    max_id: int | None = 2000
    max_ood: int | None = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < MAX_DATA_SEED:
            raise InputError(
                f"data seed {self.seed}: expected a whole number from 0 to {MAX_DATA_SEED - 1}"
            )


@dataclass(frozen=True)
class RunConfig:
    """A whole main job.

    Attributes:
        model: see `ModelConfig`.
        data: see `DataConfig`.
        prune: the pruning schedule.
        seeds: of the pruning runs.
        sparsities: target sparsities, in [0, 1).
        batch_size: examples per evaluation batch.
        n_resamples: bootstrap resamples.
        max_heads_examples: examples on which attention is scored.
        max_joint: how many core heads to ablate in pairs, those that matter most out of domain.
        max_non_core: how many heads outside the core to ablate for comparison, drawn at random.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    prune: PruneSettings = field(default_factory=PruneSettings)
    seeds: tuple[int, ...] = (42, 43, 44)
    sparsities: tuple[float, ...] = (0.5, 0.7)
    batch_size: int = 64
    n_resamples: int = 1000
    max_heads_examples: int = 512
    max_joint: int = 4
    max_non_core: int = 16

    def __post_init__(self) -> None:
        check_runs(self.seeds, self.sparsities)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as they come back from a JSON file."""
        return _plain(asdict(self))

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Names of settings that differ from stored ones, as ``section.name``."""
        mine = self.as_json()
        found = []
        for part in fields(self):
            ours, theirs = mine[part.name], stored.get(part.name)
            if isinstance(ours, dict) and isinstance(theirs, dict):
                keys = ours.keys() | theirs.keys()
                found += [f"{part.name}.{k}" for k in sorted(keys) if ours.get(k) != theirs.get(k)]
            elif ours != theirs:
                found.append(part.name)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
