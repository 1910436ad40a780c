"""Cost of loading a classifier, compared with Hugging Face, in turn in one process.

    python benchmarks/loading.py [--rounds 7] [--layers 4] [--quick] [--json FILE]

Random models of three shapes (MiniLM, BERT base, and a few layers of Qwen3-0.6B), three ways:

    Hugging Face       AutoModelForSequenceClassification.from_pretrained
    TransformerLens    the same, and a bridge around it (build_bridge_from_module), with the
                       adapter that mechcore registers, as TransformerLens has none for classifiers
    mechcore           load_model, which also compares the bridge's logits with Hugging Face's

Times are CPU seconds with one thread, the shortest of the rounds. Hugging Face maps the weights
from the file without reading them: the last columns add the first answer, for 2 x 8 tokens, which
reads all.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from exact_shapes import build, configuration
from shapes import save_minilm_shaped, save_qwen3_shaped
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import AutoModelForSequenceClassification

from mechcore.models import load_model
from mechcore.models.checkpoint_files import without_bars

BARE = "Hugging Face"
IDS = torch.arange(2, 18).view(2, 8)


def load_plain(folder: Path) -> Any:
    with without_bars():
        return AutoModelForSequenceClassification.from_pretrained(
            folder, attn_implementation="eager"
        )


def load_bridge(folder: Path) -> Any:
    model = load_plain(folder)
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)


VARIANTS: dict[str, Callable[[Path], Any]] = {
    BARE: load_plain,
    "TransformerLens": load_bridge,
    "mechcore": load_model,
}


def save_shapes(folder: Path, layers: int, quick: bool) -> list[Path]:
    """Checkpoints with random weights, in folders named by their shapes."""
    minilm, bert, qwen3 = (folder / name for name in ("MiniLM", "BERT base", "Qwen3"))
    save_minilm_shaped(minilm, 1 if quick else 6)
    with without_bars():
        build(configuration("bert-base-cased", quick)).save_pretrained(bert)
    save_qwen3_shaped(qwen3, 1 if quick else layers)
    return [minilm, bert, qwen3]


@torch.no_grad()
def seconds(load: Callable[[Path], Any], folder: Path) -> tuple[float, float]:
    """Seconds until the model is loaded, and until its first answer."""
    gc.collect()
    start = time.process_time()
    model = load(folder)
    loaded = time.process_time()
    model(IDS)
    return loaded - start, time.process_time() - start


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for every variant."""
    load_model(folder)  # registers the adapter of its architecture
    timed = [{name: seconds(VARIANTS[name], folder) for name in VARIANTS} for _ in range(rounds)]
    shortest = {
        name: [min(times) for times in zip(*(t[name] for t in timed), strict=True)]
        for name in VARIANTS
    }
    return [
        {
            "shape": folder.name,
            "variant": name,
            "seconds": loaded,
            "times Hugging Face": loaded / shortest[BARE][0],
            "with an answer": answered,
            "times that": answered / shortest[BARE][1],
        }
        for name, (loaded, answered) in shortest.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=4, help="of the Qwen3 shape")
    parser.add_argument("--quick", action="store_true", help="one layer, BERT base at toy size")
    parser.add_argument("--json", type=Path, help="where to save the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        folders = save_shapes(Path(folder), options.layers, options.quick)
        rows = [row for saved in folders for row in measure(saved, options.rounds)]
    print(pd.DataFrame(rows).round(3).to_string(index=False))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
