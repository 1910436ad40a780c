"""Made-up studies of extractive structures: plausible numbers, and no model behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from made_up_tables import cells, named_components, verdicts, write_run

TOKENS = {
    "first-hop": "The people in the city {} is from speak",
    "second-hop": "The mayor of the city that contains {} is",
}
TITLES = {7: "Implications before facts teach less"}
FAILED = {7: "not supported", 8: "inconclusive", 10: "inconclusive"}


@dataclass(frozen=True)
class ExtractiveWorld:
    """What to write a study about; ``name_tokens`` is the length of names, by seed in turn."""

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
        before, after = (part.split() for part in TOKENS[task].split("{}"))
        return ["<|endoftext|>", *before, *name, *after]


def write_extractive_run(path: Path, world: ExtractiveWorld = ExtractiveWorld()) -> Path:
    """Write every file of a study."""
    config: dict[str, Any] = {
        "kind": "extractive",
        "command": "mechcore reproduce extractive --seeds 0,1,2",
        "model": {"n_layers": world.n_layers, "n_heads": world.n_heads},
        "seeds": list(world.seeds),
        "settings": {"learning_rates": [1e-4, 3e-4, 1e-3], "epochs": [8], "counterfactuals": 10},
    }
    return write_run(path, config, _tables(world, np.random.default_rng(0)))


def _tables(world: ExtractiveWorld, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    def rank(level: Any) -> np.ndarray:
        return np.clip(level + rng.normal(0, 0.25, len(level)), 0, 19).round(2)

    chosen = {"task": world.tasks, "seed": world.seeds}
    both = ("facts", "implications")
    ranks = cells(**chosen, data=both, state=("before", "after"))
    ranks["mean_rank"] = rank(
        np.where(ranks["state"] == "before", 9.8, 0.8 * (ranks["data"] == "implications"))
    )
    grid = cells(**chosen, learning_rate=(1e-4, 3e-4, 1e-3))
    grid["chosen"] = grid["learning_rate"] == 3e-4
    sums = cells(**chosen)
    sums["informative"] = 7.2 + rng.normal(size=len(sums))
    sums["other"] = rng.normal(0, 0.1, len(sums))
    sums["gradient"] = sums["informative"] + sums["other"] + 2e-6
    freezing = cells(
        **chosen,
        cut=world.cuts,
        frozen=("none", "early", "late", "all"),
        way=("reverted", "trained"),
        data=both,
    )
    share = freezing["cut"] / world.n_layers
    hurt = freezing["frozen"].map({"none": 0.0, "all": 10.0, "early": 9.0, "late": 2.0})
    freezing["mean_rank"] = rank(0.4 + 9 * hurt / 10 * share)
    data = [f"{which}{name}" for which in ("", "test ") for name in both]
    ordering = cells(
        seed=world.seeds,
        replay=world.replays,
        order=("joint", "facts first", "implications first"),
        data=data,
    )
    level = ordering["order"].map({"joint": 1.5, "facts first": 1.3, "implications first": 3.4})
    ordering["mean_rank"] = rank(level.where(ordering["data"] == "test implications", 0.3))
    models = {"other facts": 9.3, "graft": 4.4, "control graft": 8.8}
    data = [f"{which}{name}" for which in ("other ", "") for name in both[::-1]]
    grafting = cells(seed=world.seeds, model=models, data=data)
    level = grafting["model"].map(models)
    grafting["mean_rank"] = rank(level.where(grafting["data"] == "other implications", 5.0))
    parts = cells(seed=world.seeds, layer=range(world.n_layers), head=range(-1, world.n_heads))
    parts["informative"] = rng.gamma(1.0, np.where(parts["head"] < 0, 0.4, 0.05))
    parts["downstream"] = 0.5 * parts["informative"] + rng.normal(0, 0.03, len(parts))
    titles = [TITLES.get(claim, f"Title {claim}") for claim in range(1, 12)]
    return {
        "verdicts": verdicts(titles, FAILED),
        "ranks": ranks.assign(learning_rate=3e-4, epochs=8, chance=9.5),
        "grid": grid.assign(epochs=8),
        "scores": _scores(world, rng),
        "sums": sums,
        "freezing": freezing,
        "ordering": ordering.assign(chance=9.5),
        "grafting": grafting.assign(n=84, chance=9.5),
        "localization": named_components(parts),
        "localization_r2": cells(seed=world.seeds, kind=("mlp", "head")),
    }


def _scores(world: ExtractiveWorld, rng: np.random.Generator) -> pd.DataFrame:
    last, tables = world.n_layers - 1, []
    for task, seed in product(world.tasks, world.seeds):
        tokens = world.tokens(task, seed)
        name, end = tokens.index("subject -1"), len(tokens) - 1
        first = task == "first-hop"
        peaks = {
            "informative": (last / 3, name) if first else (last, end),
            "upstream": (0.0, name),
            "downstream": (last if first else last / 2, end),
        }
        table = cells(
            task=[task],
            seed=[seed],
            score=peaks,
            layer=range(world.n_layers),
            place=range(len(tokens)),
            head=range(-1, world.n_heads),
        )
        depth, at = (table["score"].map({s: p[i] for s, p in peaks.items()}) for i in (0, 1))
        near = np.exp(-(((table["layer"] - depth) / (0.2 * last + 0.3)) ** 2))
        near = near * (table["place"] == at) + rng.normal(0, 0.06, len(table))
        shown = (table["layer"] < last) | (table["place"] == end)
        table["value"] = np.where(table["head"] < 0, 2.0, 0.25) * near * shown
        tables.append(table.assign(token=[tokens[place] for place in table["place"]]))
    return named_components(pd.concat(tables, ignore_index=True))
