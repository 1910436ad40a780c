"""The sample report, from the published tables of the study of MiniLM on MNLI and HANS.

Run ``python docs/sample/make.py``. The tables lie in ``docs/tables/minilm-mnli-hans``; what they do
not say about the model comes from ``docs/results/minilm-mnli-hans.md``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from mechcore.report.page import build_report

DOCS = Path(__file__).resolve().parents[1]
STUDY = DOCS / "results" / "minilm-mnli-hans.yaml"
TABLES = DOCS / "tables" / "minilm-mnli-hans"
SAMPLE = Path(__file__).with_name("minilm-mnli-hans.html")

OTHERS = ("entailed", "readers")
"""Tables of other commands than the study."""

MODEL = {
    "source": "all-MiniLM-L6-v2",
    "architecture": "BertForSequenceClassification",
    "n_layers": 6,
    "n_heads": 12,
    "has_mlps": True,
    "class_names": ["entailment", "neutral", "contradiction"],
}
VERSIONS = {
    "python": "3.11",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "accelerate": "1.15.0",
    "transformer-lens": "3.9.0",
}


def config() -> dict[str, Any]:
    """What the study left as ``config.json``, as far as it is published."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    data = pd.read_csv(TABLES / "data.csv")
    parts = {
        split: {"name": rows["data"].iloc[0], "n": int(rows["n"].sum())}
        for split, rows in data.groupby("split", sort=False)
    }
    return {
        "kind": "heuristic-core",
        "mechcore": "0.1.0",
        "versions": VERSIONS,
        "command": f"mechcore run {STUDY.relative_to(DOCS.parent).as_posix()} --out study",
        "settings": {key: study[key] for key in ("training", "prune", "analyses")},
        "model": MODEL,
        "data": parts,
        "seeds": study["seeds"],
        "target_sparsities": study["target_sparsities"],
    }


def make(target: Path = SAMPLE) -> None:
    """Write the report of the published tables."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        (run / "config.json").write_text(json.dumps(config(), indent=2), encoding="utf-8")
        shutil.copytree(TABLES, run / "tables", ignore=lambda *_: [f"{t}.csv" for t in OTHERS])
        # Without files of figures: the page would link to them, and it is one file here.
        shutil.copy(build_report(run, figures=()), target)


if __name__ == "__main__":
    make()
