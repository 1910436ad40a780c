"""The tables of a run on the cognitive task, with the columns that its page needs."""

from __future__ import annotations

from collections.abc import Mapping

from mechcore.report.columns import Columns

KIND = "cognitive"
"""What ``kind`` is called in the ``config.json`` of such a run."""


def _columns(text: str, numbers: str, flags: str = "", optional: str = "") -> Columns:
    return Columns(*(tuple(names.split()) for names in (text, numbers, flags, optional)))


COGNITIVE_TABLES: Mapping[str, Columns] = {
    "cognitive_verdicts": _columns("title verdict figure", "claim"),
    "cognitive_training": _columns(
        "arm",
        "n seed learning_rate steps last_step dev_accuracy accuracy incongruent congruent "
        "unrestricted n_test",
        "chosen",
    ),
    "cognitive_curve": _columns(
        "arm",
        "n seed learning_rate steps accuracy low high incongruent incongruent_low "
        "incongruent_high congruent unrestricted n_test",
    ),
    "cognitive_samples": _columns("arm", "seed threshold samples largest"),
    "cognitive_models": _columns(
        "arm",
        "seed n step learning_rate dev_accuracy accuracy low high incongruent unrestricted gap",
        "matched",
    ),
    "cognitive_ablation": _columns(
        "arm mode component",
        "seed layer head n drop low high incongruent_drop incongruent_low incongruent_high "
        "margin_drop",
    ),
    "cognitive_mass": _columns(
        "arm mode subset strongest",
        "seed n centre low high total_drop first_layer_share undefined centre_significant "
        "n_significant",
        optional="significant_low significant_high",
    ),
    "cognitive_attention": _columns(
        "arm component",
        "seed layer head mass low high uniform ratio",
        optional="low_ratio high_ratio answer_mass answer_uniform",
    ),
    "cognitive_attention_drop": _columns(
        "arm mode", "seed n_heads rho p first_layer_ratio other_ratio top_ratio"
    ),
    "cognitive_decoding": _columns(
        "arm position variable subset read",
        "seed layer place n accuracy low high chance floor shuffled shuffled_high p",
    ),
    "cognitive_check": _columns("arm", "seed n_rows n_above expected p", "holds"),
    "cognitive_svm": _columns(
        "arm component target",
        "seed layer head n accuracy low high chance shuffled shuffled_high p",
        optional="smallest floor",
    ),
    "cognitive_selectivity": _columns(
        "arm",
        "seed n_variables units share expected_correlated with_interaction n_units alpha n",
    ),
    "cognitive_terms": _columns("arm term", "seed units share expected"),
    "cognitive_projection": _columns(
        "arm context choice label method description", "seed trial x y", "correct"
    ),
    "cognitive_silhouette": _columns(
        "arm space variable method", "seed silhouette null_mean null_95"
    ),
}
