"""Planted heads that act by what they attend to are distinguished from others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.in_process import benchmark

from mechcore.attention.knockouts import knockout
from mechcore.components import Mask
from mechcore.data.encoding import encode
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark("knockouts", monkeypatch)


@pytest.mark.parametrize(
    ("cause", "said"), [("by attention", ["repeated"]), ("elsewhere", [])], ids=lambda x: str(x)
)
def test_the_cause_is_identified(planted: Any, cause: str, said: list[str]) -> None:
    for seed in (0, 1):
        table = planted.judged(cause, seed)
        assert planted.causes(table) == said
        rows = table[(table["component"] == "L0.H0") & (table["subset"] == "all")]
        masses = rows.set_index("category")["mass"]
        assert masses["repeated"] == pytest.approx(0.5, abs=0.01), "only pairs look back at texts"
        others = table[~table["component"].isin(["L0.H0", "L1.H0"])]
        assert not others["margin_change"].any()


@pytest.mark.everyday
@pytest.mark.parametrize("cause", ["by attention", "elsewhere"])
def test_a_planted_model_answers_as_computed_by_hand(
    planted: Any, cause: str, tmp_path: Path
) -> None:
    """Log-odds: 6 times the share of the pair that is repeated, less 3; or 3 times the cue."""
    planted.plant(tmp_path, cause, 7)
    model, texts = load_model(tmp_path), planted.texts(12, cause, 7)
    data = encode(texts, planted.tokenizer(), max_length=10, words=True)
    rows = zip(texts.frame["text_a"], texts.frame["text_b"], strict=True)
    pairs = [(a.split(), b.split()) for a, b in rows]
    repeated = np.array([len({*a} & {*b}) for a, b in pairs]) / 3
    cue = np.array([planted.CUES[a[-1]] for a, _ in pairs])
    by_attention = cause == "by attention"
    expected = 6 * repeated - 3 if by_attention else 3 * cue
    hidden = np.full(12, -3.0) if by_attention else expected
    mask, means = Mask.full(model).without("L0.H0"), MeanActivations.compute(model, data)

    def log_odds(**options: Any) -> torch.Tensor:
        logits = evaluate(model, data, in_domain=False, **options).logits
        return logits[:, 1] - logits[:, 0]

    np.testing.assert_allclose(log_odds(), expected, atol=1e-2)
    without = log_odds(mask=mask, means=means, fill=knockout("repeated"))
    np.testing.assert_allclose(without, hidden, atol=2e-2)
