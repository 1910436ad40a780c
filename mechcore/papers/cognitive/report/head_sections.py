"""The sections of a run on the cognitive task that are about heads."""

from __future__ import annotations

import math

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    arm_name,
    arms_of,
    basis,
    fills_of,
    models_of,
    of_model,
    over_seeds,
    points,
    points_range,
    seeds_of,
    share,
)
from mechcore.papers.cognitive.report.head_figures import (
    SURE,
    TARGETS,
    centres,
    head_decoding,
    head_drops,
    target_name,
)
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import ends_of, in_order, table_of, with_ends
from mechcore.wording import (
    NOT_AVAILABLE,
    number,
    number_range,
    percent,
    percent_range,
    small,
    whole,
)

_TOP = 5
"""Heads of an arm in a table."""
_UNORDERED = (
    "Heads of a layer have no order: from scratch, the same head of two seeds need not be alike, "
    "so means over seeds tell more of layers than of heads."
)


def ablation_section(run: RunFolder, gallery: Gallery) -> Section:
    """What the model loses without each head, and in which layers."""
    section_id, title = "head-ablation", "Ablation of heads"
    ablation, mass = table_of(run, "cognitive_ablation"), table_of(run, "cognitive_mass")
    if ablation is None and mass is None:
        return not_run(section_id, title, "the ablation of single heads")
    blocks: list[Block] = [*CLAIMS.lines(run, section_id)]
    if ablation is not None:
        fills = fills_of(ablation)
        blocks += [
            gallery.add(
                head_drops(ablation),
                "head-drops",
                "Drop of accuracy without each head alone, in points, mean over seeds. Red: the "
                "model is worse without the head. Every row of panels has its own scale; "
                + basis(ablation),
                "Heatmaps, layer by head, of the drop of accuracy without each head, by arm and "
                "way of ablating; the largest are in the table below.",
            ),
            *([Paragraph(_UNORDERED)] if len(seeds_of(ablation)) > 1 else []),
            *(_strongest(ablation, fill, folded=i > 0) for i, fill in enumerate(fills)),
            _strongest_of_seeds(ablation),
        ]
    if mass is None:
        blocks.append(Paragraph("Not run: the centres of mass over layers.", note=True))
    else:
        blocks += [_centre_picture(run, gallery, mass, ablation), _centre_means(mass)]
        blocks.append(_centre_rows(mass))
    files = ["cognitive_ablation.csv", "cognitive_mass.csv"]
    return Section(section_id, title, blocks, files)


def _strongest(ablation: pd.DataFrame, fill: str, *, folded: bool) -> Table:
    of_fill = ablation[ablation["fill"] == fill].assign(sure=lambda t: t["low"] > 0)
    values = ["drop", "incongruent_drop", "margin_drop", "sure"]
    means = over_seeds(of_fill, ["component"], values)
    rows = [
        [
            arm_name(arm),
            row["component"],
            number(100 * row["drop"], 1, signed=True),
            points_range(ends_of(row, "drop")),
            f"{row['sure'] * row['seeds']:.0f} of {whole(row['seeds'])}",
            number(100 * row["incongruent_drop"], 1, signed=True),
            number(row["margin_drop"], 2, signed=True),
        ]
        for arm in arms_of(means)
        for _, row in means[means["arm"] == arm].nlargest(_TOP, "drop").iterrows()
    ]
    header = ["arm", "head", "drop (points)", "over seeds", "seeds above 0"]
    header += ["incongruent (points)", "margin (nats)"]
    caption = f"The {_TOP} heads of each arm with the largest drop under {fill} ablation: means "
    caption += "over seeds; in how many seeds the interval of the drop lies above 0"
    return Table(caption, header, rows, frozenset({0, 1}), folded)


def _strongest_of_seeds(ablation: pd.DataFrame) -> Table:
    rows = []
    for fill in fills_of(ablation):
        for arm, seed in models_of(ablation):
            part = of_model(ablation, arm, seed)
            for _, row in part[part["fill"] == fill].nlargest(_TOP, "drop").iterrows():
                ends = (row[f"incongruent_{end}"] for end in ("drop", "low", "high"))
                rows.append(
                    [
                        arm_name(arm),
                        number(seed, 0),
                        fill,
                        row["component"],
                        points(row["drop"], row["low"], row["high"]),
                        points(*ends),
                        number(row["margin_drop"], 2, signed=True),
                    ]
                )
    header = ["arm", "seed", "ablation", "head", "drop (points)", "incongruent (points)"]
    caption = f"The {_TOP} heads of every seed with the largest drop, with intervals"
    words = frozenset({0, 2, 3})
    return Table(caption, [*header, "margin (nats)"], rows, words, folded=True)


def _centre_picture(
    run: RunFolder, gallery: Gallery, mass: pd.DataFrame, ablation: pd.DataFrame | None
) -> Block:
    n_layers = (run.config.get("model") or {}).get("n_layers")
    if ablation is not None:
        n_layers = int(ablation["layer"].max()) + 1
    return gallery.add(
        centres(mass, n_layers if isinstance(n_layers, int) else None),
        "ablation-centres",
        "Centre of mass of the drops over layers, counted from 0, with its interval over trials. "
        "Noise gives many heads a small positive drop and pulls centres to the middle layer, so "
        "the panel on the right is of those heads alone whose drop has an interval above 0; it is "
        f"empty where there is none; {basis(mass)}",
        "Dot plot of the centre of mass of the drops, a row per model; the numbers are in the "
        "tables below.",
    )


def _centre_means(mass: pd.DataFrame) -> Table:
    values = ["centre", SURE, "first_layer_share", "total_drop"]
    rows = [
        [
            arm_name(row["arm"]),
            row["fill"],
            row["subset"],
            whole(row["seeds"]),
            number(row["centre"]),
            number_range(ends_of(row, "centre")),
            number(row[SURE]),
            percent(row["first_layer_share"]),
            number(100 * row["total_drop"], 1),
        ]
        for _, row in over_seeds(mass, ["fill", "subset"], values).iterrows()
    ]
    header = ["arm", "ablation", "trials", "seeds", "centre", "over seeds", "heads above 0"]
    header += ["in first layer", "drops in all (points)"]
    caption = "Centre of mass of the drops (layers from 0), the same of those heads alone whose "
    caption += "drop is surely above 0, and the share of drops in the first layer: means over seeds"
    return Table(caption, header, rows, frozenset({0, 1, 2}))


def _centre_rows(mass: pd.DataFrame) -> Table:
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            row["fill"],
            row["subset"],
            with_ends(row["centre"], row["low"], row["high"]),
            percent(row["undefined"]),
            with_ends(
                *(row.get(name, math.nan) for name in (SURE, "significant_low", "significant_high"))
            ),
            whole(row["n_significant"]),
            percent(row["first_layer_share"]),
            row["strongest"] or NOT_AVAILABLE,
        ]
        for _, row in mass.iterrows()
    ]
    header = ["arm", "seed", "ablation", "trials", "centre", "no centre", "heads above 0"]
    header += ["how many", "in first layer", "strongest"]
    caption = "Every seed: centre with its interval; in how many resamples there is none; the "
    caption += "same of those heads alone whose drop is surely above 0, and how many they are"
    return Table(caption, header, rows, frozenset({0, 2, 3, 9}), folded=True)


# -- decoding from heads ------------------------------------------------------------------------


def head_decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What the output of a single head says of the trial and of the response."""
    section_id, title = "head-decoding", "Decoding from single heads"
    svm = table_of(run, "cognitive_svm")
    if svm is None:
        return not_run(section_id, title, "the support vector machines on outputs of heads")
    grey = " Grey: too few examples of a class." if svm["accuracy"].isna().any() else ""
    picture = gallery.add(
        head_decoding(svm),
        "head-decoding",
        "Cross-validated accuracy of a linear support vector machine on the output of each head at "
        f"the last token, mean over seeds. Colours go from chance to the best head of a "
        f"column.{grey} Here n = {basis(svm).removeprefix('n = ')}",
        "Heatmaps, layer by head, of the accuracy of decoding from each head, by arm and by what "
        "is decoded; the best heads are in the table below.",
    )
    blocks: list[Block] = [
        *CLAIMS.lines(run, section_id),
        picture,
        _best_heads(svm),
        _best_of_seeds(svm),
    ]
    return Section(section_id, title, blocks, ["cognitive_svm.csv"])


def _best_heads(svm: pd.DataFrame) -> Table:
    """Of every arm and target, means over seeds of what the best head of each seed reaches."""
    rows = []
    for target in in_order(svm["target"], TARGETS):
        for arm in arms_of(svm):
            part = svm[(svm["target"] == target) & (svm["arm"] == arm)]
            best = part.dropna(subset=["accuracy"]).sort_values("accuracy", ascending=False)
            best = best.drop_duplicates("seed").sort_values("seed")
            rows.append(
                [
                    target_name(target),
                    arm_name(arm),
                    f"{len(best)} of {len(seeds_of(part))}",
                    percent(best["accuracy"].mean()),
                    percent_range(best["accuracy"]),
                    percent(part["chance"].mean()),
                    percent(best.get("floor", best["chance"]).mean()),
                    percent(best["shuffled_high"].mean()),
                    ", ".join(best["component"]) or NOT_AVAILABLE,
                ]
            )
    header = ["decoded", "arm", "seeds", "best head", "over seeds", "chance", "floor"]
    header += ["shuffled, 95 %", "heads, by seed"]
    caption = "The best head of each seed, mean over seeds (the best of many is above chance by "
    caption += "chance alone); the floor is what the answer or the congruence alone gives away"
    return Table(caption, header, rows, frozenset({0, 1, 8}))


def _best_of_seeds(svm: pd.DataFrame) -> Table:
    rows = []
    for target in in_order(svm["target"], TARGETS):
        for arm, seed in models_of(svm):
            part = of_model(svm[svm["target"] == target], arm, seed)
            for _, row in part.nlargest(_TOP, "accuracy").iterrows():
                rows.append(
                    [
                        target_name(target),
                        arm_name(arm),
                        number(seed, 0),
                        row["component"],
                        whole(row["n"]),
                        share(row["accuracy"], row["low"], row["high"]),
                        percent(row["shuffled_high"]),
                        small(row["p"]),
                    ]
                )
    header = ["decoded", "arm", "seed", "head", "n", "accuracy", "shuffled, 95 %", "p"]
    caption = f"The {_TOP} best heads of every seed, with intervals"
    return Table(caption, header, rows, frozenset({0, 1, 3}), folded=True)
