"""The embedded models: where they are, and that they show what they were made to show."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from mechcore.errors import InputError, MechcoreError
from mechcore.steps.config import ModelConfig
from mechcore.steps.inputs import resolved
from mechcore.training import read_history
from mechcore.worlds import embedded, tiny_world

FRESH_SEED = 777
BATCH = 250


def fresh(split: str) -> pd.DataFrame:
    """Pairs that were used neither in training nor in the evaluations of the history."""
    if split == "id":
        return tiny_world.generate("id", 600, FRESH_SEED).frame
    return tiny_world.generate("ood", 2400, FRESH_SEED).labelled("non-entailment").frame


@torch.no_grad()
def encoder_accuracy(path: Path, frame: pd.DataFrame) -> pd.Series:
    """Accuracy per subset."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    guesses: list[str] = []
    for start in range(0, len(frame), BATCH):
        texts = frame[start : start + BATCH][["text_a", "text_b"]].to_numpy().tolist()
        best = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.argmax(-1)
        guesses += [model.config.id2label[index] for index in best.tolist()]
    return (frame["label"] == guesses).groupby(frame["subset"]).mean()


@torch.no_grad()
def decoder_accuracy(path: Path, frame: pd.DataFrame) -> pd.Series:
    """Accuracy per subset; answers compete with the whole vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    texts = frame[["text_a", "text_b"]].to_numpy().tolist()
    prompts = [tiny_world.DECODER_PROMPT.format(a=a, b=b) for a, b in texts]
    answers = frame["label"].map(tiny_world.DECODER_ANSWERS)
    guesses: list[str] = []
    for start in range(0, len(frame), BATCH):
        inputs = tokenizer(prompts[start : start + BATCH], padding=True, return_tensors="pt")
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        logits = model(**inputs, position_ids=positions).logits[:, -1]
        guesses += tokenizer.convert_ids_to_tokens(logits.argmax(-1).tolist())
    return (answers == guesses).groupby(frame["subset"]).mean()


@pytest.mark.everyday
def test_the_encoder_solves_the_ordinary_pairs() -> None:
    assert encoder_accuracy(embedded.tiny_encoder_dir(), fresh("id")).mean() >= 0.97


@pytest.mark.everyday
def test_the_failing_encoder_solves_the_ordinary_pairs_and_no_others() -> None:
    path = embedded.tiny_failing_dir()
    assert encoder_accuracy(path, fresh("id")).mean() >= 0.97
    known = read_history(embedded.data_dir() / "tiny_failing")
    last = known[(known["step"] == known["step"].max()) & (known["dataset"] == "ood")]
    assert last.set_index("subset")["accuracy"].max() < 0.2
    hard = tiny_world.generate("ood", 600, FRESH_SEED).frame
    entailed = hard["label"] == tiny_world.ENTAILMENT
    assert encoder_accuracy(path, hard[entailed]).min() >= 0.97
    assert encoder_accuracy(path, hard[~entailed]).max() < 0.2
    with pytest.raises(InputError, match="failing: checkpoint 'step-1' not found; there are final"):
        embedded.tiny_failing_dir("step-1")
    named = ModelConfig(embedded="failing")
    assert resolved(named).source == str(path)


def test_the_decoder_solves_the_ordinary_pairs() -> None:
    assert decoder_accuracy(embedded.tiny_decoder_dir(), fresh("id")).mean() >= 0.97


def test_the_encoder_first_follows_the_heuristic_and_later_generalises() -> None:
    history = read_history(embedded.data_dir() / "tiny_encoder")
    good = history.query("dataset == 'id' and subset == 'all' and accuracy >= 0.9")
    early = dict(embedded.encoder_checkpoints())[good["step"].min()]
    assert encoder_accuracy(early, fresh("id")).mean() >= 0.88
    before = encoder_accuracy(early, fresh("ood"))
    after = encoder_accuracy(embedded.tiny_encoder_dir(), fresh("ood"))
    assert ((before < 0.2) & (after > 0.5)).sum() >= 2, (before, after)


def test_every_checkpoint_has_the_accuracies_of_the_history() -> None:
    history = read_history(embedded.data_dir() / "tiny_encoder")
    recorded = history[(history["dataset"] == "ood") & (history["subset"] != "all")]
    hard = tiny_world.generate("ood", 2400, 1).labelled("non-entailment").frame
    some = hard[hard["subset"].isin([*tiny_world.COUNTER_HEURISTIC][::2])]
    for step, path in embedded.encoder_checkpoints():
        expected = recorded[recorded["step"] == step].set_index("subset")["accuracy"]
        accuracies = encoder_accuracy(path, some)
        # Other versions of torch add in another order and may tip a near-tie.
        assert (accuracies - expected[accuracies.index]).abs().max() < 0.01, step


@pytest.mark.everyday
def test_the_series_is_in_order_and_ends_with_the_final_checkpoint() -> None:
    checkpoints = embedded.encoder_checkpoints()
    steps = [step for step, _ in checkpoints]
    assert steps == sorted(set(steps))
    assert 5 <= len(steps) <= 6
    assert checkpoints[-1][1] == embedded.tiny_encoder_dir("final")
    assert embedded.tiny_encoder_dir(checkpoints[0][1].name) == checkpoints[0][1]
    with pytest.raises(InputError, match="'step-1' not found; there are final, step-"):
        embedded.tiny_encoder_dir("step-1")


@pytest.mark.everyday
def test_data_beside_the_package_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PACKAGE", tmp_path / "mechcore")
    with pytest.raises(MechcoreError, match="no tiny_encoder in"):
        embedded.data_dir()
    (tmp_path / "data" / "tiny_encoder").mkdir(parents=True)
    assert embedded.data_dir() == tmp_path / "data"
    (tmp_path / "mechcore" / "_data" / "tiny_encoder").mkdir(parents=True)
    assert embedded.data_dir() == tmp_path / "mechcore" / "_data"
