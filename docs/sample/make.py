"""The sample report, from the published tables of the study ``minilm-mnli.yaml`` beside it.

Run ``python docs/sample/make.py``. Tables and ``config.json`` of the run lie in
``docs/tables/minilm-mnli``, numbers with three or four digits; the page lacks what needs the model
itself, such as views of attention.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mechcore.report.page import build_report

TABLES = Path(__file__).resolve().parents[1] / "tables" / "minilm-mnli"
SAMPLE = Path(__file__).with_name("minilm-mnli.html")


def make(target: Path = SAMPLE) -> None:
    """Write the report of the published tables."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        shutil.copy(TABLES / "config.json", run)
        shutil.copytree(TABLES, run / "tables", ignore=shutil.ignore_patterns("config.json"))
        # Without files of figures: the page would link to them, and it is one file here.
        shutil.copy(build_report(run, figures=()), target)


if __name__ == "__main__":
    make()
