"""Trains the models that mechcore ships under ``data``.

Usage: python benchmarks/embedded_models/train.py encoder|failing|decoder|base --out FOLDER
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from base import train_tiny_base
from decoder import train_tiny_decoder
from encoder import train_failing_encoder, train_tiny_encoder

from mechcore import progress
from mechcore.errors import InputError

TRAINERS: dict[str, Callable[..., object]] = {
    "encoder": train_tiny_encoder,
    "failing": train_failing_encoder,
    "decoder": train_tiny_decoder,
    "base": train_tiny_base,
}


def train(
    name: Literal["encoder", "failing", "decoder", "base"],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoints.")],
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    texts: Annotated[int | None, typer.Option(help="Training texts.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Encoder that the failing one is trained from.")
    ] = None,
) -> None:
    """Train an embedded model from scratch."""
    if out.exists():
        raise InputError(f"{out}: exists; expected a folder to create")
    given: dict[str, Any] = {"steps": steps, "pairs": texts, "start": start}
    with progress.shown():
        TRAINERS[name](out, seed=seed, **{k: v for k, v in given.items() if v is not None})
    print(f"checkpoints: {out}")


if __name__ == "__main__":
    typer.run(train)
