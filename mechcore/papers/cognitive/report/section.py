"""The sections of a run on the cognitive task: verdicts, learning and the models compared."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.report.arms import (
    BASE,
    arm_name,
    arms_of,
    basis,
    over_seeds,
    seeds_of,
    share,
)
from mechcore.papers.cognitive.report.attention_section import attention_section
from mechcore.papers.cognitive.report.decoding_section import decoding_section
from mechcore.papers.cognitive.report.figures import learning_curves
from mechcore.papers.cognitive.report.head_sections import (
    ablation_section,
    head_decoding_section,
)
from mechcore.papers.cognitive.report.state_sections import projection_section, selectivity_section
from mechcore.papers.cognitive.report.summary import CLAIMS
from mechcore.report.blocks import Block, Gallery, Paragraph, Section, Table, not_run
from mechcore.report.run_folder import RunFolder
from mechcore.report.seeds import ends_of, plain_number, table_of
from mechcore.wording import (
    DASH,
    count,
    listed,
    number,
    percent,
    percent_range,
    sparsity,
    whole,
)


def cognitive_sections(run: RunFolder, gallery: Gallery) -> Iterator[Section]:
    """All sections between the summary and the method, in the order of the page."""
    yield CLAIMS.section(run)
    for make in (
        _learning,
        _samples,
        _models,
        ablation_section,
        attention_section,
        decoding_section,
        selectivity_section,
        head_decoding_section,
        projection_section,
    ):
        yield make(run, gallery)


# -- learning -----------------------------------------------------------------------------------


def _learning(run: RunFolder, gallery: Gallery) -> Section:
    title = "Learning curves"
    curve, training = table_of(run, "cognitive_curve"), table_of(run, "cognitive_training")
    files = ["cognitive_curve.csv", "cognitive_training.csv"]
    blocks: list[Block] = []
    if curve is None:
        blocks.append(Paragraph("Not run: the trainings on samples of several sizes.", note=True))
    elif (curve["n"] > 0).any():
        samples = table_of(run, "cognitive_samples")
        threshold = None if samples is None else float(samples["threshold"].iloc[0])
        picture = gallery.add(
            learning_curves(curve, threshold),
            "learning-curves",
            "Test accuracy, restricted to the two answers, by number of training samples (log "
            "scale). Thin lines are seeds, thick lines their mean. A model that ignores the "
            f"context can be right on 75 % of all trials; {basis(curve, 'n_test')}",
            "Two line charts over the number of training samples: accuracy on all trials and on "
            "incongruent trials for each arm; the numbers are in the table below.",
        )
        blocks.append(picture)
    if curve is not None:
        blocks += [_curve_means(curve), _curve_rows(curve)]
    if training is not None:
        blocks.append(_trainings(training))
    return Section("learning", title, blocks, files)


def _curve_means(curve: pd.DataFrame) -> Table:
    columns = ["accuracy", "incongruent", "congruent", "unrestricted"]
    rows = [
        [
            arm_name(row["arm"]),
            whole(row["n"]),
            whole(row["seeds"]),
            percent(row["accuracy"]),
            percent_range(ends_of(row, "accuracy")),
            percent(row["incongruent"]),
            percent_range(ends_of(row, "incongruent")),
            percent(row["congruent"]),
            percent(row["unrestricted"]),
        ]
        for _, row in over_seeds(curve.sort_values("n"), ["n"], columns).iterrows()
    ]
    header = ["arm", "samples", "seeds", "accuracy", "over seeds", "incongruent", "over seeds"]
    caption = "Test accuracy by number of training samples, mean and range over seeds; unrestricted"
    caption += " is over the whole vocabulary"
    return Table(caption, [*header, "congruent", "unrestricted"], rows)


def _curve_rows(curve: pd.DataFrame) -> Table:
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            whole(row["n"]),
            plain_number(row["learning_rate"]),
            plain_number(row["steps"]),
            share(row["accuracy"], row["low"], row["high"]),
            share(row["incongruent"], row["incongruent_low"], row["incongruent_high"]),
        ]
        for _, row in curve.iterrows()
    ]
    header = ["arm", "seed", "samples", "learning rate", "steps", "accuracy", "incongruent"]
    caption = "Every seed: test accuracy with its interval, at the chosen learning rate and step"
    return Table(caption, header, rows, folded=True)


def _trainings(training: pd.DataFrame) -> Table:
    rows = [
        [
            arm_name(row["arm"]),
            number(row["seed"], 0),
            whole(row["n"]),
            plain_number(row["learning_rate"]),
            "yes" if row["chosen"] else "no",
            whole(row["steps"]),
            whole(row["last_step"]),
            *(percent(row[name]) for name in ("dev_accuracy", "accuracy", "incongruent")),
        ]
        for _, row in training.iterrows()
    ]
    header = ["arm", "seed", "samples", "learning rate", "chosen", "best step", "last step"]
    header += ["development", "test", "incongruent"]
    caption = f"All {count(len(rows), 'training')}: the learning rate and step are chosen by the "
    caption += "accuracy on development trials"
    return Table(caption, header, rows, frozenset({0, 4}), folded=True)


def _samples(run: RunFolder, gallery: Gallery) -> Section:
    del gallery
    title = "Samples to threshold"
    table = table_of(run, "cognitive_samples")
    if table is None:
        return not_run("samples", title, "the count of samples that reach the threshold")
    seeds = seeds_of(table)
    rows = []
    for arm in arms_of(table):
        part = table[table["arm"] == arm]
        cells = {
            row["seed"]: whole(row["samples"]) if pd.notna(row["samples"]) else "not reached"
            for _, row in part.iterrows()
        }
        largest = whole(part["largest"].max())
        rows.append([arm_name(arm), largest, *(cells.get(seed, DASH) for seed in seeds)])
    threshold = sparsity(table["threshold"].iloc[0])
    text = (
        "The fewest training samples, of the sizes tried, from which on the test accuracy is at "
        f"least {threshold}. The number that is just enough may lie anywhere between that size and "
        "the next smaller one."
    )
    header = ["arm", "largest size tried", *(f"seed {number(seed, 0)}" for seed in seeds)]
    caption = f"Samples to a test accuracy of {threshold}, by seed"
    blocks: list[Block] = [
        *CLAIMS.lines(run, "samples"),
        Paragraph(text),
        Table(caption, header, rows),
    ]
    return Section("samples", title, blocks, ["cognitive_samples.csv"])


# -- the models compared ------------------------------------------------------------------------


def _models(run: RunFolder, gallery: Gallery) -> Section:
    del gallery
    title = "The compared models"
    table = table_of(run, "cognitive_models")
    if table is None:
        return not_run("models", title, "the choice of the models to compare")
    rows = []
    for _, row in table.iterrows():
        trained = row["arm"] != BASE and pd.notna(row["gap"])
        rows.append(
            [
                arm_name(row["arm"]),
                number(row["seed"], 0),
                whole(row["n"]),
                plain_number(row["learning_rate"]),
                share(row["accuracy"], row["low"], row["high"]),
                percent(row["incongruent"]),
                percent(row["unrestricted"]),
                number(100 * row["gap"], 1) if trained else DASH,
                ("yes" if row["matched"] else "no") if trained else DASH,
            ]
        )
    header = ["arm", "seed", "samples", "learning rate", "test accuracy"]
    header += ["incongruent", "unrestricted", "gap (points)", "matched"]
    caption = "The models that all sections below are of; the gap is that between the two trained "
    caption += "models of a seed"
    words = frozenset({0, 8})
    blocks: list[Block] = [*_matching(table), Table(caption, header, rows, words)]
    return Section("models", title, blocks, ["cognitive_models.csv"])


def _matching(table: pd.DataFrame) -> Iterator[Paragraph]:
    pairs = table[(table["arm"] != BASE) & table["gap"].notna()]
    if len(pairs) == 0:
        text = "There is one trained arm at most, so nothing is matched: where two arms are "
        yield Paragraph(f"{text}compared, one of them is missing.", note=True)
        return
    by_seed = pairs.groupby("seed")["matched"].all()
    matched = by_seed.index[by_seed].tolist()
    text = f"The two trained models are of matched accuracy in {len(matched)} of "
    yield Paragraph(f"{text}{count(len(by_seed), 'seed')}.")
    left = [number(seed, 0) for seed in by_seed.index if seed not in matched]
    if left:
        seeds = f"seed {left[0]}" if len(left) == 1 else f"seeds {listed(left)}"
        text = f"In {seeds} the accuracies differ too much: what differs between these two models "
        yield Paragraph(f"{text}may be how well they do the task, not how they do it.", note=True)
