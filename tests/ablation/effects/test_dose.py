"""Ablation by degrees against Hugging Face's model with torch hooks, and its verdicts by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from ablation.few import encoded, means_of, plain_margin
from helpers import Cases, mlp_output

from mechcore.ablation import ablate
from mechcore.ablation.effects.dose import DOSE, _monotone, dose_table, repairs
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.evaluation.intervals import Sample


def test_doses_and_the_direct_effect_are_those_of_plain_hooks(cases: Cases) -> None:
    case, data = cases.get("gpt2"), encoded("gpt2")
    means = means_of(case.model, data)
    table = dose_table(case.model, ["L0.MLP", "L0.H1", "L1.MLP"], data, means, split="ood")
    DOSE.check(table)
    whole = Mask.full(ModelShape.of(case.model))
    with torch.no_grad():
        full = plain_margin(case.reference, data, means, whole.values)
        for _, row in table.iterrows():
            without = whole.without(row["component"]).values
            for dose in (25, 50, 75, 100):
                values = 1 - dose / 100 * (1 - without)
                change = plain_margin(case.reference, data, means, values) - full
                assert row[f"change_{dose}"] == pytest.approx(float(change), abs=1e-5)

        # The answer alone: what reads the last residual stream sees the mean in the MLP's place.
        put_out: list[torch.Tensor] = []
        parent, name = mlp_output(case.reference, 0)
        keep = getattr(parent, name).register_forward_hook(lambda *args: put_out.append(args[2]))
        cut = case.reference.transformer.ln_f.register_forward_pre_hook(
            lambda module, args: (args[0] + means.mlp[0].float() - put_out[-1],)
        )
        blind = plain_margin(case.reference, data, means, whole.values)
        keep.remove()
        cut.remove()
    first = table.iloc[0]
    assert first["direct"] == pytest.approx(float(blind - full), abs=1e-5)
    assert first["direct"] + first["indirect"] == pytest.approx(first["change_100"], abs=1e-6)
    last = table.iloc[2]  # nothing but the answer runs after it
    assert last["indirect"] == pytest.approx(0, abs=1e-5)
    [answers] = ablate(case.model, ["L1.MLP"], data, means, split="ood").without.values()
    assert last["change_100"] == pytest.approx(answers.margin.mean() - float(full), abs=1e-5)
    with pytest.raises(InputError, match="L9"):
        dose_table(case.model, ["L9.H0"], data, means)


def test_verdicts_on_doses() -> None:
    noise = np.tile([-0.1, 0.1], 50)
    growing = np.stack([0.1 + noise, 0.3 + noise, 0.6 + noise, 1 + noise])
    assert _monotone(growing, Sample()) == "yes"
    assert _monotone(-growing, Sample()) == "yes"
    falls = growing.copy()
    falls[0] += 0.4  # 0.5, 0.3, 0.6, 1: the second dose takes 0.2 from it, of every example
    assert _monotone(falls, Sample()) == "no"
    falls[1] += 20 * noise  # by 0.2 with a standard error of 0.2
    assert _monotone(falls, Sample()) == "open"
    ends = ("direct_low", "direct_high", "indirect_low", "indirect_high", "change_100")
    for values, expected in {
        (2, 3, -2, -1, 1): True,
        (-3, -2, 1, 2, -1): True,
        (1, 2, 1, 2, 3): False,
        (2, 3, -1, 1, 2.5): False,
        (-1, 1, -2, -1, -1.5): False,
        (0.1, 0.2, -4, -3, -3.4): False,  # far more than the direct effect: mediated, not repaired
        (float("nan"), float("nan"), -2, -1, 1): False,
    }.items():
        assert repairs(pd.Series(dict(zip(ends, values, strict=True)))) == expected
