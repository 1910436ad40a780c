"""Repairs of a classifier that fails out of domain, compared on repaired and held-out kinds."""

REPAIRED, HELD_OUT, INSIDE = "repaired kinds", "held-out kinds", "in domain"
"""Places of tests: unseen examples of repaired subsets, other subsets, in-domain data."""

OWN_RUNGS = {
    "none": "Nothing",
    "threshold": "Threshold",
    "last-layer": "LastLayer",
    "remove": "Remove",
    "gates": "Gates",
    "gates+last-layer": "GatesLastLayer",
    "few-heads": "FewHeads",
    "random-heads": "RandomHeads",
    "lora": "LoRA",
    "fine-tune": "FineTune",
}
"""Classes of `mechcore.repair.rungs` by name of the rung, from few fitted numbers to many."""
