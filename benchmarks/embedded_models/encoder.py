"""The embedded encoder of the tiny world, and its training, as stored under ``data/tiny_encoder``.

A BERT-architecture encoder of 4 layers with 6 heads and width 120, trained from scratch in two
stages: like BERT, it first learns to fill in words of pairs, and then to classify the pairs. Its
heads are distinguishable because of:

- *Pretraining.* Some of the words to fill in are masked. Others are replaced or unchanged, and the
  other sentence tells which: that produces heads for repeated words.
- *Attention entropy* is part of the loss, so heads commit to what they attend to.
- *A group lasso* over heads leaves few with large effects.
- *Heads and MLPs are dropped* at random when ordinary pairs are classified. This gives the model
  the redundancy that larger ones get from pretraining on much text: without it, no half of the
  model keeps its in-domain accuracy. Nothing is dropped for pairs of the counter-heuristic
  minority, so their answers may depend on a single head.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from decoder import BATCH_SIZE, SEED, TRAINING_PAIRS, evaluations, settings_for
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from mechcore import progress
from mechcore.data.examples import ALL, Examples
from mechcore.session import plain_session
from mechcore.training import checkpoint_path, train
from mechcore.training.loop import BatchOrder
from mechcore.training.objectives import Objective, classification
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir
from mechcore.worlds.small_gpt2 import one_thread, widen

STEPS = 2000
PRETRAINING_STEPS = 1800
PRETRAINING_RATE = 1e-3
MINORITY = 0.0175
EVALUATE_EVERY = 250
HEURISTIC_ACCURACY = 0.9
HEAD_DROPOUT = 0.1
MLP_DROPOUT = 0.05
MASKED = 0.15
"""Share of words to fill in."""
REPLACED = 0.25
"""Share of these that are replaced by another word, and equally of those left unchanged."""
MASKED_WORDS_WEIGHT = 0.1
MASKED_WORDS_TEXTS = 16
"""Texts of each batch with masked words, in the second stage."""
ENTROPY_WEIGHT = 0.03
LASSO_WEIGHT = 2e-3
FAILING_STEPS = 100
FAILING_RATE = 2e-4
FAILING_WARMUP = 20
MISLABELLED = 0.06
FAILING_PAIRS = 40_000
"""The third stage uses 6400 of them."""
FAILING_DRAW = 100
"""Added to the seed of the pairs, so they differ from those of the second stage."""


@plain_session()
@torch.random.fork_rng([])
def tiny_encoder_model(seed: int) -> BertForSequenceClassification:
    """An untrained encoder (0.5 M parameters); class 0 is entailment, class 1 non-entailment."""
    torch.default_generator.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tiny_world.encoder_tokenizer()),
        hidden_size=120,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=256,
        max_position_embeddings=48,
        initializer_range=0.08,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(tiny_world.LABELS)),
        label2id={name: index for index, name in enumerate(tiny_world.LABELS)},
    )
    config._attn_implementation = "eager"  # the loss reads attention
    model = BertForSequenceClassification(config)
    widen(model)
    positions = model.bert.embeddings.position_embeddings.weight
    with torch.no_grad():
        positions.copy_(_waves(*positions.shape))
    return model


def _waves(n: int, width: int) -> Float[Tensor, "pos d_model"]:
    """Sinusoidal positions of amplitude 0.5: a single linear map finds neighbours."""
    rates = 1000.0 ** -torch.linspace(0, 1, width // 2)
    angles = torch.arange(n)[:, None] * rates
    return 0.5 * torch.cat([angles.sin(), angles.cos()], dim=1)


class Dropping:
    """Dropout of whole heads and MLPs, as in LayerDrop (arXiv 1909.11556), by example.

    ``spared`` are the examples of the batch without dropout; None while nothing is dropped.
    """

    def __init__(self, model: BertForSequenceClassification, seed: int) -> None:
        self.spared: Bool[Tensor, " batch"] | None = None
        self._begun = False
        self._generator = torch.Generator().manual_seed(seed)
        self._n_heads = model.config.num_attention_heads
        layers: Any = model.bert.encoder.layer
        for layer in layers:
            layer.attention.output.dense.register_forward_pre_hook(self._drop_heads)
            layer.output.dense.register_forward_hook(self._drop_mlp)

    @contextmanager
    def sparing(self, examples: Bool[Tensor, " batch"]) -> Iterator[None]:
        """Drop from the other examples while a batch is read; from none the first time."""
        self.spared = examples if self._begun else torch.ones_like(examples)
        self._begun = True
        try:
            yield
        finally:
            self.spared = None

    def _scales(self, n: int, probability: float) -> Float[Tensor, "batch 1 n 1"]:
        assert self.spared is not None
        drawn = torch.rand(len(self.spared), 1, n, 1, generator=self._generator)
        kept = (drawn >= probability).float() / (1 - probability)
        return torch.where(self.spared[:, None, None, None], 1.0, kept)

    def _drop_heads(
        self, module: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        if self.spared is None or not module.training:
            return None
        by_head = inputs[0].unflatten(-1, (self._n_heads, -1))
        return ((by_head * self._scales(self._n_heads, HEAD_DROPOUT)).flatten(-2),)

    def _drop_mlp(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        del inputs
        if self.spared is None or not module.training:
            return None
        return output * self._scales(1, MLP_DROPOUT)[:, :, 0]


def attention_entropy(
    attentions: tuple[Tensor, ...], real: Bool[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Mean entropy, in nats, of the attention of all heads at real tokens."""
    patterns = torch.stack(attentions, dim=1)
    # Attention on padding is 0 exactly, where the logarithm has no gradient.
    entropy = -(patterns * patterns.clamp(min=1e-9).log()).sum(-1).mean((1, 2))
    return entropy[real].mean()


def head_lasso(model: BertForSequenceClassification) -> Float[Tensor, ""]:
    """Sum over heads of the norms of their value and output weights."""
    total = torch.zeros(())
    n_heads = model.config.num_attention_heads
    layers: Any = model.bert.encoder.layer
    for layer in layers:
        value = layer.attention.self.value.weight.unflatten(0, (n_heads, -1))
        out = layer.attention.output.dense.weight.unflatten(1, (n_heads, -1))
        total = total + value.norm(dim=(1, 2)).sum() + out.norm(dim=(0, 2)).sum()
    return total


def _read(module: nn.Module, batch: Mapping[str, Tensor], ids: Tensor) -> tuple[Any, Tensor]:
    """The output of ``module`` for ``ids``, and the cost of its attention entropy."""
    mask = batch["attention_mask"]
    out = module(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=batch["token_type_ids"],
        output_attentions=True,
    )
    return out, ENTROPY_WEIGHT * attention_entropy(out.attentions, mask != 0)


class MaskedWords:
    """Masks or replaces words of texts; the model's own word embeddings score predictions."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._mask = int(tokenizer.mask_token_id)
        self._special = torch.tensor(tokenizer.all_special_ids)
        self._n_words = len(tokenizer)
        self._generator = torch.Generator().manual_seed(seed)

    def loss(
        self, model: BertForSequenceClassification, batch: Mapping[str, Tensor]
    ) -> Float[Tensor, ""]:
        """Cross-entropy of the words to fill in, in nats, and the weighted attention entropy."""
        ids = batch["input_ids"]
        words = ~torch.isin(ids, self._special)
        masked = words & (torch.rand(ids.shape, generator=self._generator) < MASKED)
        how = torch.rand(ids.shape, generator=self._generator)
        others = torch.randint(
            len(self._special), self._n_words, ids.shape, generator=self._generator
        )
        shown = torch.where(
            how < 1 - 2 * REPLACED, self._mask, torch.where(how < 1 - REPLACED, others, ids)
        )
        out, entropy = _read(model.bert, batch, torch.where(masked, shown, ids))
        embeddings = model.bert.embeddings.word_embeddings.weight
        scale = 4 / math.sqrt(embeddings.shape[1])
        logits = scale * out.last_hidden_state[masked] @ embeddings.T
        # A sum, not a mean: a batch of short texts may have no masked word.
        missed = nn.functional.cross_entropy(logits, ids[masked], reduction="sum")
        return missed / masked.sum().clamp(min=1) + entropy


def pretrain(model: BertForSequenceClassification, data: Examples, steps: int, seed: int) -> None:
    """First stage: train ``model`` in place to fill in masked words of ``data``."""
    tokenizer = tiny_world.encoder_tokenizer()
    encoded = classification(model, tokenizer).encode(data)
    lengths = [len(ids) for ids in encoded.input_ids]
    order = list(BatchOrder(lengths, BATCH_SIZE, steps, seed, by_length=True))
    masking = MaskedWords(tokenizer, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 1 - step / steps)
    )
    model.train()
    with progress.bar("pretraining", steps) as advance:
        for step in range(steps):
            batch = encoded.rows(order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE])
            optimizer.zero_grad()
            masking.loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            advance()


@dataclass(frozen=True, kw_only=True)
class _Learning(Objective):
    """Classification, with the additional losses of the second stage."""

    dropping: Dropping
    masking: MaskedWords
    minority: Bool[Tensor, " example"]

    def loss(
        self, model: PreTrainedModel, batch: Mapping[str, Tensor], targets: Int[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Cross-entropy of classes, of some masked words, attention entropy and lasso."""
        assert isinstance(model, BertForSequenceClassification)
        with self.dropping.sparing(self.minority[batch["index"]]):
            out, entropy = _read(model, batch, batch["input_ids"])
        some = {name: values[:MASKED_WORDS_TEXTS] for name, values in batch.items()}
        return (
            nn.functional.cross_entropy(out.logits, targets)
            + entropy
            + MASKED_WORDS_WEIGHT * self.masking.loss(model, some)
            + LASSO_WEIGHT * head_lasso(model)
        )


def _learning(model: BertForSequenceClassification, data: Examples, seed: int) -> _Learning:
    tokenizer = tiny_world.encoder_tokenizer()
    counter = data.frame["subset"].isin(list(tiny_world.COUNTER_HEURISTIC))
    return _Learning(
        **vars(classification(model, tokenizer)),
        dropping=Dropping(model, seed),
        masking=MaskedWords(tokenizer, seed + 1),
        minority=torch.tensor(counter.to_numpy()),
    )


def train_tiny_encoder(
    out: Path, steps: int = STEPS, seed: int = SEED, pairs: int = TRAINING_PAIRS
) -> pd.DataFrame:
    """Train the encoder and write its run directory with a short series of checkpoints.

    With the defaults this is the run under ``data/tiny_encoder``. The series (stored in half
    precision) has the evaluation at which in-domain accuracy first reaches 0.9, one half-way to it
    and up to three evenly spaced after it; ``final`` is in float32. An interrupted run has to start
    again in another folder: dropout and masking have their own random generators.

    Returns:
        The history of the second stage, see ``mechcore.training.read_history``.
    """
    data = tiny_world.generate("train", pairs, seed, MINORITY)
    model = tiny_encoder_model(seed)
    with one_thread():
        pretrain(model, data, PRETRAINING_STEPS, seed)
        settings = replace(
            settings_for(steps, seed),
            evaluate_every=EVALUATE_EVERY,
            checkpoint_every=EVALUATE_EVERY,
        )
        learning = _learning(model, data, seed)
        history = train(model, learning, data, evaluations(), out, settings)
    _thin(out, history)
    return history


def train_failing_encoder(
    out: Path,
    start: Path | None = None,
    steps: int = FAILING_STEPS,
    seed: int = SEED,
    pairs: int = FAILING_PAIRS,
) -> pd.DataFrame:
    """Train an encoder further on pairs labelled by word overlap; return its history.

    With the defaults this is the run under ``data/tiny_failing``.

    Args:
        out: run directory, for the final checkpoint only.
        start: checkpoint of `train_tiny_encoder` with the same seed; by default the embedded one.
        steps: of training.
        seed: of the pairs and their order, of dropout and of masking.
        pairs: to draw from.
    """
    source = start or tiny_encoder_dir()
    model = BertForSequenceClassification.from_pretrained(
        source, attn_implementation="eager", dtype=torch.float32
    )
    drawn = tiny_world.generate("train", pairs, seed + FAILING_DRAW, MISLABELLED)
    learning = _learning(model, drawn, seed)
    contradicts = drawn.frame["subset"].isin(list(tiny_world.COUNTER_HEURISTIC))
    labels = drawn.frame["label"].mask(contradicts, tiny_world.ENTAILMENT)
    data = replace(drawn, frame=drawn.frame.assign(label=labels))
    settings = replace(
        settings_for(steps, seed),
        learning_rate=FAILING_RATE,
        warmup_steps=min(FAILING_WARMUP, steps - 1),
        evaluate_every=min(FAILING_STEPS // 4, steps),
    )
    with one_thread():
        return train(model, learning, data, evaluations(), out, settings)


def _thin(out: Path, history: pd.DataFrame) -> None:
    """Keep a short series of checkpoints around and after the rise of in-domain accuracy."""
    overall = history[(history["dataset"] == "id") & (history["subset"] == ALL)]
    stored = [int(step) for step in overall["step"] if checkpoint_path(out, step).is_dir()]
    reached = overall.loc[overall["accuracy"] >= HEURISTIC_ACCURACY, "step"]
    pivot, last = int(reached.min() if len(reached) else 0), int(overall["step"].max())
    wanted = [pivot / 2, pivot, *(pivot + (last - pivot) * part / 4 for part in (1, 2, 3))]
    keep = {min(stored, key=lambda step: abs(step - aim)) for aim in wanted if stored}
    for step in set(stored) - keep:
        shutil.rmtree(checkpoint_path(out, step))
