"""The page of a run on the cognitive task says what its tables say, whatever of them there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import check_paper, leave_out_figures, panel
from made_up_cognitive import CognitiveWorld, write_cognitive_run
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from pages import Page, with_tables
from study_pages import (
    HOSTILE,
    Worlds,
    check_claims,
    check_hostile,
    check_missing,
    check_titles,
    not_run,
    page_of,
    put_in,
    saved,
    text_of,
)

from mechcore.papers.cognitive.report import attention, decoding, heads, learning, states
from mechcore.report import build_report
from mechcore.report.run_folder import RunFolder

TITLES = (
    *("Verdicts", "Learning curves", "Samples to threshold", "The compared models"),
    *("Ablation of heads", "Attention to the numbers", "Decoding", "Mixed selectivity"),
    *("Decoding from single heads", "Projection of the states"),
)
LINKS = ("samples", "head-ablation", "number-attention", "decoding", "selectivity")
LINKS += ("head-decoding", "projection")
FIGURES = {
    learning: "learning_curves",
    heads: "head_changes centres",
    attention: "attention_and_change",
    decoding: "decoding_maps decoding_over_prompt",
    states: "selectivity_bars projections",
}
FEW: dict[str, Any] = {"n_layers": 2, "n_heads": 2, "seeds": (0,), "n_points": 8}
WORLDS = {
    "small": CognitiveWorld(),
    "least": CognitiveWorld(**FEW, sizes=(100, 400)),
    "alone": CognitiveWorld(
        **FEW | {"seeds": (4,), "positions": ("context", "motion", "color", "answer")},
        arms=("scratch",),
        fills=("zero",),
        sizes=(64,),
    ),
    "large": CognitiveWorld(
        n_layers=24,
        n_heads=16,
        seeds=(0, 1, 2, 3),
        fills=("mean",),
        sizes=tuple(100 * 2**i for i in range(12)),
        n_points=8,
    ),
}
WORLDS |= {arm: CognitiveWorld(**FEW, arms=(arm,)) for arm in ("base", "fine_tuned", "scratch")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"), write_cognitive_run, WORLDS)


@pytest.fixture(scope="module")
def small(runs: Worlds) -> RunFolder:
    return runs["small"]


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_figures(monkeypatch, FIGURES)


@pytest.fixture(scope="module")
def html(small: RunFolder) -> str:
    """The page of the small world, without figures."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_figures(patch, FIGURES)
        return build_report(small.path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def table_of(run: RunFolder, name: str, query: str = "index >= 0") -> pd.DataFrame:
    return run.tables[f"cognitive_{name}"].query(query).copy()


def test_the_summary_has_the_verdicts_and_leads_to_their_sections(html: str, page: Page) -> None:
    check_titles(html, TITLES)
    assert "Not run" not in page.text
    assert "Cognitive task: checkpoints/tiny-gpt" in page.text
    assert "4 layers \u00d7 4 heads. Fine-tuned against trained from scratch." in page.text
    assert "Claims supported 5 of 7 1 not supported, 1 inconclusive" in page.text
    assert "Supported: Training from scratch needs more samples than fine-tuning." in page.text
    assert "Inconclusive: Last-layer states fall into groups" in page.text
    check_claims(page, LINKS)


def test_headline_numbers_are_those_of_the_tables(small: RunFolder, page: Page) -> None:
    models = table_of(small, "models").groupby("arm")
    accuracy, incongruent = models["accuracy"].mean(), models["incongruent"].mean()
    assert (
        f"Compared model, fine-tuned {100 * accuracy['fine_tuned']:.1f} % "
        f"{100 * incongruent['fine_tuned']:.1f} % of incongruent trials; mean of 3 seeds"
    ) in page.text
    main = "fill == 'mean' and subset == 'all' and arm == 'scratch'"
    centres = table_of(small, "mass", main)["centre"]
    assert (
        f"Centre of ablation, from scratch layer {centres.mean():.2f} in layers from 0; mean of 3 "
        f"seeds, {centres.min():.2f} to {centres.max():.2f}"
    ) in page.text


@pytest.mark.usefixtures("no_drawing")
def test_samples_that_are_not_enough_are_said_so(small: RunFolder) -> None:
    for samples, expected in (
        ((400, 400, 400), "Samples to 90 %, from scratch 400 3 seeds"),
        ((400, 1600, 400), "Samples to 90 %, from scratch 400\u20131,600 3 seeds"),
        ((400, None, 1600), "scratch 400\u20131,600 in 2 of 3 seeds, not by 6,400 in the others"),
        ((None, None, None), "from scratch not reached not by 6,400, 3 seeds"),
    ):
        table = table_of(small, "samples")
        table["samples"] = table["samples"].astype(float)
        table.loc[table["arm"] == "scratch", "samples"] = np.array(samples, dtype=float)
        text = text_of(with_tables(small, cognitive_samples=table))
        assert expected in text
        cells = ["not reached" if n is None else f"{n:,}" for n in samples]
        assert f"from scratch 6,400 {' '.join(cells)}" in text


@pytest.mark.usefixtures("no_drawing")
def test_models_that_are_not_matched_and_checks_that_fail_are_named(
    small: RunFolder, page: Page
) -> None:
    assert "have matched accuracy in 2 of 3 seeds." in page.text
    assert "In seed 2 the accuracies differ too much" in page.text
    assert "The built-in check holds in every model" in page.text
    text = text_of(put_in(small, {"models": ["matched"]}, True))
    assert "have matched accuracy in 3 of 3 seeds." in text
    assert "differ too much" not in text
    check = table_of(small, "check")
    check = check.assign(holds=check["arm"] != "base")
    unmatched = put_in(small, {"models": ["matched"]}, False)
    text = text_of(with_tables(unmatched, cognitive_check=check))
    assert "In seeds 0, 1 and 2 the accuracies differ too much" in text
    assert "decoded above chance before they are read in pretrained, seed 0." in text


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
    "cognitive_check": "the check that unread variables are at chance",
    "cognitive_svm": "the support vector machines on outputs of heads",
    "cognitive_selectivity": "the regression of single units on the variables",
    "cognitive_projection": "the projection to two dimensions",
    "cognitive_silhouette": "the silhouettes of choices and contexts",
}
"""Tables without which something is said not to have run; the others leave a gap of their own."""


@pytest.mark.usefixtures("no_drawing")
def test_a_missing_table_leaves_out_its_part_alone(runs: Worlds) -> None:
    check_missing(runs["least"], NEEDED)


def test_a_run_with_nothing_but_its_configuration(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"kind": "cognitive"}')
    page = page_of(tmp_path)
    assert "There are no results" in page.text
    assert page.text.count("Not run:") == 11  # a projection has two parts
    assert "Cognitive task: a model" in page.text


@pytest.mark.usefixtures("no_drawing")
def test_one_arm_alone_with_one_seed_is_shown(runs: Worlds) -> None:
    for arm, shown in (("base", []), ("fine_tuned", ["fine-tuned"]), ("scratch", ["from scratch"])):
        text = text_of(runs[arm])
        assert len(not_run(text)) == (arm == "base")  # without a training nothing to count
        assert "There is at most one trained arm, so nothing is matched" in text
        assert re.findall(r"Compared model, (fine-tuned|from scratch)", text) == shown


@pytest.mark.usefixtures("no_drawing")
def test_hostile_strings_are_shown_as_they_are(runs: Worlds, tmp_path: Any) -> None:
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
    check_hostile(saved(put_in(runs["least"], changes, HOSTILE), tmp_path / "run"))


# -- figures --------------------------------------------------------------------------------------


def _attention(run: RunFolder) -> Figure:
    changes = table_of(run, "ablation", "fill == fill.iloc[0]")
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
@pytest.mark.parametrize("world", ["alone", "large"])
def test_no_text_leaves_the_paper(name: str, world: str, runs: Worlds) -> None:
    check_paper(DRAW[name](runs[world]))


def lines_of(ax: Any) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]


def dots_of(ax: Any) -> np.ndarray:
    """Places of all dots, [dot, 2]."""
    dots = [c for c in ax.collections if isinstance(c, PathCollection)]
    return np.concatenate([np.asarray(c.get_offsets(), dtype=float) for c in dots])


def test_learning_curves_have_means_seeds_and_references(small: RunFolder) -> None:
    figure, curve = DRAW["learning"](small), table_of(small, "curve")
    for title, column in (("all trials", "accuracy"), ("incongruent trials", "incongruent")):
        ax = panel(figure, title)
        assert ax.get_xscale() == "log"
        lines = lines_of(ax)
        means = curve.groupby(["arm", "n"])[column].mean()
        for arm in ("fine_tuned", "scratch"):
            expected = 100 * means[arm].to_numpy()
            assert any(len(y) == 4 and np.allclose(y, expected) for y in lines)
        flat = {round(float(y[0]), 6) for y in lines if len(y) == 2 and y[0] == y[1]}
        base = round(100 * means["base", 0], 6)
        assert flat == ({base, 50, 75, 90} if column == "accuracy" else {base, 50})
        assert sum(len(y) == 4 for y in lines) == 2 * (3 + 1)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["100", "400", "1,600", "6,400"]


def test_maps_of_changes_have_the_mean_over_seeds(small: RunFolder) -> None:
    rows = table_of(small, "ablation", "arm == 'scratch' and fill == 'mean'")
    ax = panel(DRAW["changes"](small), "from scratch, mean ablation")
    expected = [f"{100 * m:.0f}" for m in rows.groupby(["layer", "head"])["change"].mean()]
    shown = [t.get_text().replace("\u2212", "-") for t in ax.texts]
    assert shown == [text.replace("-0", "0") for text in expected]


def test_centres_lie_at_their_values_and_open_marks_are_of_zero_ablation(small: RunFolder) -> None:
    mass, figure = table_of(small, "mass", "subset == 'all'"), DRAW["centres"](small)
    for ax, column in ((figure.axes[0], "centre"), (figure.axes[2], "centre_significant")):
        at = dots_of(ax)[:, 0]
        assert sorted(at[np.isfinite(at)]) == pytest.approx(sorted(mass[column].dropna()))
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["pretrained, seed 0", "fine-tuned, seed 0"]
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend == ["mean ablation", "zero ablation"]


def test_decoding_draws_balanced_trials_and_shades_what_is_unread(small: RunFolder) -> None:
    ax = panel(DRAW["prompt"](small), "color\nbalanced trials")
    shown = "variable == 'color' and subset == 'balanced' and layer == 3"
    means = table_of(small, "decoding", shown).groupby(["arm", "place"])["accuracy"].mean()
    for arm in ("base", "fine_tuned", "scratch"):
        assert any(len(y) == 6 and np.allclose(y, 100 * means[arm]) for y in lines_of(ax))
    assert sorted(patch.get_x() for patch in ax.patches) == [-0.5, 0.5, 1.5]
    assert {patch.get_width() for patch in ax.patches} == {1.0}


def test_bars_are_means(small: RunFolder) -> None:
    means = table_of(small, "selectivity").groupby(["arm", "n_variables"])["share"].mean()
    heights = [patch.get_height() for patch in DRAW["selectivity"](small).axes[0].patches]
    order = [(arm, n) for arm in ("base", "fine_tuned", "scratch") for n in range(5)]
    assert heights == pytest.approx([100 * means[key] for key in order])


def test_a_projection_has_a_panel_per_model_and_its_silhouettes(small: RunFolder) -> None:
    figure = DRAW["projection"](small)
    assert sum(ax.get_visible() for ax in figure.axes) == 7
    ax = panel(figure, "fine-tuned, seed 1")
    assert sum(len(np.asarray(c.get_offsets())) for c in ax.collections) == 400
    shown = "arm == 'fine_tuned' and seed == 1 and space == 'states'"
    values = table_of(small, "silhouette", shown).set_index("variable")["silhouette"]
    label = f"silhouette: context {values['context']:+.2f}, choice {values['choice']:+.2f}"
    assert ax.get_xlabel() == label
