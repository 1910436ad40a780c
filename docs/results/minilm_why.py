"""Why heads of MiniLM matter: the attention that carries their effect, and what effects respond to.

Usage: python docs/results/minilm_why.py FOLDER [RUN ...]

Runs are those of minilm-why.yaml and minilm-why-qqp.yaml, in folders named hans and paws; what the
page needs of their tables goes to folders of these names in FOLDER. The tables of the page are made
from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from study_tables import points

from mechcore.ablation.effects.responses import strongest
from mechcore.wording import ALL, PLACES
from mechcore.wording import NOT_SUPPORTED as NO

HEADS = ("L1.H1", "L2.H9")
N_MIXED = 2
ENDS = ("share", "share_low", "share_high")
COLUMNS = ["component", "category", "split", "margin_change_without", "mass", *ENDS]
COLUMNS += ["control_share", "p_adjusted", "carried", "threshold_change", "accuracy_change"]
COLUMNS += [f"information_change{end}" for end in ("", "_low", "_high")]
RHO = ["rho", "rho_low", "rho_high", "partial", "partial_low", "partial_high", "p_adjusted"]
RESPONSE = ["set", "kind", "split", "label", "feature", *ENDS, *RHO]


def write(folder: Path, run: Path) -> None:
    """Write what the page needs of the tables of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    read = {path.stem: pd.read_csv(path) for path in (run / "tables").glob("*.csv")}
    knockouts, responses = read["knockouts"], read["responses"]
    responses = responses[responses["kind"].isin(["core", "full"]) | _is_strongest(responses)]
    parts = {
        "hidden_keys": knockouts.loc[knockouts["subset"] == ALL, COLUMNS],
        "features": responses[RESPONSE],
        "heads": read["head_categories"][["component", "category", "in_core"]],
    }
    for name, table in parts.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4g")


def _is_strongest(responses: pd.DataFrame) -> pd.Series:
    return pd.Series(responses.index.isin(strongest(responses).index), responses.index)


# -- the page -------------------------------------------------------------------------------------


def tables(folder: Path) -> dict[str, str]:
    """The page's tables, from the tables of both studies in the folder."""
    made = {}
    for study in ("hans", "paws"):
        read = {path.stem: pd.read_csv(path) for path in (folder / study).glob("*.csv")}
        knockouts, responses = read["hidden_keys"], read["features"]
        made |= {
            f"counts-{study}": _counts(knockouts),
            f"heads-{study}": _heads(knockouts, read["heads"]),
            f"joint-{study}": _joint(knockouts),
            f"features-{study}": _features(responses),
            f"components-{study}": _components(responses),
        }
    return made


def _counts(knockouts: pd.DataFrame) -> str:
    """Heads that act by a category, of those with an effect."""
    alone = knockouts[~_together(knockouts) & knockouts["share"].notna()]
    rows = []
    for category in knockouts["category"].unique():
        cells = [f"`{category}`"]
        for split in ("id", "ood"):
            here = alone[(alone["category"] == category) & (alone["split"] == split)]
            carried = here[here["carried"] == "supported"]
            most = here.sort_values("share", ascending=False)
            names = [name for name in most["component"] if name in set(carried["component"])]
            cells += [f"{len(carried)} of {len(here)}", ", ".join(names[:3])]
        rows.append(cells)
    head = ["category", "in domain: heads", "largest shares", "out of domain: heads"]
    return markdown([*head, "largest shares"], rows)


def _together(knockouts: pd.DataFrame) -> pd.Series:
    return knockouts["component"].isin(["core", "other heads", "all heads"])


def _heads(knockouts: pd.DataFrame, heads: pd.DataFrame) -> str:
    """The two heads of repeated words, and the heads of the core with no name that matter most."""
    outside = knockouts[(knockouts["split"] == "ood") & knockouts["share"].notna()]
    effects = outside.drop_duplicates("component").set_index("component")["margin_change_without"]
    mixed = heads.loc[heads["in_core"] & (heads["category"] == "mixed"), "component"]
    most = effects[effects.index.isin(mixed)].abs().nlargest(N_MIXED).index
    labels, rows = heads.set_index("component")["category"], []
    for head in (*HEADS, *most):
        own = outside[outside["component"] == head]
        own = own[(own["share_low"] > 0) | (own["share_high"] < 0) | (own["carried"] != NO)]
        for i, row in own.iterrows():
            control = percent(row["control_share"]) if pd.notna(row["control_share"]) else ""
            cells = [head, str(labels[head]), f"{row['margin_change_without']:.3f}"]
            cells += [f"`{row['category']}`", percent(row["mass"])]
            rows.append([*cells, points(own.loc[[i]], *ENDS), control, str(row["carried"])])
    names = ["head", "attends to", "change in margin without it", "hidden", "mass, %"]
    return markdown([*names, "share, %", "control, %", "carried"], rows)


def _joint(knockouts: pd.DataFrame) -> str:
    """A category hidden from sets of heads."""
    rows = []
    for category, part in knockouts[_together(knockouts)].groupby("category", sort=False):
        cells = [f"`{category}`"]
        for split in ("id", "ood"):
            for of in ("core", "other heads", "all heads"):
                one = part[(part["component"] == of) & (part["split"] == split)]
                known = len(one) == 1 and one["share"].notna().all()
                cells.append(points(one, *ENDS) if known else "")
        rows.append(cells)
    names = [f"{p}: {of}" for p in ("id", "ood") for of in ("core", "other heads", "all heads")]
    return markdown(["hidden", *names], rows)


def _features(responses: pd.DataFrame) -> str:
    """Features that the change without the core goes with, and how much of it they explain."""
    core = responses[responses["kind"] == "core"]
    shares = core[core["label"] == ALL].set_index(["split", "feature"])
    rows = []
    for split in PLACES:
        part = core[(core["split"] == split) & (core["label"] != ALL)]
        part = part[(part["rho_low"] > 0) | (part["rho_high"] < 0)]
        part = part.sort_values("rho", key=lambda rho: -rho.abs(), kind="stable")
        for i, row in part.drop_duplicates("feature").iterrows():
            cells = [PLACES[split], f"`{row['feature']}`", str(row["label"]), *_rhos(part.loc[[i]])]
            share = points(shares.loc[[(split, row["feature"])]], *ENDS)
            rows.append([*cells, f"{row['p_adjusted']:.2g}", share])
        rows.append(
            [PLACES[split], "all", ALL, *[""] * 3, points(shares.loc[[(split, ALL)]], *ENDS)]
        )
    names = ["", "feature", "label", "rho of the core", "given the full model's margin"]
    return markdown([*names, "adjusted p", "share of variance, %"], rows)


def _rhos(row: pd.DataFrame) -> list[str]:
    return [points(row, of, f"{of}_low", f"{of}_high", unit=1) for of in ("rho", "partial")]


def _components(responses: pd.DataFrame) -> str:
    """The strongest response of every component that has one."""
    shown = strongest(responses[responses["kind"] == "component"])
    rows = []
    for i, row in shown.iterrows():
        cells = [str(row["set"]), PLACES[row["split"]], f"`{row['feature']}`", str(row["label"])]
        rows.append([*cells, *_rhos(shown.loc[[i]])])
    names = ["component", "", "feature", "label", "rho", "given the full model's margin"]
    return markdown(names, rows)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for folder in sys.argv[2:]:
        write(out / Path(folder).name, Path(folder))
    for title, text in tables(out).items():
        print(f"<!-- {title} -->\n\n{text}\n")
