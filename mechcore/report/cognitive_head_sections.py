"""The sections of a run on the cognitive task that are about heads."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.cognitive_arms import (
    arm_name,
    arms_of,
    basis,
    in_order,
    models_of,
    modes_of,
    of_model,
    over_seeds,
    points,
    seeds_of,
    share,
    table_of,
    with_ends,
)
from mechcore.report.cognitive_figures import (
    TARGETS,
    attention_and_drop,
    attention_by_layer,
    centres,
    head_decoding,
    head_drops,
    target_name,
)
from mechcore.report.run_folder import RunFolder
from mechcore.report.wording import (
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
    blocks: list[Block] = []
    if ablation is not None:
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
            _strongest(ablation),
            _strongest_of_seeds(ablation),
        ]
    if mass is None:
        blocks.append(Paragraph("Not run: the centres of mass over layers.", note=True))
    else:
        blocks += [_centre_picture(run, gallery, mass, ablation), _centre_means(mass)]
        blocks.append(_centre_rows(mass))
    files = ["cognitive_ablation.csv", "cognitive_mass.csv"]
    return Section(section_id, title, blocks, files)


def _strongest(ablation: pd.DataFrame) -> Table:
    keys, values = ["mode", "component"], ["drop", "incongruent_drop", "margin_drop"]
    means = over_seeds(ablation, keys, values)
    rows = []
    for mode in modes_of(ablation):
        for arm in arms_of(ablation):
            part = means[(means["arm"] == arm) & (means["mode"] == mode)]
            for _, mean in part.nlargest(_TOP, "drop").iterrows():
                chosen = (ablation["arm"] == arm) & (ablation["mode"] == mode)
                one = ablation[chosen & (ablation["component"] == mean["component"])]
                spread = number_range(100 * one["drop"])
                sure = int((one["low"] > 0).sum())
                rows.append(
                    [
                        arm_name(arm),
                        mode,
                        mean["component"],
                        number(100 * mean["drop"], 1, signed=True),
                        spread,
                        f"{sure} of {len(one)}",
                        number(100 * mean["incongruent_drop"], 1, signed=True),
                        number(mean["margin_drop"], 2, signed=True),
                    ]
                )
    header = ["arm", "ablation", "head", "drop (points)", "over seeds", "seeds above 0"]
    header += ["incongruent (points)", "margin (nats)"]
    caption = f"The {_TOP} heads of each arm with the largest drop, mean over seeds; in how many "
    caption += "seeds the interval of the drop lies above 0"
    return Table(caption, header, rows, frozenset({0, 1, 2}))


def _strongest_of_seeds(ablation: pd.DataFrame) -> Table:
    rows = []
    for mode in modes_of(ablation):
        for arm, seed in models_of(ablation):
            part = of_model(ablation, arm, seed)
            for _, row in part[part["mode"] == mode].nlargest(_TOP, "drop").iterrows():
                ends = (row[f"incongruent_{end}"] for end in ("drop", "low", "high"))
                rows.append(
                    [
                        arm_name(arm),
                        number(seed, 0),
                        mode,
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
        "Noise gives every head a small positive drop now and then and pulls centres to the "
        "middle layer; the panel on the right is of those heads alone whose interval lies above "
        f"0, and empty where there is none; {basis(mass)}",
        "Dot plot of the centre of mass of the drops, a row per model; the numbers are in the "
        "tables below.",
    )


def _centre_means(mass: pd.DataFrame) -> Table:
    values = ["centre", "centre_significant", "first_layer_share", "total_drop"]
    means = over_seeds(mass, ["mode", "subset"], values)
    rows = []
    for _, row in _by_arm(means).iterrows():
        chosen = (mass["arm"] == row["arm"]) & (mass["mode"] == row["mode"])
        part = mass[chosen & (mass["subset"] == row["subset"])]
        rows.append(
            [
                arm_name(row["arm"]),
                row["mode"],
                row["subset"],
                whole(len(seeds_of(part))),
                number(row["centre"]),
                number_range(part["centre"]),
                number(row["centre_significant"]),
                percent(row["first_layer_share"]),
                number(100 * row["total_drop"], 1),
            ]
        )
    header = ["arm", "ablation", "trials", "seeds", "centre", "over seeds", "sure heads alone"]
    header += ["in first layer", "drops in all (points)"]
    caption = "Centre of mass of the drops (layers from 0), and how much of them is in the first "
    return Table(f"{caption}layer: means over seeds", header, rows, frozenset({0, 1, 2}))


def _centre_rows(mass: pd.DataFrame) -> Table:
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            row["mode"],
            row["subset"],
            with_ends(row["centre"], row["low"], row["high"]),
            percent(row["undefined"]),
            number(row["centre_significant"]),
            whole(row["n_significant"]),
            percent(row["first_layer_share"]),
            row["strongest"] or NOT_AVAILABLE,
        ]
        for _, row in mass.iterrows()
    ]
    header = ["arm", "seed", "ablation", "trials", "centre", "no centre", "sure heads alone"]
    header += ["sure heads", "in first layer", "strongest"]
    caption = "Every seed: centre with its interval; in how many resamples there is none; heads "
    caption += "whose drop is surely above 0, and their centre"
    return Table(caption, header, rows, frozenset({0, 2, 3, 9}), folded=True)


def _by_arm(table: pd.DataFrame) -> pd.DataFrame:
    """The same rows, arms in their order."""
    place = {arm: i for i, arm in enumerate(arms_of(table))}
    return table.sort_values("arm", key=lambda arms: arms.map(place), kind="stable")


# -- attention ----------------------------------------------------------------------------------


def attention_section(run: RunFolder, gallery: Gallery) -> Section:
    """How much heads attend to numbers, and whether those are the heads that matter."""
    section_id, title = "number-attention", "Attention to the numbers"
    attention = table_of(run, "cognitive_attention")
    if attention is None:
        return not_run(section_id, title, "the measure of attention to number tokens")
    ablation, drop = table_of(run, "cognitive_ablation"), table_of(run, "cognitive_attention_drop")
    counts = basis(attention, None)
    blocks: list[Block] = []
    if ablation is not None:
        mode = modes_of(ablation)[0]
        picture = gallery.add(
            attention_and_drop(attention, ablation[ablation["mode"] == mode]),
            "attention-drop",
            "A dot per head and seed: attention to number tokens, as a multiple of what a uniform "
            f"head would give, and the drop of accuracy without the head ({mode} ablation). "
            f"{counts}",
            "Scatter plots, one per arm, of attention to numbers against the drop without each "
            "head, coloured by layer; correlations are in the table below.",
        )
        blocks.append(picture)
    blocks.append(
        gallery.add(
            attention_by_layer(attention),
            "attention-layers",
            "Attention to number tokens as a multiple of what a uniform head would give, mean "
            "over the heads of a layer; thin lines are seeds, the dashed line is uniform "
            f"attention. {counts}",
            "Line chart of attention to numbers by layer, one line per arm; heads are in the "
            "table below.",
        )
    )
    blocks += [*_correlations(drop), _attending(attention)]
    files = ["cognitive_attention.csv", "cognitive_attention_drop.csv"]
    return Section(section_id, title, blocks, files)


def _correlations(table: pd.DataFrame | None) -> Iterator[Block]:
    if table is None:
        yield Paragraph("Not run: the correlation of attention with drops.", note=True)
        return
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            row["mode"],
            whole(row["n_heads"]),
            number(row["rho"], signed=True),
            small(row["p"]),
            *(number(row[f"{name}_ratio"]) for name in ("first_layer", "other", "top")),
        ]
        for _, row in _by_arm(table).iterrows()
    ]
    header = ["arm", "seed", "ablation", "heads", "Spearman's rho", "p", "first layer"]
    header += ["other layers", "weighted by drop"]
    caption = "Correlation over heads of attention to numbers with the drop, and attention to "
    caption += "numbers (times uniform): mean of the first layer, of all others, and of all heads "
    yield Table(f"{caption}weighted by their drop", header, rows, frozenset({0, 2}))


def _attending(attention: pd.DataFrame) -> Table:
    rows = []
    for arm, seed in models_of(attention):
        for _, row in of_model(attention, arm, seed).nlargest(_TOP, "ratio").iterrows():
            ends = (100 * row[name] for name in ("mass", "low", "high"))
            rows.append(
                [
                    arm_name(arm),
                    number(seed, 0),
                    row["component"],
                    with_ends(*ends, 1),
                    number(100 * row["uniform"], 1),
                    number(row["ratio"]),
                ]
            )
    header = ["arm", "seed", "head", "attention (%)", "uniform (%)", "ratio"]
    caption = f"The {_TOP} heads of every seed that attend to numbers most, with intervals"
    return Table(caption, header, rows, frozenset({0, 2}), folded=True)


# -- decoding from heads ------------------------------------------------------------------------


def head_decoding_section(run: RunFolder, gallery: Gallery) -> Section:
    """What the output of a single head says of the trial and of the response."""
    section_id, title = "head-decoding", "Decoding from single heads"
    svm = table_of(run, "cognitive_svm")
    if svm is None:
        return not_run(section_id, title, "the support vector machines on outputs of heads")
    missing = svm["accuracy"].isna().any()
    grey = " Grey: too few examples of a class." if missing else ""
    picture = gallery.add(
        head_decoding(svm),
        "head-decoding",
        "Cross-validated accuracy of a linear support vector machine on the output of each head at "
        "the last token, mean over seeds. Colours go from chance to the best head of a column."
        f"{grey} {basis(svm)[0].upper()}{basis(svm)[1:]}",
        "Heatmaps, layer by head, of the accuracy of decoding from each head, by arm and by what "
        "is decoded; the best heads are in the table below.",
    )
    files = ["cognitive_svm.csv"]
    return Section(section_id, title, [picture, _best_heads(svm), _best_of_seeds(svm)], files)


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
                    percent(best["shuffled_high"].mean()),
                    ", ".join(best["component"]) or NOT_AVAILABLE,
                ]
            )
    header = ["decoded", "arm", "seeds", "best head", "over seeds", "chance", "shuffled, 95 %"]
    caption = "The best head of each seed, mean over seeds (the best of many: chance alone puts it "
    caption += "above chance)"
    return Table(caption, [*header, "heads, by seed"], rows, frozenset({0, 1, 7}))


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
