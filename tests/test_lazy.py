"""What importing mechcore, and asking its command line for help, loads: next to nothing."""

import ast
import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import mechcore
from mechcore import _waiting
from mechcore._waiting import WAITING
from mechcore.models.architectures.base import OWN

HEAVY = ["matplotlib", "pandas", "torch", "transformer_lens", "transformers"]
CALL = """
from contextlib import suppress
from mechcore.cli import main
with suppress(SystemExit): main"""
LAZY = ["mechcore"] + [
    f"mechcore.{module.name}"
    for module in pkgutil.iter_modules(mechcore.__path__)
    if module.ispkg and module.name not in ("cli", "analyses")
]


def output_of(program: str) -> str:
    """What a new process of Python prints last."""
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout.splitlines()[-1]


LIGHT = [
    "import mechcore",
    f"{CALL}(['--help'])",
    *(f"{CALL}(['{command}', '--help'])" for command in ("run", "roles")),
    f"{CALL}(['reproduce', 'cognitive', '--help'])",
    f"{CALL}(['run', '--no-such-option'])",
    f"{CALL}(['reproduce', 'extractive', '--seeds', 'x'])",
    *(
        f"import mechcore.{package}.settings"
        for package in ("pruning", "training", "papers.cognitive", "papers.extractive")
    ),
]
"""Help, slips of the keyboard, and settings."""
WITHOUT_TORCH = ["steps.config", "main_study.config", "analyses.roles"]


def test_help_and_settings_load_no_library_of_models() -> None:
    programs = [*LIGHT, *(f"import mechcore.{package}" for package in WITHOUT_TORCH)]
    check = f"loaded.append([name for name in {HEAVY} if name in sys.modules])"
    lines = [f"{program}\n{check}" for program in programs]
    printed = output_of(
        "\n".join(["import json, sys", "loaded = []", *lines, "print(json.dumps(loaded))"])
    )
    loaded = dict(zip(programs, json.loads(printed), strict=True))
    assert {program: loaded[program] for program in LIGHT} == {program: [] for program in LIGHT}
    assert "torch" not in loaded[programs[-1]]


def test_families_are_imported_by_their_registry_alone() -> None:
    """They import TransformerLens, which looks all of them up: none may be half imported then."""
    families = {path.split(":")[0] for path in OWN.values()}
    root = Path(mechcore.__file__).parent
    for path in set(root.rglob("*.py")) - set((root / "models/architectures").iterdir()):
        tree = ast.walk(ast.parse(path.read_text()))
        imported = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        assert families.isdisjoint(imported), path


@pytest.mark.parametrize("package", LAZY)
def test_every_name_of_a_package_is_that_of_its_module(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(inspect.getsource(module))
    block = [node for outer in tree.body if isinstance(outer, ast.If) for node in outer.body]
    homes = {
        name.name: str(node.module)
        for node in block
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    # `open` is for mechcore.open alone: a star must not hide that of Python.
    public = set(getattr(module, "__all__", [])) - {"__version__", "Backend"}
    assert set(homes) - {"open"} == public - {"open"}
    for name, home in homes.items():
        if home == package:  # a submodule
            assert getattr(module, name) is importlib.import_module(f"{home}.{name}")
        else:
            assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert name in dir(module)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


def test_functions_win_over_modules_that_have_their_name() -> None:
    """Whichever is imported first, and again after the other."""
    program = """
import json, types
import mechcore.pruning.discretise, mechcore.attention.categories
from mechcore import effective_size, evaluate
from mechcore.ablation import sweep
from mechcore.attention import categories
import mechcore.papers.cognitive.verdicts
functions = [
    effective_size, evaluate, sweep, categories,
    mechcore.pruning.discretise,
    mechcore.papers.cognitive.verdicts,
]
print(json.dumps([[type(function).__name__, function.__module__] for function in functions]))
"""
    homes = ["subnetworks.effective_size", "evaluation.evaluate", "ablation.sweeps"]
    homes += ["attention.categories", "pruning.discretise"]
    homes += ["papers.cognitive.verdicts"]
    assert json.loads(output_of(program)) == [["function", f"mechcore.{home}"] for home in homes]


@pytest.mark.parametrize(
    ("running", "names", "expected"),
    [
        (2, {}, WAITING),
        (1, {}, {}),
        (2, {"torch": "loaded"}, {}),
        (2, {"OMP_WAIT_POLICY": "ACTIVE"}, {}),
        (2, {"KMP_BLOCKTIME": "9"}, {"KMP_BLOCKTIME": "9"}),
    ],
)
def test_threads_wait_briefly_beside_others_unless_the_user_says_how(
    running: int, names: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*WAITING, "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, names.get(name, ""))  # so that it is restored after the test
        if name not in names:
            monkeypatch.delenv(name)
    modules = {name: sys for name in names if name == "torch"}
    monkeypatch.setattr(_waiting, "sys", SimpleNamespace(modules=modules))
    monkeypatch.setattr(_waiting, "_n_running", lambda: running)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    _waiting.wait_briefly()
    assert {name: os.environ[name] for name in WAITING if name in os.environ} == expected
