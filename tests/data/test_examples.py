"""Examples: checked once, then plain texts."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.data.examples import COLUMNS, Examples, half_rows, near_copies, warn_of_copies
from mechcore.errors import InputError


def frame(n: int = 6, **columns: Any) -> pd.DataFrame:
    base = {
        "text_a": [f"a{i}" for i in range(n)],
        "text_b": [f"b{i}" for i in range(n)],
        "label": [("yes", "no")[i % 2] for i in range(n)],
        "subset": [("late", "early", "late")[i % 3] for i in range(n)],
    }
    return pd.DataFrame({**base, **columns})


def test_keeps_its_columns_and_counts_rows_from_zero() -> None:
    given = frame(extra=1).set_index(pd.Index(range(10, 16)))
    examples = Examples("x", given)
    assert list(examples.frame.columns) == list(COLUMNS)
    assert list(examples.frame.index) == list(range(6))
    assert len(examples) == 6
    assert "extra" in given.columns


def test_those_with_a_label() -> None:
    examples = Examples("x", frame()).labelled("yes")
    assert list(examples.frame["text_a"]) == ["a0", "a2", "a4"]
    assert examples.label_names == ["yes"]
    with pytest.raises(InputError, match="no example"):
        Examples("x", frame()).labelled("perhaps")


def test_a_subset_keeps_its_order() -> None:
    subset = Examples("x", frame()).subset("late")
    assert subset.frame["text_a"].tolist() == ["a0", "a2", "a3", "a5"]
    assert subset.name == "x"
    with pytest.raises(InputError, match="subset 'other' is empty; subsets are late, early"):
        Examples("x", frame()).subset("other")


def test_a_sample_is_seeded_distinct_and_in_order() -> None:
    examples = Examples("x", frame(100))
    texts = examples.sample(30, seed=1).frame["text_a"].tolist()
    numbers = [int(text[1:]) for text in texts]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 30
    assert examples.sample(30, seed=1).frame["text_a"].tolist() == texts
    assert examples.sample(30, seed=2).frame["text_a"].tolist() != texts
    assert len(examples.sample(1000, seed=1)) == 100


def test_the_fingerprint_is_that_of_every_value_and_its_place() -> None:
    first = Examples("x", frame()).fingerprint
    assert Examples("another name", frame(extra=1)).fingerprint == first
    for column in COLUMNS:
        changed = frame()
        changed.loc[3, column] += "!"
        assert Examples("x", changed).fingerprint != first
    assert Examples("x", frame().iloc[::-1]).fingerprint != first
    moved = frame(2, text_a=["ab", "c"]), frame(2, text_a=["a", "bc"])
    assert Examples("x", moved[0]).fingerprint != Examples("x", moved[1]).fingerprint


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [None, 1, float("nan")])
def test_a_value_that_is_no_text_is_named(column: str, value: Any) -> None:
    values = frame()[column].astype(object)
    values[4] = value
    message = rf"examples 'x': row 4, column {column}: expected text, found {value!r}"
    with pytest.raises(InputError, match=message):
        Examples("x", frame(**{column: values}))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(InputError, match=rf"missing column\(s\) {column}; found"):
        Examples("x", frame().drop(columns=column))


def many(sizes: dict[str, int]) -> Examples:
    rows = [(f"{name} {i}", "", "yes", name) for name, size in sizes.items() for i in range(size)]
    return Examples("many", pd.DataFrame(rows, columns=list(COLUMNS)))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_samples_keep_the_shares_of_subsets(sizes: dict[str, int], n: int, seed: int) -> None:
    data = many(sizes)
    drawn = data.sample(n, seed)
    assert len(drawn) == min(n, len(data))
    texts = drawn.frame["text_a"]
    assert texts.is_unique
    assert set(texts) <= set(data.frame["text_a"])
    if n < len(data) and n >= len(sizes):
        counts = drawn.frame["subset"].value_counts()
        for name, size in sizes.items():
            exact = 1 + (size - 1) * (n - len(sizes)) / (len(data) - len(sizes))
            assert abs(counts[name] - exact) < 1


def test_halves_share_no_example_and_halve_every_subset() -> None:
    data = many({"a": 8, "b": 5, "c": 1})
    halves = data.halves(3)
    counts = [half.frame["subset"].value_counts().to_dict() for half in halves]
    assert counts == [{"a": 4, "b": 2}, {"a": 4, "b": 3, "c": 1}]
    texts = [half.frame["text_a"].tolist() for half in halves]
    assert sorted(texts[0] + texts[1]) == sorted(data.frame["text_a"])
    order = {text: i for i, text in enumerate(data.frame["text_a"])}
    assert all(half == sorted(half, key=order.__getitem__) for half in texts)
    assert data.halves(3)[0].frame.equals(halves[0].frame)
    assert not data.halves(4)[0].frame.equals(halves[0].frame)
    with pytest.raises(InputError, match=r"2 in 2 subsets cannot be halved"):
        many({"a": 1, "b": 1}).halves(0)


def test_the_same_texts_are_in_the_same_half() -> None:
    rows = [("x", "", "a"), *[(f"y{i}", "", "a") for i in range(5)], *[("x", "", "a")] * 2]
    rows += [("x", "", "b"), *[(f"z{i}", "", "b") for i in range(3)], ("y0", "z", "b")]
    frame = pd.DataFrame(rows, columns=["text_a", "text_b", "subset"]).assign(label="l")
    seen = set()
    for seed in range(20):
        halves = [half.frame for half in Examples("twice", frame).halves(seed)]
        assert [sum(len(half) for half in halves), len(frame)] == [13, 13]
        keys = [set(zip(half["text_a"], half["text_b"], strict=True)) for half in halves]
        assert not keys[0] & keys[1]
        # Three "x" of eight in subset a: the first half has them and one more, or four others.
        assert (halves[0]["subset"] == "a").sum() == 4
        seen.add(("x", "") in keys[0])
    assert seen == {True, False}


def test_texts_that_are_all_the_same_cannot_be_halved() -> None:
    frame = pd.DataFrame({"text_a": ["x"] * 4, "text_b": "", "label": "l", "subset": "s"})
    with pytest.raises(InputError, match="at least two of one subset, with different texts"):
        Examples("same", frame).halves(0)


def pairs(rows: list[tuple[int, str]]) -> pd.DataFrame:
    """Each a first text and a subset; the second texts differ."""
    columns = {"text_a": [f"premise {first}" for first, _ in rows]}
    columns["text_b"] = [f"hypothesis {i}" for i in range(len(rows))]
    return pd.DataFrame({**columns, "label": "l", "subset": [name for _, name in rows]})


@pytest.mark.parametrize("seed", range(5))
def test_without_repeats_halves_are_those_of_a_permutation(seed: int) -> None:
    frame = pairs([(i, "aab"[i % 3]) for i in range(40)])
    generator, first = np.random.default_rng(seed), []
    for name in "ab":
        rows = np.flatnonzero(frame["subset"] == name)
        first += [*generator.permutation(rows)[: len(rows) // 2]]
    assert half_rows(frame, seed)[0] == sorted(first)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=60), st.integers(0, 5))
def test_rows_of_one_first_text_are_in_one_half(firsts: list[int], seed: int) -> None:
    frame = pairs([(first, "s") for first in firsts])
    halves = half_rows(frame, seed)
    assert sorted(halves[0] + halves[1]) == [*range(len(frame))]
    assert half_rows(frame, seed) == halves
    shared = set.intersection(*(set(frame["text_a"].iloc[half]) for half in halves))
    sizes = frame["text_a"].value_counts()
    fits = sizes <= len(frame) - len(frame) // 2
    assert shared <= set(sizes[~fits].index)
    largest = sizes[fits].max() if fits.any() else 0
    assert abs(len(halves[0]) - len(halves[1])) <= largest + 1


def test_what_an_earlier_subset_put_in_a_half_counts_first() -> None:
    # The five of "b" that are in the first half fill it, whenever they are drawn.
    frame = pairs([*((i, "a") for i in range(10)), *((i, "b") for i in range(15))])
    for seed in range(10):
        first, _ = half_rows(frame, seed)
        assert (frame["subset"].iloc[first] == "b").sum() == 7


def test_a_first_text_that_no_half_holds_is_in_both() -> None:
    one = half_rows(pairs([(0, "s")] * 9), 0)
    assert [len(half) for half in one] == [4, 5]
    frame = pairs([*[(0, "s")] * 12, *((1 + i // 2, "s") for i in range(8))])
    repeated = pd.concat([frame, frame.iloc[:2]], ignore_index=True)
    for seed in range(10):
        halves = half_rows(repeated, seed)
        assert [len(half) for half in halves] == [11, 11]
        texts = [set(repeated["text_a"].iloc[half]) for half in halves]
        assert texts[0] & texts[1] == {"premise 0"}
        both = [set(repeated["text_b"].iloc[half]) for half in halves]
        assert not both[0] & both[1]


def test_a_subset_called_all_is_refused_beside_others() -> None:
    assert len(many({"all": 2})) == 2
    with pytest.raises(InputError, match="'all', which stands for all examples"):
        many({"all": 2, "some": 2})


def test_clusters_are_numbers_and_an_empty_one_is_an_example_of_its_own() -> None:
    examples = Examples("x", frame(cluster=["b", "", "a", "b", "", "a"]))
    assert examples.clusters is not None
    assert examples.clusters.tolist() == [0, 1, 2, 0, 3, 2]
    assert examples.part([3, 1, 0]).clusters.tolist() == [0, 1, 0]  # type: ignore[union-attr]
    assert Examples("x", frame()).clusters is None
    assert Examples("x", frame(cluster=[""] * 6)).clusters is None
    plain = Examples("x", frame()).fingerprint
    assert Examples("x", frame(cluster=[""] * 6)).fingerprint == plain != examples.fingerprint
    with pytest.raises(InputError, match=r"row 2, column cluster: expected text, found 3"):
        Examples("x", frame(cluster=["a", "a", 3, "a", "a", "a"]))
    with pytest.raises(InputError, match=r"population is 'all'; expected 'clusters' or 'texts'"):
        Examples("x", frame(), "all")  # type: ignore[arg-type]


def test_parts_keep_clusters_and_population() -> None:
    examples = Examples("x", frame(cluster=list("aabbcc")), "texts")
    parts = [examples.subset("late"), examples.labelled("yes"), examples.sample(3, 0)]
    for part in [*parts, *examples.halves(0)]:
        assert part.population == "texts"
        assert part.clusters is not None


def test_a_cluster_is_in_one_half() -> None:
    sizes = {"one": [12], "two": [5, 7], "three": [4, 4, 4], "also one": [10]}
    rows = [
        (f"{name} {i} {j}", name, f"{name}{i}")
        for name, of in sizes.items()
        for i, n in enumerate(of)
        for j in range(n)
    ]
    table = pd.DataFrame(rows, columns=["text_a", "subset", "cluster"]).assign(text_b="")
    for seed in range(10):
        halves = [table.iloc[half] for half in half_rows(table, seed)]
        assert not set(halves[0]["cluster"]) & set(halves[1]["cluster"])
        assert min(map(len, halves)) >= 16
        for name in ("two", "three"):
            assert all(name in half["subset"].tolist() for half in halves)
    # One cluster alone cannot be halved: as without it.
    alone = table[table["subset"] == "one"]
    assert half_rows(alone, 0) == half_rows(alone.drop(columns="cluster"), 0)


@pytest.mark.parametrize(
    ("pairs_", "n"),
    [
        ([("a b c d e f", "x"), ("A, b c d e G!", "x y")], 0),
        ([("a b c d e f", "x"), ("A, b c d e G!", "x")], 2),  # one word is another, or is missing
        ([("a b c d e f", "x"), ("a b c d e", "x"), ("q r s t u", "v")], 2),
        ([("a b", "c"), ("a b", "d"), ("e", "f"), ("g", "h"), ("i", "j")], 2),  # a first text
        ([("a b", "c"), ("d", "a b"), ("e", "f"), ("g", "h"), ("i", "j")], 2),  # or a second
        ([("judge", "a"), ("judge", "b"), ("judge", "c")], 0),  # an instruction
        ([("a b", "c d"), ("a e", "c d f")], 0),  # short texts
        ([("same", ""), ("other", "")], 0),
    ],
)
def test_near_copies_are_counted(pairs_: list[tuple[str, str]], n: int) -> None:
    table = pd.DataFrame(pairs_, columns=["text_a", "text_b"]).assign(label="l", subset="s")
    examples = Examples("x", table)
    assert near_copies(examples) == n
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_copies("id", examples)
        known = table.assign(cluster="one")
        warn_of_copies("id", Examples("x", known))
    said = [str(warning.message) for warning in caught]
    assert len(said) == (n > 0)
    assert all(f"{n} of {len(table)} examples share a text" in text for text in said)
