"""Examples whose answer flips, chosen by hand from made-up logits."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from mechcore.ablation import Ablations, ComponentSet, flip_table
from mechcore.ablation.effects.flips import FLIPS
from mechcore.data.examples import Examples
from mechcore.evaluation.evaluate import Evaluation

CLASSES = ("entailment", "neutral", "contradiction")
LABELS = {"entailment": [True, False, False], "non-entailment": [False, True, True]}
HEAD, MLP = ComponentSet.of(["L0.H1"]), ComponentSet.of(["L1.MLP"])
PAIR = ComponentSet.of(["L0.H0", "L0.H1"])


def texts(split: str, labels: list[str]) -> Examples:
    rows = [(f"{split} {i}", f"second {i}", name, f"part {i % 2}") for i, name in enumerate(labels)]
    return Examples(split, pd.DataFrame(rows, columns=["text_a", "text_b", "label", "subset"]))


def answers(logits: list[list[float]], examples: Examples) -> Evaluation:
    correct = torch.tensor([LABELS[label] for label in examples.frame["label"]])
    subsets = examples.frame["subset"].to_numpy(dtype=object)
    return Evaluation(torch.tensor(logits), correct, subsets, "")


def test_flips_out_of_domain_come_first_then_the_largest_changes_of_margin() -> None:
    ood = texts("ood", ["non-entailment"] * 3 + ["entailment"])
    id_ = texts("id", ["entailment", "entailment", "non-entailment", "entailment"])
    full_ood = [[0.0, 1, 0], [0, 0, 2], [3, 0, 0], [1, 0, 0]]
    full_id = [[2.0, 0, 0], [0, 1, 0], [0, 4, 0], [5, 0, 0]]
    changed = {
        # The second goes from one correct class to the other, the third from wrong to right.
        ("ood", HEAD): [[0.0, 1, 0], [0, 2, 0], [0, 0, 3], [1, 0, 0]],
        # All flip but the second, which goes from one wrong class to another; ties are 0 and 3.
        ("id", HEAD): [[0.0, 2, 0], [0, 0, 1], [9, 0, 0], [0, 0, 5]],
        ("ood", MLP): full_ood,
        ("id", MLP): full_id,
        ("ood", PAIR): [[9.0, 0, 0]] * 4,
        ("id", PAIR): [[0.0, 9, 0]] * 4,
    }
    swept = []
    for split, examples, full in (("id", id_, full_id), ("ood", ood, full_ood)):
        without = {s: answers(logits, examples) for (r, s), logits in changed.items() if r == split}
        swept.append(Ablations.of(answers(full, examples), without, f"{split} data", split))
    world = swept, {"id": id_, "ood": ood}
    table = flip_table(*world, CLASSES)
    FLIPS.check(table)
    assert table["component"].tolist() == ["L0.H1"] * 3  # no answer flips without the MLP
    assert table["rank"].tolist() == [1, 2, 3]
    # Changes of margin in domain are 3.4, 12.3 and 9.3 nats for 0, 2 and 3.
    assert table[["split", "example"]].to_numpy().tolist() == [["ood", 2], ["id", 2], ["id", 3]]
    assert table["change"].tolist() == ["wrong to right", "right to wrong", "right to wrong"]
    first = table.iloc[0]
    assert first[["data", "subset", "text_a", "text_b", "label"]].tolist() == [
        *("ood data", "part 0", "ood 2", "second 2", "non-entailment")
    ]
    assert (first["answer"], first["answer_without"]) == ("entailment", "contradiction")
    assert first["margin"] == pytest.approx(math.log(2) - 3)
    assert first["margin_without"] == pytest.approx(math.log(1 + math.exp(3)))
    assert table.iloc[2][["answer", "answer_without"]].tolist() == ["entailment", "contradiction"]
    # All are counted.
    assert (first["right_to_wrong_ood"], first["wrong_to_right_ood"]) == (0, 1)
    assert (first["right_to_wrong_id"], first["wrong_to_right_id"]) == (3, 0)


def test_equal_changes_keep_the_order_of_the_data() -> None:
    examples = texts("ood", ["entailment"] * 4)
    full = answers([[1.0, 0, 0]] * 4, examples)
    without = {HEAD: answers([[0.0, 1, 0]] * 4, examples)}
    table = flip_table([Ablations.of(full, without, "x", "ood")], {"ood": examples}, CLASSES)
    assert table["example"].tolist() == [0, 1, 2]
    assert np.isnan(table["right_to_wrong_id"].astype(float)).all()
