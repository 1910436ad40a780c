"""Bases of papers' studies: checkpoints that users bring, and what is told of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechcore.components import ModelShape
from mechcore.models.running import n_parameters
from mechcore.study.fingerprints import Hasher, checkpoint_content
from mechcore.yaml_file import located_path


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that jobs read.

    Attributes:
        source: directory or hub id.
    """

    source: str

    def content(self, hash_file: Hasher) -> Any:
        """Digests of its files, or the commit of a hub id.

        Raises:
            InputError: there is no such checkpoint.
        """
        return checkpoint_content(self.source, None, hash_file)


def located_base(source: str | None, folder: Path) -> str | None:
    """A directory made absolute, beginning at ``folder``; what is none there is a hub id."""
    if source is None:
        return None
    place = located_path(source, folder)
    return place if Path(place).exists() else source


def model_facts(model: Any, source: str) -> dict[str, Any]:
    """What ``config.json`` says of a study's base."""
    return {
        "source": source,
        "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
        **asdict(ModelShape.of(model)),
        "d_model": model.cfg.d_model,
        "n_parameters": n_parameters(model),
    }
