"""The tables of a published study are those that its own tables give."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from helpers import script

from mechcore.components import Mask, ModelShape
from mechcore.main_study.config import StudyConfig
from mechcore.pruning import Subnetwork
from mechcore.steps.tables import CORE, core_tables
from mechcore.study.kinds import read_study

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find what they share, as when they are run."""
    monkeypatch.syspath_prepend(str(DOCS / "results"))


def _module(name: str) -> ModuleType:
    return script(DOCS / "results" / f"{name}.py")


def _tables(page: str) -> list[str]:
    return re.findall(r"(?:^\|.*\|\n)+", page, re.M)


@pytest.mark.parametrize("name", ["cognitive", "extractive"])
def test_every_table_of_a_page_is_made_from_the_tables_of_its_studies(name: str) -> None:
    module = _module(f"{name}_tables")
    studies = [DOCS / "tables" / f"{name}-{base}" for base in ("tiny", "smollm2")]
    made = [table for study in studies for table in module.tables(study).values()]
    page = (DOCS / "results" / f"{name}.md").read_text()
    assert sorted(table.strip() for table in _tables(page)) == sorted(made)
    assert len(made) > 6


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("minilm-mnli-hans", ("| base |", "| claim |")),
        ("minilm-qqp-paws", ("| base |", "| claim |")),
        ("minilm-fine-tunings", ("| training |",)),
        ("minilm-atlas", ("| training |",)),
        ("smollm2-agreement", ("| model |",)),
        ("smollm2-ioi", ("| model |",)),
        ("minilm-seeds", ("| time |",)),
        ("minilm-why", ("| time |",)),
    ],
)
def test_every_table_of_the_page_is_made_from_the_tables_of_the_study(
    name: str, written: tuple[str, ...]
) -> None:
    made = _module(name.replace("-", "_")).tables(DOCS / "tables" / name)
    page = (DOCS / "results" / f"{name}.md").read_text()
    shown = [table.strip() for table in _tables(page) if not any(w in table for w in written)]
    assert sorted(shown) == sorted(made.values())
    assert len(_tables(page)) == len(made) + len(written)


def test_tables_of_repairs_are_what_was_measured() -> None:
    made = _module("repairs").tables(DOCS / "tables" / "repair")
    page = (DOCS / "results" / "repair.md").read_text()
    assert {"planted", "verdicts", "minilm-hans"} <= set(made)
    assert all(table in page for table in made.values())


def test_the_sentences_on_agreement_are_what_the_page_says(tmp_path: Path) -> None:
    _module("agreement_texts").main(tmp_path)
    files = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in ("train", "id", "ood")}
    sizes = {name: len(frame) for name, frame in files.items()}
    assert sizes == {"train": 800, "id": 224, "ood": 224}
    texts = set().union(*(frame["text_a"] for frame in files.values()))
    assert len(texts) == sum(sizes.values())
    rows = {name: frame.to_dict("records")[:2] for name, frame in files.items()}
    assert rows["id"] == [
        {"text_a": "The key near the museum", "label": "singular", "subset": "near, singular"},
        {"text_a": "The keys near the museums", "label": "plural", "subset": "near, plural"},
    ]
    plans = [row["text_a"] for row in rows["ood"]]
    assert plans == ["The plan near the castles", "The plans near the castle"]


def test_every_table_of_known_truth_is_made_from_the_tables_of_the_benchmark() -> None:
    module, folder = _module("known_truth"), DOCS / "tables" / "known-truth"
    tables, calibration = module.tables(folder), module.calibration(folder)
    page = (DOCS / "results" / "known-truth.md").read_text()
    shown = [table.strip() for table in _tables(page) if not table.startswith("| circuit |")]
    assert sorted(shown) == sorted([*tables.values(), *calibration.values()])
    concept = (DOCS / "concepts" / "numbers.md").read_text()
    for table in calibration.values():
        assert table in concept


def test_a_core_at_fewer_seeds_is_the_mean_over_their_choices(tmp_path: Path) -> None:
    # Of six seeds all keep H0 twice, five H1 (one mask of the first lacks it), four H2, one H3.
    kept = ["L0.H0 L0.H1 L0.H2 L0.MLP"] * 4 + ["L0.H0 L0.H1 L0.MLP", "L0.H0 L0.H1 L0.H3 L0.MLP"]
    masks = [(i, 0.5, heads) for i, heads in enumerate(kept)]
    masks += [(i, 0.7, heads if i else "L0.H0 L0.H2") for i, heads in enumerate(kept)]
    table = pd.DataFrame(masks, columns=["seed", "target_sparsity", "kept"])
    table.to_csv(tmp_path / "subnetworks.csv", index=False)
    core = _module("minilm_fine_tunings")._rarefied(tmp_path)
    # C(5, 4) / C(6, 4) and C(4, 4) / C(6, 4)
    assert core.to_dict() == pytest.approx(
        {"L0.H0": 1, "L0.H1": 5 / 15, "L0.H2": 1 / 15, "L0.H3": 0}
    )
    sets = [
        set.intersection(*map(set, rows.str.split())) for _, rows in table.groupby("seed")["kept"]
    ]
    cores = [set.intersection(*some) - {"L0.MLP"} for some in combinations(sets, 4)]
    assert core.sum() == pytest.approx(sum(map(len, cores)) / len(cores))


CORES = sorted(path.parent for path in (DOCS / "tables").glob("**/core.csv"))


@pytest.mark.parametrize("folder", CORES, ids=lambda place: place.name)
def test_the_chance_of_every_core_is_that_of_its_subnetworks(folder: Path) -> None:
    frequency, subnetworks = pd.read_csv(folder / "head_frequency.csv"), []
    shape = ModelShape(frequency["layer"].nunique(), frequency["head"].nunique())
    for row in pd.read_csv(folder / "subnetworks.csv").itertuples():
        mask = Mask.full(shape).only(*row.kept.split())
        scores = torch.full((shape.n_layers, shape.columns), float(row.seed))
        subnetworks.append(Subnetwork(mask, row.target_sparsity, row.seed, scores, row.method))
    (expected,) = core_tables(subnetworks)["core"].to_dict("records")
    (stored,) = CORE.read(folder / "core.csv").to_dict("records")
    for name in ("n_subnetworks", "core_size", "expected_by_chance", "expected_uniform"):
        assert stored[name] == pytest.approx(expected[name], rel=1e-4)
    for name in ("p_value", "p_uniform"):  # of one draw there is none
        assert stored[name] == pytest.approx(expected[name], rel=1e-4, nan_ok=True)


E, P = "{expected_by_chance:.0e}", "{p_value:.0e}"


@pytest.mark.parametrize(
    ("page", "table", "figures"),
    [
        ("results/minilm-mnli-hans.md", "minilm-mnli-hans", [E, P]),
        ("results/minilm-qqp-paws.md", "minilm-qqp-paws", ["{expected_by_chance:.3f}", P]),
        ("../README.md", "minilm-mnli-hans", [E]),
    ],
)
def test_pages_have_the_chance_of_their_tables(page: str, table: str, figures: list[str]) -> None:
    (row,) = CORE.read(DOCS / "tables" / table / "core.csv").to_dict("records")
    text = (DOCS / page).read_text(encoding="utf-8")
    for figure in figures:
        assert figure.format(**row).replace("e-0", "e-") in text


@pytest.mark.parametrize(
    "name", ["minilm-mnli-hans", "minilm-qqp-paws", "minilm-fine-tunings", "smollm2-agreement"]
)
def test_the_file_of_a_study_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MINILM", "NLI_DATA", "QQP_DATA", "SMOLLM2", "TEXTS"):
        monkeypatch.setenv(variable, str(DOCS))
    study = read_study(DOCS / "results" / f"{name}.yaml")[1]
    assert isinstance(study, StudyConfig)
    sources = study.data.ood if isinstance(study.data.ood, tuple) else ()
    assert not set(study.data.groups).intersection(source.subset for source in sources)
