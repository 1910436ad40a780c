"""All cases of known truth: planted transformers, and models trained to follow a program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from mechcore.ablation.sets import ComponentSet
from mechcore.bench.case import Case, Truth
from mechcore.bench.planted import CATALOGUE
from mechcore.components import Component
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.models.loading import load_model
from mechcore.models.tokenizers import load_tokenizer
from mechcore.worlds.embedded import data_dir

TRAINED = ("copy", "conjunction", "backup", "equality", "majority", "heuristic", "pointer")
TEXTS_FILE, TRUTH_FILE = "texts.parquet", "truth.json"
SIZES: Mapping[str, int] = {"train": 512, "id": 256, "ood": 256}
"""Number of texts of a case by split; the file has four times as many."""
_MAX_LENGTH = 16
_TRAINED = "trained-"


def case_dir(name: str) -> Path:
    """Hugging Face checkpoint of a case's model, among the embedded data."""
    if name not in TRAINED:
        raise InputError(f"case {name!r}: not found; there are {', '.join(TRAINED)}")
    return data_dir() / "known_truth" / name


def trained_truth(name: str) -> Truth:
    """The truth about a case's model."""
    stored = json.loads((case_dir(name) / TRUTH_FILE).read_text(encoding="utf-8"))

    def some(part: str) -> frozenset[Component] | None:
        return None if stored[part] is None else frozenset(map(Component.parse, stored[part]))

    return Truth(
        frozenset(map(Component.parse, stored["components"])),
        {ComponentSet.of(pair.split("+")): size for pair, size in stored["interactions"].items()},
        some("core"),
        some("generalising"),
    )


def trained_case(name: str, *, seed: int = 0, device: str = "cpu") -> Case:
    """A model trained to follow a program, with texts; seed 0 takes the first in the file."""
    folder, truth = case_dir(name), trained_truth(name)
    tokenizer = load_tokenizer(folder)
    data: dict[str, EncodedExamples] = {}
    for split, texts in pd.read_parquet(folder / TEXTS_FILE).groupby("split", sort=False):
        n, generator = SIZES[str(split)], np.random.default_rng(seed)
        rows = texts.head(n) if seed == 0 else texts.sample(n, random_state=generator)
        frame = rows[["text", "label", "subset"]].rename(columns={"text": "text_a"})
        examples = Examples(f"{name} {split}", frame.assign(text_b="").reset_index(drop=True))
        data[str(split)] = encode(examples, tokenizer, max_length=_MAX_LENGTH, truncate=False)
    return Case(name, load_model(folder, device=device), data, truth)


def case_names(wanted: Iterable[str] = ("planted", "trained")) -> list[str]:
    """Names of the wanted cases; ``"planted"`` and ``"trained"`` stand for all of a group."""
    groups = {"planted": list(CATALOGUE), "trained": [f"{_TRAINED}{name}" for name in TRAINED]}
    known = [name for names in groups.values() for name in names]
    names = [
        name for name_or_group in wanted for name in groups.get(name_or_group, [name_or_group])
    ]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"{unknown[0]!r} is unknown" if unknown else "none given"
        raise InputError(f"cases: {what}; expected planted, trained, or some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def load_case(name: str, folder: str | Path, *, seed: int = 0, device: str = "cpu") -> Case:
    """A case by name; the checkpoint of a planted one is written to ``folder``."""
    (name,) = case_names([name])
    if name in CATALOGUE:
        return CATALOGUE[name].case(name, folder, seed=seed, device=device)
    case = trained_case(name.removeprefix(_TRAINED), seed=seed, device=device)
    return replace(case, name=name)


@cache
def interacts(name: str) -> bool:
    """Whether any pair in a case interacts."""
    if name in CATALOGUE:
        return bool(CATALOGUE[name].truth().interactions)
    return bool(trained_truth(name.removeprefix(_TRAINED)).interactions)
