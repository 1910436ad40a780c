"""Ten fine-tunings of MiniLM, with and without HANS: what holds over training seeds.

Usage: python docs/results/minilm_seeds.py FOLDER [STUDY]

With STUDY, the folder of the study of minilm-seeds.yaml, FOLDER gets what its models' tables say:
models.csv, cores.csv and components.csv. The tables of the page are made from these.
"""

from __future__ import annotations

import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from as_markdown import markdown
from scipy import stats

from mechcore.components import Component
from mechcore.evaluation.p_values import adjusted_p
from mechcore.subnetworks.core import shared_by_chance

RECIPES = {"none": "MNLI alone", "hans": "MNLI + HANS"}
SEEDS, HEADS, LAYERS = range(5), 12, 6
SPLITS = {"id": "MNLI", "ood": "HANS"}
SIDES = "shift_change_ood"
EFFECTS = {
    "information_change_id": "information, MNLI",
    "information_change_ood": "information, HANS",
    SIDES: "answers that change sides, HANS",
}
OTHER_MEAN = "information_change_ood_mean"
N_SHOWN = 8
NAMED = ("L1.H1", "L1.H2", "L2.H9", "L3.H10", "L5.H0")
"""Heads whose effects out of domain the pages on single models report."""


def collect(study: Path, folder: Path) -> None:
    """Write what the tables of every model say that the page needs."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[pd.DataFrame]] = {"models": [], "cores": [], "components": []}
    for recipe, seed in product(RECIPES, SEEDS):
        tables = study / f"{recipe}-{seed}" / "tables"
        place = {"recipe": recipe, "training_seed": seed}
        accuracy = pd.read_csv(tables / "accuracy.csv")
        accuracy = accuracy[(accuracy["subset"] == "all") & accuracy["subsets"].isna()]
        wanted = ["subnetwork", "split", "n", "accuracy", "balanced_accuracy", "information"]
        parts["models"].append(accuracy[wanted].assign(**place))
        cores = pd.read_csv(tables / "core.csv")
        wanted = ["heads", "core_size", "expected_by_chance", "p_value"]
        parts["cores"].append(cores[wanted].assign(**place))
        roles = pd.read_csv(tables / "roles.csv")
        attends = pd.read_csv(tables / "head_categories.csv").drop_duplicates("component")
        roles[SIDES] = -roles[SIDES]  # a share of answers, of which tables make a loss
        roles = roles.merge(attends[["component", "category"]], how="left", on="component")
        wanted = ["component", "category", "role", "sure", "confirmed", *EFFECTS, OTHER_MEAN]
        parts["components"].append(roles[wanted].assign(**place))
    for name, tables_of in parts.items():
        table = pd.concat(tables_of, ignore_index=True)
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4g")


# -- the page -------------------------------------------------------------------------------------


def tables(folder: Path) -> dict[str, str]:
    """The page's tables, from the tables of the folder."""
    read = {name: pd.read_csv(folder / f"{name}.csv") for name in ("models", "cores", "components")}
    return {
        "models": _models(read["models"]),
        "subnetworks": _subnetworks(read["models"]),
        "cores": _cores(read["cores"]),
        "heads": _heads(read["cores"], read["components"]),
        "roles": _roles(read["components"]),
        "components": _components(read["components"]),
        "named": _named(read["components"]),
        "agreement": _agreement(read["components"]),
    }


def _over_seeds(values: pd.Series) -> str:
    """Mean in percent or points, and its 95 % interval over training seeds, t with 4 df."""
    mean, half = 100 * values.mean(), 100 * stats.t.ppf(0.975, len(values) - 1) * values.sem()
    shown, low, high = (f"{round(x, 1) + 0:.1f}" for x in (mean, mean - half, mean + half))
    return f"{shown} ({low} to {high})"


def _models(models: pd.DataFrame) -> str:
    full, rows = models[models["subnetwork"] == "full"], []
    for recipe, split in product(RECIPES, SPLITS):
        part = full[(full["recipe"] == recipe) & (full["split"] == split)]
        seeds = ", ".join(f"{100 * x:.1f}" for x in part["balanced_accuracy"])
        figures = [_over_seeds(part[name]) for name in ("balanced_accuracy", "information")]
        rows.append([RECIPES[recipe], SPLITS[split], *figures, seeds])
    head = ["training", "data", "balanced accuracy, %", "information, %"]
    return markdown([*head, "balanced accuracy of each seed"], rows)


def _subnetworks(models: pd.DataFrame) -> str:
    """How far apart the subnetworks of each model are."""
    masks, rows = models[models["subnetwork"] != "full"], []
    for recipe, split in product(RECIPES, SPLITS):
        part = masks[(masks["recipe"] == recipe) & (masks["split"] == split)]
        by_seed = part.groupby("training_seed")
        names = ("accuracy", "balanced_accuracy", "information")
        spreads = [by_seed[name].max() - by_seed[name].min() for name in names]
        cells = [_over_seeds(spread) for spread in spreads]
        rows.append([RECIPES[recipe], SPLITS[split], *cells, f"{100 * spreads[1].max():.1f}"])
    head = ["training", "data", "accuracy", "balanced accuracy", "information"]
    return markdown([*head, "largest, balanced accuracy"], rows)


def _cores(cores: pd.DataFrame) -> str:
    rows = []
    for recipe in RECIPES:
        part = cores[cores["recipe"] == recipe]
        sizes = ", ".join(map(str, part["core_size"]))
        chance = ", ".join(f"{x:.1f}" for x in part["expected_by_chance"])
        sets = [set(heads.split()) for heads in part["heads"]]
        everywhere = set.intersection(*sets)
        rows.append([RECIPES[recipe], sizes, chance, str(len(everywhere)), f"{_chance(sets):.2g}"])
    sets = [set(heads.split()) for heads in cores["heads"]]
    in_all = set.intersection(*sets)
    rows.append(["both, ten models", "", "", str(len(in_all)), f"{_chance(sets):.1g}"])
    head = ["training", "heads in each core", "by chance", "in all cores", "by chance"]
    return markdown(head, rows)


def _chance(sets: list[set[str]]) -> float:
    """Heads in all cores, if each had its number of heads in each layer at random."""
    layers = [[Component(head).layer for head in heads] for heads in sets]
    sizes = np.array([np.bincount(of_heads, minlength=LAYERS) for of_heads in layers])
    chance = shared_by_chance([HEADS] * LAYERS, sizes)
    return float(np.arange(len(chance)) @ chance)


def _heads(cores: pd.DataFrame, components: pd.DataFrame) -> str:
    """Heads in the cores of at least nine of the ten models, and what they attend to."""
    counts = cores["heads"].str.split().explode().groupby(cores["recipe"]).value_counts()
    n = counts.unstack("recipe", fill_value=0)
    chosen = sorted(n[n.sum(1) >= 9].index, key=Component)
    rows = []
    for head in chosen:
        labels = components[components["component"] == head]["category"].value_counts()
        seen = ", ".join(f"{label} ({n})" for label, n in labels.items())
        rows.append([head, *(str(n.loc[head, recipe]) for recipe in RECIPES), seen])
    return markdown(["head", *RECIPES.values(), "attends to (models)"], rows)


def _roles(components: pd.DataFrame) -> str:
    """How many components have each role, surely, and again in other seeds."""
    rows = []
    for recipe, role in product(RECIPES, sorted(set(components["role"]) - {_IDLE})):
        part = components[(components["recipe"] == recipe) & (components["role"] == role)]
        n = part.groupby("training_seed").size().reindex(SEEDS, fill_value=0)
        n_sure = part[part["sure"]].groupby("training_seed").size().reindex(SEEDS, fill_value=0)
        seeds = part.groupby("component").size()
        most = sorted(seeds[seeds == len(SEEDS)].index, key=Component)
        cells = [", ".join(map(str, counts)) for counts in (n, n_sure)]
        rows.append([RECIPES[recipe], role, *cells, ", ".join(most) or "none"])
    return markdown(["training", "role", "components by seed", "sure", "in all five seeds"], rows)


_IDLE = "no detectable effect"


def _tested(components: pd.DataFrame) -> pd.DataFrame:
    """Means of every effect over seeds, their p corrected for all components, by recipe."""
    rows = []
    for recipe, effect in product(RECIPES, EFFECTS):
        part = components[components["recipe"] == recipe]
        wide = part.pivot(index="component", columns="training_seed", values=effect).dropna()
        p = adjusted_p(stats.ttest_1samp(wide, 0, axis=1).pvalue, "benjamini-hochberg")
        rows.append(pd.DataFrame({"recipe": recipe, "effect": effect, "p": p}, index=wide.index))
    return pd.concat(rows).reset_index()


def _components(components: pd.DataFrame) -> str:
    """Components whose mean change over seeds is shown, largest first."""
    tested, rows = _tested(components), []
    for (recipe, effect), part in tested[tested["p"] < 0.05].groupby(
        ["recipe", "effect"], sort=False
    ):
        of = components[components["recipe"] == recipe].set_index("component")
        means = of.groupby("component")[effect].mean().loc[part["component"]]
        for name in means.abs().nlargest(N_SHOWN).index:
            figure = _over_seeds(of.loc[name, effect])
            rows.append([RECIPES[recipe], EFFECTS[effect], name, figure])
    return markdown(["training", "change", "component", "points"], rows)


def _named(components: pd.DataFrame) -> str:
    effects = ("information_change_ood", OTHER_MEAN, SIDES)
    rows = []
    for recipe, name in product(RECIPES, NAMED):
        of = components[(components["recipe"] == recipe) & (components["component"] == name)]
        rows.append([name, RECIPES[recipe], *(_over_seeds(of[effect]) for effect in effects)])
    head = [
        "head",
        "training",
        "information, HANS",
        "with the HANS mean",
        "answers that change sides",
    ]
    return markdown(head, rows)


def _agreement(components: pd.DataFrame) -> str:
    """Rank correlation of the changes of all components between pairs of models."""
    wide = {
        effect: components.pivot(
            index="component", columns=["recipe", "training_seed"], values=effect
        )
        for effect in EFFECTS
    }
    pairs = {
        **{RECIPES[r]: list(combinations([(r, s) for s in SEEDS], 2)) for r in RECIPES},
        "one of each": list(product(*[[(r, s) for s in SEEDS] for r in RECIPES])),
    }
    rows = []
    for title, chosen in pairs.items():
        cells = []
        for table in wide.values():
            rho = [table[a].corr(table[b], method="spearman") for a, b in chosen]
            cells.append(f"{np.mean(rho):.2f} ({min(rho):.2f} to {max(rho):.2f})")
        rows.append([title, *cells])
    return markdown(["pairs of models", *EFFECTS.values()], rows)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for study in sys.argv[2:]:
        collect(Path(study), out)
    for title, text in tables(out).items():
        print(f"<!-- {title} -->\n\n{text}\n")
