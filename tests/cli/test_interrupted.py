"""Ctrl-C while the command is still being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERRUPTING = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":  # which mechcore.cli asks for
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from mechcore.__main__ import main
main()
"""


def test_an_interrupted_import_ends_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTING], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 130
    assert done.stderr == "mechcore: error: interrupted; nothing was begun\n"


def test_the_command_is_that_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.scripts]\nmechcore = "mechcore.__main__:main"\n' in text
