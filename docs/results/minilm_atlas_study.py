"""The commands behind docs/results/minilm-atlas.md, and the tables that they leave.

Usage: NLI_DATA=... python docs/results/minilm_atlas_study.py TRAININGS OUT

TRAININGS has a folder or link for each model, with the ``checkpoints/final`` and
``tables/training.csv`` of its training job (one of ``study/store/objects/*/*``). Run it again to go
on after an interruption. OUT/tables is what ``docs/tables/minilm-atlas`` is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
from minilm_atlas import CORES, HALVES, MODELS

TABLES = Path(__file__).parents[1] / "tables"
N_CONTROLLED = 5
"""Components beside which random heads stand, those that change most."""


def study(training: Path, name: str, out: Path) -> None:
    """Both races, paths and their controls of one model; what is there is left."""
    data = Path(os.environ["NLI_DATA"])
    train = ["--train", str(data / "mnli_train_29k.tsv.gz")]
    model = ["--model", str(training / "checkpoints" / "final"), "--max-length", "128"]
    texts = ["--id", str(data / "mnli_dev_matched.tsv.gz")]
    texts += ["--ood", str(data / "hans_validation.tsv.gz")]
    tested = [*model, *train, "--max-train", "2000", *texts]
    for race in HALVES:
        label = race.removeprefix("race-")
        race_of = ["--all", "--max-size", "2", "--ood-label", label, "--max-ood", "1200"]
        searched = [*model, *train, "--max-train", "2000", *texts, *race_of, "--max-id", "64"]
        _run(out / label / "tables" / "race.csv", "search", *searched)
    core = pd.read_csv(TABLES / CORES[name] / "core.csv")["heads"][0].split()
    senders = ["--senders", ",".join(core), "--max-ood", "600", "--max-examples", "600"]
    path = out / "paths" / "tables" / "path_information.csv"
    _run(path, "paths", *tested, *senders, "--receivers", "all", "--together", "--max-id", "600")
    most = pd.read_csv(path).query("split == 'ood' and subset == 'all' and receiver != 'answer'")
    order = most["information_change"].abs().sort_values(ascending=False, kind="stable").index
    receivers = ["--receivers", ",".join(most.loc[order, "receiver"].head(N_CONTROLLED))]
    controls = [*receivers, "--controls", "39", "--max-id", "48"]
    _run(out / "controls" / "tables" / "core_dependence.csv", "paths", *tested, *senders, *controls)


def _run(result: Path, command: str, *options: str) -> None:
    """Run a command whose last file is ``result``, unless that is there."""
    if not result.exists():
        result.parent.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-m", "mechcore", command]
        subprocess.run([*program, *options, "--out", str(result.parents[1])], check=True)


def tables(training: Path, out: Path) -> dict[str, pd.DataFrame]:
    """The tables of one model that the page is made from."""
    made = {"training": pd.read_csv(training / "tables" / "training.csv")}
    for race in HALVES:
        table = pd.read_csv(out / race.removeprefix("race-") / "tables" / "race.csv")
        table[["effect", "low", "high"]] = table[["effect", "low", "high"]].round(5)
        made[race] = table.drop(columns=["size", "data", "split"])
    paths = pd.read_csv(out / "paths" / "tables" / "path_information.csv").query("subset == 'all'")
    named = ["receiver", "senders", "data", "split", "n"]
    named += [name for name in paths if name.startswith(("information_", "threshold_"))]
    made["path_information"] = paths[named]
    dependence = pd.read_csv(out / "controls" / "tables" / "core_dependence.csv")
    made["core_dependence"] = dependence.query("subset == 'all' and split == 'ood'")
    return made


def main(trainings: Path, out: Path) -> None:
    """Do all, and write the tables."""
    for name in MODELS:
        study(trainings / name, name, out / name)
        folder = out / "tables" / name
        folder.mkdir(parents=True, exist_ok=True)
        for table, frame in tables(trainings / name, out / name).items():
            digits = None if table.startswith("race") else "%.6g"
            frame.to_csv(folder / f"{table}.csv", index=False, float_format=digits)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
