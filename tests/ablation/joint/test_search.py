"""The search for superadditive sets: halves, screening against autograd, what is ablated."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from ablation.few import Runs, plain_margin
from helpers import Case, Cases

from mechcore.ablation import ComponentSet, Search, ablate, find_superadditive, interactions
from mechcore.ablation.engines.engine import TreeEngine
from mechcore.ablation.joint.predictors import MaskedMargins
from mechcore.ablation.joint.search import halves_of
from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import ALL, Examples
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations

SEARCH: Any = importlib.import_module("mechcore.ablation.joint.search")
SUBSETS = {"u": 7, "v": 4, "w": 6}
LABELS = ("entailment", "neutral", "contradiction", "non-entailment")
SMALL = ("L0.H1", "L0.MLP", "L1.H0", "L1.H3", "L1.MLP")


def encoded(name: str = "bert") -> EncodedExamples:
    """17 different pairs of texts in three subsets, mixed."""
    words = helpers.WORDS
    order = np.random.default_rng(0).permutation(sum(SUBSETS.values()))
    rows = [
        {
            "text_a": " ".join(words[i % 11 : i % 11 + 2 + i % 4]),
            "text_b": f"{words[i]} {words[-1 - i]}",
            "label": LABELS[i % 4],
            "subset": subset,
        }
        for i, subset in enumerate(s for s, n in SUBSETS.items() for _ in range(n))
    ]
    frame = pd.DataFrame([rows[i] for i in order])
    options: dict[str, Any] = {}
    if name == "gpt2-lm":
        answers = dict(zip(LABELS[:3], ("yes", "no", "never"), strict=True))
        options = {"prompt": "{a} , {b} .", "answers": answers}
    tokenizer = helpers.word_tokenizer(segments=name == "bert")
    return encode(Examples("searched", frame), tokenizer, max_length=48, **options)


class Searched:
    """A search with the data and the sets of everything that it ablated."""

    def __init__(
        self, cases: Cases, name: str = "bert", *, beam: int = SEARCH.BEAM, **options: Any
    ) -> None:
        self.model, self.data = cases.get(name).model, encoded(name)
        self.means = MeanActivations.compute(self.model, self.data, n_samples=0)
        self.calls: list[tuple[list[ComponentSet], EncodedExamples]] = []

        def recorded(model: Any, sets: Any, data: Any, means: Any, **more: Any) -> Any:
            self.calls.append((list(sets), data))
            return ablate(model, sets, data, means, **more)

        options = {"n_resamples": 5, "batch_size": 3, "split": "ood", **options}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SEARCH, "ablate", recorded)
            patch.setattr(SEARCH, "BEAM", beam)
            self.result: Search = find_superadditive(self.model, self.data, self.means, **options)
        self.searched, self.reported = self.calls[0][1], self.calls[-1][1]

    def exact(self, sets: list[ComponentSet], data: EncodedExamples) -> pd.DataFrame:
        """Interactions on the margin over all examples, by set."""
        alone = {c: ComponentSet((c,)) for cut in sets for c in cut.components}
        swept = ablate(self.model, [*alone.values(), *sets], data, self.means, split="ood")
        table = interactions(swept, n_resamples=2)
        rows = table[(table["metric"] == "margin") & (table["subset"] == "all")]
        return rows.set_index("set")["interaction"]


def sets_of(names: Any) -> list[ComponentSet]:
    return [ComponentSet.of(name.split("+")) for name in names]


def texts_of(data: EncodedExamples) -> list[tuple[str, ...]]:
    columns = ["text_a", "text_b", "label", "subset"]
    return [tuple(row) for row in data.examples.frame[columns].to_numpy().tolist()]


@pytest.fixture(scope="module")
def small(cases: Cases) -> Searched:
    """Five components, of whose ten pairs four are ablated; batches and rows in full."""
    return Searched(cases, components=SMALL, n_pairs=4, beam=2, n_found=3, max_size=4)


def test_the_halves_are_disjoint_and_hold_half_of_every_subset(small: Searched) -> None:
    searched, reported = texts_of(small.searched), texts_of(small.reported)
    assert sorted(searched + reported) == sorted(texts_of(small.data))
    assert not set(searched) & set(reported)
    for subset, n in SUBSETS.items():
        assert sum(row[3] == subset for row in searched) == n // 2
    # Everything is decided on the one half, and only the last sweep runs on the other.
    assert all(data is small.searched for _, data in small.calls[:-1])
    # Rows take their tokens with them.
    rows = {row: i for i, row in enumerate(texts_of(small.data))}
    for data in (small.searched, small.reported):
        places = [rows[row] for row in texts_of(data)]
        assert list(data.input_ids) == [small.data.input_ids[i] for i in places]
        assert small.data.token_type_ids is not None
        assert data.token_type_ids == [small.data.token_type_ids[i] for i in places]
        assert places == sorted(places)


def test_a_subset_or_sample_is_searched_and_the_seed_splits(cases: Cases, small: Searched) -> None:
    halves = []
    for seed in (0, 1):
        search = Searched(cases, components=SMALL[:2], max_size=2, subset="w", seed=seed)
        assert [len(d) for d in (search.searched, search.reported)] == [3, 3]
        both = texts_of(search.searched) + texts_of(search.reported)
        assert sorted(both) == sorted(row for row in texts_of(search.data) if row[3] == "w")
        assert set(search.result.superadditive["subset"]) == {"w", "all"}
        halves.append(texts_of(search.searched))
    assert halves[0] != halves[1]
    few = Searched(cases, components=SMALL, n_pairs=1, max_size=2, screening_examples=2)
    whole = small.result.screening.set_index("set")["predicted"]
    sample = few.result.screening.set_index("set")["predicted"]
    assert (sample - whole[sample.index]).abs().max() > 1e-3
    assert texts_of(few.searched) == texts_of(small.searched)


def oracle(case: Case, data: EncodedExamples, means: MeanActivations) -> dict[str, float]:
    """Predicted interaction of every pair, from plain torch hooks on Hugging Face's model."""
    shape = ModelShape.of(case.model)
    places = {str(c): shape.index(c) for c in shape.components}

    def gradients(without: str | None) -> dict[str, float]:
        values = torch.ones(shape.n_layers, shape.columns)
        if without is not None:
            values[places[without]] = 0
        values.requires_grad_()
        margin = plain_margin(case.reference, data, means, values)
        (gradient,) = torch.autograd.grad(margin, values)
        return {name: float(gradient[place]) for name, place in places.items()}

    start = gradients(None)
    alone = {name: gradients(name) for name in places}
    return {
        f"{a}+{b}": (start[b] - alone[a][b] + start[a] - alone[b][a]) / 2
        for a, b in itertools.combinations(places, 2)
    }


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_screening_predicts_what_gradients_of_the_plain_model_do(cases: Cases, name: str) -> None:
    search = Searched(cases, name, max_size=2, n_pairs=3, subset="w")
    expected = oracle(cases.get(name), search.searched, search.means)
    screening = search.result.screening.set_index("set")
    assert len(screening) == 45
    assert screening["predicted"].to_dict() == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected.values())) > 0.05
    assert screening["predicted"].is_monotonic_increasing


def test_the_best_pairs_by_screening_are_ablated_exactly(small: Searched) -> None:
    result = small.result
    assert (result.n_pairs, result.n_screened_out) == (10, 6)
    assert list(result.screening.columns) == ["set", "predicted", "interaction"]
    assert result.screening["interaction"].notna().tolist() == [True] * 4 + [False] * 6
    pairs = sets_of(result.screening["set"][:4])
    assert small.calls[1][0] == pairs
    exact = small.exact(pairs, small.searched)
    known = result.screening.iloc[:4]
    assert known["interaction"].tolist() == pytest.approx(exact[known["set"]].tolist(), abs=1e-5)
    assert result.n_tested == sum(len(sets) for sets, _ in small.calls[1:-1])


def test_larger_sets_grow_from_the_best_smaller_ones(small: Searched) -> None:
    level = small.calls[1][0]
    for size, (sets, _) in enumerate(small.calls[2:-1], 3):
        exact = small.exact(level, small.searched)
        best = sorted(level, key=lambda s: exact[str(s)])[:2]
        assert {len(cut) for cut in sets} == {size}
        assert len(set(sets)) == len(sets) <= 4
        for grown in sets:
            assert any(set(b.components) < set(grown.components) for b in best)
        level = sets
    assert size == 4
    assert set(small.calls[0][0]) == {ComponentSet((Component(n),)) for n in SMALL}
    # A triple of a pair ablated exactly, with the two pairs that it brings, exact or predicted.
    screening = small.result.screening.set_index("set")
    known = screening["interaction"].fillna(screening["predicted"])
    best = screening["interaction"].nsmallest(2).index
    scores: dict[str, float] = {}
    for pair in best:
        for other in set(SMALL) - set(pair.split("+")):
            triple = str(ComponentSet.of([*pair.split("+"), other]))
            new = [str(ComponentSet.of([other, old])) for old in pair.split("+")]
            scores[triple] = min(scores.get(triple, np.inf), known[[pair, *new]].sum())
    wanted = sorted(scores, key=lambda name: scores[name])[:4]
    assert [str(cut) for cut in small.calls[2][0]] == wanted


def test_the_report_is_of_the_other_half(small: Searched) -> None:
    report = small.result.superadditive
    names = list(dict.fromkeys(report["set"]))
    sizes = [len(cut) for cut in sets_of(names)]
    assert sizes == sorted(sizes)
    assert max(sizes.count(size) for size in sizes) == 3
    members = sorted({c for cut in sets_of(names) for c in cut.components})
    sets = [*(ComponentSet((c,)) for c in members), *sets_of(names)]
    again = ablate(small.model, sets, small.reported, small.means, split="ood", batch_size=3)
    table = interactions(again, n_resamples=5)
    order = table["set"].map({name: i for i, name in enumerate(names)})
    wanted = table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)
    pd.testing.assert_frame_equal(report.drop(columns="interaction_in_search"), wanted)
    # What the search saw: exact interactions on its own half, the lowest of a size first.
    exact = small.exact(sets_of(names), small.searched)
    margin = report[(report["metric"] == "margin") & (report["subset"] == "all")]
    assert margin["interaction_in_search"].tolist() == pytest.approx(exact.tolist(), abs=1e-5)
    for _, rows in margin.groupby("size"):
        assert rows["interaction_in_search"].is_monotonic_increasing
    assert report.loc[report["metric"] == "accuracy", "interaction_in_search"].isna().all()


def test_an_interrupted_search_ends_as_if_it_had_not_been(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Gradients of the full model and four components; then sizes 2 and 3, and the report."""
    work, options = Runs(), {"components": SMALL[:4], "n_pairs": 4, "n_found": 2}
    whole = Searched(cases, **options).result
    gradient = work.watched("gradient", MaskedMargins.gradient)
    monkeypatch.setattr(MaskedMargins, "gradient", gradient)
    monkeypatch.setattr(TreeEngine, "run", work.watched("batch", TreeEngine.run))
    for stop_at in (3, 7):
        work.until(stop_at)
        with pytest.raises(KeyboardInterrupt):
            Searched(cases, **options, state=tmp_path)
    work.until(None)
    result = Searched(cases, **options, state=tmp_path).result
    assert "gradient" not in work.done
    for name in ("superadditive", "screening"):
        tables = getattr(result, name), getattr(whole, name)
        pd.testing.assert_frame_equal(*tables, check_exact=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": []}, "search: 0 components; expected at least two"),
        ({"components": ["L0.H1", "0.1"]}, "search: 1 component; expected at least two"),
        ({"components": ["L0.H1", "L2.H0"]}, r"component L2\.H0: out of range"),
        ({"components": ["L0.H1", "x"]}, "component 'x'"),
        ({"max_size": 1}, "max_size is 1; expected 2 to the 10 components"),
        ({"max_size": 11}, "max_size is 11; expected 2 to the 10 components"),
        ({"components": SMALL[:2]}, "max_size is 3; expected 2 to the 2 components"),
        ({"n_pairs": 0}, "n_pairs is 0; expected at least 1"),
        ({"n_found": 0}, "n_found is 0; expected at least 1"),
        ({"fill": "resample"}, "fill is 'resample'; expected 'mean' or 'zero'"),
        ({"subset": "x"}, "no subset 'x'; the data has "),
    ],
)
def test_what_cannot_be_searched(cases: Cases, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Searched(cases, **options)


def test_subsets_that_are_too_small_are_refused() -> None:
    data = encoded()

    def parts(**wanted: int) -> list[int]:
        names = np.array([row[3] for row in texts_of(data)])
        rows = [row for name, n in wanted.items() for row in np.flatnonzero(names == name)[:n]]
        return [len(half) for half in halves_of(data.part(rows), ALL, 0)]

    with pytest.raises(InputError, match="search: 4 examples of 3 subsets: half of each"):
        parts(u=1, v=1, w=2)
    assert parts(u=2, v=2) == parts(u=4) == [2, 2]


def test_as_many_sets_are_reported_as_are_wanted(cases: Cases) -> None:
    options: dict[str, Any] = {"n_pairs": None, "max_size": 2, "guarantee": 0.5, "largest": 12}
    raced = Searched(cases, **options).result
    assert raced.superadditive["set"].nunique() == len(raced.races[2].decided("top")) == 12
