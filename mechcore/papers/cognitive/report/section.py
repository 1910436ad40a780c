"""The sections of a run on the cognitive task: verdicts, learning and the models compared."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mechcore.papers.cognitive.compare import CURVE, MODELS, SAMPLES, TRAINING
from mechcore.papers.cognitive.report.arms import (
    BASE,
    basis,
    by_arm,
    over_seeds,
    seeds_of,
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
from mechcore.report.seeds import SEEDS
from mechcore.tables import Column
from mechcore.wording import (
    DASH,
    count,
    listed,
    number,
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
    curve, training = run.filled("cognitive_curve"), run.filled("cognitive_training")
    files = ["cognitive_curve.csv", "cognitive_training.csv"]
    blocks: list[Block] = []
    if curve is None:
        blocks.append(Paragraph("Not run: the trainings on samples of several sizes.", note=True))
    elif (curve["n"] > 0).any():
        samples = run.filled("cognitive_samples")
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
    values = ["accuracy", "incongruent", "congruent", "unrestricted"]
    means = over_seeds(curve.sort_values("n"), ["n"], values)
    caption = "Test accuracy by number of training samples, mean and range over seeds; unrestricted"
    shown: list[Shown] = ["arm", "n", SEEDS, "accuracy", OverSeeds("accuracy"), "incongruent"]
    shown += [OverSeeds("incongruent"), "congruent", "unrestricted"]
    return table_of(means, CURVE, f"{caption} is over the whole vocabulary", shown)


def _curve_rows(curve: pd.DataFrame) -> Table:
    caption = "Every seed: test accuracy with its interval, at the chosen learning rate and step"
    shown = ["arm", "seed", "n", "learning_rate", "steps", "accuracy", "incongruent"]
    return table_of(curve, CURVE, caption, shown, folded=True)


def _trainings(training: pd.DataFrame) -> Table:
    caption = f"All {count(len(training), 'training')}: the learning rate and step are chosen by "
    caption += "the accuracy on development trials"
    shown = ["arm", "seed", "n", "learning_rate", "chosen", "steps", "last_step"]
    shown += ["dev_accuracy", "accuracy", "incongruent"]
    return table_of(training, TRAINING, caption, shown, folded=True)


def _samples(run: RunFolder, gallery: Gallery) -> Section:
    del gallery
    title = "Samples to threshold"
    table = run.filled("cognitive_samples")
    if table is None:
        return not_run("samples", title, "the count of samples that reach the threshold")
    seeds = seeds_of(table)
    arms = by_arm(table.groupby("arm", sort=False)["largest"].max().reset_index())
    reached = {
        (arm, seed): whole(samples) if pd.notna(samples) else "not reached"
        for arm, seed, samples in zip(table["arm"], table["seed"], table["samples"], strict=True)
    }
    by_seed = [
        (f"seed {number(seed, 0)}", [reached.get((arm, seed), DASH) for arm in arms["arm"]])
        for seed in seeds
    ]
    threshold = sparsity(table["threshold"].iloc[0])
    text = (
        "The fewest training samples, of the sizes tried, from which on the test accuracy is at "
        f"least {threshold}. The number that is just enough may lie anywhere between that size and "
        "the next smaller one."
    )
    caption = f"Samples to a test accuracy of {threshold}, by seed"
    blocks: list[Block] = [
        *CLAIMS.lines(run, "samples"),
        Paragraph(text),
        table_of(arms, SAMPLES, caption, ["arm", "largest", *by_seed]),
    ]
    return Section("samples", title, blocks, ["cognitive_samples.csv"])


# -- the models compared ------------------------------------------------------------------------


def _models(run: RunFolder, gallery: Gallery) -> Section:
    del gallery
    title = "The compared models"
    table = run.filled("cognitive_models")
    if table is None:
        return not_run("models", title, "the choice of the models to compare")
    trained = (table["arm"] != BASE) & table["gap"].notna()
    rows = table.assign(gap=table["gap"].where(trained), matched=MODELS["matched"].texts(table))
    rows["matched"] = rows["matched"].where(trained, DASH)
    shown: list[Shown] = ["arm", "seed", "n", "learning_rate"]
    shown += [MODELS["accuracy"].called("test accuracy"), "incongruent", "unrestricted"]
    caption = "The models that all sections below are of; the gap is that between the two trained "
    caption += "models of a seed"
    shown += ["gap", Column("matched", "text")]
    blocks: list[Block] = [*_matching(table), table_of(rows, MODELS, caption, shown)]
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
