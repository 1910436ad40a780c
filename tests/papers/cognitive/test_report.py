"""The page of a run on the cognitive task says what its tables say, whatever of them there is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn import check_paper, leave_out_figures, panel
from made_up_cognitive import CognitiveWorld, write_cognitive_run
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from pages import Page
from study_pages import HOSTILE, StudyTables, check_hostile, check_titles, not_run, page_of, remove

from mechcore.papers.cognitive.report import attention, decoding, heads, learning, states
from mechcore.report import build_report
from mechcore.report.kinds import schemas_of
from mechcore.report.run_folder import RunFolder, read_run

TITLES = (
    "Verdicts",
    "Learning curves",
    "Samples to threshold",
    "The compared models",
    "Ablation of heads",
    "Attention to the numbers",
    "Decoding",
    "Mixed selectivity",
    "Decoding from single heads",
    "Projection of the states",
)
FIGURES = {
    learning: "learning_curves",
    heads: "head_changes centres",
    attention: "attention_and_change",
    decoding: "decoding_maps decoding_over_prompt",
    states: "selectivity_bars projections",
}
WORLDS = {
    "small": CognitiveWorld(),
    "alone": CognitiveWorld(arms=("scratch",), seeds=(4,), fills=("zero",), sizes=(64,)),
    "two by two": CognitiveWorld(
        n_layers=2,
        n_heads=2,
        arms=("base", "fine_tuned"),
        seeds=(0,),
        positions=("context", "motion", "color", "answer"),
    ),
    "large": CognitiveWorld(
        n_layers=30,
        n_heads=32,
        seeds=(0, 1, 2, 3),
        fills=("mean",),
        sizes=tuple(100 * 2**i for i in range(12)),
        n_points=8,
    ),
}
TABLES = StudyTables("cognitive")
SCHEMAS = schemas_of({"kind": "cognitive"})


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time of a page."""

    leave_out_figures(monkeypatch, FIGURES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_cognitive_run(tmp_path_factory.mktemp("cognitive") / "run")
    build_report(run, figures=("svg",))
    return run


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """The tables of a world by its name, written when first asked for."""
    known = {"small": read_run(folder)}

    def of(name: str) -> RunFolder:
        if name not in known:
            path = tmp_path_factory.mktemp("worlds") / "run"
            known[name] = read_run(write_cognitive_run(path, WORLDS[name]))
        return known[name]

    return of


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


@pytest.fixture
def least(tmp_path: Path) -> Path:
    """A run with every table, and few rows in them."""
    world = CognitiveWorld(n_layers=2, n_heads=2, seeds=(0,), sizes=(100, 400), n_points=8)
    return write_cognitive_run(tmp_path / "least", world)


# -- the page -------------------------------------------------------------------------------------


def test_the_summary_has_the_verdicts_and_leads_to_their_sections(folder: Path, page: Page) -> None:
    check_titles(folder, TITLES)
    assert "Not run" not in page.text
    assert "Cognitive task: checkpoints/tiny-gpt" in page.text
    assert "4 layers \u00d7 4 heads. Fine-tuned against trained from scratch." in page.text
    assert "Claims supported 5 of 7 1 not supported, 1 inconclusive" in page.text
    assert "Supported: Training from scratch needs more samples than fine-tuning." in page.text
    assert "Inconclusive: Last-layer states fall into groups" in page.text
    more = [a["href"] for tag, a in page.tags if tag == "a" and a.get("class") == "more"]
    assert more == [
        "#samples",
        "#head-ablation",
        "#number-attention",
        "#decoding",
        "#selectivity",
        "#head-decoding",
        "#projection",
    ]
    for claim in range(1, 8):
        assert f"This is the sentence of claim {claim}." in page.text
        assert f"Claim {claim}: " in page.text


def test_headline_numbers_are_those_of_the_tables(folder: Path, page: Page) -> None:
    models = TABLES.read(folder, "models").groupby("arm")
    accuracy, incongruent = models["accuracy"].mean(), models["incongruent"].mean()
    assert (
        f"Compared model, fine-tuned {100 * accuracy['fine_tuned']:.1f} % "
        f"{100 * incongruent['fine_tuned']:.1f} % of incongruent trials; mean of 3 seeds"
    ) in page.text
    mass = TABLES.read(folder, "mass").query(
        "fill == 'mean' and subset == 'all' and arm == 'scratch'"
    )
    centres = mass["centre"]
    assert (
        f"Centre of ablation, from scratch layer {centres.mean():.2f} in layers from 0; mean of 3 "
        f"seeds, {centres.min():.2f} to {centres.max():.2f}"
    ) in page.text


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ((400, 400, 400), "Samples to 90 %, from scratch 400 3 seeds"),
        ((400, 1600, 400), "Samples to 90 %, from scratch 400\u20131,600 3 seeds"),
        (
            (400, None, 1600),
            "from scratch 400\u20131,600 in 2 of 3 seeds, not by 6,400 in the others",
        ),
        ((None, None, None), "from scratch not reached not by 6,400, 3 seeds"),
    ],
)
@pytest.mark.usefixtures("no_drawing")
def test_samples_that_are_not_enough_are_said_so(
    copied: Path, samples: tuple[float | None, ...], said: str
) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        values = pd.Series(samples, dtype=float)
        chosen = frame["arm"] == "scratch"
        frame["samples"] = frame["samples"].astype(float)
        frame.loc[chosen, "samples"] = values.to_numpy()
        return frame

    TABLES.edit(copied, "samples", change)
    text = page_of(copied).text
    assert said in text
    cells = ["not reached" if n is None else f"{n:,}" for n in samples]
    assert f"from scratch 6,400 {' '.join(cells)}" in text


def test_means_over_seeds_are_those_of_the_tables(folder: Path, page: Page) -> None:
    curve = TABLES.read(folder, "curve").query("arm == 'scratch' and n == 400")
    accuracy = 100 * curve["accuracy"]
    assert (
        f"from scratch 400 3 {accuracy.mean():.1f} % {accuracy.min():.1f}\u2013"
        f"{accuracy.max():.1f} % {100 * curve['incongruent'].mean():.1f} %"
    ) in page.text
    heads = TABLES.read(folder, "ablation").query("arm == 'scratch' and fill == 'mean'")
    by_head = heads.groupby("component")["change"].agg(["mean", "min", "max"])
    best = 100 * by_head.loc[by_head["mean"].idxmin()]
    assert (
        f"mean from scratch {best.name} 3 {best['mean']:+.1f} {best['min']:+.1f} to "
        f"{best['max']:+.1f}"
    ) in page.text
    svm = TABLES.read(folder, "svm").query("arm == 'fine_tuned' and target == 'choice'")
    top = svm.loc[svm.groupby("seed")["accuracy"].idxmax()]
    assert (
        f"choice fine-tuned 3 {100 * top['accuracy'].mean():.1f} % "
        f"{100 * top['accuracy'].min():.1f}\u2013{100 * top['accuracy'].max():.1f} % 50.0 %"
    ) in page.text
    first = top.sort_values("seed").iloc[0]
    assert f"fine-tuned 0 {first['component']}" in page.text
    decoded = TABLES.read(folder, "decoding").query(
        "arm == 'scratch' and layer == 3 and position == 'answer' and variable == 'color'"
    )
    balanced = 100 * decoded[decoded["subset"] == "balanced"]["accuracy"]
    assert f"color balanced from scratch 3 {balanced.mean():.1f} %" in page.text
    assert "right or wrong from scratch 3 n/a n/a" in page.text


@pytest.mark.usefixtures("no_drawing")
def test_a_model_that_loses_nothing_has_no_centre(least: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        missing = ["centre", "low", "high", "centre_significant", "strongest"]
        frame.loc[frame["arm"] == "scratch", missing] = None
        return frame

    TABLES.edit(least, "mass", change)
    text = page_of(least).text
    assert re.findall(r"Centre of ablation, (fine-tuned|from scratch)", text) == ["fine-tuned"]
    assert "from scratch mean all 1 n/a n/a n/a" in text


@pytest.mark.usefixtures("no_drawing")
def test_a_mean_over_some_of_the_seeds_says_so(copied: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        scratch = frame["arm"] == "scratch"
        frame.loc[scratch, ["centre", "centre_significant"]] = [1.0, 0.5]
        frame.loc[scratch & (frame["seed"] == 0), "centre"] = 2.0
        frame.loc[scratch & (frame["seed"] > 0), "centre_significant"] = None
        return frame

    TABLES.edit(copied, "mass", change)
    text = page_of(copied).text
    assert "from scratch mean all 3 1.33 1.00 to 2.00 0.50 0.50 (1 of 3)" in text


@pytest.mark.usefixtures("no_drawing")
def test_models_that_are_not_matched_are_named(copied: Path, page: Page) -> None:
    assert "of matched accuracy in 2 of 3 seeds." in page.text
    assert "In seed 2 the accuracies differ too much" in page.text
    TABLES.edit(copied, "models", lambda t: t.assign(matched=True))
    text = page_of(copied).text
    assert "of matched accuracy in 3 of 3 seeds." in text
    assert "differ too much" not in text
    TABLES.edit(copied, "models", lambda t: t.assign(matched=False))
    assert "In seeds 0, 1 and 2 the accuracies differ too much" in page_of(copied).text


@pytest.mark.usefixtures("no_drawing")
def test_a_check_that_fails_is_named(least: Path, page: Page) -> None:
    assert "The built-in check holds in every model" in page.text
    TABLES.edit(least, "check", lambda t: t.assign(holds=t["arm"] != "base"))
    assert (
        "more is decoded before it is read than chance allows, in pretrained, seed 0."
    ) in page_of(least).text


def test_captions_say_n_and_seeds(folder: Path) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, re.DOTALL)
    assert len(captions) == 8
    for caption in captions[:-1]:
        assert "pretrained 1, fine-tuned 3, from scratch 3." in caption
    assert "n = 400 each" in captions[-1]
    assert sum("n = " in caption for caption in captions) == 7  # attention has no trials of its own


# -- what may be missing --------------------------------------------------------------------------

NEEDED = {
    "cognitive_verdicts": "the verdicts on the claims",
    "cognitive_curve": "the trainings on samples of several sizes",
    "cognitive_samples": "the count of samples that reach the threshold",
    "cognitive_models": "the choice of the models to compare",
    "cognitive_mass": "the centres of mass over layers",
    "cognitive_attention": "the measure of attention to number tokens",
    "cognitive_attention_change": "the correlation of attention with changes",
    "cognitive_decoding": "the decoding of variables from the states",
    "cognitive_check": "the check that what is not read yet is at chance",
    "cognitive_svm": "the support vector machines on outputs of heads",
    "cognitive_selectivity": "the regression of single units on the variables",
    "cognitive_projection": "the projection to two dimensions",
    "cognitive_silhouette": "the silhouettes of choices and contexts",
}
"""Tables without which something is said not to have run; the others leave a gap of their own."""


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("name", sorted(SCHEMAS))
@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_table_leaves_out_its_part_alone(least: Path, name: str, empty: bool) -> None:
    remove(least / "tables" / f"{name}.csv", empty=empty)
    page = page_of(least)
    assert not_run(page) == ([NEEDED[name]] if name in NEEDED else [])


def test_a_run_with_nothing_but_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"kind": "cognitive"}')
    page = page_of(tmp_path)
    assert "There is nothing to sum up" in page.text
    assert page.text.count("Not run:") == 11  # a projection has two parts
    assert "Cognitive task: a model" in page.text


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("arm", ["base", "fine_tuned", "scratch"])
def test_one_arm_alone_with_one_seed_is_shown(tmp_path: Path, arm: str) -> None:
    world = CognitiveWorld(arms=(arm,), seeds=(0,), n_layers=2, n_heads=2)
    page = page_of(write_cognitive_run(tmp_path / "run", world))
    # Without a training there are no samples to count.
    assert page.text.count("Not run:") == (1 if arm == "base" else 0)
    assert "There is one trained arm at most, so nothing is matched" in page.text
    shown = {"base": [], "fine_tuned": ["fine-tuned"], "scratch": ["from scratch"]}
    assert re.findall(r"Compared model, (fine-tuned|from scratch)", page.text) == shown[arm]


@pytest.mark.usefixtures("no_drawing")
def test_hostile_strings_are_shown_as_they_are(least: Path) -> None:
    changes = {
        "verdicts": ("title", "verdict", "figure"),
        "ablation": ("component", "fill"),
        "mass": ("strongest", "subset"),
        "decoding": ("position",),
        "svm": ("component", "target"),
        "terms": ("term",),
        "projection": ("method", "description"),
        "silhouette": ("space", "variable"),
        "models": ("arm",),
    }
    TABLES.fill(least, changes, HOSTILE)
    check_hostile(least)


# -- figures --------------------------------------------------------------------------------------


def _attention(run: RunFolder) -> Figure:
    ablation = run.tables["cognitive_ablation"]
    changes = ablation[ablation["fill"] == ablation["fill"].iloc[0]]
    return attention.attention_and_change(run.tables["cognitive_attention"], changes)


DRAW: dict[str, Callable[[RunFolder], Figure]] = {
    "learning": lambda run: learning.learning_curves(run.tables["cognitive_curve"], 0.9),
    "changes": lambda run: heads.head_changes(run.tables["cognitive_ablation"]),
    "centres": lambda run: heads.centres(run.tables["cognitive_mass"], 4),
    "attention": _attention,
    "prompt": lambda run: decoding.decoding_over_prompt(run.tables["cognitive_decoding"]),
    "maps": lambda run: decoding.decoding_maps(run.tables["cognitive_decoding"]),
    "selectivity": lambda run: states.selectivity_bars(run.tables["cognitive_selectivity"]),
    "projection": lambda run: states.projections(
        run.tables["cognitive_projection"], run.tables["cognitive_silhouette"]
    ),
}


@pytest.mark.parametrize("name", sorted(DRAW))
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_no_text_leaves_the_paper(name: str, world: str, runs: Callable[[str], RunFolder]) -> None:
    check_paper(DRAW[name](runs(world)))


def test_learning_curves_have_means_seeds_and_references(
    runs: Callable[[str], RunFolder],
) -> None:
    run = runs("small")
    curve = run.tables["cognitive_curve"]
    figure = DRAW["learning"](run)
    for title, column in (("all trials", "accuracy"), ("incongruent trials", "incongruent")):
        ax = panel(figure, title)
        assert ax.get_xscale() == "log"
        lines = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
        means = curve.groupby(["arm", "n"])[column].mean()
        for arm in ("fine_tuned", "scratch"):
            expected = 100 * means[arm].to_numpy()
            assert any(len(y) == 4 and np.allclose(y, expected) for y in lines)
        flat = {round(float(y[0]), 6) for y in lines if len(y) == 2 and y[0] == y[1]}
        base = round(100 * means["base", 0], 6)
        assert flat == ({base, 50, 75, 90} if column == "accuracy" else {base, 50})
        assert sum(len(y) == 4 for y in lines) == 2 * (3 + 1)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["100", "400", "1,600", "6,400"]


def test_maps_of_changes_have_the_mean_over_seeds(runs: Callable[[str], RunFolder]) -> None:
    run = runs("small")
    ablation = run.tables["cognitive_ablation"]
    ax = panel(DRAW["changes"](run), "from scratch, mean ablation")
    means = (
        ablation.query("arm == 'scratch' and fill == 'mean'")
        .groupby(["layer", "head"])["change"]
        .mean()
    )
    expected = [f"{100 * value:.0f}".replace("-", "\u2212") for value in means]
    assert [t.get_text().replace("\u2212", "-") for t in ax.texts] == [
        text.replace("\u2212", "-").replace("-0", "0") for text in expected
    ]


def test_centres_lie_at_their_values_and_open_marks_are_of_zero_ablation(
    runs: Callable[[str], RunFolder],
) -> None:
    run = runs("small")
    mass = run.tables["cognitive_mass"].query("subset == 'all'")
    figure = DRAW["centres"](run)
    for ax, column in ((figure.axes[0], "centre"), (figure.axes[2], "centre_significant")):
        dots = [c for c in ax.collections if isinstance(c, PathCollection)]
        at = np.concatenate([np.asarray(c.get_offsets(), dtype=float)[:, 0] for c in dots])
        assert sorted(at[np.isfinite(at)]) == pytest.approx(sorted(mass[column].dropna()))
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["pretrained, seed 0", "fine-tuned, seed 0"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "mean ablation",
        "zero ablation",
    ]


def test_decoding_draws_balanced_trials_and_shades_what_is_unread(
    runs: Callable[[str], RunFolder],
) -> None:
    run = runs("small")
    ax = panel(DRAW["prompt"](run), "color\nbalanced trials")
    rows = run.tables["cognitive_decoding"].query(
        "variable == 'color' and subset == 'balanced' and layer == 3"
    )
    for arm in ("base", "fine_tuned", "scratch"):
        means = rows[rows["arm"] == arm].groupby("place")["accuracy"].mean()
        drawn = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
        assert any(len(y) == 6 and np.allclose(y, 100 * means) for y in drawn)
    assert sorted(patch.get_x() for patch in ax.patches) == [-0.5, 0.5, 1.5]
    assert {patch.get_width() for patch in ax.patches} == {1.0}


def test_marks_of_the_maps_are_at_what_is_not_above_the_floor(
    runs: Callable[[str], RunFolder],
) -> None:
    run = runs("small")
    rows = run.tables["cognitive_decoding"].query("arm == 'base' and variable == 'choice'")
    limit = rows[["floor", "shuffled_high"]].max(axis=1)
    weak = rows[rows["accuracy"] <= limit]
    ax = panel(DRAW["maps"](run), "choice")
    (dots,) = [c for c in ax.collections if isinstance(c, PathCollection)]
    at = {tuple(map(int, xy)) for xy in np.asarray(dots.get_offsets())}
    assert at == set(zip(weak["place"].astype(int), weak["layer"].astype(int), strict=True))
    assert 0 < len(at) < len(rows)


def test_bars_are_means_with_what_is_expected(runs: Callable[[str], RunFolder]) -> None:
    run = runs("small")
    table = run.tables["cognitive_selectivity"]
    ax = DRAW["selectivity"](run).axes[0]
    heights = [patch.get_height() for patch in ax.patches]
    means = table.groupby(["arm", "n_variables"])["share"].mean()
    order = [(arm, n) for arm in ("base", "fine_tuned", "scratch") for n in range(5)]
    assert heights == pytest.approx([100 * means[key] for key in order])


def test_a_projection_has_a_panel_per_model_and_its_silhouettes(
    runs: Callable[[str], RunFolder],
) -> None:
    run = runs("small")
    figure = DRAW["projection"](run)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 7
    ax = panel(figure, "fine-tuned, seed 1")
    points = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    assert len(points) == 400
    apart = run.tables["cognitive_silhouette"].query(
        "arm == 'fine_tuned' and seed == 1 and space == 'states'"
    )
    values = dict(zip(apart["variable"], apart["silhouette"], strict=True))
    assert ax.get_xlabel() == (
        f"silhouette: context {values['context']:+.2f}, choice {values['choice']:+.2f}"
    )
