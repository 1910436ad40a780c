"""What the jobs of a study read from outside its store: models and data, known by their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mechcore.data.sources import sources_content
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import embedded_draw, resolved, sources_of
from mechcore.study.fingerprints import Hasher, architecture_code, checkpoint_content
from mechcore.study.step import Input, plain

_PLACE = ("source", "embedded", "checkpoint", "revision", "allow_pickle", "device_map")
"""Settings that say what a model is or where it lies, not how it is used."""


@dataclass(frozen=True)
class CheckpointInput(Input):
    """A model in a checkpoint; of one without a head where its answers are not needed."""

    config: ModelConfig
    answers: bool = True

    def content(self, hash_file: Hasher) -> Any:
        """Digests of its files, and how its answers are read.

        Raises:
            InputError: there is no such checkpoint.
        """
        config = resolved(self.config)
        assert config.source is not None
        files = checkpoint_content(config.source, config.revision, hash_file)
        return {"files": files, **_use(config)}

    def uses(self) -> Sequence[object]:
        """See `Input.uses`; the code of its architecture."""
        config = resolved(self.config)
        assert config.source is not None
        return architecture_code(config.source, config.revision)


@dataclass(frozen=True)
class TrainedInput(Input):
    """One checkpoint of a model that a job of the study trains; its config has no source."""

    config: ModelConfig
    checkpoint: str

    def content(self, hash_file: Hasher) -> Any:
        """Which checkpoint it is, and how its answers are read; the training is a need."""
        del hash_file
        return {"checkpoint": self.checkpoint, **_use(self.config)}


ModelInput: TypeAlias = CheckpointInput | TrainedInput


@dataclass(frozen=True)
class DataInput(Input):
    """The data of a split.

    Attributes:
        split: which data.
        model: that they are for.
        data: where they come from, and how many are drawn.
        half: which of two random halves of what is drawn, 1 or 2; None for all of it.
    """

    split: str
    model: ModelConfig
    data: DataConfig
    half: int | None = None

    @property
    def limit(self) -> int | None:
        """How many examples are drawn at most; None for all."""
        limit: int | None = getattr(self.data, f"max_{self.split}")
        return limit

    def content(self, hash_file: Hasher) -> Any:
        """Digests of the files that the examples are drawn from, and how they are drawn."""
        content: dict[str, Any] = {"limit": self.limit, "seed": self.data.seed}
        if self.half is not None:
            content["half"] = self.half
        if self.model.source is None:
            content |= {"world": self.split, **embedded_draw(self.split, self.data)}
        else:
            content["sources"] = sources_content(sources_of(self.split, self.data), hash_file)
        if self.split == "ood":
            content |= {"label": self.data.ood_label, "subsets": self.data.ood_subsets}
        if self.split != "train" and self.data.population == "texts":
            content["population"] = self.data.population
        return content


def _use(config: ModelConfig) -> dict[str, Any]:
    used: dict[str, Any] = plain(config)
    # Their order is that of the classes, which a mapping in a key would lose.
    used["answers"] = list((config.answers or {}).items())
    return {name: value for name, value in used.items() if name not in _PLACE}
