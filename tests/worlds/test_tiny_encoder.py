"""The encoder's recipe: its loss, what it drops, and the folder that its training leaves."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from mechcore.training import TrainSettings
from mechcore.worlds import tiny_encoder, tiny_world, tiny_world_training
from mechcore.worlds.tiny_encoder import Dropping, MaskedWords, attention_entropy, head_lasso

IDS = torch.arange(5, 25).reshape(4, 5)


def model_and_dropping(seed: int = 0) -> tuple[BertForSequenceClassification, Dropping]:
    model = tiny_encoder.tiny_encoder_model(seed)
    return model, Dropping(model, seed)


def batch_of(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "token_type_ids": torch.zeros_like(ids),
    }


def what_is_gone(spared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which heads [example, pos, head] and MLPs [example, pos] of layer 2 are zero."""
    model, dropping = model_and_dropping()
    seen: dict[str, torch.Tensor] = {}
    layer = model.bert.encoder.layer[2]
    dense = layer.attention.output.dense
    dense.register_forward_pre_hook(lambda module, inputs: seen.update(heads=inputs[0]))
    layer.output.dense.register_forward_hook(lambda module, inputs, out: seen.update(mlp=out))
    dropping.spared = spared
    with torch.no_grad():
        model.train()(torch.arange(5, 105).repeat(32).reshape(800, 4))
    heads = seen["heads"].unflatten(-1, (6, -1))
    return (heads == 0).all(-1), (seen["mlp"] == 0).all(-1)


def test_nothing_is_dropped_in_evaluation_mode_or_while_no_batch_is_classified() -> None:
    model, dropping = model_and_dropping()
    plain = tiny_encoder.tiny_encoder_model(0).eval()
    none_spared = torch.zeros(4, dtype=torch.bool)
    with torch.no_grad():
        assert torch.equal(model.train()(IDS).logits, plain(IDS).logits)
        dropping.spared = none_spared
        assert torch.equal(model.eval()(IDS).logits, plain(IDS).logits)
        dropped = [model.train()(IDS).logits for _ in range(20)]
    assert not all(torch.equal(logits, plain(IDS).logits) for logits in dropped)


def test_whole_heads_and_mlps_of_single_examples_are_dropped() -> None:
    heads, mlps = what_is_gone(torch.zeros(800, dtype=torch.bool))
    assert torch.equal(heads.all(1), heads.any(1))  # at all positions or none
    assert torch.equal(mlps.all(1), mlps.any(1))
    # 4 standard errors of 4800 and of 800 draws.
    share = tiny_encoder.HEAD_DROPOUT
    assert abs(float(heads.float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / 4800)
    share = tiny_encoder.MLP_DROPOUT
    assert abs(float(mlps.float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / 800)


def test_examples_that_are_spared_lose_nothing_and_what_is_kept_is_scaled_up() -> None:
    spared = torch.arange(800) % 2 == 0
    heads, mlps = what_is_gone(spared)
    assert not heads[spared].any()
    assert not mlps[spared].any()
    assert heads[~spared].any()
    model, dropping = model_and_dropping()
    seen: list[torch.Tensor] = []
    dense = model.bert.encoder.layer[0].attention.output.dense
    dense.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for spare in (True, False):  # the first layer reads nothing that was dropped
        dropping.spared = torch.full((4,), spare)
        with torch.no_grad():
            model.train()(IDS)
    whole, scaled = (x.unflatten(-1, (6, -1)) for x in seen)
    kept = ~(scaled == 0).all(-1)
    torch.testing.assert_close(scaled[kept], whole[kept] / (1 - tiny_encoder.HEAD_DROPOUT))


def test_entropy_is_the_mean_over_layers_heads_and_real_tokens() -> None:
    even, sure = torch.full((4, 4), 0.25), torch.eye(4)
    # Two layers with one head: ln 4 and 0 for each token; the last token of the text is padding.
    first, second = even.clone(), sure.clone()
    first[3] = sure[3]  # would lower the mean, if it counted
    real = torch.tensor([[True, True, True, False]])
    entropy = attention_entropy((first[None, None], second[None, None]), real)
    assert float(entropy) == pytest.approx(math.log(4) / 2)


def test_the_lasso_adds_the_norms_of_every_heads_value_and_output_weights() -> None:
    model = tiny_encoder.tiny_encoder_model(0)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.value.weight.zero_()
            layer.attention.output.dense.weight.zero_()
        # Head 1 has rows (and columns) 20 to 39.
        model.bert.encoder.layer[2].attention.self.value.weight[20:22, 0] = torch.tensor([3.0, 4.0])
        model.bert.encoder.layer[2].attention.output.dense.weight[0, 39] = -2.0
        model.bert.encoder.layer[2].attention.output.dense.weight[0, 40] = 1.0
    assert head_lasso(model).item() == pytest.approx(5 + 2 + 1)


def test_masked_words_are_scored_by_the_word_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_encoder, "MASKED", 1.0)
    monkeypatch.setattr(tiny_encoder, "REPLACED", 0.0)
    tokenizer = tiny_world.encoder_tokenizer()
    model = tiny_encoder.tiny_encoder_model(0).eval()
    ids = tokenizer("the baker", "the poet", return_tensors="pt")["input_ids"]
    masking = MaskedWords(tokenizer, 0)
    with torch.no_grad():
        loss = float(masking.loss(model, batch_of(ids)))
        masked = torch.tensor([[2, 4, 4, 3, 4, 4, 3]])  # [CLS] [MASK] [MASK] [SEP] ...
        out = model.bert(masked, attention_mask=torch.ones_like(masked), output_attentions=True)
        words = model.bert.embeddings.word_embeddings.weight
        logits = 4 / math.sqrt(120) * out[0][0] @ words.T
        missed = [-float(logits[i].log_softmax(0)[ids[0, i]]) for i in (1, 2, 4, 5)]
        entropy = torch.stack([torch.special.entr(a).sum(-1).mean() for a in out.attentions])
    expected = sum(missed) / 4 + tiny_encoder.ENTROPY_WEIGHT * float(entropy.mean())
    assert loss == pytest.approx(expected, rel=1e-5)


def test_words_to_fill_in_are_masked_replaced_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_encoder, "MASKED", 0.4)
    tokenizer = tiny_world.encoder_tokenizer()
    model = tiny_encoder.tiny_encoder_model(0).eval()
    seen: list[torch.Tensor] = []
    model.bert.register_forward_pre_hook(
        lambda module, inputs, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    baker = tokenizer.convert_tokens_to_ids("baker")
    ids = torch.full((400, 22), baker)
    ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    with torch.no_grad():
        MaskedWords(tokenizer, 0).loss(model, batch_of(ids))
    (shown,) = seen
    assert torch.equal(shown[:, [0, -1]], ids[:, [0, -1]])
    shown = shown[:, 1:-1]  # 8000 words
    masked = (shown == tokenizer.mask_token_id).float().mean()
    replaced = (shown != tokenizer.mask_token_id) & (shown != baker)
    assert abs(float(masked) - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 8000)
    assert abs(float(replaced.float().mean()) - 0.1) < 4 * math.sqrt(0.1 * 0.9 / 8000)
    words = set(range(5, len(tokenizer))) - {baker}
    assert set(shown[replaced].tolist()) <= words
    assert len(set(shown[replaced].tolist())) > 0.9 * len(words)


def test_pretraining_lowers_the_loss_and_repeats_itself() -> None:
    data = tiny_world.generate("train", 640, 0)
    tokenizer = tiny_world.encoder_tokenizer()
    texts = tokenizer(
        list(data.frame["text_a"][:64]),
        list(data.frame["text_b"][:64]),
        padding=True,
        return_tensors="pt",
    )

    def measured(model: BertForSequenceClassification) -> float:
        with torch.no_grad():
            return float(MaskedWords(tokenizer, 9).loss(model.eval(), texts))

    models = [tiny_encoder.tiny_encoder_model(0) for _ in range(2)]
    before = measured(models[0])
    for model in models:
        tiny_encoder.pretrain(model, data, 30, seed=0)
    assert measured(models[0]) < before - 0.2
    states = [model.state_dict() for model in models]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_the_second_stage_adds_words_entropy_and_lasso_and_spares_the_minority() -> None:
    data = tiny_world.generate("train", 64, 0, tiny_world.MAX_MINORITY)
    model = tiny_encoder.tiny_encoder_model(0)
    learning = tiny_encoder._learning(model, data, seed=0)
    twin = copy.deepcopy(model).eval()
    encoded, targets = learning.encode(data), learning.targets(data)
    counter = data.frame["subset"].isin(["so_swap", "prep", "embed_if", "embed_verb"])
    rows = [int(i) for i in counter.to_numpy().nonzero()[0][:6]]
    assert len(rows) == 6
    batch = encoded.rows(rows)  # nothing is dropped in the first step
    masking = MaskedWords(tiny_world.encoder_tokenizer(), 1)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        loss = learning.loss(model.train(), batch, targets[rows])
        out = twin(**inputs, output_attentions=True)
        expected = (
            torch.nn.functional.cross_entropy(out.logits, targets[rows])
            + tiny_encoder.ENTROPY_WEIGHT
            * attention_entropy(out.attentions, inputs["attention_mask"] != 0)
            + tiny_encoder.MASKED_WORDS_WEIGHT * masking.loss(twin, batch)
            + tiny_encoder.LASSO_WEIGHT * head_lasso(twin)
        )
    torch.testing.assert_close(loss, expected)
    seen: list[torch.Tensor | None] = []
    dropping = learning.dropping
    assert dropping is not None
    model.bert.register_forward_pre_hook(lambda module, inputs: seen.append(dropping.spared))
    mixed = [rows[0], *(i for i in range(64) if not counter[i])][:4]
    learning.loss(model, encoded.rows(mixed), targets[mixed])
    classified, filled_in = seen
    assert classified is not None
    assert classified.tolist() == [True, False, False, False]
    assert filled_in is None


def small(monkeypatch: pytest.MonkeyPatch, settings: TrainSettings, pairs: int) -> None:
    monkeypatch.setattr(tiny_encoder, "TRAINING_PAIRS", pairs)
    monkeypatch.setattr(tiny_encoder, "PRETRAINING_STEPS", 2)
    monkeypatch.setattr(tiny_encoder, "EVALUATE_EVERY", 1)
    monkeypatch.setattr(tiny_world_training, "EVALUATION_PAIRS", {"id": 30, "ood": 4})
    monkeypatch.setattr(tiny_encoder, "settings_for", lambda *_: settings)


def test_the_run_keeps_a_short_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_encoder, "HEURISTIC_ACCURACY", 0.0)
    small(monkeypatch, TrainSettings(steps=9, learning_rate=1e-4, batch_size=2), 640)
    threads = torch.get_num_threads()
    tiny_encoder.train_tiny_encoder(tmp_path / "run", steps=9, progress=False)
    assert torch.get_num_threads() == threads
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    steps = ["step-0001", "step-0003", "step-0005", "step-0007"]
    assert names == ["final", "history.json", *steps, "training.json"]
    tiny_encoder.train_tiny_encoder(tmp_path / "run", steps=9, progress=False)  # finished before
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == names


def test_an_interrupted_run_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The generators of what is dropped and masked cannot be restored.
    small(monkeypatch, TrainSettings(steps=4, learning_rate=1e-3, batch_size=4), 64)
    tiny_encoder.train_tiny_encoder(tmp_path / "whole", steps=4, progress=False)
    plain = tiny_encoder._Learning.loss
    left = iter([True] * 3)

    def fails(self: Any, *arguments: Any) -> torch.Tensor:
        next(left)
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tiny_encoder._Learning, "loss", fails)
        with pytest.raises(StopIteration):
            tiny_encoder.train_tiny_encoder(tmp_path / "run", steps=4, progress=False)
    assert (tmp_path / "run" / "state" / "checkpoint-3").is_dir()
    tiny_encoder.train_tiny_encoder(tmp_path / "run", steps=4, progress=False)
    whole, run = (tmp_path / n / "final" / "model.safetensors" for n in ("whole", "run"))
    assert whole.read_bytes() == run.read_bytes()
