"""Linear decoding against planted codes of known strength and plain scikit-learn pipelines."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import PAD, Cases
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, StratifiedKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreError
from mechcore.papers.cognitive.probing import (
    activations_at,
    balanced,
    correlation_floor,
    decode,
    decode_table,
    decoding,
    hook_resid_post,
    linear,
)

CLASSIFIERS = ("logistic", "svm")


def gaussian(n: int, d_prime: float, units: int = 8, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Two classes d' apart along a random direction of correlated units on various scales."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    noise = generator.standard_normal((n, units))
    direction = generator.standard_normal(units)
    noise += np.outer(labels - 0.5, d_prime * direction / np.linalg.norm(direction))
    mixed = noise @ generator.standard_normal((units, units)) * 10.0 ** np.linspace(-1, 1, units)
    return mixed + 5, [("left", "right")[i] for i in labels]


def several_classes(
    n: int, units: int, classes: int, seed: int = 1
) -> tuple[np.ndarray, list[int]]:
    """Classes that a noisy linear readout tells apart, of unequal frequency."""
    generator = np.random.default_rng(seed)
    states = generator.standard_normal((n, units)) @ generator.standard_normal((units, units))
    scores = states @ generator.standard_normal((units, classes)) / units
    scores += generator.gumbel(size=scores.shape) + np.linspace(0, 1, classes)
    return states, scores.argmax(1).tolist()


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("d_prime", [0.5, 2.0, 4.0])
def test_a_planted_code_is_found_at_its_strength(classifier: Any, d_prime: float) -> None:
    states, labels = gaussian(2000, d_prime)
    decoded = decode(states, labels, classifier=classifier)
    # Of two unit Gaussians d' apart the best classifier gets Phi(d' / 2): .599, .841 and .977.
    best = norm.cdf(d_prime / 2)
    error = np.sqrt(best * (1 - best) / 2000)
    assert -4 * error - 0.01 < decoded.accuracy - best < 4 * error
    assert decoded.low < decoded.accuracy < decoded.high
    assert decoded.high - decoded.low == pytest.approx(2 * 1.96 * error, rel=0.25)
    assert decoded.chance == 0.5
    assert decoded.p == 1 / 21  # the least that 20 shuffles can show
    assert decoded.shuffled_high < 0.56
    assert decoded.n == 2000


def plain(classifier: str) -> Pipeline:
    """The reference: scikit-learn, one fit at a time, to a narrow tolerance."""
    logistic = LogisticRegression(tol=1e-8, max_iter=10_000)
    svm = LinearSVC(dual=False, tol=1e-9, max_iter=10_000)
    return make_pipeline(StandardScaler(), logistic if classifier == "logistic" else svm)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("units", [6, 90])  # fewer and more than examples
def test_predictions_are_those_of_a_plain_pipeline(
    classifier: Any, classes: int, units: int
) -> None:
    states, labels = several_classes(100, units, classes)
    decoded = decode(states, labels, classifier=classifier, shuffles=6, seed=3)
    splits = StratifiedKFold(5, shuffle=True, random_state=3)
    expected = cross_val_predict(plain(classifier), states, labels, cv=splits)
    assert decoded.predictions == expected.tolist()
    shuffled = decoding._shuffled(np.array(labels), decoded.folds, None, 6, seed=3)
    again = [
        cross_val_predict(plain(classifier), states, other, cv=PredefinedSplit(decoded.folds))
        for other in shuffled
    ]
    shares = [(p == other).mean() for p, other in zip(again, shuffled, strict=True)]
    assert decoded.shuffled_accuracies.tolist() == pytest.approx(shares, abs=1e-12)
    assert len(set(shares)) > 1


def test_a_fit_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_MAX_ITERATIONS", 2)
    with pytest.raises(MechcoreError, match=r"a fit did not converge: after 2 iterations"):
        decode(*gaussian(60, 3.0))


def test_figures_by_hand() -> None:
    states, labels = several_classes(90, 5, 3)
    decoded = decode(states, labels, folds=3, shuffles=7)
    right = [a == b for a, b in zip(decoded.predictions, labels, strict=True)]
    assert decoded.accuracy == pytest.approx(sum(right) / 90)
    assert decoded.chance == max(Counter(labels).values()) / 90
    shuffled = decoded.shuffled_accuracies
    assert shuffled.shape == (7,)
    assert decoded.shuffled == pytest.approx(sum(shuffled) / 7)
    # Numpy's percentile: 0.95 * 6 = 5.7 of the way from the smallest to the largest.
    assert decoded.shuffled_high == pytest.approx(
        sorted(shuffled)[5] * 0.3 + sorted(shuffled)[6] * 0.7
    )
    assert decoded.p == (1 + sum(s >= decoded.accuracy for s in shuffled)) / 8


def test_what_is_constant_but_for_rounding_is_not_read() -> None:
    states, labels = gaussian(100, 1.5)
    rounding = 2 + 1e-6 * (np.array(labels) == "left")
    constant = np.column_stack([np.zeros(100), states, np.full(100, 1 / 3)])
    plain_answers = decode(states, labels, shuffles=1).predictions
    assert decode(constant, labels, shuffles=1).predictions == plain_answers
    nothing = decode(np.column_stack([np.full(100, 3.0), rounding]), labels, shuffles=4)
    assert (nothing.accuracy, nothing.shuffled, nothing.p) == (0.5, 0.5, 1.0)


@pytest.mark.both
def test_evidence_that_was_not_read_yet_is_not_decoded(cases: Cases) -> None:
    """The label is in the length of the text, and so in the shape of the batch."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(120) % 2
    tails = [torch.randint(PAD + 1, 40, (int(3 + 4 * y),), generator=generator) for y in labels]
    rows = [torch.cat([torch.tensor([5, 6, 7]), tail]) for tail in tails]
    for row, y in zip(rows, labels, strict=True):
        row[3] = 10 + y  # the label can be read here, and later
    frame = pd.DataFrame({"text_a": [""] * 120, "text_b": "", "label": "x", "subset": "all"})
    ids = [row.tolist() for row in rows]
    data = EncodedExamples(Examples("random", frame), ids, None, None, None, None, PAD)
    places, hooks = torch.arange(4).expand(120, 4), [hook_resid_post(layer) for layer in range(2)]
    states = activations_at(cases.get("gpt2-lm").model, data, hooks, places, batch_size=24)
    sites = {(hook, i): values[:, i] for hook, values in states.items() for i in range(4)}
    table = decode_table(sites, {"label": labels}, shuffles=4)
    read = table["site"].map(lambda site: site[1]) == 3
    assert len(table) == 8
    assert (table["accuracy"] == np.where(read, 1.0, 0.5)).all()
    assert (table["p"][~read] == 1.0).all()


# -- groups ---------------------------------------------------------------------------------------


def fingerprints() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States that tell groups apart and nothing else, labels and groups."""
    generator, groups = np.random.default_rng(4), np.repeat(np.arange(40), 6)
    states = generator.standard_normal((40, 60))[groups]
    states += 0.05 * generator.standard_normal((240, 60))
    return states, groups % 2, groups


def test_what_tells_groups_apart_decodes_only_if_groups_are_split() -> None:
    states, labels, groups = fingerprints()
    assert decode(states, labels).accuracy > 0.95
    kept = decode(states, labels, groups=[f"text {g}" for g in groups])
    for group in range(40):
        assert len(set(kept.folds[groups == group])) == 1
    assert set(kept.folds) == set(range(5))
    assert abs(kept.accuracy - 0.5) < 4 * np.sqrt(0.25 / 40)  # 40 groups, not 240 examples
    assert kept.p > 0.05
    # An interval over the 240 examples would be 2 * 1.96 * sqrt(0.25 / 240) = 0.127 wide.
    assert kept.high - kept.low > 0.2


def test_the_interval_over_groups_weighs_groups_by_size() -> None:
    correct, groups = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0, 0, 0, 1])
    span = decoding._interval(correct, groups, 0)
    assert (span.mean, span.low, span.high) == (0.75, 0.0, 1.0)  # both groups drawn are alike
    alone = decoding._interval(np.array([1.0, 0.0] * 50), np.repeat(np.arange(50), 2), 0)
    assert (alone.low, alone.high) == (0.5, 0.5)  # half of every group is right
    # All right: Wilson's interval of 10 of 10, n / (n + z^2), as of 10 groups and not of 40.
    every = decoding._interval(np.ones(40), np.repeat(np.arange(10), 4), 0)
    assert (every.mean, every.high) == (1, 1)
    assert every.low == pytest.approx(10 / (10 + 1.959964**2), abs=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(0, 3),
)
def test_shuffles_keep_every_fold_as_it_is(rows: list[tuple[int, int]], seed: int) -> None:
    codes, folds = (np.array(column) for column in zip(*rows, strict=True))
    for shuffled in decoding._shuffled(codes, folds, None, 3, seed):
        for fold in set(folds):
            assert Counter(shuffled[folds == fold]) == Counter(codes[folds == fold])


def test_shuffles_move_labels_as_groups_allow() -> None:
    groups = np.array([2, 2, 0, 1, 1, 3])
    folds = np.array([0, 0, 0, 1, 1, 1])
    one_label_each = np.array([7, 7, 8, 7, 7, 9])
    seen = set(map(tuple, decoding._shuffled(one_label_each, folds, groups, 100, 0).tolist()))
    swapped = {(7, 7, 8), (8, 8, 7)}, {(7, 7, 9), (9, 9, 7)}
    assert seen == {(*a, *b) for a in swapped[0] for b in swapped[1]}
    mixed = np.array([0, 1, 2, 0, 1, 3])
    seen = set(map(tuple, decoding._shuffled(mixed, folds, groups, 200, 0).tolist()))
    # Every group keeps its own labels or takes the other's, cut or repeated, in any order.
    first = {(0, 1, 2), (1, 0, 2), (2, 2, 0), (2, 2, 1)}
    second = {(0, 1, 3), (1, 0, 3), (3, 3, 0), (3, 3, 1)}
    assert seen == {(*a, *b) for a in first for b in second}


def test_labels_that_mostly_follow_groups_have_a_null_of_their_own() -> None:
    """One label that differs within its group does not make the null that of the labels."""
    states, labels, groups = fingerprints()
    labels[0] = 1 - labels[0]
    decoded = decode(states, labels, groups=groups, shuffles=40)
    assert abs(decoded.shuffled - 0.5) < 0.06
    readable = np.column_stack([states, np.where(labels == 1, 4.0, -4.0)])
    assert decode(readable, labels, groups=groups, shuffles=40).p == 1 / 41


def test_the_seed_decides_everything() -> None:
    states, labels = several_classes(120, 6, 3)
    first, again, other = (decode(states, labels, shuffles=5, seed=seed) for seed in (1, 1, 2))
    for name in ("predictions", "folds", "shuffled_accuracies", "low", "high"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.folds, other.folds)
    assert not np.array_equal(first.shuffled_accuracies, other.shuffled_accuracies)
    more = decode(states, labels, shuffles=70, seed=1)  # more than are fitted together
    assert more.predictions == first.predictions
    assert more.shuffled_accuracies.shape == (70,)


# -- tables, floors, balance ----------------------------------------------------------------------

# The eight conditions of the cognitive task: context, sign of motion, sign of colour.
CONDITIONS = [(c, m, k) for c in ("motion", "color") for m in "+-" for k in "+-"]
CONTEXT, MOTION, COLOR = ([condition[i] for condition in CONDITIONS] for i in range(3))
CHOICE = [m if c == "motion" else k for c, m, k in CONDITIONS]


def test_floors_by_hand() -> None:
    # Given a choice, its sign of motion is right in 3 of 4 conditions; the context is not known.
    assert correlation_floor(MOTION, CHOICE) == correlation_floor(COLOR, CHOICE) == 0.75
    assert correlation_floor(CHOICE, MOTION) == 0.75
    assert correlation_floor(CONTEXT, CHOICE) == correlation_floor(MOTION, COLOR) == 0.5
    # With the context too: motion is settled in 4 conditions, and open in the other 4.
    assert correlation_floor(MOTION, list(zip(CHOICE, CONTEXT, strict=True))) == 0.75
    assert correlation_floor(CHOICE, CONDITIONS) == 1.0
    # a: x x y, b: y, c: z z -> 2 + 1 + 2 of 6.
    assert correlation_floor(list("xxyyzz"), list("aaabcc")) == pytest.approx(5 / 6)
    assert correlation_floor(torch.tensor([1, 1, 2]), ["k"] * 3) == pytest.approx(2 / 3)


def test_the_table_has_a_row_per_site_and_variable() -> None:
    generator = np.random.default_rng(0)
    labels = {"motion": MOTION * 10, "choice": CHOICE * 10}
    signs = np.array([[m == "+", k == "+"] for _, m, k in CONDITIONS * 10]) * 2.0
    sites = {
        ("blocks.0", 3): generator.standard_normal((80, 3)),
        "signs": torch.tensor(signs + 0.1 * generator.standard_normal((80, 2))),
    }
    options: dict[str, Any] = {"classifier": "svm", "folds": 4, "shuffles": 9, "seed": 2}
    table = decode_table(sites, labels, **options)
    assert list(table.columns) == [
        *("site", "variable", "accuracy", "low", "high", "chance", "floor"),
        *("shuffled", "shuffled_high", "p", "n"),
    ]
    places = [(site, name) for site in sites for name in labels]
    for row, place in zip(table.to_dict("records"), places, strict=True):
        site, name = row.pop("site"), row.pop("variable")
        assert ((site, name), row.pop("floor")) == (place, 0.75)
        decoded = decode(sites[site], labels[name], **options)
        assert row == {column: getattr(decoded, column) for column in row}
    motion, choice = table["accuracy"][2:]
    assert motion == 1.0
    assert choice < 0.8  # not linear in the two signs: at most 3 of 4


def test_the_floor_is_that_of_the_given_variables() -> None:
    labels = {"motion": MOTION * 5, "context": CONTEXT * 5}
    sites = {"noise": np.random.default_rng(0).standard_normal((40, 2))}
    for known, floors in (
        (None, [0.5, 0.5]),
        ({"choice": CHOICE * 5}, [0.75, 0.5]),
        ({"color": COLOR * 5, "motion": MOTION * 5}, [0.5, 0.5]),  # not by itself
        ({"all": CONDITIONS * 5}, [1.0, 1.0]),
        ({}, [0.5, 0.5]),  # chance
    ):
        assert decode_table(sites, labels, shuffles=1, given=known)["floor"].tolist() == floors


def test_balanced_rows_by_hand() -> None:
    motion, choice = MOTION * 5, CHOICE * 5
    rows = balanced(motion, choice, seed=0)
    # 5 of the 15 rows where motion and choice agree, for either sign, and all 5 where they do not.
    assert Counter((motion[i], choice[i]) for i in rows) == dict.fromkeys(
        [("+", "+"), ("+", "-"), ("-", "+"), ("-", "-")], 5
    )
    assert correlation_floor([motion[i] for i in rows], [choice[i] for i in rows]) == 0.5
    assert rows != balanced(motion, choice, seed=1)
    assert rows == balanced(motion, choice, seed=0)
    assert balanced(motion, seed=0) == list(range(40))  # against nothing: the labels alone
    assert len(balanced([*MOTION, "+"], seed=0)) == 8


STATES = np.random.default_rng(0).standard_normal((12, 3))
LABELS = ["a", "b"] * 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS[:5]}, "labels: 5 values; expected 12, one per example"),
        ({"labels": ["a"] * 12}, "all labels are 'a'; expected at least two classes"),
        ({"labels": ["a"] * 9 + ["rare"] * 3}, "class 'rare' has 3 examples for 5 folds; expected"),
        ({"labels": [*LABELS[:11], float("nan")]}, "labels: none in row 11; expected one per"),
        ({"groups": LABELS}, "class 'a' has 1 groups for 5 folds"),
        ({"groups": [0, 1, 2, 1, 2, 0] * 2, "labels": [*"abcabc"] * 2, "folds": 2}, "groups stay"),
        ({"states": STATES[None]}, "states: shape (1, 12, 3); expected [example, unit]"),
        (
            {"states": np.where(np.arange(12)[:, None] == 7, np.inf, STATES)},
            "states: inf at example 7, unit 0",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"states": STATES, "labels": LABELS, **change}
    with pytest.raises(InputError, match=re.escape(message)):
        decode(**arguments)
