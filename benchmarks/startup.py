"""Cost of starting, in CPU seconds, compared with importing typer, which draws the help.

    python benchmarks/startup.py [--rounds 5]

Each is its own process, and its time is the shortest of the rounds, in which they run in turn. All
include Python's own start.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

MAIN = "from mechcore.cli import main; main({})"
PROGRAMS = {
    "import typer": "import typer",
    "import mechcore": "import mechcore",
    "mechcore --help": MAIN.format(["--help"]),
    "mechcore run --help": MAIN.format(["run", "--help"]),
    "mechcore run --no-such-option": MAIN.format(["run", "--no-such-option"]),
}


def seconds(program: str) -> float:
    """CPU time, of the process and of the system on its behalf."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    silent = subprocess.DEVNULL
    subprocess.run([sys.executable, "-c", program], stdout=silent, stderr=silent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken = [[seconds(program) for program in PROGRAMS.values()] for _ in range(rounds)]
    shortest = [min(times) for times in zip(*taken, strict=True)]
    print(f"{'':32}{'seconds':>8}{'times import typer':>20}")
    for name, least in zip(PROGRAMS, shortest, strict=True):
        print(f"{name:32}{least:8.3f}{least / shortest[0]:20.1f}")


if __name__ == "__main__":
    main()
