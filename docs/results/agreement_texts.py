"""The sentences of docs/results/smollm2-agreement.md: beginnings that end before "is" or "are".

Usage: python docs/results/agreement_texts.py FOLDER

Writes train.csv, id.csv and ood.csv into FOLDER. In train.csv and id.csv the second noun has the
number of the subject; in ood.csv it has the other one, so that a verb which agrees with the nearest
noun is wrong. No pair of nouns is in two of the files, and each is there in both numbers. Their
subsets are the structure and the number of the subject.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import pandas as pd

SIZES = {"train": 100, "id": 28, "ood": 28}
"""Pairs of nouns of each structure, each in the singular and in the plural."""
NOUNS = {
    "people": "author doctor farmer teacher lawyer manager driver officer writer painter singer "
    "player guard pilot student customer",
    "others": "friend neighbor parent cousin partner expert artist dancer banker soldier judge "
    "nurse editor actor visitor minister",
    "things": "picture book table house garden letter machine report story window computer plan "
    "box key door ticket",
    "places": "river tower school building market bridge hotel church station park museum street "
    "library castle lake tree",
}
PRESENT = ("admires", "admire"), ("knows", "know"), ("likes", "like"), ("helps", "help")
PAST = ("admired", "liked", "helped", "met")
STRUCTURES = {
    "near": ("things", "places", "The {subject} near the {other}"),
    "with": ("people", "others", "The {subject} with the {other}"),
    "subject relative": ("people", "others", "The {subject} that {present} the {other}"),
    "object relative": ("people", "others", "The {subject} that the {other} {past}"),
}


def plural(noun: str) -> str:
    """Its plural."""
    ending = "es" if noun.endswith(("x", "ch")) else "s"
    return noun[:-1] + "ies" if noun.endswith("ry") else noun + ending


def texts(structure: str, pairs: list[tuple[str, str]], alike: bool) -> list[dict[str, str]]:
    """Every pair of nouns with a singular and a plural subject."""
    form = STRUCTURES[structure][2]
    rows = []
    for i, (subject, other) in enumerate(pairs):
        for number in ("singular", "plural"):
            many = number == "plural"
            text = form.format(
                subject=plural(subject) if many else subject,
                other=plural(other) if many == alike else other,
                present=PRESENT[i % len(PRESENT)][many],
                past=PAST[i % len(PAST)],
            )
            rows.append({"text_a": text, "label": number, "subset": f"{structure}, {number}"})
    return rows


def main(folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, str]]] = {name: [] for name in SIZES}
    draw = random.Random(0)
    for structure, (subjects, others, _) in STRUCTURES.items():
        pairs = list(itertools.product(NOUNS[subjects].split(), NOUNS[others].split()))
        draw.shuffle(pairs)
        left = iter(pairs)
        for name, n in SIZES.items():
            chosen = list(itertools.islice(left, n))
            rows[name] += texts(structure, chosen, alike=name != "ood")
    for name, table in rows.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
