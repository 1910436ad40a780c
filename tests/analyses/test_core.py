"""The heuristic core: what is compared is named, and the page says what the tables say."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analyses.shown import drawings_of, headlines_of
from made_up_run import World, write_run
from pages import tables_of, with_tables, words_of

from mechcore.analyses.core import Core
from mechcore.components import ModelShape
from mechcore.pruning import random_subnetworks
from mechcore.report import figures, subnetwork_figures
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.steps.tables import core_tables


def test_the_sparsities_whose_frequencies_are_compared_are_named() -> None:
    shape = ModelShape(3, 4, has_mlps=True)
    subnetworks = random_subnetworks(shape, target_sparsities=[0.6, 0.2, 0.4], seeds=range(6))
    tables = core_tables(subnetworks)
    summary = tables["core"].iloc[0]
    assert (summary["low_sparsity"], summary["high_sparsity"]) == (0.2, 0.6)
    frequency = tables["head_frequency"].dropna(subset=["head"])
    counts = frequency.pivot(index="component", columns="target_sparsity", values="count")
    rho = counts[0.2].corr(counts[0.6], method="spearman")
    assert summary["spearman_rho"] == pytest.approx(rho)
    assert counts[0.2].corr(counts[0.4], method="spearman") != pytest.approx(rho)


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "head_frequency", lambda *_: None)
    monkeypatch.setattr(subnetwork_figures, "head_overlap", lambda *_: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return read_run(write_run(tmp_path_factory.mktemp("core") / "run", World()))


def summed_up(run: RunFolder, **values: Any) -> RunFolder:
    return with_tables(run, core=run.tables["core"].assign(**values))


def headline(run: RunFolder) -> str:
    (text,) = headlines_of(Core, run)
    return text


def words(run: RunFolder) -> str:
    return words_of(Core.blocks(run))


def test_the_core_is_named_with_its_size_against_chance(run: RunFolder) -> None:
    text = headline(run)
    assert text.startswith("4 of 32 heads are in all 6 subnetworks: L0.H3, L1.H5, L2.H2, L3.H0.")
    chance = run.tables["core"]["expected_by_chance"].iloc[0]
    assert f"all would share {chance:.2f} on average (p = 2.3 \u00d7 10\u207b" in text
    assert text.endswith(
        "Each core head would be kept by at least 36.8 % of further seeds (95 % lower bound, "
        "per head)."
    )
    assert words(run).startswith(text)
    empty = summed_up(run, core_size=0, heads="")
    start = "The heuristic core is empty: no head is kept by all 6 subnetworks."
    assert headline(empty).startswith(f"{start} If every seed's subnetworks kept the same")
    unsure = summed_up(run, p_value=0.4)
    assert "(p = 0.4). A core of this size is therefore no evidence" in headline(unsure)
    assert "no evidence" not in words(run)


def test_only_what_is_known_is_stated(run: RunFolder) -> None:
    assert "at the lowest target sparsity (50 %) and at the highest (70 %) correlates" in words(run)
    assert "How often each head is kept" not in words(summed_up(run, spearman_rho=math.nan))
    alike = words(summed_up(run, spearman_p=math.nan))
    assert alike.endswith("rho = 0.79; there is no p-value, since both share seeds or a ranking.")
    without = {name: run.tables[name][:0] for name in ("subnetworks", "core")}
    failed = pd.DataFrame({"subnetwork": ["s0.50-seed1"], "reason": ["sparsity 0.1"]})
    said = words(with_tables(run, **without, missing_masks=failed))
    assert said == "There is no core because no mask was usable."
    assert words(with_tables(run, core=None)).startswith("Not run: ")


def test_a_core_of_one_seed_or_subnetwork_is_not_compared(run: RunFolder, tmp_path: Path) -> None:
    alike = run.tables["head_overlap"].assign(p_value=math.nan)
    text = headline(with_tables(run, head_overlap=alike))
    assert text.endswith("share heads regardless of what matters: use several seeds.")
    assert "all would share" not in text
    world = World(seeds=(0,), target_sparsities=(0.5,), core=("L0.H3",))
    text = headline(read_run(write_run(tmp_path / "one", world)))
    assert text.startswith("1 of 32 heads is in the one subnetwork: L0.H3.")
    assert text.endswith("With one subnetwork, its heads are the core by definition.")


def test_core_heads_are_listed_and_their_overlap_is_beside_its_chance(run: RunFolder) -> None:
    (table,) = tables_of(Core.blocks(run))
    attended = run.tables["head_categories"].set_index("component")["category"]
    assert table.rows == [[head, attended[head]] for head in run.core]
    assert tables_of(Core.blocks(with_tables(run, head_categories=None))) == []
    overlap = run.tables["head_overlap"]
    jaccard, layers = overlap[["jaccard", "expected"]].mean()
    beyond = (overlap["p_value"] < 0.05).sum()
    assert 0 < beyond < len(overlap)
    frequency, drawing = drawings_of(Core.blocks(run))
    assert frequency.caption.endswith("core heads are outlined.")
    assert (
        f"The mean is {jaccard:.2f}; with as many random heads per layer it would be {layers:.2f}. "
        f"Of {len(overlap)} pairs, {beyond} share more than by chance (p < 0.05, not corrected"
    ) in drawing.caption
    alike = pd.concat([overlap, overlap[:1].assign(p_value=math.nan, expected=math.nan)])
    _, drawing = drawings_of(Core.blocks(with_tables(run, head_overlap=alike)))
    assert "1 pair from one seed or ranking cannot be compared with chance" in drawing.caption
