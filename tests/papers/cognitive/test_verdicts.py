"""Verdicts on hand-made tables, every figure of every sentence worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_tables import Change, cells, change, put, several

from mechcore.errors import InputError
from mechcore.papers.cognitive.evidence import Evidence
from mechcore.papers.cognitive.verdicts import CLAIMS, verdicts
from mechcore.papers.evidence import InconclusiveError, over_seeds, t_interval

Tables: TypeAlias = dict[str, pd.DataFrame]
SUPPORTED, NOT, OPEN = "supported", "not supported", "inconclusive"
BASE, FINE, SCRATCH = "base", "fine_tuned", "scratch"
SEEDS = (0, 1, 2)
NAN = float("nan")
MODELS = cells(arm=(BASE, FINE, SCRATCH), seed=SEEDS).query("arm != 'base' or seed == 0")
TRAINED = MODELS.query("arm != 'base'")
samples, curve, mass = "cognitive_samples", "cognitive_curve", "cognitive_mass"
ablation, attention, decoding = "cognitive_ablation", "cognitive_attention", "cognitive_decoding"
selective, svm, shapes = "cognitive_selectivity", "cognitive_svm", "cognitive_silhouette"


# -- a study in which every claim is supported ----------------------------------------------------


fine, scratch = (partial(change, arm=arm) for arm in (FINE, SCRATCH))


@cache
def supported() -> Tables:
    """Three seeds of both trained arms, four layers that matter little: heads are in two."""
    heads = pd.DataFrame({"component": ["L0.H0", "L0.H1", "L0.H2", "L1.H0"], "layer": [0, 0, 0, 1]})
    changes = heads.assign(change=[-0.3, -0.1, 0.2, -0.5], sure=[True, True, False, True])
    # Weights .3 and .1: (.48 + .12) / .4 = 1.5, ends 1.4 and 1.6.
    ratios = heads.assign(ratio=[1.6, 1.2, 9.0, 9.0])
    ratios = ratios.assign(low_ratio=ratios["ratio"] - 0.1, high_ratio=ratios["ratio"] + 0.1)
    fills = cells(fill=("mean", "zero"))
    masses = cells(fill=("mean", "zero"), subset=("all", "incongruent")).assign(
        centre=1.5, low=1.4, high=1.6, centre_significant=1.75, first_layer_share=0.05
    )
    silhouettes = cells(space=("states", "points"), variable=("context", "choice"))
    silhouettes = silhouettes.assign(method="pca", silhouette=0.05, null_95=0.02)
    tables = {
        "cognitive_models": MODELS.assign(accuracy=0.96, low=0.95, high=0.97, gap=0.01),
        samples: TRAINED.assign(threshold=0.9, samples=400.0, largest=25600),
        curve: TRAINED.assign(n=400, low=0.91, high=0.94),
        mass: TRAINED.merge(masses.assign(strongest="L3.H1"), how="cross"),
        ablation: MODELS.merge(fills, how="cross").merge(changes, how="cross"),
        attention: MODELS.merge(ratios, how="cross"),
        "cognitive_attention_change": MODELS.merge(fills.assign(rho=[0.5, 0], p=0.01), how="cross"),
        decoding: MODELS.merge(decoded(), how="cross"),
        "cognitive_check": MODELS.assign(holds=True),
        svm: MODELS.merge(told_by_heads(), how="cross"),
        selective: selectivity(),
        shapes: MODELS.merge(silhouettes, how="cross"),
    }
    for made in (
        change("cognitive_models", "low", 0.47, arm=BASE),
        fine(samples, "samples", [400, 400, 1600]),
        scratch(samples, "samples", [6400, 25600, 6400]),
        scratch(curve, "low", 0.551),
        scratch(curve, "high", 0.602),
        fine(mass, "centre", [1.4, 1.5, 1.6], fill="mean", subset="all"),
        fine(mass, "centre", 1.25, fill="zero"),
        scratch(mass, "centre", 0.2),
        scratch(mass, "low", 0.1),
        scratch(mass, "high", 0.3),
        scratch(mass, "centre_significant", 0.05),
        scratch(mass, "first_layer_share", 0.85),
        scratch(mass, "strongest", "L0.H0"),
        fine(shapes, "silhouette", [0.2, 0.22, 0.24], space="states", variable="context"),
        fine(shapes, "silhouette", 0.3, space="states", variable="choice"),
        fine(shapes, "silhouette", 0.4, space="points", variable="context"),
        fine(shapes, "silhouette", 0.6, space="points", variable="choice"),
    ):
        made(tables)
    return tables


def study() -> Tables:
    return {name: table.copy() for name, table in supported().items()}


def decoded() -> pd.DataFrame:
    """All four variables at the answer of the last layer, motion in balanced trials alone."""
    rows = cells(
        variable=("context", "motion", "color", "choice"),
        subset=("all", "balanced"),
        place=((0, "answer"), (1, "context"), (1, "answer")),
    )
    rows = rows[(rows["subset"] == "all") | rows["variable"].isin(["motion", "color"])]
    rows["layer"], rows["position"] = rows["place"].str[0], rows["place"].str[1]
    there = (rows["place"] == (1, "answer")) & ~(
        rows[["variable", "subset"]] == ("motion", "all")
    ).all(axis=1)
    best = rows["variable"].map({"context": 0.99, "motion": 0.9, "color": 0.8, "choice": 0.97})
    accuracy = best.where(there, 0.51)
    rows = rows.assign(accuracy=accuracy, low=accuracy - 0.02, high=accuracy + 0.02)
    return rows.drop(columns="place").assign(floor=0.5, p=1 / 21)


def told_by_heads() -> pd.DataFrame:
    """L1.H0 tells each target best; no other head is above what shuffled labels reach."""
    targets = {"choice": (0.9, 0.5), "congruent": (0.7, 0.5), "condition": (0.4, 0.125)}
    rows = cells(target=targets, component=("L0.H0", "L1.H0", "L1.H1"))
    best, chance = (rows["target"].map({t: two[i] for t, two in targets.items()}) for i in (0, 1))
    accuracy = best.where(rows["component"] == "L1.H0", chance)
    rows = rows.assign(accuracy=accuracy, high=accuracy + 0.03, n=400, p=1 / 21)
    return rows.assign(floor=chance, shuffled_high=chance + 0.04)


def selectivity() -> pd.DataFrame:
    """Mixed: 70, 72 and 74 % fine-tuned, 70, 70 and 71 % from scratch, 40 % base, 1 % expected."""
    mixed = [0.4, 0.70, 0.72, 0.74, 0.7, 0.7, 0.71]
    rows = MODELS.merge(cells(n_variables=range(5)), how="cross")
    rows["share"] = [share for m in mixed for share in (0.8 - m, 0.2, m - 0.1, 0.06, 0.04)]
    return rows.assign(expected_correlated=[0.95, 0.04, 0.008, 0.002, 0] * len(mixed))


def of_seeds(tables: Tables, seeds: Sequence[int]) -> Tables:
    """The study with these seeds alone; the base model stays."""
    return {name: t[t["seed"].isin(seeds) | (t["arm"] == BASE)] for name, t in tables.items()}


def judged(tables: Tables, claim: int, gap: float = 0.02) -> tuple[str, str]:
    """Verdict and figure of one claim, without the work for the others."""
    _, judge = CLAIMS[claim - 1]
    try:
        finding = judge(Evidence(tables, gap))
    except InconclusiveError as reason:
        return OPEN, str(reason)
    return finding.verdict, finding.figure


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
        ("cognitive_samples", "several rows of arm fine_tuned, seed 0; expected one"),
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

main = {"fill": "mean", "subset": "all"}
answer = {"layer": 1, "position": "answer"}
by_context = {"space": "states", "variable": "context"}
by_choice = {"space": "states", "variable": "choice"}


def needed(few: Any, many: Any) -> list[Change]:
    """Samples of the fine-tuned arm and of that from scratch."""
    return [fine(samples, "samples", few), scratch(samples, "samples", many)]


def more_base_seeds(tables: Tables) -> None:
    base = tables[selective].query("arm == 'base'").assign(seed=1)
    tables[selective] = pd.concat([tables[selective], base], ignore_index=True)


NO_ENDS = {"low_ratio": NAN, "high_ratio": NAN}
Case: TypeAlias = tuple[list[Change], str, str]
"""What is changed, the verdict, and a part of the figure."""

CASES: dict[int, list[Case]] = {
    1: [
        (needed(100, NAN), SUPPORTED, "more than 25,600, more than 256 times as many"),
        (needed(100, [400, 1600, NAN]), SUPPORTED, "scratch 1,600, 16 times as many"),
        (needed(6400, 400), NOT, "0.0625 times as many (medians over the seeds). Met in 0"),
        (needed(NAN, 400), NOT, "more than 25,600 examples, the arm from scratch 400 ("),
        (needed(400, 400), OPEN, "400, as many (medians over the seeds). Met in 0 of 3"),
        (needed(NAN, NAN), OPEN, "contradicted in 0, open in 3."),
        (needed(400, [1600, 1600, 100]), OPEN, "Met in 2 of 3 seeds, contradicted in 1, op"),
        (needed(400, [1600, 100, 100]), NOT, "Met in 1 of 3 seeds, contradicted in 2, open"),
        (several(fine, samples, {"samples": NAN, "largest": 100}), OPEN, "open in 3."),
        (several(scratch, samples, {"samples": NAN, "largest": 100}), OPEN, "open in 3."),
    ],
    2: [
        (
            [scratch(mass, "centre", [0.2, 2.5, 1.5], **main)],
            OPEN,
            "0.10 layers ([\u22122.63, 2.83], t interval over 3 seeds)",
        ),
        (
            [
                scratch(mass, "centre", 2.8, **main),
                *several(scratch, mass, {"centre_significant": 2.8, "high": 2.9}),
            ],
            NOT,
            "\u22121.30 layers ([\u22121.55, \u22121.05], t interval over 3 seeds)",
        ),
        (
            several(scratch, mass, {"low": 1.7, "high": 1.9}, seed=1),
            OPEN,
            "The two models of a seed differ the other way by their intervals.",
        ),
        (
            [scratch(mass, "centre_significant", 2.5)],
            OPEN,
            "The heads alone whose change is surely below 0 say the opposite.",
        ),
        (
            [scratch(mass, "centre_significant", NAN)],
            OPEN,
            "Seed 2 is left out: no head of the model from scratch has a change that is surely",
        ),
    ],
    3: [
        (
            several(
                scratch, attention, {"ratio": 0.8, "low_ratio": 0.7, "high_ratio": 0.9}, layer=0
            ),
            NOT,
            "numbers 0.80 times the attention of a uniform head (3 seeds: 0.80 [0.70, 0.90],",
        ),
        (
            [scratch(attention, "low_ratio", 0.9, layer=0, seed=2)],
            OPEN,
            "1.50 [0.90, 1.60]). Met in 2 of 3 seeds, contradicted in 0, open in 1.",
        ),
        (
            [scratch(ablation, "sure", False, layer=0)],
            OPEN,
            "Seed 0 is left out: no head of layer 0 has a change that is surely below 0.",
        ),
        (
            [scratch("cognitive_attention_change", "p", [0.05, 0.06, NAN], fill="mean")],
            SUPPORTED,
            "(p at most 0.05 in 1 of 3 seeds)",
        ),
        (several(scratch, attention, NO_ENDS), SUPPORTED, "(3 seeds: 1.50, 1.50, 1.50)"),
    ],
    4: [
        (
            several(
                fine,
                decoding,
                {"accuracy": 0.51, "low": 0.48, "high": 0.54},
                variable="color",
                **answer,
            ),
            NOT,
            "Above the floor in every seed: context, motion, choice. Met in 0 of 3 seeds, "
            "contradicted in 3, open in 0.",
        ),
        (
            several(fine, decoding, {"low": 0.46, "high": 0.56}, variable="color", **answer),
            OPEN,
            "contradicted in 0, open in 3.",
        ),
        (
            [fine(decoding, "p", 2 / 21, variable="context", seed=1, **answer)],
            OPEN,
            "Above the floor in every seed: motion, color, choice. Met in 2 of 3 seeds",
        ),
        (
            [fine(decoding, "floor", 0.96, variable="choice", **answer)],
            NOT,
            "choice 97.0 % (floor 96.0 %)",
        ),
        (
            [change(decoding, "low", 0.5, arm=BASE, variable="motion")],
            SUPPORTED,
            "In every base model: context, color, choice.",
        ),
        (
            [scratch("cognitive_check", "holds", False, seed=1)],
            SUPPORTED,
            "Careful: in 1 of 7 models of all arms, more is decoded before it is read than chance",
        ),
        (
            [fine(decoding, "variable", "other", variable="motion", seed=2)],
            OPEN,
            "variable motion, subset balanced, seed 2.",
        ),
        (
            [fine(ablation, "layer", 2, component="L1.H0")],
            OPEN,
            "Decoding ends at layer 1, the model at layer 2.",
        ),
    ],
    5: [
        (
            [fine(selective, "share", [0.3, 0.29, 0.28], n_variables=2)],
            OPEN,
            "39.0 % fine-tuned, 40.0 % base (1.0 % and 1.0 % expected if they followed none); 3 "
            "seeds. More than base by \u22121.0 points [\u22123.5, 1.5], than expected by 38.0 "
            "points [35.5, 40.5].",
        ),
        (
            [fine(selective, "expected_correlated", 0.9, n_variables=2)],
            NOT,
            "than expected by \u221218.2 points [\u221223.2, \u221213.2]",
        ),
        (
            [scratch(selective, "share", 0.2, n_variables=2)],
            SUPPORTED,
            "From scratch it is 30.0 % (3 seeds), not more than base or expected.",
        ),
        (
            [scratch(selective, "share", [0.2, 0.4, 0.6], n_variables=2)],
            SUPPORTED,
            "From scratch it is 50.0 % (3 seeds); whether that is more cannot be told.",
        ),
        ([more_base_seeds], OPEN, "has several seeds of the base arm: 0, 1."),
    ],
    6: [
        (
            several(fine, svm, {"accuracy": 0.53, "high": 0.58}, target="choice"),
            NOT,
            "Above that after Bonferroni: 0 of 3 heads. Met in 0 of 3 seeds, contradicted in 3,",
        ),
        ([fine(svm, "accuracy", 0.53, target="choice")], OPEN, "contradicted in 0, open in 3."),
        (
            [fine(svm, "p", 2 / 21, target="choice", seed=0)],
            OPEN,
            "Above that after Bonferroni: 0 to 1 of 3 heads. Met in 2 of 3 seeds, contradicted",
        ),
        (
            [fine(svm, "accuracy", NAN, target="choice", seed=1)],
            OPEN,
            "In seed 1 a class has too few examples for decoding 'choice'.",
        ),
        (
            [change(svm, "target", "correct", target="condition")],
            SUPPORTED,
            "Best head for whether the answer is right: 40.0 % (floor 12.5 %).",
        ),
    ],
    7: [
        (
            [fine(shapes, "silhouette", 0.01, space="states")],
            NOT,
            "By context: 0.01 fine-tuned (95th percentile of its null 0.02, above it in 0 of 3 "
            "seeds), 0.05 base, a difference of \u22120.04 [\u22120.04, \u22120.04].",
        ),
        ([fine(shapes, "silhouette", 0.01, **by_context)], SUPPORTED, "By choice: 0.30 fine"),
        (
            [change(shapes, "silhouette", 0.5, arm=BASE, space="states")],
            NOT,
            "0.50 base, a difference of \u22120.28 [\u22120.33, \u22120.23].",
        ),
        (
            [
                fine(shapes, "silhouette", 0.01, **by_choice),
                fine(shapes, "silhouette", [0.01, 0.5, 0.9], **by_context),
            ],
            OPEN,
            "above it in 2 of 3 seeds",
        ),
        (
            [change(shapes, "silhouette", NAN, arm=BASE, **by_choice)],
            SUPPORTED,
            "3 of 3 seeds), n/a base, a difference of n/a.",
        ),
    ],
}

OF_ONE_SEED: dict[int, list[Case]] = {
    1: [
        (
            [],
            SUPPORTED,
            "16 times as many. With one seed judged by the models' own intervals: with 400 "
            "examples their accuracies in percent are [91.0, 94.0] and [55.1, 60.2]. Met in 1 of",
        ),
        ([scratch(curve, "high", 0.91)], OPEN, "are [91.0, 94.0] and [55.1, 91.0]."),
        ([scratch(curve, "n", 100)], OPEN, "has no row of arm scratch, seed 0, n 400."),
        (needed(6400, 400), OPEN, ""),
        ([*needed(6400, 400), *several(scratch, curve, {"low": 0.95, "high": 0.97})], NOT, ""),
    ],
    2: [
        (
            [],
            SUPPORTED,
            "1.20 layers (1 seed, judged by the models' own intervals, [1.40, 1.60] and [0.10",
        ),
        ([scratch(mass, "high", 1.4)], OPEN, "These intervals overlap."),
        (several(scratch, mass, {"low": 1.7, "high": 1.9, "centre_significant": 1.9}), NOT, ""),
    ],
    3: [
        ([], SUPPORTED, ""),
        (several(scratch, attention, NO_ENDS), OPEN, ""),
    ],
    5: [
        ([], OPEN, "by 69.0 points. From scratch it is 70.0 % (1 seed)"),
        ([], OPEN, "With one seed these differences have no interval."),
    ],
    7: [
        ([], OPEN, "With one seed these differences have no interval."),
        ([fine(shapes, "silhouette", 0.0, space="states")], NOT, ""),
    ],
}


@pytest.mark.parametrize(
    ("seeds", "claim", "row"),
    [
        (seeds, claim, row)
        for seeds, cases in ((SEEDS, CASES), ((0,), OF_ONE_SEED))
        for claim, of_claim in cases.items()
        for row in of_claim
    ],
)
def test_a_claim(seeds: Sequence[int], claim: int, row: Case) -> None:
    changes, verdict, text = row
    tables = {name: table.copy() for name, table in of_seeds(study(), seeds).items()}
    for make in changes:
        make(tables)
    found, figure = judged(tables, claim)
    assert text in figure
    assert found == verdict


@pytest.mark.parametrize(
    ("right", "n_heads", "verdict"),
    # Of 20 trials at a floor of one half, P(15 or more right) = 21700 / 2^20 = .0207 and
    # P(16 or more) = 6196 / 2^20 = .0059: times 3 heads .062 and .018, times 9 heads .19 and .053.
    [(15, 1, SUPPORTED), (15, 3, OPEN), (16, 3, SUPPORTED), (16, 9, OPEN)],
)
def test_responses_are_corrected_for_the_number_of_heads(
    right: int, n_heads: int, verdict: str
) -> None:
    rows = TRAINED.merge(cells(component=[f"L0.H{i}" for i in range(n_heads)]), how="cross")
    rows = rows.assign(target="choice", n=20, accuracy=0.5, high=0.95, p=1 / 21)
    put(rows, "accuracy", right / 20, component="L0.H0")
    tables = study() | {svm: rows.assign(floor=0.5, shuffled_high=0.5)}
    assert judged(tables, 6)[0] == verdict


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
