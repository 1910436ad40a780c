"""Environment, markers and shared fixtures of the test suite."""

import gc
import os
from collections.abc import Callable, Iterator
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
gc.set_threshold(20_000, 20, 20)  # looking for garbage took a tenth of the time
for profile, max_examples in (("everyday", 20), ("large", 100)):  # CI takes the large one, too
    settings.register_profile(profile, deadline=None, derandomize=True, max_examples=max_examples)
settings.load_profile("everyday")

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


ASKS_TRANSFORMER_LENS = (
    *(
        "ablation/engines/test_path_cuts.py",
        "ablation/engines/test_restart.py",
        "ablation/test_sweeps.py",
    ),
    *(
        "attention/test_texts.py",
        "attention/test_knockouts.py",
        "attention/test_patterns.py",
        "evaluation/test_readout.py",
    ),
    *("masking", "models", "papers/cognitive/test_ablation.py"),
    *("papers/extractive/test_informative.py", "papers/extractive/test_scores.py"),
    "papers/cognitive/probing/test_activations.py",
    *("papers/extractive/test_linear_maps.py", "pruning/test_pruner.py", "steps/test_answers.py"),
)
"""Folders and files of tests of what mechcore asks of TransformerLens."""
ASKS_FILES = (
    *("models/test_checkpoint_files.py", "models/test_export.py"),
    "papers/extractive/test_linear_maps.py",
)
"""Files among them of what it asks of checkpoints' files."""

SLOW = (
    *("benchmarks", "fuzz", "notebooks", "docs/test_pages.py", "docs/test_site.py"),
    "docs/test_extend.py",
    *("papers/cognitive/test_study.py", "papers/cognitive/test_command.py"),
    *("papers/cognitive/test_report.py", "papers/cognitive/test_svm.py"),
    *("papers/cognitive/test_decoding.py", "papers/cognitive/probing/test_umap.py"),
    *("papers/extractive/test_study.py", "papers/extractive/test_experiments.py"),
    *("papers/extractive/test_report.py", "papers/extractive/test_tuning.py"),
    *("training/test_resume.py", "training/test_stopping.py", "main_study/test_real.py"),
    *("report/test_browser.py", "study/test_kills.py", "study/test_ray_executor.py"),
    *("report/test_page.py", "analyses/test_halves.py"),
    *("bench/test_recovery.py", "bench/test_trained.py", "repair/test_fitting.py"),
    *("pruning/test_alone.py", "pruning/test_gradients.py", "models/test_encoders.py"),
    *("models/test_decoders.py", "models/test_precision.py"),
    *("test_session_state.py", "test_testing.py", "test_devices.py"),
    *("worlds/test_embedded.py", "worlds/test_tiny_world.py"),
    *("study/test_tracking.py", "cli/test_commands.py"),
    *("main_study/test_missing_masks.py", "steps/test_fitting.py", "steps/test_benchmark.py"),
)
"""Folders and files of tests that CI runs and ``pytest`` alone does not: executed pages, studies of
papers, training, browsers, kills, Ray, and all families of models."""
FAMILIES = "models/test_families.py"
"""Tests that are slow for all families but `helpers.FEW`."""
_LISTED = (*ASKS_TRANSFORMER_LENS, *ASKS_FILES, *SLOW, FAMILIES)
_GONE = [place for place in _LISTED if not (REPOSITORY / "tests" / place).exists()]
assert not _GONE, f"tests/conftest.py lists what is not there: {_GONE}"


def runs_once(item: pytest.Item) -> bool:
    """Whether a test runs on the default version of TransformerLens alone."""
    path = item.path.relative_to(REPOSITORY / "tests")
    asks, files = (
        any(path.is_relative_to(place) for place in places)
        for places in (ASKS_TRANSFORMER_LENS, ASKS_FILES)
    )
    return (not asks or files) and item.get_closest_marker("both") is None


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is left to CI; one marked ``everyday`` is not."""
    if item.get_closest_marker("everyday") is not None:
        return False
    path = item.path.relative_to(REPOSITORY / "tests")
    parameters = getattr(item, "callspec", None)
    named = (
        {value for value in parameters.params.values() if isinstance(value, str)}
        if parameters
        else set()
    )
    families = named if path == Path(FAMILIES) else named.intersection(helpers.ARCHITECTURES)
    return any(path.is_relative_to(place) for place in SLOW) or bool(
        families.difference(helpers.FEW)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Several processes share tests out by file, in order; a file's fixtures are then made once."""
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if runs_once(item):
            item.add_marker(pytest.mark.once)
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
        if "hooked" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.hooked)
    reasons = {"hooked": missing_hooked(), "real": missing_real_data()}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Tests and modules stay to the end: garbage is not looked for among them."""
    gc.freeze()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data; only for tests marked ``real``."""
    return real_data_dir()


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> helpers.Cases:
    """Tiny classifiers of every architecture, built when first asked for."""
    return helpers.Cases(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def rich_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 layers x 8 heads with a core of four, and every table."""
    from made_up_run import World, write_run

    world = World(
        sweep=True,
        superadditive=("L0.H3+L1.H5", "L1.H2+L3.MLP"),
        checkpoints=(100, 500),
        training=(100, 200, 500),
        balance=True,
        groups={"main text": ("so_swap", "preposition"), "rare": ("so_swap", "absent")},
        n_cut=12,
        roles=True,
        paths=True,
        smallest=True,
        stability=True,
    )
    return write_run(tmp_path_factory.mktemp("report") / "rich", world)


@pytest.fixture(scope="session")
def new_run() -> Callable[..., Path]:
    """Write a run: ``new_run(path, **fields_of_world)``."""
    from made_up_run import World, write_run

    return lambda path, **fields: write_run(path, World(**fields))


@pytest.fixture(params=helpers.FEW)
def case(request: pytest.FixtureRequest, cases: helpers.Cases) -> helpers.Case:
    """A tiny float32 classifier of each of a few architectures in turn; not to be changed."""
    return cases.get(request.param)


@pytest.fixture(params=helpers.FEW)
def case64(request: pytest.FixtureRequest, cases: helpers.Cases) -> helpers.Case:
    """A tiny float64 classifier of each of a few architectures in turn; not to be changed."""
    return cases.get(request.param, torch.float64)


@pytest.fixture(params=["cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device besides the processor, where this machine has it."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    return str(request.param)


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
