"""Locations of the models that come with mechcore."""

from __future__ import annotations

from pathlib import Path

from mechcore.errors import InputError, MechcoreError
from mechcore.training import read_history

_PACKAGE = Path(__file__).resolve().parents[1]


def data_dir() -> Path:
    """The embedded data: ``_data`` in an installed package, ``data`` in the repository."""
    places = (_PACKAGE / "_data", _PACKAGE.parent / "data")
    for place in places:
        if (place / "tiny_encoder").is_dir():
            return place
    raise MechcoreError(
        f"embedded data: no tiny_encoder in {places[0]} or {places[1]}; expected the models that "
        "mechcore is distributed with; install it again, or work from a complete checkout"
    )


def tiny_encoder_dir(checkpoint: str = "final") -> Path:
    """Hugging Face checkpoint of the encoder: ``"final"`` or one such as ``"step-3000"``."""
    return _checkpoint("tiny_encoder", checkpoint)


def tiny_failing_dir(checkpoint: str = "final") -> Path:
    """The only Hugging Face checkpoint of the encoder that fails out of domain."""
    return _checkpoint("tiny_failing", checkpoint)


def _checkpoint(run: str, checkpoint: str) -> Path:
    path = data_dir() / run / checkpoint
    if not (path / "config.json").is_file():
        known = sorted(p.parent.name for p in path.parent.glob("*/config.json"))
        raise InputError(
            f"{run.replace('_', ' ')}: checkpoint {checkpoint!r} not found; there are "
            f"{', '.join(known)}"
        )
    return path


def tiny_decoder_dir() -> Path:
    """Hugging Face checkpoint of the decoder at the end of its training."""
    return data_dir() / "tiny_decoder" / "final"


def tiny_base_dir() -> Path:
    """Hugging Face checkpoint of the pretrained decoder of the cognitive task."""
    return data_dir() / "tiny_base" / "final"


def encoder_checkpoints() -> list[tuple[int, Path]]:
    """Step and checkpoint of the encoder's training series, in order, the final one last."""
    run = data_dir() / "tiny_encoder"
    series = [(int(path.name.removeprefix("step-")), path) for path in run.glob("step-*")]
    last = int(read_history(run)["step"].max())
    return [*sorted(series), (last, run / "final")]
