"""Environment, markers and shared fixtures of the test suite."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, beside one another
os.environ.setdefault("RAY_worker_niceness", "0")  # its workers would wait for other tests

import helpers
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("mechcore", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("mechcore")

REPOSITORY = Path(__file__).resolve().parents[1]


def real_data_dir() -> Path:
    """The folder of the real data, whether or not it is there."""
    named = os.environ.get("MECHCORE_REAL_DATA")
    return Path(named) if named else REPOSITORY.parent / "shared"


def missing_real_data() -> str | None:
    """Why tests on real data cannot run; None if they can."""
    folder = real_data_dir()
    for wanted in ("data", "models"):
        if not (folder / wanted).is_dir():
            return f"no real data: {folder / wanted} is missing (set MECHCORE_REAL_DATA)"
    return None


def missing_hooked() -> str | None:
    """Why tests on HookedTransformer cannot run; None if they can."""
    try:
        from transformer_lens import HookedTransformer  # noqa: F401
    except ImportError:
        return "TransformerLens 4 has no HookedTransformer"
    return None


USES_THE_REST = (
    *("benchmarks", "cli", "test_cli.py", "data", "docs", "fuzz", "notebooks", "report"),
    *("training", "papers/cognitive/test_report.py", "papers/extractive/test_report.py"),
)
"""Folders and files of tests that touch models only through what other tests are of."""
NO_MODEL = (
    *("ablation/test_reading.py", "ablation/test_sets.py", "ablation/test_superadditivity.py"),
    *(
        "attention/test_categories.py",
        "attention/test_labels.py",
        "evaluation/test_recalibration.py",
    ),
    *("papers/cognitive/test_settings.py", "papers/cognitive/test_trials.py"),
    *("papers/cognitive/test_units.py", "papers/cognitive/test_verdicts.py"),
    *("papers/extractive/test_alignment.py", "papers/extractive/test_settings.py"),
    *("probing/test_decoding.py", "pruning/test_controls.py", "pruning/test_discretise.py"),
    *("pruning/test_hard_concrete.py", "pruning/test_mask_training.py", "pruning/test_settings.py"),
    *("steps/test_answers.py", "steps/test_config.py", "steps/test_config_file.py"),
    *("steps/test_groups.py", "steps/test_plan.py", "steps/test_sizes.py"),
    *("study/test_engine.py", "study/test_source_code.py", "study/test_status.py"),
    *("study/test_store.py", "study/test_template.py", "study/test_tracking.py"),
    *("subnetworks", "test_components.py", "test_files.py", "test_lazy.py", "test_progress.py"),
    *("test_registry.py", "test_settings.py", "test_tables.py", "worlds/test_tiny_world.py"),
)
"""Files of tests that run nothing of TransformerLens."""
_ONCE = (*USES_THE_REST, *NO_MODEL)
_GONE = [place for place in _ONCE if not (REPOSITORY / "tests" / place).exists()]
assert not _GONE, f"tests/conftest.py lists what is not there: {_GONE}"


def runs_once(item: pytest.Item) -> bool:
    """Whether a test runs on the default version of TransformerLens alone."""
    path = item.path.relative_to(REPOSITORY / "tests")
    listed = any(path.is_relative_to(place) for place in _ONCE)
    return listed and item.get_closest_marker("both") is None


SHARED = ("papers/cognitive", "papers/extractive", "pruning", "report", "study")
"""Folders whose files share fixtures that take long to make."""


def made_together(item: pytest.Item) -> str:
    """The file of a test, or the folder whose tests share fixtures: what one process runs."""
    path = item.path.relative_to(REPOSITORY / "tests")
    folders = (each for each in SHARED if path.is_relative_to(each))
    return next(folders, str(path))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Several processes share tests out by what is made together, unless told otherwise."""
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(made_together(item)))
        if runs_once(item):
            item.add_marker(pytest.mark.once)
    reasons = {"hooked": missing_hooked(), "real": missing_real_data()}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data; only for tests marked ``real``."""
    return real_data_dir()


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> helpers.Cases:
    """Tiny classifiers of every architecture, built when first asked for."""
    return helpers.Cases(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=helpers.ARCHITECTURES)
def case(request: pytest.FixtureRequest, cases: helpers.Cases) -> helpers.Case:
    """A tiny float32 classifier of each architecture in turn; not to be changed."""
    return cases.get(request.param)


@pytest.fixture(params=helpers.ARCHITECTURES)
def case64(request: pytest.FixtureRequest, cases: helpers.Cases) -> helpers.Case:
    """A tiny float64 classifier of each architecture in turn; not to be changed."""
    return cases.get(request.param, torch.float64)


@pytest.fixture(autouse=True)
def no_hooks_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that takes a shared model gives it back without hooks."""
    names = [name for name in ("case", "case64") if name in request.fixturenames]
    models = [request.getfixturevalue(name).model for name in names]
    before = [helpers.hook_counts(model) for model in models]
    yield
    assert [helpers.hook_counts(model) for model in models] == before


@pytest.fixture
def no_drawings() -> Iterator[None]:
    """Reports that the test writes have pictures of one pixel."""
    with helpers.undrawn():
        yield
