"""The tables of docs/results/minilm-mnli-hans.md, made from those of the study.

Usage: python docs/results/minilm_mnli_hans.py FOLDER

FOLDER has the tables of the study (study/tables), as entailed.csv the table ablation.csv of the
entailed pairs, and as readers.csv the table core_dependence.csv of the second checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent

MAIN_TEXT = {
    "lexical_overlap_ln_subject/object_swap": "SO-Swap",
    "lexical_overlap_ln_preposition": "Prep",
    "constituent_cn_embedded_under_if": "Embed-If",
    "constituent_cn_embedded_under_verb": "Embed-Verb",
}
SETS = {"id:all": "MNLI", "ood:all": "HANS"} | {f"ood:{k}": v for k, v in MAIN_TEXT.items()}
SPARSITIES = (0.5, 0.7)
N_SETS = 10
N_READERS = 10


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    read = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    return {
        "fine-tuning": _fine_tuning(read["training"]),
        "subnetworks": _subnetworks(read["accuracy_spread"], read["subnetworks"]),
        "seeds": _seeds(read["subnetworks"]),
        "entailed": _entailed(read["entailed"], read["ablation"], read["sweep"]),
        "core": _core(read["head_categories"], read["ablation"]),
        "heads": _heads(read["sweep"], read["head_categories"], read["head_frequency"]),
        "joint": _joint(read["interactions"]),
        "search": _search(read["superadditive"]),
        "sizes": _sizes(read["mean_effective_size"]),
        "readers": _readers(read["readers"]),
    }


def _points(frame: pd.DataFrame, value: str, low: str, high: str, unit: float = 100) -> str:
    """The only row's value with its interval, in points."""
    (row,) = frame.to_dict("records")
    digits = 1 if unit == 100 else 2
    mean, bottom, top = (f"{unit * row[name]:.{digits}f}" for name in (value, low, high))
    return f"{mean} ({bottom} to {top})"


def _readers(dependence: pd.DataFrame) -> str:
    rows = dependence.query("subset == 'all' and metric == 'information'")
    inside, outside = (rows[rows["role"] == role].set_index("receiver") for role in ("id", "ood"))
    order = outside["blind_drop"].abs().sort_values(ascending=False, kind="stable").index
    told = []
    for name in order[:N_READERS]:
        row, of_name = outside.loc[name], outside.loc[[name]]
        share = ""
        if row["share"] == row["share"]:
            share = _points(of_name, "share", "share_low", "share_high", unit=1)
        drops = [f"blind_drop{end}" for end in ("", "_low", "_high")]
        told.append(
            [
                name,
                _points(of_name, "drop", "drop_low", "drop_high"),
                _points(of_name, *drops),
                share,
                f"{100 * row['control_drop']:.1f}, p {row['p_control']:.2g}",
                _points(inside.loc[[name]], *drops),
            ]
        )
    head = ["receiver", "D(r), HANS", "blind to both, HANS", "share", "random heads"]
    return markdown([*head, "blind, MNLI"], told)


def _set(frame: pd.DataFrame) -> pd.Series:
    return frame["role"] + ":" + frame["subset"]


def _fine_tuning(training: pd.DataFrame) -> str:
    wide = training.assign(set=_set(training)).pivot(index="step", columns="set", values="accuracy")
    loss = training.groupby("step")["loss"].first()
    macro = wide[[name for name in wide if name.startswith("ood:") and name != "ood:all"]].mean(
        axis=1
    )
    rows = [
        [f"{step:,}", f"{loss[step]:.3f}", percent(wide.loc[step, "id:all"])]
        + [percent(macro[step])]
        + [percent(wide.loc[step, f"ood:{name}"]) for name in MAIN_TEXT]
        for step in wide.index
    ]
    return markdown(["step", "loss", "MNLI", "HANS", *MAIN_TEXT.values()], rows)


def _subnetworks(spread: pd.DataFrame, subnetworks: pd.DataFrame) -> str:
    by_set = spread.assign(set=_set(spread)).set_index(["set", "target_sparsity"])
    rows = []
    for name, title in SETS.items():
        cells = [title, percent(by_set.loc[(name, SPARSITIES[0]), "full"])]
        for sparsity in SPARSITIES:
            row = by_set.loc[(name, sparsity)]
            cells.append(", ".join(percent(row[key]) for key in ("low", "mean", "high")))
        rows.append(cells)
    kept = ["heads and MLPs kept, mean", "72, 6"]
    for sparsity in SPARSITIES:
        part = subnetworks[subnetworks["target_sparsity"] == sparsity]
        kept.append(f"{part['heads_kept'].mean():.1f}, {part['mlps_kept'].mean():.1f}")
    ranges = [f"{100 * each:.0f} %: lowest, mean, highest" for each in SPARSITIES]
    return markdown(["", "full", *ranges], [*rows, kept])


def _seeds(subnetworks: pd.DataFrame) -> str:
    rows = []
    for seed, part in subnetworks.groupby("seed"):
        by_sparsity = part.set_index("target_sparsity")
        cells = [str(int(str(seed)))]
        for sparsity in SPARSITIES:
            row = by_sparsity.loc[sparsity]
            cells += [f"{row['heads_kept']}, {row['mlps_kept']}", f"{row['kl']:.3f}"]
            cells += [percent(row["id_accuracy"]), percent(row["ood_accuracy_macro"])]
        rows.append(cells)
    heads = [
        f"{100 * each:.0f} %: {what}"
        for each in SPARSITIES
        for what in ("kept", "KL", "MNLI", "HANS")
    ]
    return markdown(["seed", *heads], rows)


def _drops(ablation: pd.DataFrame, which: str) -> list[str]:
    part = ablation[ablation["set"] == which]
    where = _set(part)
    drop = ("accuracy_drop", "accuracy_drop_low", "accuracy_drop_high")
    return [_points(part[where == name], *drop) for name in ("id:all", "ood:all")]


def _category(categories: pd.DataFrame, component: str) -> list[str]:
    row = categories.set_index("component").loc[component]
    named = {
        name.removeprefix("mass_"): row[name]
        for name in categories
        if name.startswith("mass_") and name != "mass_other" and row[name] == row[name]
    }
    largest = sorted(named, key=lambda name: -named[name])[:2]
    return [str(row["category"]), ", ".join(f"{name} {named[name]:.2f}" for name in largest)]


def _core(categories: pd.DataFrame, ablation: pd.DataFrame) -> str:
    core = categories.loc[categories["in_core"], "component"]
    rows = [[head, *_category(categories, head), *_drops(ablation, head)] for head in core]
    others = ablation.loc[ablation["kind"] == "non-core", "set"].unique()
    rows += [[name, "", "", *_drops(ablation, name)] for name in others]
    return markdown(["head", "category", "most attention", "drop, MNLI", "drop, HANS"], rows)


def _entailed(entailed: pd.DataFrame, ablation: pd.DataFrame, sweep: pd.DataFrame) -> str:
    """Drops on both halves of HANS; the last column is their mean."""
    measured = pd.concat([ablation, sweep]).drop_duplicates(["set", "role", "subset"])
    names = entailed.loc[_set(entailed) == "ood:all", "set"]
    halves = (measured, entailed)
    on_hans = [frame[_set(frame) == "ood:all"].set_index("set") for frame in halves]
    before = [f"{100 * (row['accuracy'] + row['accuracy_drop']).iloc[0]:.1f}" for row in on_hans]
    rows = []
    for name in names:
        if all(name in part.index for part in on_hans):
            drops = [_drops(frame, name)[1] for frame in halves]
            mean = sum(part.loc[name, "accuracy_drop"] for part in on_hans) / 2
            title = name if name.count("+") < 2 else f"all {name.count('+') + 1} of the core"
            rows.append([title, *drops, percent(mean)])
    titles = [f"drop, {n} ({b})" for n, b in zip(("non-entailed", "entailed"), before, strict=True)]
    return markdown(["without", *titles, "mean of both"], rows)


def _heads(sweep: pd.DataFrame, categories: pd.DataFrame, frequency: pd.DataFrame) -> str:
    """The heads and MLPs whose loss costs most out of domain."""
    single = sweep[(sweep["kind"] == "single") & (_set(sweep) == "ood:all")]
    worst = single.nlargest(N_SETS, "accuracy_drop", keep="all")["set"]
    kept = frequency.pivot(index="component", columns="target_sparsity", values="count")
    rows = []
    for name in worst:
        is_head = name in set(categories["component"])
        label = _category(categories, name)[0] if is_head else "MLP"
        rows.append([name, label, *(str(kept.loc[name, each]) for each in SPARSITIES)])
        rows[-1] += _drops(sweep, name)
    counts = [f"kept of 12, {100 * each:.0f} %" for each in SPARSITIES]
    return markdown(["component", "category", *counts, "drop, MNLI", "drop, HANS"], rows)


def _interaction_rows(frame: pd.DataFrame, sets: Iterable[str]) -> list[list[str]]:
    rows = []
    where = _set(frame)
    for name in sets:
        cells = [name.replace("+", " + ")]
        for data in ("id:all", "ood:all"):
            here = frame[(frame["set"] == name) & (where == data)]
            accuracy, margin = (here[here["metric"] == each] for each in ("accuracy", "margin"))
            limited = bool(accuracy[["floor", "ceiling"]].any(axis=None))
            cells.append(_points(accuracy, "interaction", "low", "high") + "*" * limited)
            cells.append(_points(margin, "interaction", "low", "high", unit=1))
        rows.append(cells)
    return rows


_INTERACTIONS = ("MNLI, accuracy", "MNLI, margin", "HANS, accuracy", "HANS, margin")


def _joint(interactions: pd.DataFrame) -> str:
    on_ood = interactions[(_set(interactions) == "ood:all") & (interactions["metric"] == "margin")]
    largest = on_ood.nlargest(N_SETS, "interaction")["set"]
    return markdown(["set", *_INTERACTIONS], _interaction_rows(interactions, largest))


def _search(found: pd.DataFrame) -> str:
    margins = found[(found["metric"] == "margin") & (_set(found) == "ood:all")]
    best = margins.nlargest(N_SETS, "interaction")
    rows = []
    for row in best.to_dict("records"):
        cells = [str(row["set"]).replace("+", " + "), f"{row['joint_drop']:.2f}"]
        cells += [f"{row['sum_of_single_drops']:.2f}"]
        cells += [f"{row['interaction']:.2f} ({row['low']:.2f} to {row['high']:.2f})"]
        cells += [f"{row['p_adjusted']:.2g}"]
        accuracy = found[(found["set"] == row["set"]) & (found["metric"] == "accuracy")]
        rows.append(
            [*cells, _points(accuracy[_set(accuracy) == "ood:all"], "interaction", "low", "high")]
        )
    head = ["set", "joint drop", "sum of single drops", "interaction", "p, adjusted"]
    return markdown([*head, "on accuracy, points"], rows)


def _sizes(sizes: pd.DataFrame) -> str:
    groups: Mapping[str, str] = {"ID": "MNLI", "OOD": "HANS", "main text": "main text"}
    rows = []
    for step, part in sizes.groupby("checkpoint"):
        by_group = part.set_index("group")
        cells = [f"{int(str(step)):,}"]
        for group in groups:
            row = by_group.loc[group]
            missing = int(row["n_seeds"] - row["n_faithful"])
            cells += [percent(row["full_accuracy"])]
            cells += [f"{percent(row['effective_size'])}" + f" [{missing}]" * bool(missing)]
        rows.append(cells)
    head = [f"{title}{what}" for title in groups.values() for what in ("", " size")]
    return markdown(["step", *head], rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
