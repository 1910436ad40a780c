"""Verdicts on hand-made tables, every figure of every sentence worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechcore.errors import InputError
from mechcore.papers.cognitive.evidence import Evidence
from mechcore.papers.cognitive.verdicts import CLAIMS, verdicts
from mechcore.papers.evidence import InconclusiveError, over_seeds, t_interval

Tables: TypeAlias = dict[str, pd.DataFrame]
SUPPORTED, NOT, OPEN = "supported", "not supported", "inconclusive"
BASE, FINE, SCRATCH = "base", "fine_tuned", "scratch"
SEEDS = (0, 1, 2)
EVERY = [(BASE, 0), *((arm, seed) for arm in (FINE, SCRATCH) for seed in SEEDS)]
TRAINED = EVERY[1:]


# -- a study in which every claim is supported ----------------------------------------------------


def by_model(models: Sequence[tuple[str, int]], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The same rows for every model."""
    return pd.DataFrame([{"arm": arm, "seed": seed, **row} for arm, seed in models for row in rows])


def put(table: pd.DataFrame, column: str, values: Any, **where: Any) -> None:
    """Change a column in the rows that have these values; a sequence goes over them in order."""
    chosen = np.ones(len(table), dtype=bool)
    for name, value in where.items():
        chosen &= (table[name] == value).to_numpy()
    assert chosen.any()
    table.loc[chosen, column] = values


def study() -> Tables:
    """Three seeds of both trained arms, four layers that matter little: heads are in two."""
    models = by_model(EVERY, [{"accuracy": 0.96, "low": 0.95, "high": 0.97, "gap": 0.01}])
    put(models, "low", 0.47, arm=BASE)

    samples = by_model(TRAINED, [{"threshold": 0.9, "samples": 400.0, "largest": 25600}])
    put(samples, "samples", [400, 400, 1600], arm=FINE)
    put(samples, "samples", [6400, 25600, 6400], arm=SCRATCH)
    curve = by_model(TRAINED, [{"n": 400, "low": 0.91, "high": 0.94}])
    put(curve, "low", 0.551, arm=SCRATCH)
    put(curve, "high", 0.602, arm=SCRATCH)

    mass = by_model(
        TRAINED,
        [
            {
                "fill": fill,
                "subset": subset,
                "centre": 1.5,
                "low": 1.4,
                "high": 1.6,
                "centre_significant": 1.75,
                "first_layer_share": 0.05,
                "strongest": "L3.H1",
            }
            for fill in ("mean", "zero")
            for subset in ("all", "incongruent")
        ],
    )
    put(mass, "centre", [1.4, 1.5, 1.6], arm=FINE, fill="mean", subset="all")
    for column, value in (
        *(("centre", 0.2), ("low", 0.1), ("high", 0.3), ("centre_significant", 0.05)),
        *(("first_layer_share", 0.85), ("strongest", "L0.H0")),
    ):
        put(mass, column, value, arm=SCRATCH)
    put(mass, "centre", 1.25, arm=FINE, fill="zero")

    heads = [("L0.H0", 0, -0.3), ("L0.H1", 0, -0.1), ("L0.H2", 0, 0.2), ("L1.H0", 1, -0.5)]
    ablation = [
        {"fill": m, "component": c, "layer": layer, "change": change, "sure": change < -0.05}
        for m in ("mean", "zero")
        for c, layer, change in heads
    ]
    ratios = [1.6, 1.2, 9.0, 9.0]  # weights .3 and .1: (.48 + .12) / .4 = 1.5, ends 1.4 and 1.6
    attention = [
        {"component": c, "layer": layer, "ratio": r, "low_ratio": r - 0.1, "high_ratio": r + 0.1}
        for (c, layer, _), r in zip(heads, ratios, strict=True)
    ]
    relation = [{"fill": fill, "rho": rho, "p": 0.01} for fill, rho in (("mean", 0.5), ("zero", 0))]

    return {
        "cognitive_models": models,
        "cognitive_samples": samples,
        "cognitive_curve": curve,
        "cognitive_mass": mass,
        "cognitive_ablation": by_model(EVERY, ablation),
        "cognitive_attention": by_model(EVERY, attention),
        "cognitive_attention_change": by_model(EVERY, relation),
        "cognitive_decoding": by_model(EVERY, decoding_rows()),
        "cognitive_check": by_model(EVERY, [{"holds": True}]),
        "cognitive_svm": by_model(EVERY, svm_rows()),
        "cognitive_selectivity": selectivity(),
        "cognitive_silhouette": silhouette(),
    }


def decoding_rows() -> list[dict[str, Any]]:
    rows = []
    for variable, accuracy in (
        ("context", 0.99),
        ("motion", 0.9),
        ("color", 0.8),
        ("choice", 0.97),
    ):
        for subset in ("all", *["balanced"] * (variable in ("motion", "color"))):
            for layer, position in ((0, "answer"), (1, "context"), (1, "answer")):
                here = (layer, position) == (1, "answer")
                found = accuracy if here and (subset, variable) != ("all", "motion") else 0.51
                rows.append(
                    {
                        "layer": layer,
                        "position": position,
                        "variable": variable,
                        "subset": subset,
                        "accuracy": found,
                        "low": found - 0.02,
                        "high": found + 0.02,
                        "floor": 0.5,
                        "p": 1 / 21,
                    }
                )
    return rows


def svm_rows() -> list[dict[str, Any]]:
    """L1.H0 tells each target best; no other head is above what shuffled labels reach."""
    rows = []
    targets = (("choice", 0.9, 0.5), ("congruent", 0.7, 0.5), ("condition", 0.4, 0.125))
    for target, best, chance in targets:
        for component, accuracy in (("L0.H0", chance), ("L1.H0", best), ("L1.H1", chance)):
            rows.append(
                {
                    "component": component,
                    "target": target,
                    "n": 400,
                    "accuracy": accuracy,
                    "high": accuracy + 0.03,
                    "floor": chance,
                    "p": 1 / 21,
                    "shuffled_high": chance + 0.04,
                }
            )
    return rows


def selectivity() -> pd.DataFrame:
    """Mixed: 70, 72 and 74 % fine-tuned, 70, 70 and 71 % from scratch, 40 % base, 1 % expected."""
    mixed = {(BASE, 0): 0.4} | {(FINE, s): 0.70 + 0.02 * s for s in SEEDS}
    mixed |= {(SCRATCH, s): share for s, share in zip(SEEDS, (0.7, 0.7, 0.71), strict=True)}
    rows = []
    for (arm, seed), share in mixed.items():
        shares = [0.8 - share, 0.2, share - 0.1, 0.06, 0.04]
        expected = [0.95, 0.04, 0.008, 0.002, 0]
        for n, (found, by_noise) in enumerate(zip(shares, expected, strict=True)):
            row = {"n_variables": n, "share": found, "expected_correlated": by_noise}
            rows.append({"arm": arm, "seed": seed, **row})
    return pd.DataFrame(rows)


def silhouette() -> pd.DataFrame:
    rows = [
        {"space": space, "variable": variable, "method": "pca", "silhouette": 0.05, "null_95": 0.02}
        for space in ("states", "points")
        for variable in ("context", "choice")
    ]
    table = by_model(EVERY, rows)
    put(table, "silhouette", [0.2, 0.22, 0.24], arm=FINE, space="states", variable="context")
    put(table, "silhouette", 0.3, arm=FINE, space="states", variable="choice")
    put(table, "silhouette", 0.4, arm=FINE, space="points", variable="context")
    put(table, "silhouette", 0.6, arm=FINE, space="points", variable="choice")
    return table


def of_seeds(tables: Tables, seeds: Sequence[int]) -> Tables:
    """The study with these seeds alone; the base model stays."""
    return {name: t[t["seed"].isin(seeds) | (t["arm"] == BASE)] for name, t in tables.items()}


def judged(tables: Tables, claim: int, gap: float = 0.02) -> tuple[str, str]:
    """Verdict and figure of one claim, without the work for the others."""
    _, judge = CLAIMS[claim - 1]
    try:
        found = judge(Evidence(tables, gap))
    except InconclusiveError as reason:
        return OPEN, str(reason)
    return found.verdict, found.figure


# -- all of them ----------------------------------------------------------------------------------

SENTENCES = {
    1: (
        "To reach 90.0 % accuracy the fine-tuned arm needs 400 examples, the arm from scratch "
        "6,400, 16 times as many (medians over the seeds). Met in 3 of 3 seeds."
    ),
    # Differences 1.2, 1.3, 1.4: standard error .1 / sqrt 3, times 4.303 is .248.
    2: (
        "Centre of mass of the changes under mean ablation, layers from 0: 1.50 fine-tuned, 0.20 "
        "from scratch, a difference of 1.30 layers ([1.05, 1.55], t interval over 3 seeds). Of the "
        "heads alone whose change is surely below 0: 1.75 and 0.05. Under zero ablation: 1.25 and "
        "0.20. The most damaging head is in layer 0 in 3 of 3 models from scratch and in 0 of 3 "
        "fine-tuned; layer 0 has 85.0 % of what is lost from scratch and 5.0 % fine-tuned."
    ),
    3: (
        "Weighted by what their ablation costs, the heads of layer 0 from scratch give the numbers "
        "1.50 times the attention of a uniform head (3 seeds: 1.50 [1.40, 1.60], 1.50 [1.40, "
        "1.60], 1.50 [1.40, 1.60]). Met in 3 of 3 seeds. Fine-tuned, the same is 1.50 (3 seeds). "
        "Rank correlation of attention to the numbers with the change, over all heads from "
        "scratch: 0.50 (p at most 0.05 in 3 of 3 seeds)."
    ),
    4: (
        "Decoded from layer 1 (from 0) at the answer, fine-tuned, means over 3 seeds: context "
        "99.0 % (floor 50.0 %), motion 90.0 % (floor 50.0 %), color 80.0 % (floor 50.0 %), choice "
        "97.0 % (floor 50.0 %). Above the floor in every seed: context, motion, color, choice. Met "
        "in 3 of 3 seeds. In every base model: context, motion, color, choice. In every model from "
        "scratch: context, motion, color, choice."
    ),
    # Rises .30, .32, .34: standard error .02 / sqrt 3, times 4.303 is .050.
    5: (
        "Units of the last layer that follow two variables or more: 72.0 % fine-tuned, 40.0 % base "
        "(1.0 % and 1.0 % expected if they followed none); 3 seeds. More than base by 32.0 points "
        "[27.0, 37.0], than expected by 71.0 points [66.0, 76.0]. From scratch it is 70.3 % (3 "
        "seeds), also more: it is not specific to fine-tuning."
    ),
    6: (
        "A linear classifier tells the fine-tuned model's answer from the output of one head in "
        "90.0 % of trials (best head, mean over 3 seeds: L1.H0; floor 50.0 %, 95th percentile of "
        "shuffles 54.0 %). Above that after Bonferroni: 1 of 3 heads. Met in 3 of 3 "
        "seeds. Best head for congruence: 70.0 % (floor 50.0 %). Best head for the 8 conditions: "
        "40.0 % (floor 12.5 %)."
    ),
    7: (
        "Silhouettes of last-layer states. By context: 0.22 fine-tuned (95th percentile of its "
        "null 0.02, above it in 3 of 3 seeds), 0.05 base, a difference of 0.17 [0.12, 0.22]. By "
        "choice: 0.30 fine-tuned (95th percentile of its null 0.02, above it in 3 of 3 seeds), "
        "0.05 base, a difference of 0.25 [0.25, 0.25]. In two dimensions (PCA): 0.40 and 0.60."
    ),
}


def test_every_claim_of_a_study_that_confirms_them_holds() -> None:
    found = verdicts(study())
    assert list(found.columns) == ["claim", "title", "verdict", "figure"]
    assert found["claim"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found["title"].is_unique
    assert found["verdict"].tolist() == [SUPPORTED] * 7
    assert dict(zip(found["claim"], found["figure"], strict=True)) == SENTENCES


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("cognitive_samples", [1]),
        ("cognitive_mass", [2]),
        ("cognitive_ablation", [3]),
        ("cognitive_attention", [3]),
        ("cognitive_decoding", [4]),
        ("cognitive_selectivity", [5]),
        ("cognitive_svm", [6]),
        ("cognitive_silhouette", [7]),
        ("cognitive_models", [2, 3, 4, 5, 6, 7]),
        ("cognitive_curve", []),  # asked for with one seed
        ("cognitive_attention_change", []),  # these decide nothing
        ("cognitive_check", []),
    ],
)
def test_a_missing_table_leaves_its_claims_open(name: str, claims: list[int]) -> None:
    tables = study()
    del tables[name]
    found = verdicts(tables).set_index("claim")
    for claim in range(1, 8):
        if claim in claims:
            assert found.loc[claim, "verdict"] == OPEN
            assert found.loc[claim, "figure"] == f"There is no table {name}."
        else:
            assert found.loc[claim, "verdict"] == SUPPORTED


@pytest.mark.parametrize(
    ("arm", "claims"), [(BASE, [5, 7]), (FINE, [1, 2, 4, 5, 6, 7]), (SCRATCH, [1, 2, 3])]
)
def test_a_missing_arm_leaves_its_claims_open(arm: str, claims: list[int]) -> None:
    tables = {name: table[table["arm"] != arm] for name, table in study().items()}
    found = verdicts(tables).set_index("claim")
    for claim in range(1, 8):
        verdict, figure = found.loc[claim, ["verdict", "figure"]]
        assert verdict == (OPEN if claim in claims else SUPPORTED)
        if claim in claims:
            assert f"has no row of arm {arm}" in str(figure)


def test_models_that_have_not_learned_the_task_say_nothing_about_it() -> None:
    tables = study()
    put(tables["cognitive_models"], "accuracy", 0.76, arm=FINE)
    put(tables["cognitive_models"], "low", 0.75, arm=FINE)
    found = verdicts(tables)
    assert found["verdict"].tolist() == [SUPPORTED, OPEN, SUPPORTED, OPEN, OPEN, OPEN, OPEN]
    reason = (
        "Seed 0 is left out: the fine-tuned model has not learned the task, its accuracy is 76.0 % "
        "and its interval begins at 75.0 %, not above the 75.0 % of ignoring the context."
    )
    assert all(reason in figure for figure in found["figure"][found["verdict"] == OPEN])


def test_a_seed_that_is_left_out_is_named_and_the_rest_decide() -> None:
    tables = study()
    put(tables["cognitive_models"], "gap", 0.03, seed=1)
    verdict, figure = judged(tables, 2)
    # Differences 1.2 and 1.4: standard error .1, times 12.706 is 1.27.
    assert verdict == SUPPORTED
    assert "1.30 layers ([0.03, 2.57], t interval over 2 seeds)" in figure
    assert figure.endswith(
        "Seed 1 is left out: the arms are not matched, their accuracies differ by 3.0 points, more "
        "than 2.0 points."
    )
    assert judged(tables, 2, gap=0.03)[1] == SENTENCES[2]
    assert verdicts(tables, threshold_gap=0.03)["figure"][1] == SENTENCES[2]


def test_a_gap_of_just_the_threshold_is_matched() -> None:
    tables = study()
    put(tables["cognitive_models"], "gap", 0.96 - 0.94)  # 0.020000000000000018
    assert judged(tables, 2) == (SUPPORTED, SENTENCES[2])
    put(tables["cognitive_models"], "gap", 0.0201)
    assert judged(tables, 2)[0] == OPEN


def test_a_table_without_a_column_is_refused() -> None:
    tables = study()
    tables["cognitive_mass"] = tables["cognitive_mass"].drop(columns=["centre", "seed"])
    with pytest.raises(InputError, match="table cognitive_mass: no column seed, centre, found arm"):
        verdicts(tables)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cognitive_models", "several rows of arm fine_tuned, seed 0; expected one"),
        ("cognitive_samples", r"thresholds \[0.9\]; expected one, and a row for each arm"),
        (
            "cognitive_mass",
            "several rows of arm fine_tuned, fill mean, subset all, seed 0; expected",
        ),
        ("cognitive_attention", r"3 and 6 rows of layer 0 of the model from scratch of"),
        ("cognitive_svm", "several rows of .*target choice, component L0.H0; expected one"),
        ("cognitive_selectivity", r"several rows of arm base, seed 0, n_variables 0; expected one"),
        ("cognitive_silhouette", "several rows of .*variable context, seed 0; expected one"),
    ],
)
def test_rows_that_come_twice_are_refused(name: str, message: str) -> None:
    tables = study()
    tables[name] = pd.concat([tables[name]] * 2)
    with pytest.raises(InputError, match=message):
        verdicts(tables)


# -- every claim: what makes it fail or leaves it open --------------------------------------------

Change: TypeAlias = Callable[[Tables], None]


def change(name: str, column: str, values: Any, **where: Any) -> Change:
    return lambda tables: put(tables[name], column, values, **where)


def expect(tables: Tables, claim: int, changes: Sequence[Change], verdict: str, text: str) -> None:
    for each in changes:
        each(tables)
    found, figure = judged(tables, claim)
    assert text in figure
    assert found == verdict


NAN = float("nan")
samples, curve = "cognitive_samples", "cognitive_curve"


@pytest.mark.parametrize(
    ("fine", "scratch", "verdict", "text"),
    [
        (
            [100, 100, 100],
            [NAN, NAN, NAN],
            SUPPORTED,
            "100 examples, the arm from scratch more than 25,600, more than 256 times as many",
        ),
        ([100, 100, 100], [400, 1600, NAN], SUPPORTED, "scratch 1,600, 16 times as many"),
        ([6400] * 3, [400] * 3, NOT, "0.0625 times as many (medians over the seeds). Met in 0 of"),
        ([NAN] * 3, [400] * 3, NOT, "needs more than 25,600 examples, the arm from scratch 400 ("),
        ([400] * 3, [400] * 3, OPEN, "from scratch 400, as many (medians"),
        ([400] * 3, [400] * 3, OPEN, "Met in 0 of 3 seeds, contradicted in 0, open in 3."),
        ([NAN] * 3, [NAN] * 3, OPEN, "needs more than 25,600 examples, the arm from scratch more"),
        ([400] * 3, [1600, 1600, 100], OPEN, "Met in 2 of 3 seeds, contradicted in 1, open in 0."),
        ([400] * 3, [1600, 100, 100], NOT, "Met in 1 of 3 seeds, contradicted in 2, open in 0."),
    ],
)
def test_samples(fine: list[float], scratch: list[float], verdict: str, text: str) -> None:
    changes = [
        change(samples, "samples", fine, arm=FINE),
        change(samples, "samples", scratch, arm=SCRATCH),
    ]
    expect(study(), 1, changes, verdict, text)


def test_an_arm_that_was_not_tried_with_as_many_examples_says_nothing() -> None:
    for arm in (FINE, SCRATCH):
        changes = [
            change(samples, "samples", NAN, arm=arm),
            change(samples, "largest", 100, arm=arm),
        ]
        expect(study(), 1, changes, OPEN, "contradicted in 0, open in 3.")


def test_samples_of_one_seed_are_judged_by_the_models_own_intervals() -> None:
    tables = of_seeds(study(), (0,))
    verdict, figure = judged(tables, 1)
    assert verdict == SUPPORTED
    assert figure == (
        "To reach 90.0 % accuracy the fine-tuned arm needs 400 examples, the arm from scratch "
        "6,400, 16 times as many. With one seed judged by the models' own intervals: with 400 "
        "examples their accuracies in percent are [91.0, 94.0] and [55.1, 60.2]. Met in 1 of 1 "
        "seed."
    )
    put(tables[curve], "high", 0.91, arm=SCRATCH)
    assert judged(tables, 1)[0] == OPEN
    tables[curve] = tables[curve][tables[curve]["arm"] == FINE]
    assert judged(tables, 1) == (
        OPEN,
        "Table cognitive_curve has no row of arm scratch, seed 0, n 400.",
    )


def test_samples_of_one_seed_the_other_way() -> None:
    tables = of_seeds(study(), (0,))
    put(tables[samples], "samples", 6400, arm=FINE)
    put(tables[samples], "samples", 400, arm=SCRATCH)
    assert judged(tables, 1)[0] == OPEN  # scratch is not better where it got there
    put(tables[curve], "low", 0.95, arm=SCRATCH)
    put(tables[curve], "high", 0.97, arm=SCRATCH)
    assert judged(tables, 1)[0] == NOT


# 2

mass = "cognitive_mass"
main = {"fill": "mean", "subset": "all"}


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (  # differences 1.2, -1, .1: mean .1, standard deviation 1.1, half 2.73
            [change(mass, "centre", [0.2, 2.5, 1.5], arm=SCRATCH, **main)],
            OPEN,
            "0.10 layers ([\u22122.63, 2.83], t interval over 3 seeds)",
        ),
        (
            [
                change(mass, "centre", 2.8, arm=SCRATCH, **main),
                change(mass, "centre_significant", 2.8, arm=SCRATCH),
                change(mass, "high", 2.9, arm=SCRATCH),
            ],
            NOT,
            "\u22121.30 layers ([\u22121.55, \u22121.05], t interval over 3 seeds)",
        ),
        (
            [
                change(mass, "low", 1.7, arm=SCRATCH, seed=1),
                change(mass, "high", 1.9, arm=SCRATCH, seed=1),
            ],
            OPEN,
            "The two models of a seed differ the other way by their intervals.",
        ),
        (
            [change(mass, "centre_significant", 2.5, arm=SCRATCH)],
            OPEN,
            "The heads alone whose change is surely below 0 say the opposite.",
        ),
        (
            [change(mass, "centre_significant", NAN, arm=SCRATCH)],
            OPEN,
            "Seed 2 is left out: no head of the model from scratch has a change that is surely "
            "below 0.",
        ),
    ],
)
def test_layers(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 2, changes, verdict, text)


def test_layers_of_one_seed_are_judged_by_the_models_own_intervals() -> None:
    tables = of_seeds(study(), (0,))
    verdict, figure = judged(tables, 2)
    assert verdict == SUPPORTED
    assert (
        "1.20 layers (1 seed, judged by the models' own intervals, [1.40, 1.60] and [0.10, 0.30])"
        in figure
    )
    put(tables[mass], "high", 1.4, arm=SCRATCH)
    verdict, figure = judged(tables, 2)
    assert verdict == OPEN
    assert "These intervals overlap." in figure
    put(tables[mass], "low", 1.7, arm=SCRATCH)
    put(tables[mass], "high", 1.9, arm=SCRATCH)
    put(tables[mass], "centre_significant", 1.9, arm=SCRATCH)
    assert judged(tables, 2)[0] == NOT


# 3

ablation, attention = "cognitive_ablation", "cognitive_attention"


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (
            [
                change(attention, column, value, arm=SCRATCH, layer=0)
                for column, value in (("ratio", 0.8), ("low_ratio", 0.7), ("high_ratio", 0.9))
            ],
            NOT,
            "numbers 0.80 times the attention of a uniform head (3 seeds: 0.80 [0.70, 0.90],",
        ),
        (
            [change(attention, "low_ratio", 0.9, arm=SCRATCH, layer=0, seed=2)],
            OPEN,
            "1.50 [0.90, 1.60]). Met in 2 of 3 seeds, contradicted in 0, open in 1.",
        ),
        (
            [change(ablation, "sure", False, arm=SCRATCH, layer=0)],
            OPEN,
            "Seed 0 is left out: no head of layer 0 has a change that is surely below 0.",
        ),
        (
            [
                change(
                    "cognitive_attention_change", "p", [0.05, 0.06, NAN], arm=SCRATCH, fill="mean"
                )
            ],
            SUPPORTED,
            "(p at most 0.05 in 1 of 3 seeds)",
        ),
    ],
)
def test_numbers(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 3, changes, verdict, text)


def test_numbers_without_intervals_need_several_seeds() -> None:
    tables = study()
    tables[attention] = tables[attention].drop(columns=["low_ratio", "high_ratio"])
    verdict, figure = judged(tables, 3)
    assert verdict == SUPPORTED
    assert "(3 seeds: 1.50, 1.50, 1.50)" in figure
    assert judged(of_seeds(tables, (0,)), 3)[0] == OPEN
    assert judged(of_seeds(study(), (0,)), 3)[0] == SUPPORTED


# 4

decoding = "cognitive_decoding"
answer = {"layer": 1, "position": "answer"}


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (
            [
                change(decoding, column, value, arm=FINE, variable="color", **answer)
                for column, value in (("accuracy", 0.51), ("low", 0.48), ("high", 0.54))
            ],
            NOT,
            "Above the floor in every seed: context, motion, choice. Met in 0 of 3 seeds, "
            "contradicted in 3, open in 0.",
        ),
        (
            [
                change(decoding, column, value, arm=FINE, variable="color", **answer)
                for column, value in (("accuracy", 0.51), ("low", 0.46), ("high", 0.56))
            ],
            OPEN,
            "contradicted in 0, open in 3.",
        ),
        (
            [change(decoding, "p", 2 / 21, arm=FINE, variable="context", seed=1, **answer)],
            OPEN,
            "Above the floor in every seed: motion, color, choice. Met in 2 of 3 seeds",
        ),
        (
            [change(decoding, "floor", 0.96, arm=FINE, variable="choice", **answer)],
            NOT,
            "choice 97.0 % (floor 96.0 %)",
        ),
        (
            [change(decoding, "low", 0.5, arm=BASE, variable="motion")],
            SUPPORTED,
            "In every base model: context, color, choice.",
        ),
        (
            [change("cognitive_check", "holds", False, arm=SCRATCH, seed=1)],
            SUPPORTED,
            "Careful: in 1 of 7 models of all arms, more is decoded before it is read than chance",
        ),
        (
            [change(decoding, "variable", "other", arm=FINE, variable="motion", seed=2)],
            OPEN,
            "variable motion, subset balanced, seed 2.",
        ),
        (
            [change(ablation, "layer", 2, arm=FINE, component="L1.H0")],
            OPEN,
            "Decoding ends at layer 1, the model at layer 2.",
        ),
    ],
)
def test_decoding(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 4, changes, verdict, text)


# 5

selective = "cognitive_selectivity"


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (  # 40 % in the base model, whatever the share of those with three and four
            [change(selective, "share", [0.3, 0.29, 0.28], arm=FINE, n_variables=2)],
            OPEN,
            "39.0 % fine-tuned, 40.0 % base (1.0 % and 1.0 % expected if they followed none); 3 "
            "seeds. More than base by \u22121.0 points [\u22123.5, 1.5], than expected by 38.0 "
            "points [35.5, 40.5].",
        ),
        (
            [change(selective, "expected_correlated", 0.9, arm=FINE, n_variables=2)],
            NOT,
            "than expected by \u221218.2 points [\u221223.2, \u221213.2]",
        ),
        (
            [change(selective, "share", 0.2, arm=SCRATCH, n_variables=2)],
            SUPPORTED,
            "From scratch it is 30.0 % (3 seeds), not more than base or expected.",
        ),
        (
            [change(selective, "share", [0.2, 0.4, 0.6], arm=SCRATCH, n_variables=2)],
            SUPPORTED,
            "From scratch it is 50.0 % (3 seeds); whether that is more cannot be told.",
        ),
        (
            [lambda tables: tables.__setitem__(selective, more_base_seeds(tables[selective]))],
            OPEN,
            "Table cognitive_selectivity has several seeds of the base arm: 0, 1.",
        ),
    ],
)
def test_selectivity(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 5, changes, verdict, text)


def more_base_seeds(table: pd.DataFrame) -> pd.DataFrame:
    base = table[table["arm"] == BASE]
    return pd.concat([table, base.assign(seed=1)], ignore_index=True)


def test_selectivity_of_one_seed_decides_nothing() -> None:
    verdict, figure = judged(of_seeds(study(), (0,)), 5)
    assert verdict == OPEN
    assert "More than base by 30.0 points, than expected by 69.0 points." in figure
    assert "With one seed these differences have no interval." in figure


# 6

svm = "cognitive_svm"


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (
            [
                change(svm, "accuracy", 0.53, arm=FINE, target="choice"),
                change(svm, "high", 0.58, arm=FINE, target="choice"),
            ],
            NOT,
            "Above that after Bonferroni: 0 of 3 heads. Met in 0 of 3 seeds, contradicted in 3,",
        ),
        (
            [change(svm, "accuracy", 0.53, arm=FINE, target="choice")],  # high stays .93
            OPEN,
            "contradicted in 0, open in 3.",
        ),
        (
            [change(svm, "p", 2 / 21, arm=FINE, target="choice", seed=0)],
            OPEN,
            "Above that after Bonferroni: 0 to 1 of 3 heads. Met in 2 of 3 seeds, contradicted",
        ),
        (
            [change(svm, "accuracy", NAN, arm=FINE, target="choice", seed=1)],
            OPEN,
            "In seed 1 a class has too few examples for decoding 'choice'.",
        ),
        (
            [change(svm, "target", "correct", target="condition")],
            SUPPORTED,
            "Best head for whether the answer is right: 40.0 % (floor 12.5 %).",
        ),
    ],
)
def test_responses(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 6, changes, verdict, text)


@pytest.mark.parametrize(
    ("right", "n_heads", "verdict"),
    # Of 20 trials at a floor of one half, P(15 or more right) = 21700 / 2^20 = .0207 and
    # P(16 or more) = 6196 / 2^20 = .0059: times 3 heads .062 and .018, times 9 heads .19 and .053.
    [(15, 1, SUPPORTED), (15, 3, OPEN), (16, 3, SUPPORTED), (16, 9, OPEN)],
)
def test_responses_are_corrected_for_the_number_of_heads(
    right: int, n_heads: int, verdict: str
) -> None:
    best = {"target": "choice", "n": 20, "accuracy": right / 20, "high": 0.95, "p": 1 / 21}
    best |= {"floor": 0.5, "shuffled_high": 0.5}
    rows = [{"component": f"L0.H{i}", **best} for i in range(n_heads)]
    for row in rows[1:]:
        row["accuracy"] = 0.5
    tables = study() | {svm: by_model([(FINE, seed) for seed in SEEDS], rows)}
    assert judged(tables, 6)[0] == verdict


# 7

shapes = "cognitive_silhouette"


def state(variable: str, **where: Any) -> dict[str, Any]:
    return {"space": "states", "variable": variable, **where}


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (
            [change(shapes, "silhouette", 0.01, arm=FINE, space="states")],
            NOT,
            "By context: 0.01 fine-tuned (95th percentile of its null 0.02, above it in 0 of 3 "
            "seeds), 0.05 base, a difference of \u22120.04 [\u22120.04, \u22120.04].",
        ),
        (
            [change(shapes, "silhouette", 0.01, arm=FINE, **state("context"))],
            SUPPORTED,  # by choice
            "By choice: 0.30 fine-tuned",
        ),
        (
            [change(shapes, "silhouette", 0.5, arm=BASE, space="states")],
            NOT,  # apart, but less than before fine-tuning
            "0.50 base, a difference of \u22120.28 [\u22120.33, \u22120.23].",
        ),
        (
            [
                change(shapes, "silhouette", 0.01, arm=FINE, **state("choice")),
                change(shapes, "silhouette", [0.01, 0.5, 0.9], arm=FINE, **state("context")),
            ],
            OPEN,
            "above it in 2 of 3 seeds",
        ),
        (  # a base model that always gives the same answer
            [change(shapes, "silhouette", NAN, arm=BASE, **state("choice"))],
            SUPPORTED,  # by context
            "3 of 3 seeds), n/a base, a difference of n/a.",
        ),
    ],
)
def test_separation(changes: Sequence[Change], verdict: str, text: str) -> None:
    expect(study(), 7, changes, verdict, text)


def test_separation_of_one_seed_cannot_hold() -> None:
    tables = of_seeds(study(), (0,))
    verdict, figure = judged(tables, 7)
    assert verdict == OPEN
    assert figure.endswith("With one seed these differences have no interval.")
    put(tables[shapes], "silhouette", 0.0, arm=FINE, space="states")
    assert judged(tables, 7)[0] == NOT


# -- statistics -----------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=7))
def test_a_rule_over_seeds_is_never_both_met_and_contradicted(met: list[bool | None]) -> None:
    found, counts = over_seeds(met)
    assert (found is True) == (met.count(True) == len(met))
    assert (found is False) == (met.count(False) > len(met) / 2)
    assert counts.startswith(f"Met in {met.count(True)} of {len(met)} seed")


def test_the_t_interval_is_that_of_the_tables() -> None:
    found = t_interval([1.0, 2.0, 3.0])  # t of 2 degrees of freedom at 97.5 %: 4.30265
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, -0.48414, 4.48414), abs=1e-5)
    assert np.isnan(t_interval([1.0]).low)
