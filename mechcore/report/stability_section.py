"""The section on what would be found again with other data of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from mechcore.ablation.stability import STABILITY
from mechcore.report.blocks import Block, Paragraph, Section, Shown, Table, table_of
from mechcore.report.groups import PLACED, data_sets, of_data, placed
from mechcore.report.run_folder import RunFolder
from mechcore.subnetworks.halves import HALF_CORES, HALF_OVERLAP, HALVES
from mechcore.tables import Column
from mechcore.wording import count, number, role_name, whole

_RANKINGS = ("stability", "interaction_stability", "search_stability")
_OF_HALVES = ("half_cores", "half_overlap", "missing_half_masks")
_RANKED = Column("ranked", "text", "what is ranked")
_HOW = (
    "Two random halves of the examples share none of them, so their rankings agree as those of two "
    "data sets of half the size would; from that the Spearman\u2013Brown formula predicts how two "
    "data sets of this size would agree. Examples that share a text, such as a premise, are taken "
    "as independent. A rho near 0, or a Jaccard index no higher than by chance, says that the "
    "order is noise."
)
_RANKINGS_SHOWN = (
    "Components ranked by their change and sets by their interaction, on two random halves of the "
    "examples; in brackets the middle 95 % of the splits"
)
_RESAMPLES = (
    "The same in bootstrap resamples, each compared with all examples. They share most examples, "
    "so that a ranking by noise alone has a rho of about 0.7 here: go by the halves"
)
_CORES = (
    "Cores of all training data and of two random halves of them. The halves share no example; "
    "each shares its own with all data. All are of the same seeds, whose masks share their noise, "
    "so that they have much in common even where no head matters"
)
_SUBNETWORKS = (
    "Overlap of the heads of two subnetworks, mean and range over pairs. Where two halves with one "
    "seed are more alike than one half with two seeds, the seed matters more than the data do. "
    "Those of one seed share its noise, and have no figure by chance"
)
_MISSING = "Masks that are missing; those of their target and seed are left out of the comparison"
_NOT_ASKED = (
    "This is about the examples that rankings are measured on. Whether other training data would "
    "give the same core was not asked: --halves (analyses: halves) finds subnetworks again on two "
    "halves of the training data. How far seeds agree stands under Subnetworks."
)


def stability_section(run: RunFolder) -> Section | None:
    """Rankings and cores over halves of the data; None without a table of these."""
    blocks = [*_rankings(run), *_cores(run)]
    if not blocks:
        return None
    files = [f"{name}.csv" for name in (*_RANKINGS, *_OF_HALVES) if run.table(name) is not None]
    return Section("stability", "Stability", blocks, files)


def stability_sentences(run: RunFolder) -> Iterator[str]:
    """How far halves agree on what matters most, and on the core."""
    table = run.filled("stability")
    if table is not None:
        by_margin = table[table["metric"] == "margin"]
        for role, data in data_sets(by_margin):
            row = of_data(by_margin, role, data).iloc[0]
            text = (
                f"Random halves of {data} ({role_name(role)}) rank "
                f"{count(row['n_ranked'], 'component')} by their change of margin with Spearman's "
                f"rho = {number(row['halves_rho'])}"
            )
            if pd.notna(row["predicted_rho"]):
                text += f", which predicts {number(row['predicted_rho'])} for other data as large"
            top = "one that matters" if row["top"] == 1 else f"{whole(row['top'])} that matter"
            yield (
                f"{text}; their choices of the {top} most overlap with a Jaccard index of "
                f"{number(row['halves_jaccard'])} ({number(row['jaccard_by_chance'])} by chance)."
            )
    cores = run.filled("half_cores")
    if cores is not None:
        row = cores[cores["first"] == HALVES[0]].iloc[0]
        sizes = f"{whole(row['first_size'])} and {count(row['second_size'], 'head')}"
        text = f"The cores of two random halves of the training data have {sizes} and share "
        text += whole(row["shared"])
        if pd.notna(row["jaccard"]):
            text += f", a Jaccard index of {number(row['jaccard'])}"
        yield f"{text}."


def _rankings(run: RunFolder) -> Iterator[Block]:
    parts = [
        table.assign(ranked=list(map(partial(_name, name), table["size"], table["n_ranked"])))
        for name in _RANKINGS
        if (table := run.filled(name)) is not None
    ]
    if not parts:
        return
    yield Paragraph(_HOW)
    # Sets in their order, each out of domain first.
    ordered = [part.sort_values("role", ascending=False, kind="stable") for part in parts]
    table = placed(pd.concat(ordered, ignore_index=True))
    first: list[Shown] = [_RANKED, PLACED, "metric"]
    shown: list[Shown] = [*first, "halves_rho", "predicted_rho", "top", "halves_jaccard"]
    yield table_of(table, STABILITY, _RANKINGS_SHOWN, [*shown, "jaccard_by_chance"])
    shown = [*first, "resamples_rho", "top", "resamples_jaccard"]
    yield table_of(table, STABILITY, _RESAMPLES, shown, folded=True)
    caption = "What costs most, each with the share of halves that have it among as many of theirs"
    yield table_of(table, STABILITY, caption, [*first, "largest"], folded=True)
    if run.table("half_cores") is None and run.table("core") is not None:
        yield Paragraph(_NOT_ASKED, note=True)


def _name(table: str, size: float, n: float) -> str:
    """Number and kind of what a table ranks."""
    if table == "stability":
        return count(n, "component")
    one = {2: "pair", 3: "triple"}.get(int(size), f"set of {whole(size)}")
    sets = count(n, one, one.replace("set", "sets") if size > 3 else None)
    return f"{sets} that the search found" if table == "search_stability" else f"{sets} of the core"


def _cores(run: RunFolder) -> Iterator[Block]:
    cores, overlap = run.filled("half_cores"), run.filled("half_overlap")
    if cores is not None:
        both = cores.assign(compared=cores["first"] + ", " + cores["second"])
        sizes = zip(map(whole, cores["first_size"]), map(whole, cores["second_size"]), strict=True)
        shown: list[Shown] = [HALF_OVERLAP["compared"], "n_subnetworks"]
        shown += [("heads of each", list(map(", ".join, sizes))), "shared", "jaccard"]
        yield table_of(both, HALF_CORES, _CORES, [*shown, "rho"])
        yield _members(cores)
    if overlap is not None:
        shown = ["compared", "target_sparsity", "n_pairs", "jaccard", "expected"]
        yield table_of(overlap, HALF_OVERLAP, _SUBNETWORKS, shown)
    missing = run.filled("missing_half_masks")
    if missing is not None:
        schema = run.schemas["missing_half_masks"]
        yield table_of(missing, schema, _MISSING, ["data", "subnetwork", "reason"])


def _members(cores: pd.DataFrame) -> Table:
    """The heads of every core."""
    sides = [cores[[side, f"{side}_core"]].set_axis(["data", "core"], axis=1)
             for side in ("first", "second")]  # fmt: skip
    table = pd.concat(sides).drop_duplicates("data")
    columns: list[Shown] = [Column("data", "text", header="pruned on"), Column("core", "text")]
    return table_of(table, HALF_CORES, "The heads of these cores", columns, folded=True)
