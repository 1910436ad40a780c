"""The command ``mechcore``, outside the package so that an interrupted import ends in one line."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Import the command line, which takes seconds, and run it; see `mechcore.cli.main`."""
    try:
        from mechcore.cli import main as run
    except KeyboardInterrupt:
        print("mechcore: error: interrupted; nothing was begun", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run()
