"""The tables and the picture of docs/results/minilm-atlas.md, made from those of the study.

Usage: python docs/results/minilm_atlas.py FOLDER [PICTURE]

FOLDER has a folder for each model, with the race of each half and the tables of its training and
of the paths; PICTURE is a file for the atlas.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from scipy.stats import pearsonr, spearmanr
from study_tables import points, random_heads, where_of

MODELS = {
    "seed-0": "MNLI + HANS, seed 0",
    "seed-1": "MNLI + HANS, seed 1",
    "seed-2": "MNLI + HANS, seed 2",
    "no-hans": "MNLI alone, seed 0",
}
HALVES = {"race-non-entailment": "not entailed", "race-entailment": "entailed"}
"""Halves of HANS by the name of the race."""

CORES = {name: "minilm-fine-tunings/" + name for name in MODELS} | {"seed-0": "minilm-mnli-hans"}
"""Where the core of each model was found, among all tables."""

SETS = {"id:all": "MNLI", "ood:not entailed": "not entailed", "ood:entailed": "entailed"}
N_PAIRS = 4
N_READERS = 4
BEYOND = ("below", "above")


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    races = {name: _effects(folder, name) for name in MODELS}
    return {
        "models": _models(folder),
        "decisions": _decisions(races),
        "kinds": _kinds(races),
        "largest": _largest(races),
        "halves": _halves(races),
        "shared": _shared(races),
        "readers": _readers(folder),
    }


def picture(folder: Path, path: Path) -> None:
    """The interactions of all pairs, a panel for each model and half."""
    from mechcore.report.ablation_figures import atlas

    figure = atlas(
        {
            f"{title}: {half}": pd.read_csv(folder / name / f"{race}.csv").assign(size=2)
            for name, title in MODELS.items()
            for race, half in HALVES.items()
        }
    )
    figure.savefig(path, dpi=80)


def _effects(folder: Path, name: str) -> pd.DataFrame:
    """Every pair with what the races of both halves found."""
    both = {
        half: pd.read_csv(folder / name / f"{race}.csv").set_index("set")
        for race, half in HALVES.items()
    }
    return pd.concat(both, axis=1)


def _models(folder: Path) -> str:
    """Accuracies at the end of training, and the cores that do not see."""
    rows = []
    for name, title in MODELS.items():
        training = pd.read_csv(folder / name / "training.csv")
        last = training[training["step"] == training["step"].max()]
        accuracy = last.set_index(where_of(last))["accuracy"]
        core = pd.read_csv(folder.parent / CORES[name] / "core.csv")["heads"][0].split()
        loss = f"{last['loss'].iloc[0]:.3f}"
        rows.append([title, loss, *(percent(accuracy[data]) for data in SETS), ", ".join(core)])
    return markdown(["model", "loss", *SETS.values(), "core"], rows)


def _decisions(races: dict[str, pd.DataFrame]) -> str:
    rows = []
    for name, race in races.items():
        for half in HALVES.values():
            counts, n = race[(half, "decision")].value_counts(), race[(half, "n")]
            decided = [f"{counts.get(decision, 0):,}" for decision in (*BEYOND, "within", "open")]
            rows.append(
                [MODELS[name], half, *decided, f"{n.median():.0f}", f"{n.mean():.0f}", str(n.max())]
            )
    head = ["model", "half", "below", "above", "within", "open"]
    return markdown([*head, "half of the pairs took at most", "mean", "most"], rows)


def _kinds(races: dict[str, pd.DataFrame]) -> str:
    """How many of the decided pairs are of which kinds of components."""
    rows = []
    for name, race in races.items():
        n_mlps = race.index.str.count("MLP")
        for half in HALVES.values():
            cells = [MODELS[name], half]
            for n in (0, 1, 2):
                counts = race.loc[n_mlps == n, (half, "decision")].value_counts()
                cells += [str(counts.get(decision, 0)) for decision in BEYOND]
            rows.append(cells)
    kinds = ("two heads", "head and MLP", "two MLPs")
    return markdown(["model", "half", *(f"{k}, {d}" for k in kinds for d in BEYOND)], rows)


def _largest(races: dict[str, pd.DataFrame]) -> str:
    """The pairs of heads with the largest interactions on one half, in either direction."""
    rows = []
    for name, race in races.items():
        heads = race[race.index.str.count("MLP") == 0]
        size = pd.concat([heads[(half, "effect")].abs() for half in HALVES.values()], axis=1)
        for pair in size.max(axis=1).nlargest(N_PAIRS).index:
            cells = [MODELS[name], pair.replace("+", " + ")]
            for half in HALVES.values():
                row = heads.loc[pair, half]
                ends = f"{row['low']:.2f} to {row['high']:.2f}"
                cells.append(f"{row['effect']:.2f} ({ends}), {row['decision']}")
            rows.append(cells)
    return markdown(["model", "heads", *HALVES.values()], rows)


def _halves(races: dict[str, pd.DataFrame]) -> str:
    """What the interactions on one half have to do with those on the other."""
    first, second = HALVES.values()
    rows = []
    for name, race in races.items():
        beyond = [race[(half, "decision")].isin(BEYOND) for half in (first, second)]
        both = race[beyond[0] & beyond[1]]
        same = both[(first, "decision")] == both[(second, "decision")]
        n = [str(int(flags.sum())) for flags in beyond]
        rho = spearmanr(race[(first, "effect")], race[(second, "effect")]).statistic
        rows.append([MODELS[name], *n, str(len(both)), str(int((~same).sum())), f"{rho:.2f}"])
    head = ["model", f"over 0.1, {first}", f"over 0.1, {second}", "both", "with opposite signs"]
    return markdown([*head, "rho over all pairs"], rows)


def _shared(races: dict[str, pd.DataFrame]) -> str:
    """Do two models have the same interactions, beside random pairs of the same layers and kinds?

    With its layers a pair keeps its MLPs, so that one with an MLP is compared with such pairs.
    """
    rows = []
    for a, b in combinations(races, 2):
        cells = [MODELS[a], MODELS[b]]
        for half in HALVES.values():
            one, other = races[a][half], races[b][half].loc[races[a].index]
            beyond = [part["decision"].isin(BEYOND) for part in (one, other)]
            both = beyond[0] & beyond[1]
            same = int((one["decision"] == other["decision"])[both].sum())
            n = [int(flags.sum()) for flags in beyond]
            kind = one.index.str.replace(r"\.H\d+", ".H", regex=True)
            shares = [
                (one["decision"].eq(sign).groupby(kind).sum())
                * other["decision"].eq(sign).groupby(kind).mean()
                for sign in BEYOND
            ]
            cells += [f"{same} of {n[0]} and {n[1]}", f"{sum(share.sum() for share in shares):.1f}"]
            cells.append(str(int(both.sum()) - same))
            cells.append(f"{pearsonr(one['effect'], other['effect']).statistic:.2f}")
        rows.append(cells)
    what = ("shared", "by chance", "opposite", "r")
    return markdown(
        ["", "", *(f"{half}, {figure}" for half in HALVES.values() for figure in what)], rows
    )


def _readers(folder: Path) -> str:
    """Components that lose most information on HANS when they do not see the core."""
    rows = []
    for name, title in MODELS.items():
        cut = pd.read_csv(folder / name / "path_information.csv")
        inside, outside = (
            cut[cut["split"] == split].set_index("receiver").drop("answer", errors="ignore")
            for split in ("id", "ood")
        )
        blind = [f"information_change{end}" for end in ("", "_low", "_high")]
        controls = pd.read_csv(folder / name / "core_dependence.csv")  # of those that change most
        controls = controls.query("split == 'ood' and metric == 'information'")
        controls = controls.set_index("receiver")
        size = outside.loc[controls.index, blind[0]].abs()
        order = size.sort_values(ascending=False, kind="stable").index
        for receiver in order[:N_READERS]:
            row, of_it = controls.loc[receiver], controls.loc[[receiver]]
            cells = [title, receiver, points(of_it, "change", "change_low", "change_high")]
            cells.append(points(outside.loc[[receiver]], *blind))
            cells.append(random_heads(row))
            rows.append([*cells, points(inside.loc[[receiver]], *blind)])
    head = ["model", "receiver", "without it, HANS", "blind to the core, HANS", "random heads"]
    return markdown([*head, "blind, MNLI"], rows)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    for title, text in tables(source).items():
        print(f"<!-- {title} -->\n\n{text}\n")
    for path in sys.argv[2:]:
        picture(source, Path(path))
