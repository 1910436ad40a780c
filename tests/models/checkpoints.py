"""How tests change checkpoints, and the one line with which these are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mechcore.errors import InputError
from mechcore.models import load_model


def refusal(source: Any, **options: Any) -> str:
    """The one-line message with which a source is refused."""
    with pytest.raises(InputError) as caught:
        load_model(source, **options)
    message = str(caught.value)
    assert "\n" not in message.strip()
    return message


def change_config(path: Path, file: str = "config.json", **changes: Any) -> None:
    """Change entries of a file of a checkpoint."""
    file_path = path / file
    file_path.write_text(json.dumps({**json.loads(file_path.read_text()), **changes}))
