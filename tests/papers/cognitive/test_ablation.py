"""Changes against copies of the checkpoint with edited weights, run by Hugging Face alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from scipy import stats

from mechcore.components import ModelShape
from mechcore.errors import InputError
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.papers.cognitive import ablation
from mechcore.papers.cognitive.ablation import ablation_tables, centre_of_mass
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.papers.cognitive.trials import encode_trials, generate

LAYERS, HEADS = 3, 2
WHOLE = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
NAMES = [f"L{layer}.H{head}" for layer, head in WHOLE]
TRIALS = generate(96, 5, split="test", random_order=True)
N_RESAMPLES = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cognitive") / "gpt2"
    sizes = {"vocab_size": len(tiny_tokenizer()), "n_layer": LAYERS, "n_head": HEADS}
    model = helpers.gpt2_language_model(2, **sizes, pad_token_id=0)
    with torch.no_grad():  # heads that matter, so that answers differ between trials
        for block in model.transformer.h:
            block.attn.c_attn.weight *= 2
            block.attn.c_proj.weight *= 10
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    model: Any = hf.AutoModelForCausalLM
    return model.from_pretrained(checkpoint, attn_implementation="eager").eval()


@pytest.fixture(scope="module", params=["bridge", pytest.param("hooked", marks=pytest.mark.hooked)])
def model(checkpoint: Path, request: pytest.FixtureRequest) -> Any:
    return load_model(checkpoint, backend=request.param)


MEANT = generate(24, 8)


def means_of(model: Any) -> MeanActivations:
    return MeanActivations.compute(model, encode_trials(MEANT, tiny_tokenizer(), max_length=20))


def answered(reference: Any) -> np.ndarray:
    """How much more the model gives the right answer than the wrong one, in nats."""
    tokenizer = tiny_tokenizer()
    rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in TRIALS.frame["text"]]
    left, right = tokenizer.convert_tokens_to_ids(["left", "right"])
    logits = helpers.reference_logits(reference, rows).double()
    sign = np.where(TRIALS.frame["label"] == "right", 1, -1)
    return np.asarray(sign * (logits[:, right] - logits[:, left]).numpy())


def mean_vectors(reference: Any) -> dict[tuple[int, int], torch.Tensor]:
    """Mean outputs of the heads over all tokens of the trials of `means_of`."""
    rows = [torch.tensor(tiny_tokenizer()(text)["input_ids"]) for text in MEANT.frame["text"]]
    z = torch.cat([helpers.captured(reference, row)[0] for row in rows], dim=1).mean(1)
    return {(layer, head): z[layer].view(HEADS, -1)[head] for layer, head in WHOLE}


@pytest.fixture(scope="module")
def tables(model: Any) -> dict[str, pd.DataFrame]:
    return ablation_tables(
        model, tiny_tokenizer(), TRIALS, means_of(model), n_resamples=N_RESAMPLES
    )


@pytest.fixture(scope="module")
def expected(reference: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Changes of accuracy and of margin by fill, [head, trial]."""
    full = answered(reference)
    zeros = dict.fromkeys(WHOLE, torch.zeros(helpers.D_MODEL // HEADS))
    changes = {}
    for fill, vectors in (("mean", mean_vectors(reference)), ("zero", zeros)):
        margins = np.stack(
            [answered(helpers.edited(reference, {at: vectors[at]}, {})) for at in WHOLE]
        )
        assert np.abs(margins).min() > 1e-5, "a tie, which rounding may break either way"
        changes[fill] = ((margins > 0) - (full > 0).astype(float), margins - full)
    return changes


INCONGRUENT = ~TRIALS.frame["congruent"].to_numpy(dtype=bool)


def resampled(changes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.stack([changes[:, chosen].mean(1) for chosen in rows])


def draws(n: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.stack([generator.integers(n, size=n) for _ in range(N_RESAMPLES)])


def ends_of(changes: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Of intervals of answers: half a trial more is lost and half a one won, and one is neither."""
    values = np.concatenate([changes, np.tile([1.0, -1.0, 0.0], (len(changes), 1))], axis=1)
    weights = np.array([*np.ones(changes.shape[1]), 0.5, 0.5, 1])
    centre = np.average(values, axis=1, weights=weights)
    variance = np.average((values - centre[:, None]) ** 2, axis=1, weights=weights)
    reach = stats.t.ppf((1 + level) / 2, changes.shape[1] - 1) * np.sqrt(variance / weights.sum())
    return centre - reach, centre + reach


def surely_lost(changes: np.ndarray) -> np.ndarray:
    """Whether the interval is below 0 that leaves out 5 % over the number of heads."""
    return np.asarray(ends_of(changes, 1 - 0.05 / len(changes))[1] < 0)


def mass_centre(changes: Sequence[float]) -> float:
    """By a plain loop over the heads of `WHOLE`."""
    pairs = [(layer, max(-change, 0)) for (layer, _), change in zip(WHOLE, changes, strict=True)]
    total = sum(weight for _, weight in pairs)
    return sum(layer * weight for layer, weight in pairs) / total if total else float("nan")


def test_changes_against_edited_weights(tables: Any, expected: Any) -> None:
    table = tables["cognitive_ablation"]
    assert table.columns.tolist() == [
        *("fill", "component", "layer", "head", "n", "change", "low", "high", "sure"),
        *("incongruent_change", "incongruent_low", "incongruent_high", "margin_change"),
    ]
    rows = table[["fill", "component", "layer", "head", "n"]].values.tolist()
    places = [*zip(NAMES, WHOLE, strict=True)]
    assert rows == [[fill, name, *at, 96] for fill in ("mean", "zero") for name, at in places]
    for fill, rows in table.groupby("fill"):
        accuracy, margin = expected[fill]
        assert (accuracy.mean(1) != 0).sum() >= 4, "too few changes to compare"
        np.testing.assert_allclose(rows["change"], accuracy.mean(1), atol=1e-12)
        on_incongruent = accuracy[:, INCONGRUENT].mean(1)
        assert not np.allclose(on_incongruent, accuracy.mean(1))
        np.testing.assert_allclose(rows["incongruent_change"], on_incongruent, atol=1e-12)
        np.testing.assert_allclose(rows["margin_change"], margin.mean(1), atol=1e-5)
    mean, zero = (rows["change"] for _, rows in table.groupby("fill"))
    assert not np.allclose(mean, zero)


def test_intervals_are_those_of_answers(tables: Any, expected: Any) -> None:
    table = tables["cognitive_ablation"]
    for fill, rows in table.groupby("fill"):
        accuracy = expected[fill][0]
        for prefix, changes in (("", accuracy), ("incongruent_", accuracy[:, INCONGRUENT])):
            ends = ends_of(changes)
            np.testing.assert_allclose(rows[f"{prefix}low"], ends[0], atol=1e-12)
            np.testing.assert_allclose(rows[f"{prefix}high"], ends[1], atol=1e-12)
        assert rows["sure"].tolist() == surely_lost(accuracy).tolist()


def test_masses_against_loops_over_heads_and_resamples(tables: Any, expected: Any) -> None:
    table = tables["cognitive_mass"]
    places = [("mean", "all"), ("mean", "incongruent"), ("zero", "all"), ("zero", "incongruent")]
    assert list(zip(table["fill"], table["subset"], strict=True)) == places
    assert table["n"].tolist() == [96, 48] * 2
    for row in table.itertuples():
        changes = expected[row.fill][0]
        changes = changes[:, INCONGRUENT] if row.subset == "incongruent" else changes
        means, again = changes.mean(1), resampled(changes, draws(changes.shape[1]))
        centre = mass_centre(means)
        assert row.centre == pytest.approx(centre)
        centres = np.array([mass_centre(drawn) for drawn in again])
        assert row.undefined == np.isnan(centres).mean()
        defined = centres[~np.isnan(centres)]
        low, high = np.quantile(defined, [0.025, 0.975]) + centre - np.median(defined)
        assert row.low == pytest.approx(max(low, 0))
        assert row.high == pytest.approx(min(high, LAYERS - 1))
        assert row.low <= row.centre <= row.high
        assert row.total_change == pytest.approx(sum(min(mean, 0) for mean in means))
        share = (min(means[0], 0) + min(means[1], 0)) / row.total_change
        assert row.first_layer_share == pytest.approx(share)
        assert row.strongest == NAMES[int(means.argmin())]
        assert row.n_significant == surely_lost(changes).sum()


def test_the_mass_of_significant_heads_against_a_loop() -> None:
    generator = np.random.default_rng(0)
    lost = np.array([[0.3], [0.02], [0.0], [0.02], [0.2], [0.02]])
    changes = -(generator.random((6, 200)) < lost).astype(float)
    changes[[1, 3, 5]] += generator.random((3, 200)) < 0.02
    chosen = ends_of(changes)[1] < 0
    assert chosen.tolist() == [True, False, False, False, True, False]
    shape = ModelShape(LAYERS, HEADS)
    row = ablation._mass(changes, chosen, shape, N_RESAMPLES)
    assert row["n_significant"] == 2
    wanted = mass_centre(np.where(chosen, changes.mean(1), 0))
    assert row["centre_significant"] == pytest.approx(wanted)
    again = resampled(changes, draws(200))
    kept = np.array([mass_centre(np.where(chosen, drawn, 0)) for drawn in again])
    ends = np.quantile(kept, [0.025, 0.975])
    assert [row["significant_low"], row["significant_high"]] == pytest.approx(ends.tolist())


def test_heads_that_do_nothing_have_no_centre() -> None:
    row = ablation._mass(np.zeros((6, 48)), np.zeros(6, bool), ModelShape(LAYERS, HEADS), 20)
    missing = ("centre", "low", "high", "first_layer_share", "centre_significant")
    assert np.isnan([row[name] for name in (*missing, "significant_low", "significant_high")]).all()
    assert row["strongest"] is None
    assert (row["undefined"], row["total_change"], row["n_significant"]) == (1, 0, 0)


def test_trials_without_an_incongruent_one_are_refused(model: Any) -> None:
    with pytest.raises(InputError, match="none of 48 trials is incongruent"):
        ablation_tables(model, tiny_tokenizer(), TRIALS.rows(~INCONGRUENT), means_of(model))


def test_a_centre_of_mass_by_hand() -> None:
    # (0 * .1 + 1 * (.2 + .1) + 2 * .6) / (.1 + .3 + .6) = 1.5; the positive change counts as 0
    changes = np.array([[-0.1, 0.9], [-0.2, -0.1], [0.0, -0.6]])
    assert centre_of_mass(changes) == pytest.approx(1.5)
    assert np.isnan(centre_of_mass(np.abs(changes)))
    assert np.isnan(centre_of_mass(np.zeros((3, 2))))


def test_one_trial_has_no_interval_of_its_centre() -> None:
    changes = np.array([[0.0], [-1.0], [0.0], [-1.0]])
    mass = ablation._mass(changes, np.ones(4, dtype=bool), ModelShape(2, 2), 20)
    assert mass["centre"] == 0.5
    for name in ("low", "high", "significant_low", "significant_high"):
        assert np.isnan(mass[name])
