"""Labels of a real encoder's heads on real pairs of sentences."""

from pathlib import Path

import pytest

from mechcore.attention import HeadScores, score_heads
from mechcore.data.encoding import encode
from mechcore.data.readers import read_examples
from mechcore.models import load_model, load_tokenizer

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def scores(real_data: Path) -> HeadScores:
    source = real_data / "models" / "minilm-nli"
    examples = read_examples(real_data / "data" / "mnli_dev_matched.tsv.gz").sample(200, 0)
    data = encode(examples, load_tokenizer(source), max_length=128, words=True)
    return score_heads(load_model(source), data, ignore=("first",))


def test_labels_are_those_of_the_documentation(scores: HeadScores) -> None:
    table = scores.categorised()
    labels = table.groupby("category")["component"].apply(list)
    assert labels["repeated"] == ["L1.H1", "L2.H9"]
    assert labels["previous"] == ["L0.H2", "L0.H5", "L1.H9", "L1.H11", "L2.H11"]
    assert labels["next"] == ["L1.H4", "L1.H8", "L2.H8", "L4.H9"]
    assert len(labels["mixed"]) == 61
    heads = table.set_index("component")
    assert heads["mass_previous"]["L0.H2"] > 0.98
    assert heads["mass_repeated"]["L2.H9"] == pytest.approx(0.70, abs=0.05)
    assert 0.1 < heads["left_out"].mean() < 0.4


def test_labels_are_stable(scores: HeadScores) -> None:
    assert scores.agreement().kappa > 0.9
    assert (scores.categorised()["stability"] > 0.9).mean() > 0.95
