"""Training runs: checkpoints, history, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from training.builders import (
    SETTINGS,
    decoder,
    encoder,
    evaluations,
    pairs,
    train_classifier,
    train_encoder,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.papers.cognitive.text import tiny_tokenizer
from mechcore.training import (
    accuracies,
    answering,
    classification,
    read_history,
    train,
)
from mechcore.worlds import tiny_world


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "encoder"
    train_encoder(out)
    return out


def test_checkpoints_are_hugging_face_directories(run: Path) -> None:
    names = ["final", "history.json", "step-0004", "training.json"]
    assert sorted(p.name for p in run.iterdir()) == names
    for name in ("final", "step-0004"):
        model = AutoModelForSequenceClassification.from_pretrained(run / name)
        assert model.dtype == torch.float32
        assert model.config.id2label == {0: "entailment", 1: "non-entailment"}
        tokenizer = AutoTokenizer.from_pretrained(run / name)
        assert "token_type_ids" in tokenizer("the baker", "the poet")
    small, full = (run / n / "model.safetensors" for n in ("step-0004", "final"))
    assert small.stat().st_size < 0.6 * full.stat().st_size


@pytest.mark.parametrize(("name", "step"), [("step-0004", 4), ("final", 5)])
def test_history_has_the_accuracies_of_the_stored_weights(run: Path, name: str, step: int) -> None:
    history = read_history(run)
    assert sorted(history["step"].unique()) == [2, 4, 5]
    model = AutoModelForSequenceClassification.from_pretrained(run / name)
    objective = classification(model, AutoTokenizer.from_pretrained(run / name))
    for dataset, examples in evaluations().items():
        rows = history[(history["step"] == step) & (history["dataset"] == dataset)]
        expected = accuracies(model, objective, objective.encode(examples))
        assert dict(zip(rows["subset"], rows["accuracy"], strict=True)) == expected


def test_a_language_model_learns_the_answer_token(tmp_path: Path) -> None:
    model = decoder()
    tokenizer = tiny_world.decoder_tokenizer()
    prompt, answers = tiny_world.DECODER_PROMPT, tiny_world.DECODER_ANSWERS
    objective = answering(model, tokenizer, prompt, answers)
    history = train(
        model, objective, pairs(), evaluations(), tmp_path / "run", SETTINGS, progress=False
    )
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")
    examples = evaluations()["id"]
    yes, no = (tokenizer(word)["input_ids"][0] for word in ("yes", "no"))
    right = 0
    for row in examples.frame.itertuples():
        prompt = tiny_world.DECODER_PROMPT.format(a=row.text_a, b=row.text_b)
        logits = stored(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        right += (logits[yes] >= logits[no]).item() == (row.label == "entailment")
    rows = history[(history["step"] == 5) & (history["subset"] == "all")].set_index("dataset")
    assert rows["accuracy"]["id"] == pytest.approx(right / len(examples))


def test_a_three_way_model_is_scored_on_two_way_data(tmp_path: Path) -> None:
    model = encoder()
    model.config.id2label = {0: "entailment", 1: "neutral", 2: "contradiction"}
    model.classifier = torch.nn.Linear(24, 3)
    objective = classification(model, tiny_world.encoder_tokenizer())
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([-100.0, 0.0, 0.0]))
    assert accuracies(model, objective, objective.encode(evaluations()["ood"]))["all"] == 1
    with pytest.raises(InputError, match="stands for several of the classes") as caught:
        objective.targets(pairs())
    assert '--label-map "non-entailment=contradiction"' in str(caught.value)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and not a training run"):
        train_encoder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_diverging_run_stops(tmp_path: Path) -> None:
    model = encoder()
    torch.nn.init.constant_(model.classifier.weight, float("nan"))
    with pytest.raises(MechcoreError, match="training step 1: the loss is nan"):
        train_classifier(
            model, tiny_world.encoder_tokenizer(), pairs(), {}, tmp_path / "run", SETTINGS
        )


def test_unknown_labels_and_few_examples_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame([["a", "b", "perhaps", "s"]] * 8, columns=list(pairs().frame.columns))
    tokenizer = tiny_world.encoder_tokenizer()
    for data, message in ((Examples("odd", frame), "perhaps"), (pairs(4), "batches of 8")):
        with pytest.raises(InputError, match=message):
            train_classifier(encoder(), tokenizer, data, {}, tmp_path / "run", SETTINGS)
    assert not (tmp_path / "run").exists()


def test_texts_are_cut_with_a_word_alone_and_counted(tmp_path: Path) -> None:
    tokenizer, texts = tiny_world.encoder_tokenizer(), pairs().frame
    lengths = [len(ids) for ids in tokenizer(*map(list, (texts.text_a, texts.text_b))).input_ids]
    limit = sorted(lengths)[len(lengths) // 2]
    tokenizer.model_max_length = limit
    with pytest.raises(InputError, match="truncation is off"):
        train_classifier(encoder(), tokenizer, pairs(), {}, tmp_path / "run", SETTINGS)
    settings = replace(SETTINGS, max_length=limit)
    with pytest.warns(MechcoreWarning, match=f"longer than {limit} tokens .* were cut"):
        train_classifier(encoder(), tokenizer, pairs(), {}, tmp_path / "run", settings)
    facts = json.loads((tmp_path / "run" / "training.json").read_text())
    assert facts["examples"]["n_cut"] == sum(length > limit for length in lengths) > 0


def test_weights_that_overflow_as_they_are_stored_have_no_accuracy(tmp_path: Path) -> None:
    model = encoder()
    with torch.no_grad():
        model.classifier.bias[0] = 1e5
    message = "^training: after step 2, with the weights in float16, logits: not finite .* "
    with pytest.raises(MechcoreError, match=f"{message}checkpoint_dtype float32$"):
        train_encoder(tmp_path / "out", SETTINGS, model)
    assert not (tmp_path / "out" / "history.json").exists()


def test_the_loss_of_a_language_model_is_on_the_answer() -> None:
    prompts = ["motion left 10 right", "context color . choice is", "is"]
    labels, tokenizer = ["left", "right", "right"], tiny_tokenizer()
    frame = pd.DataFrame({"text_a": prompts, "text_b": "", "label": labels, "subset": "all"})
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    own = []  # of each text alone, without padding
    for prompt, label in zip(prompts, labels, strict=True):
        ids = tokenizer(f"{prompt} {label}", return_tensors="pt")["input_ids"]
        own.append(-model(input_ids=ids).logits[0, -2].log_softmax(-1)[ids[0, -1]])
    answers, examples = {"left": " left", "right": " right"}, Examples("test", frame)
    trained = answering(model, tokenizer, "{a}", answers)
    loss = trained.loss(model, trained.encode(examples).rows([0, 1, 2]), trained.targets(examples))
    torch.testing.assert_close(loss, torch.stack(own).mean())
