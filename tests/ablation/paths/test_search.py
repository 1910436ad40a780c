"""Paths that cost most are found by derivatives, and measured on examples that did not choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation.few import encoded, means_of
from helpers import Cases

from mechcore.ablation import ablate, sets
from mechcore.ablation.engines.path_cuts import changed_with
from mechcore.ablation.halves import halves_of
from mechcore.ablation.paths import find_paths, path_table
from mechcore.ablation.paths.screening import Screening
from mechcore.components import Mask
from mechcore.components.paths import PathSet, Receiver
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.blinding import Blindness
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import model_inputs

CUTS = ("L0.H1>L1.H2", "L0.H1>L1.H3.k", "L0.H0+L0.H1>L0.MLP", "L0.MLP>L1.H0.v", "L0.H2>L1.MLP")
STEP = 2e-3


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt2-lm"])
def test_predictions_are_derivatives(cases: Cases, name: str) -> None:
    """Of the change, as a receiver goes from what it puts out towards what it would."""
    model, data = cases.get(name, torch.float64).model, encoded(name)
    means, cuts = means_of(model, data), [PathSet.of(each) for each in CUTS]
    screening = Screening(model, data, means, cuts, "mean", None)
    found = screening.changes(len(data), seed=0, batch_size=3)
    readout = Readout.of(model, data, None)
    correct = readout.correct_classes(data)
    for cut, change in zip(cuts, found.tolist(), strict=True):
        [(receiver, senders)] = cut.senders.items()
        lost = 0.0
        for batch in data.batches(4):
            index, inputs = batch["index"], model_inputs(model, batch)
            fill = Blindness(model, means, 0, senders, receiver.input, "mean")
            fill.read(inputs)
            lost -= slope(model, means, fill, receiver, inputs, readout, correct[index], index)
        assert change == pytest.approx(-lost / len(data), abs=1e-4, rel=1e-3), str(cut)


def test_the_answers_own_paths_are_exact(cases: Cases) -> None:
    model, data = cases.get("bert").model, encoded()
    means, cut = means_of(model, data), PathSet.of("L0.H1>answer")
    screening = Screening(model, data, means, [cut], "mean", None)
    (found,) = screening.changes(9, seed=3, batch_size=2)
    rows = np.random.default_rng(3).permutation(len(data))[:9]
    exact = ablate(model, [cut], data, means, split="ood")
    assert float(found) == pytest.approx(float(exact.changes(cut, "margin")[rows].mean()), abs=1e-5)


def slope(
    model: Any,
    means: MeanActivations,
    fill: Blindness,
    receiver: Receiver,
    inputs: Any,
    readout: Readout,
    correct: torch.Tensor,
    index: torch.Tensor,
) -> float:
    """Of the sum of margins, from three points on the way."""
    full = Mask.full(model)
    points = []
    for step in (0, STEP, 2 * STEP):
        values = full.values.double().clone()
        for each in changed_with(model, receiver):
            values[full.shape.index(each)] = 1 - step
        mask = Mask(values, has_mlps=full.shape.has_mlps)
        with torch.no_grad(), masked(model, mask, means, lambda *_: fill) as run:
            logits = readout.read(run(inputs), inputs, index)
        points.append(margins(logits, correct).sum().item())
    return (4 * points[1] - points[2] - 3 * points[0]) / (2 * STEP)


OPTIONS: dict[str, Any] = {"split": "ood", "batch_size": 3, "seed": 2}


def test_a_search_reports_what_it_did_not_see(cases: Cases) -> None:
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data)
    cuts = sets.paths("all", "all", model, together=False)
    search = find_paths(model, data, means, cuts, n_cut=12, n_found=3, **OPTIONS)
    searched, reported = halves_of(data, "all", 2)
    exact = ablate(model, cuts, searched, means, split="ood")
    changes = {str(each): float(exact.changes(each, "margin").mean()) for each in cuts}
    screening = search.screening.set_index("set")
    assert len(screening) == len(cuts) == search.n_screened_out + 12
    assert screening["predicted"].abs().is_monotonic_decreasing
    cut = screening["margin_change"].dropna()
    assert list(cut.index) == list(screening.index[:12])
    assert cut.to_dict() == pytest.approx({name: changes[name] for name in cut.index}, abs=1e-5)
    largest = cut.abs().sort_values(ascending=False).index[:3]
    assert list(map(str, search.found.without)) == list(largest)
    assert search.rank_correlation > 0.9
    every = np.corrcoef([changes[name] for name in screening.index], screening["predicted"])[0, 1]
    assert every > 0.9
    unseen = ablate(model, list(search.found.without), reported, means, split="ood")
    table, expected = (path_table(each, n_resamples=20) for each in (search.found, unseen))
    np.testing.assert_allclose(table["margin_change"], expected["margin_change"], atol=1e-5)
    assert "best" in repr(search)


def test_a_search_goes_on_where_it_stopped(
    cases: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data)
    cuts = sets.paths("heads", ["mlps", "answer"], model, together=False)
    options = {**OPTIONS, "n_cut": 4, "batch_size": 1, "state": tmp_path}
    whole = find_paths(model, data, means, cuts, **{**options, "state": None})
    of_batch, calls = Screening._of_batch, 0

    def stopping(self: Screening, rows: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return of_batch(self, rows)

    monkeypatch.setattr(Screening, "_of_batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        find_paths(model, data, means, cuts, **options)
    again = find_paths(model, data, means, cuts, **options)
    assert calls == 1 + len(halves_of(data, "all", 2)[0])
    assert again.screening.equals(whole.screening)
    fewer = find_paths(model, data, means, cuts[1:], **options)
    expected = find_paths(model, data, means, cuts[1:], **{**options, "state": None})
    assert fewer.screening.equals(expected.screening)


@pytest.mark.parametrize(
    ("cuts", "options", "message"),
    [
        ([], {}, "none to search"),
        (["L0.H1>L1.H1+L1.H2"], {}, "found 2 receivers; expected one"),
        (["L0.H1>L1.H1"], {"n_found": 0}, "n_found is 0; expected at least 1"),
        (["L0.H1>L1.H1"] * 2, {}, "L0.H1>L1.H1 is given more than once; leave one out"),
        (["L0.H1>L1.H1"], {"fill": "resample"}, "expected 'mean' or 'zero'"),
        (["L0.H1>L1.H1"], {"subset": "w"}, "no subset 'w'; the data has u, v"),
    ],
)
def test_what_is_refused(
    cases: Cases, cuts: list[str], options: dict[str, Any], message: str
) -> None:
    model, data = cases.get("bert").model, encoded()
    given = [PathSet.of(each) for each in cuts]
    with pytest.raises(InputError, match=message):
        find_paths(model, data, means_of(model, data), given, **OPTIONS, **options)
