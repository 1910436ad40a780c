"""Made-up studies of extractive structures: plausible numbers, and no model behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TOKENS = {
    "first-hop": "The people in the city {} is from speak",
    "second-hop": "The mayor of the city that contains {} is",
}
CHANCE = 9.5
Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class ExtractiveWorld:
    """What to write a study about.

    ``name_tokens`` is the number of tokens of a name, by seed in turn.
    """

    n_layers: int = 4
    n_heads: int = 4
    tasks: Sequence[str] = ("first-hop", "second-hop")
    seeds: Sequence[int] = (0, 1, 2)
    replays: Sequence[bool] = (False, True)
    name_tokens: Sequence[int] = (2,)
    cuts: Sequence[int] = (1, 2, 3)

    def tokens(self, task: str, seed: int) -> list[str]:
        """Labels of the columns."""
        n = self.name_tokens[list(self.seeds).index(seed) % len(self.name_tokens)]
        name = [f"subject -{n - i}" for i in range(n)]
        before, after = (part.split() for part in TOKENS.get(task, "a {} b").split("{}"))
        return ["<|endoftext|>", *before, *name, *after]


def write_extractive_run(path: Path, world: ExtractiveWorld = ExtractiveWorld()) -> Path:
    """Write every file of a study."""
    rng = np.random.default_rng(0)
    tables = path / "tables"
    tables.mkdir(parents=True)
    for name, rows in {
        "verdicts": _verdicts(),
        "ranks": _ranks(world, rng),
        "grid": _grid(world, rng),
        "scores": _scores(world, rng),
        "sums": _sums(world, rng),
        "freezing": _freezing(world, rng),
        "ordering": _ordering(world, rng),
        "grafting": _grafting(world, rng),
        "localization": _localization(world, rng),
        "localization_r2": _r2(world, rng),
    }.items():
        pd.DataFrame(rows).to_csv(tables / f"extractive_{name}.csv", index=False)
    (path / "config.json").write_text(json.dumps(_config(world)))
    return path


def _rank(rng: np.random.Generator, level: float) -> float:
    return round(float(np.clip(level + rng.normal(0, 0.25), 0, 19)), 2)


def _ranks(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    after = {"facts": 0.0, "implications": 0.8}
    cells = product(world.tasks, world.seeds, after, ("before", "after"))
    for task, seed, data, state in cells:
        value = _rank(rng, after[data] if state == "after" else 9.8)
        yield {
            "task": task,
            "seed": seed,
            "data": data,
            "state": state,
            "mean_rank": value,
            "low": max(value - 0.2 - 0.25 * value, 0),
            "high": value + 0.1 + 0.25 * value,
            "reward": 6.5 - 0.7 * value,
            "n": 20,
            "n_options": 20,
            "chance": CHANCE,
            "learning_rate": 3e-4,
            "epochs": 8,
        }


def _grid(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    for task, seed, rate in product(world.tasks, world.seeds, (1e-4, 3e-4, 1e-3)):
        yield {
            "task": task,
            "seed": seed,
            "learning_rate": rate,
            "epochs": 8,
            "loss": float(rng.uniform(0.001, 0.4)),
            "facts": 0.0 if rate == 3e-4 else _rank(rng, 1.5),
            "implications": _rank(rng, 2.0),
            "chosen": rate == 3e-4,
        }


def _scores(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    last = world.n_layers - 1
    places = [("mlp", -1), *(("head", head) for head in range(world.n_heads))]
    for task, seed in product(world.tasks, world.seeds):
        tokens = world.tokens(task, seed)
        name, end = tokens.index("subject -1"), len(tokens) - 1
        peaks = {
            "informative": (last / 3, name) if task == "first-hop" else (last, end),
            "upstream": (0.0, name),
            "downstream": (last, end) if task == "first-hop" else (last / 2, end),
        }
        for score, (layer, place), (kind, head) in product(
            peaks, product(range(world.n_layers), range(len(tokens))), places
        ):
            depth, at = peaks[score]
            near = np.exp(-(((layer - depth) / (0.2 * last + 0.3)) ** 2)) * (place == at)
            size = 2.0 if kind == "mlp" else 0.25
            value = size * (near + rng.normal(0, 0.06)) * (layer < last or place == end)
            yield {
                "task": task,
                "seed": seed,
                "score": score,
                "kind": kind,
                "component": f"L{layer}.MLP" if kind == "mlp" else f"L{layer}.H{head}",
                "layer": layer,
                "head": head,
                "place": place,
                "token": tokens[place],
                "value": float(value),
                "se": abs(float(value)) / 5,
                "n": 20,
            }


def _sums(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    for task, seed in product(world.tasks, world.seeds):
        informative, other = 7.2 + float(rng.normal()), float(rng.normal(0, 0.1))
        yield {
            "task": task,
            "seed": seed,
            "informative": informative,
            "other": other,
            "gradient": informative + other + 2e-6,
            "actual": informative + other + float(rng.normal(0.8, 0.4)),
            "r": 0.93,
            "n": 20,
        }


def _freezing(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    cells = product(world.tasks, world.seeds, world.cuts, ("reverted", "trained"))
    for task, seed, cut, way in cells:
        for frozen, data in product(("none", "early", "late", "all"), ("facts", "implications")):
            share = cut / world.n_layers
            hurt = {"none": 0.0, "all": 1.0, "early": share, "late": 1 - share}[frozen]
            if frozen in ("early", "late"):
                hurt *= 0.9 if (frozen == "early") == (task == "first-hop") else 0.2
            yield {
                "task": task,
                "seed": seed,
                "cut": cut,
                "frozen": frozen,
                "way": way,
                "data": data,
                "mean_rank": _rank(rng, 0.4 + 9 * hurt) * (0.4 if data == "facts" else 1),
                "n": 20,
            }


def _ordering(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    level = {"joint": 1.5, "facts first": 1.3, "implications first": 3.4}
    data = ("facts", "implications", "test facts", "test implications")
    for seed, replay, order, each in product(world.seeds, world.replays, level, data):
        bad = level[order] + (0 if replay else 2) if each == "test implications" else 0.3
        yield {
            "seed": seed,
            "replay": replay,
            "order": order,
            "data": each,
            "mean_rank": _rank(rng, bad),
            "n": 20 if each.startswith("test") else 84,
            "chance": CHANCE,
        }


def _grafting(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    level = {"other facts": 9.3, "graft": 4.4, "control graft": 8.8}
    data = ("other implications", "implications", "other facts", "facts")
    for seed, model, each in product(world.seeds, level, data):
        yield {
            "seed": seed,
            "model": model,
            "data": each,
            "mean_rank": _rank(rng, level[model] if each == "other implications" else 5.0),
            "n": 84,
            "chance": CHANCE,
        }


def _localization(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    for seed, layer in product(world.seeds, range(world.n_layers)):
        for head in range(-1, world.n_heads):
            value = float(rng.gamma(1.0, 0.4 if head < 0 else 0.05))
            yield {
                "seed": seed,
                "kind": "mlp" if head < 0 else "head",
                "component": f"L{layer}.MLP" if head < 0 else f"L{layer}.H{head}",
                "layer": layer,
                "head": head,
                "informative": value,
                "downstream": 0.5 * value + float(rng.normal(0, 0.2 if head < 0 else 0.03)),
            }


def _r2(world: ExtractiveWorld, rng: np.random.Generator) -> Rows:
    for seed, kind in product(world.seeds, ("mlp", "head")):
        r = float(rng.uniform(0.4, 0.8))
        n = world.n_layers * (1 if kind == "mlp" else world.n_heads)
        row = {"seed": seed, "kind": kind, "r2": r**2, "r": r, "p": 0.03, "n": n}
        yield row | {"facts": 0.0, "new_facts": 0.25}


_TITLES = (
    "First-hop implications are known untrained",
    "Second-hop implications are known untrained",
    "First-hop facts are stored at the name and read out at the end",
    "Second-hop facts are stored at the last token",
    "Undoing early layers costs first-hop, late ones second-hop implications",
    "Training late layers alone does too for first-hop, early for second-hop",
    "Implications before facts teach less",
    "With replay, implications before facts teach less, too",
    "What implications teach can be grafted",
    "MLPs that learn implications read out new facts",
    "The scores add up to the actual change",
)
_FAILED = {7: "not supported", 8: "inconclusive", 10: "inconclusive"}


def _verdicts() -> Rows:
    for i, title in enumerate(_TITLES, start=1):
        figure = (
            "Implications from 9.80 to 0.82 (chance 9.5, limit 2.00) [0.40, 1.20]. Met in 3 of 3 "
            f"seeds. This is the sentence of claim {i}."
        )
        yield {"claim": i, "title": title, "verdict": _FAILED.get(i, "supported"), "figure": figure}


def _config(world: ExtractiveWorld) -> dict[str, Any]:
    return {
        "kind": "extractive",
        "mechcore": "0.1.0",
        "versions": {"python": "3.11.2", "torch": "2.9.0", "transformer-lens": "3.9.0"},
        "command": "mechcore reproduce extractive --model checkpoints/tiny-gpt --seeds 0,1,2",
        "model": {
            "source": "checkpoints/tiny-gpt",
            "kind": "bridge",
            "architecture": "GPT2LMHeadModel",
            "n_layers": world.n_layers,
            "n_heads": world.n_heads,
        },
        "seeds": list(world.seeds),
        "settings": {"learning_rates": [1e-4, 3e-4, 1e-3], "epochs": [8], "counterfactuals": 10},
        "seconds": {"recall": 61.0, "freezing": 212.4},
    }
