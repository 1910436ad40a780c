"""The tables of a run on the cognitive task, with the columns that its page needs."""

from __future__ import annotations

from collections.abc import Mapping

from mechcore.report.columns import Columns, columns

KIND = "cognitive"
"""What ``kind`` is called in the ``config.json`` of such a run."""


COGNITIVE_TABLES: Mapping[str, Columns] = {
    "cognitive_verdicts": columns("title verdict figure", "claim"),
    "cognitive_training": columns(
        "arm",
        "n seed learning_rate steps last_step dev_accuracy accuracy incongruent congruent "
        "unrestricted n_test",
        "chosen",
    ),
    "cognitive_curve": columns(
        "arm",
        "n seed learning_rate steps accuracy low high incongruent incongruent_low "
        "incongruent_high congruent unrestricted n_test",
    ),
    "cognitive_samples": columns("arm", "seed threshold samples largest"),
    "cognitive_models": columns(
        "arm",
        "seed n step learning_rate dev_accuracy accuracy low high incongruent unrestricted gap",
        "matched",
    ),
    "cognitive_ablation": columns(
        "arm fill component",
        "seed layer head n drop low high incongruent_drop incongruent_low incongruent_high "
        "margin_drop",
    ),
    "cognitive_mass": columns(
        "arm fill subset strongest",
        "seed n centre low high total_drop first_layer_share undefined centre_significant "
        "n_significant",
        optional="significant_low significant_high",
    ),
    "cognitive_attention": columns(
        "arm component",
        "seed layer head mass low high uniform ratio",
        optional="low_ratio high_ratio answer_mass answer_uniform",
    ),
    "cognitive_attention_drop": columns(
        "arm fill", "seed n_heads rho p first_layer_ratio other_ratio top_ratio"
    ),
    "cognitive_decoding": columns(
        "arm position variable subset read",
        "seed layer place n accuracy low high chance floor shuffled shuffled_high p",
    ),
    "cognitive_check": columns("arm", "seed n_rows n_above expected p", "holds"),
    "cognitive_svm": columns(
        "arm component target",
        "seed layer head n accuracy low high chance shuffled shuffled_high p",
        optional="smallest floor",
    ),
    "cognitive_selectivity": columns(
        "arm",
        "seed n_variables units share expected_correlated with_interaction n_units alpha n",
    ),
    "cognitive_terms": columns("arm term", "seed units share expected"),
    "cognitive_projection": columns(
        "arm context choice label method description", "seed trial x y", "correct"
    ),
    "cognitive_silhouette": columns(
        "arm space variable method", "seed silhouette null_mean null_95"
    ),
}
