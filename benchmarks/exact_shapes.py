"""Cost of models with the exact shapes of published ones, for every step of mechcore.

BERT base (cased), RoBERTa base and GPT-2, each as a classifier with three classes, with random
weights, which cost as much as trained ones. Each model is measured in its own process:

    load          load_model, from safetensors in the system's cache
    forward       32 x 128 tokens
    means         256 examples with the lengths of MNLI pairs
    evaluate      the same examples
    prune         a pruning step of 1 and of 3 masks, 32 x 40 tokens, in float32 and in bfloat16
    train         a step of fine-tuning without mechcore: transformers and AdamW, 32 examples of
                  MNLI lengths, padded to the longest

    python benchmarks/exact_shapes.py [--models bert-base-cased,...] [--repeats 2] [--threads 1]

Times are the shortest of the repeats: CPU seconds with one thread, wall-clock seconds with more.
Peaks are those of the whole process during a step, or of the GPU with ``--device cuda``.
``--quick`` runs everything at toy size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
import transformers as hf
from measuring import shortest
from shapes import CLASSES, examples, of_lengths

from mechcore.components import ModelShape
from mechcore.evaluation.evaluate import evaluate
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.checkpoint_files import without_bars
from mechcore.models.protocol import forward
from mechcore.pruning import prune_settings
from mechcore.pruning.mask_training import MaskTraining
from mechcore.pruning.teacher import Teacher

BATCH, PADDED, PAIRS, PAIR = 32, 128, 256, 40
_QUICK = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def configuration(name: str, quick: bool = False) -> Any:
    """The published configuration, with three classes."""
    names = {
        "id2label": dict(enumerate(CLASSES)),
        "label2id": {label: i for i, label in enumerate(CLASSES)},
    }
    sizes: dict[str, Any] = {**_QUICK, "vocab_size": 1100} if quick else {}
    if name == "bert-base-cased":
        return hf.BertConfig(**{"vocab_size": 28996, **sizes}, **names)
    if name == "roberta-base":
        return hf.RobertaConfig(
            **{"vocab_size": 50265, **sizes},
            **names,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
        )
    if quick:
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 1100}
    end = sizes.get("vocab_size", 50257) - 1
    return hf.GPT2Config(**sizes, **names, pad_token_id=end, bos_token_id=end, eos_token_id=end)


MODELS = ("bert-base-cased", "roberta-base", "gpt2")


def build(config: Any) -> Any:
    """A classifier with reproducible random weights."""
    torch.manual_seed(0)
    return hf.AutoModelForSequenceClassification.from_config(config)


class Inputs:
    """Inputs: pairs with MNLI's lengths, of similar length, and one batch of the longest."""

    def __init__(self, vocabulary: int, segments: bool, quick: bool) -> None:
        self.batch = 4 if quick else BATCH
        rng = np.random.default_rng(1)
        pairs = examples(8 if quick else PAIRS, vocabulary=vocabulary)
        alike = of_lengths([PAIR] * self.batch, rng, vocabulary=vocabulary)
        longest = of_lengths([PADDED] * self.batch, rng, vocabulary=vocabulary)
        self.pairs, self.alike, self.longest = (
            data if segments else replace(data, token_type_ids=None)
            for data in (pairs, alike, longest)
        )


Step: TypeAlias = tuple[str, tuple[float, float]]


def mechcore_steps(folder: str, inputs: Inputs, repeats: int, device: str) -> Iterator[Step]:
    """Every step of mechcore, its seconds and its peak memory in MiB."""
    models: list[Any] = []
    yield "load", shortest(lambda: models.append(load_model(folder, device=device)), 1, device)
    model, pairs = models.pop(), inputs.pairs
    longest = next(inputs.longest.batches(inputs.batch))

    def run_forward() -> None:
        with torch.no_grad():
            forward(model, longest)

    yield "forward", shortest(run_forward, repeats, device)
    yield "means", shortest(lambda: MeanActivations.compute(model, pairs), 1, device)
    yield "evaluate", shortest(lambda: evaluate(model, pairs, in_domain=False), 1, device)
    means = MeanActivations.compute(model, inputs.alike, n_samples=0)
    for precision in ("float32", "bfloat16"):
        for masks in (1, 3):
            settings = prune_settings(
                "fast", precision=precision, masks_per_pass=masks, batch_size=inputs.batch
            )
            step = pruning_step(model, inputs.alike, means, settings)
            yield f"prune, {masks} x {precision}", shortest(step, repeats, device)


def pruning_step(model: Any, data: Any, means: MeanActivations, settings: Any) -> Any:
    """One optimisation step of several masks together, on all of ``data``."""
    teacher = Teacher(model, data, settings)
    shape, rows = ModelShape.of(model), range(len(data))
    trainings = [MaskTraining(settings, shape, 0.5, i) for i in range(settings.masks_per_pass)]

    def step() -> None:
        values = torch.stack([training.draw() for training in trainings])
        losses, gradients = teacher.kl_gradients(values, means, rows)
        for training, kl, gradient in zip(trainings, losses.tolist(), gradients, strict=True):
            training.update(kl, gradient)

    return step


def training_step(folder: str, inputs: Inputs, device: str) -> Any:
    """One step of AdamW on all weights of the model as transformers loads it."""
    model: Any = hf.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5)
    rows = inputs.pairs.rows(range(inputs.batch))
    batch = {name: rows[name].to(device) for name in ("input_ids", "attention_mask")}
    labels = torch.arange(inputs.batch, device=device) % len(CLASSES)

    def step() -> None:
        model(**batch, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def measured(arguments: argparse.Namespace) -> Iterator[Step]:
    """Every step of one model; training is last, after mechcore's model is freed."""
    config = configuration(arguments.only, arguments.quick)
    inputs = Inputs(config.vocab_size, config.model_type == "bert", arguments.quick)
    folder, repeats, device = arguments.folder, arguments.repeats, arguments.device
    yield from mechcore_steps(folder, inputs, repeats, device)
    yield "train", shortest(training_step(folder, inputs, device), repeats, device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        with without_bars():
            print(json.dumps(list(measured(arguments))))
        return
    rows = []
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as folder, without_bars():
            model = build(configuration(name, arguments.quick))
            n_parameters = sum(weights.numel() for weights in model.parameters())
            model.save_pretrained(folder)
            del model
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--folder", folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for step, (seconds, peak) in json.loads(done.stdout.splitlines()[-1]):
            row = {"model": name, "parameters": n_parameters, "step": step}
            rows.append({**row, "seconds": round(seconds, 3), "peak GiB": round(peak / 1024, 2)})
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    versions = f"torch {torch.__version__}, transformers {hf.__version__}"
    print(f"{versions}, {arguments.device}, {arguments.threads} threads")
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
