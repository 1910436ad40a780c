"""Training of the two embedded models of the tiny world, as stored under ``data/``.

The classifier is a BERT-architecture encoder (6 layers), the language model a GPT-2-architecture
decoder (4 layers), both with 8 heads a layer and width 128, trained from scratch. The encoder is
trained with whole heads and MLPs dropped at random, which gives it the redundancy that pretraining
gives to larger models: without, no half of it keeps its accuracy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mechcore.data.examples import ALL, Examples
from mechcore.training import (
    SETTINGS_FILE,
    STATE_FOLDER,
    TrainSettings,
    checkpoint_path,
    train_answering,
    train_classifier,
)
from mechcore.worlds import tiny_world

ENCODER_STEPS = 3500
DECODER_STEPS = 2500
SMALL_LAYERS = 4
"""Of `small_gpt2`."""
SEED = 0
TRAINING_PAIRS = 200_000
HEURISTIC_ACCURACY = 0.9
HEAD_DROPOUT = 0.2
MLP_DROPOUT = 0.1
EVALUATION_SEED = 1
EVALUATION_PAIRS = {"id": 1500, "ood": 1200}


def widen(model: PreTrainedModel) -> None:
    """Widen the embeddings of an untrained model.

    The usual 0.02 suits a width of 768 and much data: here AdamW would move all words the same way
    before they are told apart, and the matching of equal words is not found for thousands of steps.
    """
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name or "wte" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif "_embeddings" in name or "wpe" in name:
            torch.nn.init.normal_(parameter, std=0.1)


def tiny_encoder_model(seed: int) -> BertForSequenceClassification:
    """An untrained encoder (0.8 M parameters); class 0 is entailment, class 1 non-entailment.

    In training mode it drops heads and MLPs, see `drop_components`.
    """
    torch.manual_seed(seed)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tiny_world.encoder_tokenizer()),
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=8,
            intermediate_size=256,
            max_position_embeddings=48,
            initializer_range=0.08,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label=dict(enumerate(tiny_world.LABELS)),
            label2id={name: index for index, name in enumerate(tiny_world.LABELS)},
        )
    )
    widen(model)
    drop_components(model, HEAD_DROPOUT, MLP_DROPOUT, seed)
    return model


def drop_components(
    model: BertForSequenceClassification, heads: float, mlps: float, seed: int
) -> None:
    """From now on, zero every head and MLP of every training example with these probabilities.

    What is kept is scaled up so that means stay the same; nothing changes in evaluation mode. It is
    dropout of whole components, as in LayerDrop (arXiv 1909.11556), for heads.
    """
    generator = torch.Generator().manual_seed(seed)
    n_heads = model.config.num_attention_heads

    def scales(n_examples: int, n: int, probability: float) -> Tensor:
        drawn = torch.rand(n_examples, 1, n, 1, generator=generator)
        return (drawn >= probability).float() / (1 - probability)

    def drop_heads(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not module.training:
            return None
        by_head = inputs[0].unflatten(-1, (n_heads, -1))
        return ((by_head * scales(len(by_head), n_heads, heads)).flatten(-2),)

    def drop_mlp(module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        if not module.training:
            return None
        return output * scales(len(output), 1, mlps)[:, :, 0]

    layers: Any = model.bert.encoder.layer
    for layer in layers:
        layer.attention.output.dense.register_forward_pre_hook(drop_heads)
        layer.output.dense.register_forward_hook(drop_mlp)


def tiny_decoder_model(seed: int) -> GPT2LMHeadModel:
    """An untrained decoder (0.8 M parameters) with untied embeddings."""
    tokenizer = tiny_world.decoder_tokenizer()
    return small_gpt2(tokenizer, seed, width=128, n_heads=8, end=tokenizer.sep_token_id)


def small_gpt2(
    tokenizer: PreTrainedTokenizerBase, seed: int, *, width: int, n_heads: int, end: int
) -> GPT2LMHeadModel:
    """An untrained GPT-2 of 4 layers and 48 positions, untied embeddings, without dropout.

    Args:
        tokenizer: has the words, the padding and the first token.
        seed: of the weights.
        width: of the residual stream.
        n_heads: of a layer.
        end: id of the token that ends a text.
    """
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=48,
            n_embd=width,
            n_layer=SMALL_LAYERS,
            n_head=n_heads,
            activation_function="gelu_new",
            initializer_range=0.08,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=end,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    widen(model)
    return model


def train_tiny_encoder(
    out: str | Path,
    steps: int = ENCODER_STEPS,
    seed: int = SEED,
    minority: float = tiny_world.DEFAULT_MINORITY,
    progress: bool = True,
) -> pd.DataFrame:
    """Train the encoder and write its run directory with a short series of checkpoints.

    With the defaults this is the run under ``data/tiny_encoder``. The series (stored in half
    precision) has the evaluation at which in-domain accuracy first reaches 0.9, one half-way to it
    and up to three evenly spread after it; ``final`` is in float32. A run that was interrupted
    begins anew: which heads and MLPs are dropped comes from a generator of its own, which the
    state of a run does not hold.

    Args:
        out: directory to create, or that of the same run.
        steps: optimiser steps.
        seed: seed of the weights, of the training pairs and of their order.
        minority: share of counter-heuristic training pairs.
        progress: whether to show a progress bar.

    Returns:
        The history, see ``mechcore.training.read_history``.

    Raises:
        InputError: ``out`` holds something else, or an argument is out of its range.
    """
    if (Path(out) / SETTINGS_FILE).is_file():
        shutil.rmtree(Path(out) / STATE_FOLDER, ignore_errors=True)
    with one_thread():
        history = train_classifier(
            tiny_encoder_model(seed),
            tiny_world.encoder_tokenizer(),
            tiny_world.generate("train", TRAINING_PAIRS, seed, minority),
            _evaluations(),
            out,
            _options(steps, seed, checkpoint_every=100),
            progress,
        )
    _thin(Path(out), history)
    return history


def train_tiny_decoder(
    out: str | Path,
    steps: int = DECODER_STEPS,
    seed: int = SEED,
    minority: float = tiny_world.DEFAULT_MINORITY,
    progress: bool = True,
) -> pd.DataFrame:
    """Train the decoder and write its run directory, with the final checkpoint alone.

    With the defaults this is the run under ``data/tiny_decoder``. Arguments, result and errors are
    those of ``train_tiny_encoder``.
    """
    with one_thread():
        return train_answering(
            tiny_decoder_model(seed),
            tiny_world.decoder_tokenizer(),
            tiny_world.generate("train", TRAINING_PAIRS, seed, minority),
            _evaluations(),
            out,
            _options(steps, seed, checkpoint_every=100 * steps),
            prompt=tiny_world.DECODER_PROMPT,
            answers=tiny_world.DECODER_ANSWERS,
            progress=progress,
        )


def _options(steps: int, seed: int, checkpoint_every: int) -> TrainSettings:
    return TrainSettings(
        steps=steps,
        learning_rate=5e-4,
        batch_size=64,
        warmup_steps=min(100, steps - 1),
        evaluate_every=100,
        checkpoint_every=checkpoint_every,
        checkpoint_dtype="float16",
        seed=seed,
    )


def _evaluations() -> dict[str, Examples]:
    """In-domain pairs, and out-of-domain pairs in which the heuristic fails."""
    n_id, n_ood = (EVALUATION_PAIRS[split] for split in ("id", "ood"))
    both = tiny_world.generate("ood", 2 * n_ood, EVALUATION_SEED)
    return {
        "id": tiny_world.generate("id", n_id, EVALUATION_SEED),
        "ood": both.labelled(tiny_world.NON_ENTAILMENT),
    }


def _thin(out: Path, history: pd.DataFrame) -> None:
    """Leave a short series of checkpoints around the rise of in-domain accuracy and after it."""
    overall = history[(history["dataset"] == "id") & (history["subset"] == ALL)]
    stored = [int(step) for step in overall["step"] if checkpoint_path(out, step).is_dir()]
    reached = overall.loc[overall["accuracy"] >= HEURISTIC_ACCURACY, "step"]
    pivot, last = int(reached.min() if len(reached) else 0), int(overall["step"].max())
    wanted = [pivot / 2, pivot, *(pivot + (last - pivot) * part / 4 for part in (1, 2, 3))]
    keep = {min(stored, key=lambda step: abs(step - aim)) for aim in wanted if stored}
    for step in set(stored) - keep:
        shutil.rmtree(checkpoint_path(out, step))


@contextmanager
def one_thread() -> Iterator[None]:
    """The order of floating-point sums, and so the result, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
