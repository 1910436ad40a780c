"""Time to build the report of a large run, and to open it in a browser.

The run is made up: 150 heads in 10 layers, 12 seeds at 2 sparsities, a core of 8, every component
ablated alone. Browser times are its own, from the start of navigation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from browsing import ARGUMENTS, executable
from made_up_run import World, write_run
from playwright.sync_api import sync_playwright

from mechcore.report import build_report

CORE = tuple(f"L{layer}.H{3 * layer % 15}" for layer in range(8))
LARGE = World(
    n_layers=10,
    n_heads=15,
    seeds=range(42, 54),
    core=CORE,
    sweep=True,
    superadditive=("L0.H0+L1.H1", "L0.H2+L3.MLP", "L4.H4+L5.H5+L6.H6"),
    checkpoints=(100, 500, 1000, 2000),
)
OPENED = """() => {
  const times = performance.getEntriesByType("navigation")[0];
  return [times.domContentLoadedEventEnd, times.loadEventEnd];
}"""
CHOSEN = """() => {
  const start = performance.now();
  document.querySelector("#grid .core").click();
  document.body.getBoundingClientRect();
  return performance.now() - start;
}"""


def measured(page: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds, median over rounds, each in a new browser."""
    ready, loaded, chosen = [], [], []
    for _ in range(rounds):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            first, second = tab.evaluate(OPENED)
            ready.append(first)
            loaded.append(second)
            chosen.append(tab.evaluate(CHOSEN))
            n = tab.evaluate("document.querySelectorAll('*').length")
            browser.close()
    return {
        "elements": n,
        "ready (ms)": statistics.median(ready),
        "loaded (ms)": statistics.median(loaded),
        "slowest (ms)": max(loaded),
        "a head chosen (ms)": statistics.median(chosen),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="save the figures here")
    options = parser.parse_args()
    if executable() is None:
        sys.exit("no browser found; name one in MECHCORE_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", LARGE)
        start = time.perf_counter()
        page = build_report(run)
        made = time.perf_counter() - start
        figures = {"made in (s)": made, "size (MB)": page.stat().st_size / 1e6}
        figures |= measured(page, options.rounds)
    for name, value in figures.items():
        print(f"{name:20} {value:10.1f}" if isinstance(value, float) else f"{name:20} {value:10d}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
