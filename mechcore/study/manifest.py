"""What is noted beside the files of a finished job."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Manifest:
    """What an artefact is.

    Attributes:
        key: digest of ``recipe``.
        kind: of the step.
        name: of the job, for people.
        recipe: everything that the job's result depends on.
        files: SHA-256 by relative path.
        bytes: size of all files.
        seconds: time the work took; after an interruption, of the last part.
        made: time of the end, ISO 8601 with its zone.
        machine: where.
    """

    key: str
    kind: str
    name: str
    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    bytes: int
    seconds: float
    made: str
    machine: Mapping[str, Any]


def this_machine() -> dict[str, Any]:
    """The machine, and what of it can change the last bits of a result."""
    import torch

    return {
        "host": platform.node(),
        "system": platform.platform(terse=True),
        "processor": platform.processor() or platform.machine(),
        "cores": torch.get_num_threads(),
        "process": os.getpid(),
    }
