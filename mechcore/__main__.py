"""The command ``mechcore``, also as ``python -m mechcore``."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Import the command line and run it; an interruption ends with a one-line message."""
    try:
        from mechcore.cli import main as run
    except KeyboardInterrupt:
        print("mechcore: error: interrupted before any work started", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
