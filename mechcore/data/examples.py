"""Labelled texts: the common form of the data of every task."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from mechcore.errors import InputError, check_seed, warn
from mechcore.showing import Shown

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Population: TypeAlias = Literal["clusters", "texts"]
POPULATIONS: tuple[Population, ...] = get_args(Population)
"""Populations of intervals: other clusters, or other texts of the same subsets."""

ALL = "all"
"""Name of the row over all examples in tables, and of the only subset of data without subsets."""

COLUMNS = ("text_a", "text_b", "label", "subset")
CLUSTER = "cluster"
"""An optional column for examples that form clusters."""

UNDECIDED = "-"
"""Gold label of MNLI and SNLI examples on which the annotators disagreed, used here for all without
a label; such examples are skipped where labels are needed."""


@dataclass(frozen=True, repr=False)
class Examples(Shown):
    """Texts of one or two segments, each with a label name and a subset name.

    Attributes:
        name: name of the data in tables, e.g. ``"id"`` or ``"hans"``.
        frame: one row per example with the string columns ``text_a``, ``text_b`` (empty for
            one-segment data), ``label`` and ``subset``; and ``cluster`` if examples form clusters.
        population: population of intervals, if there are clusters.

    Raises:
        InputError: a column is missing, a value is not a string, or there is no example.
    """

    name: str
    frame: pd.DataFrame
    population: Population = "clusters"

    def __post_init__(self) -> None:
        if self.population not in POPULATIONS:
            raise InputError(
                f"population is {self.population!r}; expected {' or '.join(map(repr, POPULATIONS))}"
            )
        columns = [*COLUMNS, *([CLUSTER] if CLUSTER in self.frame.columns else [])]
        missing = [column for column in COLUMNS if column not in self.frame.columns]
        if missing:
            raise InputError(
                f"examples {self.name!r}: missing column(s) {', '.join(missing)}; "
                f"found {', '.join(map(str, self.frame.columns))}"
            )
        if self.frame.empty:
            raise InputError(f"examples {self.name!r}: no example; expected at least one")
        for column in columns:
            bad = ~self.frame[column].map(lambda value: isinstance(value, str))
            if bad.any():
                row = int(bad.to_numpy().argmax())
                value = self.frame[column].iloc[row]
                raise InputError(
                    f"examples {self.name!r}: row {row}, column {column}: expected text, "
                    f"found {value!r}"
                )
        names = set(self.frame["subset"])
        if ALL in names and len(names) > 1:
            raise InputError(
                f"examples {self.name!r}: a subset is named {ALL!r}, which stands for all examples "
                "in tables; rename it"
            )
        object.__setattr__(self, "frame", self.frame[columns].reset_index(drop=True))

    def __len__(self) -> int:
        return len(self.frame)

    def labelled(self, label: str) -> Examples:
        """The examples with this label; raises `InputError` if there is none."""
        return self._with(self.frame[self.frame["label"] == label])

    @property
    def two_segments(self) -> bool:
        """Whether any example has a second segment."""
        return bool((self.frame["text_b"] != "").any())

    @property
    def label_names(self) -> list[str]:
        """Label names that occur, sorted."""
        return sorted(self.frame["label"].unique())

    @property
    def subset_names(self) -> list[str]:
        """Subset names that occur, in order of first appearance."""
        return list(self.frame["subset"].unique())

    def subset(self, name: str) -> Examples:
        """The examples of one subset; raises `InputError` if it has none."""
        if name not in self.subset_names:
            raise InputError(
                f"examples {self.name!r}: subset {name!r} is empty; "
                f"subsets are {', '.join(self.subset_names)}"
            )
        return self._with(self.frame[self.frame["subset"] == name])

    def sample(self, n: int, seed: int) -> Examples:
        """``n`` examples drawn without replacement, in order; all of them if there are fewer.

        Subsets keep their shares, rounded, and none is lost unless there are more than ``n``.
        """
        rows = self.sample_rows(n, seed)
        return self if len(rows) == len(self) else self.part(rows)

    def sample_rows(self, n: int, seed: int) -> list[int]:
        """The rows of the examples that `sample` draws."""
        import pandas as pd

        check_seed(seed)
        if n >= len(self):
            return [*range(len(self))]
        sizes = self.frame["subset"].value_counts()
        if len(sizes) > n:
            return sorted(self.frame.sample(n=n, random_state=seed).index)
        # Largest remainders, after one example for every subset.
        exact = 1 + (sizes - 1) * (n - len(sizes)) / (len(self) - len(sizes))
        counts = exact.astype(int)
        missing = n - int(counts.sum())
        counts[(counts - exact).sort_values(kind="stable").index[:missing]] += 1
        drawn = [
            self.frame[self.frame["subset"] == name].sample(n=int(count), random_state=seed)
            for name, count in counts.items()
        ]
        return sorted(pd.concat(drawn).index)

    def halves(self, seed: int) -> tuple[Examples, Examples]:
        """Two halves of every subset, see `half_rows`; raises `InputError` for too few examples."""
        first, second = half_rows(self.frame, seed)
        if not first:
            raise InputError(
                f"examples {self.name!r}: {len(self)} in {len(self.subset_names)} subsets cannot "
                "be halved; expected at least two of one subset, with different texts"
            )
        return self.part(first), self.part(second)

    def part(self, rows: Sequence[int]) -> Examples:
        """These rows only, in the order given."""
        return self._with(self.frame.iloc[list(rows)])

    def _with(self, frame: pd.DataFrame) -> Examples:
        return replace(self, frame=frame)

    @property
    def clusters(self) -> np.ndarray | None:
        """Number of the cluster of every example, from 0; None without clusters."""
        if CLUSTER not in self.frame or not self.frame[CLUSTER].any():
            return None
        import pandas as pd

        names = self.frame[CLUSTER]
        return pd.factorize(names.where(names != "", pd.Series(range(len(self)), names.index)))[0]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the texts, labels, subsets and clusters, in order (hex)."""
        digest = hashlib.sha256()
        for column in [*COLUMNS, *([CLUSTER] if self.clusters is not None else [])]:
            for value in self.frame[column]:
                digest.update(value.encode() + b"\x00")
            digest.update(b"\x01")
        return digest.hexdigest()

    def _summary(self) -> str:
        labels, subsets = len(self.label_names), len(self.subset_names)
        return f"{self.name!r}, n={len(self)}, labels={labels}, subsets={subsets}"

    def _rows(self) -> pd.DataFrame:
        return self.frame


def half_rows(frame: pd.DataFrame, seed: int) -> tuple[list[int], list[int]]:
    """Row numbers, in order, of two random halves of every subset, or of their clusters.

    In an odd subset the second half has one more. Rows with the same first text, such as the
    hypotheses of a premise, are in the same half, across subsets; halves may then differ by as
    many rows. If a first text has more rows of a subset than half of it, only rows with the same
    second text as well are kept together. With two or more clusters, rows are kept together by
    cluster instead. A subset that is one cluster goes to the half with fewer rows.
    """
    import numpy as np

    groups = _groups(frame)
    subsets = frame["subset"].to_numpy(dtype=object)
    in_first: dict[tuple[str, ...], bool] = {}
    generator = np.random.default_rng(seed)
    for name in dict.fromkeys(subsets):
        rows = np.flatnonzero(subsets == name)
        sizes = Counter(groups[row] for row in rows)
        left = len(rows) // 2 - sum(n for group, n in sizes.items() if in_first.get(group))
        # A group has the position of one of its rows, so that large groups do not come first.
        place = {groups[row]: row for row in reversed(rows)}
        drawn = [groups[row] for row in generator.permutation(rows) if place[groups[row]] == row]
        drawn = [group for group in drawn if group not in in_first]
        for group in drawn:
            in_first[group] = sizes[group] <= left
            left -= sizes[group] * in_first[group]
        if len(sizes) == 1 and drawn and len(drawn[0]) == 3:  # one cluster
            placed = [in_first[group] for group in groups if group in in_first]
            in_first[drawn[0]] = 2 * sum(placed) < len(placed) - len(rows)
            continue
        others = [group for group in drawn if not in_first[group]]
        nearest = min(others, key=lambda group: abs(left - sizes[group]), default=None)
        if nearest is not None and abs(left - sizes[nearest]) < left:
            in_first[nearest] = True
    halves: tuple[list[int], list[int]] = [], []
    for row, group in enumerate(groups):
        halves[not in_first[group]].append(row)
    return halves


def _groups(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """The key of each row's group: its cluster, if there are several; else its text or texts."""
    import pandas as pd

    firsts, subsets = frame["text_a"], frame["subset"]
    clusters = frame.get(CLUSTER, pd.Series("", frame.index))
    sizes = Counter(subsets)
    many = {
        text
        for (text, name), n in Counter(zip(firsts, subsets, strict=True)).items()
        if n > sizes[name] - sizes[name] // 2
    }
    several = clusters.nunique() > 1
    return [
        ("", "", cluster) if cluster and several else (a, b) if a in many else (a,)
        for a, b, cluster in zip(firsts, frame["text_b"], clusters, strict=True)
    ]


_LEAST_COPIES = 0.05  # minimum share of near-copies for a warning

_SHORTEST = 5  # minimum number of distinct words; shorter texts are alike by chance

_WORD = re.compile(r"\w+")


def near_copies(examples: Examples) -> int:
    """How many examples share a rare text, or all but one of their words, with another."""
    first: dict[Hashable, int] = {}
    copies: set[int] = set()
    two = examples.two_segments
    pairs = [*zip(examples.frame["text_a"], examples.frame["text_b"], strict=True)]
    often = {
        text
        for text, n in Counter(t for pair in pairs for t in {*pair}).items()
        if 2 * n > len(pairs)
    }
    for row, pair in enumerate(pairs):
        # A question may be the first of one pair and the second of another.
        shared = {*pair} - often - {""} if two else set()
        for key in (*shared, *_word_keys(" ".join(pair))):
            other = first.setdefault(key, row)
            if other != row:
                copies |= {other, row}
    return len(copies)


def warn_of_copies(split: str, examples: Examples) -> None:
    """Warn of near-copies if no clusters are known."""
    n = near_copies(examples) if examples.clusters is None else 0
    if n >= max(2, _LEAST_COPIES * len(examples)):
        warn(
            f"{split} data {examples.name}: {n} of {len(examples)} examples share a text, or all "
            "but one of their words, with another; intervals and p-values treat them as "
            f"independent and are too narrow for other texts: name their clusters with "
            f"--columns {CLUSTER}=NAME, a column of the file, or text_a for examples with the same "
            "first text (columns= in Python)"
        )


def _word_keys(text: str) -> Iterator[int]:
    """Hashes that texts share if all but one of their words are the same."""
    words = [hash(word) for word in {*_WORD.findall(text.lower())}]
    if len(words) >= _SHORTEST:
        whole = reduce(xor, words)
        yield whole
        yield from (whole ^ word for word in words)
