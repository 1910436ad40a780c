"""The sections of a run on the cognitive task that are about heads."""

from __future__ import annotations

import pandas as pd

from mechcore.papers.cognitive.ablation import ABLATION, MASS
from mechcore.papers.cognitive.report.arms import (
    basis,
    by_arm,
    by_model,
    fills_of,
    of_models,
    over_seeds,
    seeds_of,
)
from mechcore.papers.cognitive.report.head_figures import (
    SURE,
    TARGETS,
    centres,
    head_decoding,
    head_drops,
)
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.papers.cognitive.svm import SVM
from mechcore.report.blocks import (
    Block,
    Gallery,
    OverSeeds,
    Paragraph,
    Section,
    Shown,
    Table,
    not_run,
    table_of,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import SEEDS, ordered, strongest
from mechcore.tables import COMPONENT, Column
from mechcore.wording import NOT_AVAILABLE

HEAD = COMPONENT.called("head")
MODEL = ("arm", "seed")
_TOP = 5
"""Heads of an arm in a table."""
_UNORDERED = (
    "Heads of a layer have no order: from scratch, the same head of two seeds need not be alike, "
    "so means over seeds tell more of layers than of heads."
)


def ablation_section(run: RunFolder, gallery: Gallery) -> Section:
    """What the model loses without each head, and in which layers."""
    section_id, title = "head-ablation", "Ablation of heads"
    ablation, mass = run.filled("cognitive_ablation"), run.filled("cognitive_mass")
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
    best = by_arm(strongest(means, ["arm"], "drop", _TOP))
    sure = [f"{share * n:.0f} of {n}" for share, n in zip(best["sure"], best["seeds"], strict=True)]
    caption = f"The {_TOP} heads of each arm with the largest drop under {fill} ablation: means "
    caption += "over seeds; in how many seeds the interval of the drop lies above 0"
    shown: list[Shown] = ["arm", HEAD, "drop", OverSeeds("drop"), ("seeds above 0", sure)]
    shown += ["incongruent_drop", "margin_drop"]
    return table_of(best, of_models(ABLATION), caption, shown, folded=folded)


def _strongest_of_seeds(ablation: pd.DataFrame) -> Table:
    best = strongest(ablation, ["fill", "arm", "seed"], "drop", _TOP)
    rows = ordered(by_model(best), fill=fills_of(best))
    caption = f"The {_TOP} heads of every seed with the largest drop, with intervals"
    shown: list[Shown] = ["arm", "seed", "fill", HEAD, "drop", "incongruent_drop", "margin_drop"]
    return table_of(rows, of_models(ABLATION), caption, shown, folded=True)


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
    caption = "Centre of mass of the drops (layers from 0), the same of those heads alone whose "
    caption += "drop is surely above 0, and the share of drops in the first layer: means over seeds"
    shown: list[Shown] = [
        "arm",
        "fill",
        "subset",
        SEEDS,
        "centre",
        OverSeeds("centre"),
        *values[1:],
    ]
    means = over_seeds(mass, ["fill", "subset"], values)
    return table_of(means, of_models(MASS), caption, shown)


def _centre_rows(mass: pd.DataFrame) -> Table:
    caption = "Every seed: centre with its interval; in how many resamples there is none; the "
    caption += "same of those heads alone whose drop is surely above 0, and how many they are"
    shown: list[Shown] = [
        "arm",
        "seed",
        "fill",
        "subset",
        "centre",
        "undefined",
        SURE,
        "n_significant",
    ]
    shown += ["first_layer_share", "strongest"]
    rows = mass.assign(strongest=mass["strongest"].replace("", NOT_AVAILABLE))
    return table_of(rows, of_models(MASS), caption, shown, folded=True)


# -- decoding from heads ------------------------------------------------------------------------


def head_decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What the output of a single head says of the trial and of the response."""
    section_id, title = "head-decoding", "Decoding from single heads"
    svm = run.filled("cognitive_svm")
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
    known = svm.assign(floor=svm.get("floor", svm["chance"]))
    best = strongest(known.dropna(subset=["accuracy"]), ["target", *MODEL], "accuracy", 1)
    keys = ["target", "arm"]
    means = over_seeds(best, ["target"], ["accuracy", "floor", "shuffled_high"])
    names = best.sort_values("seed").groupby(keys)["component"].agg(", ".join).rename("heads")
    every = svm.groupby(keys).agg(chance=("chance", "mean"), n_seeds=("seed", "nunique"))
    rows = every.reset_index().merge(means, how="left", on=keys).merge(names, how="left", on=keys)
    rows = ordered(by_arm(rows), target=TARGETS).fillna({"heads": NOT_AVAILABLE, "seeds": 0})
    seeds = [f"{n:.0f} of {of}" for n, of in zip(rows["seeds"], rows["n_seeds"], strict=True)]
    caption = "The best head of each seed, mean over seeds (the best of many is above chance by "
    caption += "chance alone); the floor is what the answer or the congruence alone gives away"
    schema = of_models(SVM)
    shown: list[Shown] = ["target", "arm", ("seeds", seeds), schema["accuracy"].called("best head")]
    shown += [OverSeeds("accuracy"), "chance", "floor", "shuffled_high"]
    shown += [Column("heads", "text", header="heads, by seed")]
    return table_of(rows, schema, caption, shown)


def _best_of_seeds(svm: pd.DataFrame) -> Table:
    best = by_model(strongest(svm, ["target", *MODEL], "accuracy", _TOP))
    shown: list[Shown] = [
        "target",
        "arm",
        "seed",
        "component",
        "n",
        "accuracy",
        "shuffled_high",
        "p",
    ]
    caption = f"The {_TOP} best heads of every seed, with intervals"
    return table_of(ordered(best, target=TARGETS), of_models(SVM), caption, shown, folded=True)
