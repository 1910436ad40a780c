"""The tables of docs/results/minilm-mnli-hans.md, made from those of the study.

Usage: python docs/results/minilm_mnli_hans.py FOLDER

FOLDER has the tables of the study (study/tables), as entailed.csv the table ablation.csv of the
entailed pairs, and as readers.csv the table core_dependence.csv of the second checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from as_markdown import markdown, percent
from study_tables import Study, changes, swept, where_of

MAIN_TEXT = {
    "lexical_overlap_ln_subject/object_swap": "SO-Swap",
    "lexical_overlap_ln_preposition": "Prep",
    "constituent_cn_embedded_under_if": "Embed-If",
    "constituent_cn_embedded_under_verb": "Embed-Verb",
}
STUDY = Study(
    id="MNLI",
    ood="HANS",
    sets={"id:all": "MNLI", "ood:all": "HANS"} | {f"ood:{k}": v for k, v in MAIN_TEXT.items()},
    n_seeds=12,
    size=(72, 6),
)


def tables(folder: Path) -> dict[str, str]:
    """Every table of the page, in Markdown, by what it shows."""
    read = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    return {
        "fine-tuning": _fine_tuning(read["training"]),
        "subnetworks": STUDY.subnetworks(read["accuracy"], read["subnetworks"]),
        "seeds": STUDY.seeds(read["subnetworks"]),
        "entailed": _entailed(read["entailed"], read["ablation"], swept(read["sweep"])),
        "core": STUDY.core(read["head_categories"], read["ablation"]),
        "heads": STUDY.heads(swept(read["sweep"]), read["head_categories"], read["head_frequency"]),
        "joint": STUDY.joint(read["interactions"]),
        "search": STUDY.search(read["superadditive"]),
        "sizes": STUDY.sizes(read["mean_effective_size"], {"main text": "main text"}),
        "readers": STUDY.readers(read["readers"], "both"),
    }


def _fine_tuning(training: pd.DataFrame) -> str:
    wide = training.assign(set=where_of(training)).pivot(
        index="step", columns="set", values="accuracy"
    )
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


def _entailed(entailed: pd.DataFrame, ablation: pd.DataFrame, sweep: pd.DataFrame) -> str:
    """Changes on both halves of HANS; the last column is their mean."""
    measured = pd.concat([ablation, sweep]).drop_duplicates(["set", "split", "subset"])
    names = entailed.loc[where_of(entailed) == "ood:all", "set"]
    halves = (measured, entailed)
    on_hans = [frame[where_of(frame) == "ood:all"].set_index("set") for frame in halves]
    before = [f"{100 * (row['accuracy'] - row['accuracy_change']).iloc[0]:.1f}" for row in on_hans]
    rows = []
    for name in names:
        if all(name in part.index for part in on_hans):
            both = [changes(frame, name)[1] for frame in halves]
            mean = sum(part.loc[name, "accuracy_change"] for part in on_hans) / 2
            title = name if name.count("+") < 2 else f"all {name.count('+') + 1} of the core"
            rows.append([title, *both, percent(mean)])
    titles = [
        f"change, {n} ({b})" for n, b in zip(("non-entailed", "entailed"), before, strict=True)
    ]
    return markdown(["without", *titles, "mean of both"], rows)


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1])).items():
        print(f"<!-- {title} -->\n\n{text}\n")
