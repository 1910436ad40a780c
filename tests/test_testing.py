"""The kit for guests: mechcore's own pass, and each kind of broken guest is refused by its line."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cases, undrawn

from mechcore import testing
from mechcore.analyses import ANALYSES
from mechcore.analyses.base import Analysis
from mechcore.attention.categories import Category, registered_categories
from mechcore.components import ModelShape
from mechcore.masking.fills import FILLS, Fill
from mechcore.models.architectures.base import ARCHITECTURES
from mechcore.models.architectures.decoders import GPT2
from mechcore.models.protocol import named_weights
from mechcore.pruning.discretise import random_subnetworks
from mechcore.pruning.methods import METHODS
from mechcore.pruning.subnetwork import Subnetwork

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extend.md"
NEEDS = ("counterfactual", "layer-matched", "ugs", "l0")
"""Those that need pairs or trained masks, or take minutes."""

OWN = [
    *((testing.check_fill, name) for name in FILLS if name not in NEEDS),
    *((testing.check_pruning_method, name) for name in METHODS if name not in NEEDS),
    *((testing.check_category, own.name) for own in registered_categories()[-2:]),
    (testing.check_analysis, "core"),
]


@pytest.mark.parametrize(("check", "name"), OWN, ids=lambda x: getattr(x, "__name__", str(x)))
def test_own(check: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_check_import", lambda module: None)
    with undrawn():
        check(name)


def line_of(check: Callable[..., None], *arguments: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check(*arguments)
    (line,) = str(caught.value).splitlines()
    return line


class Ones(Fill):
    """Ones, to be spoiled."""

    needs_means = False
    is_finite = True

    def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Any:
        cfg = self.model.cfg
        return torch.ones((cfg.n_heads, cfg.d_head) if kind == "z" else (cfg.d_model,))


class Narrow(Ones):
    def values(self, *of: Any) -> Any:
        return super().values(*of)[None, :, :-1] if of[0] == "z" else super().values(*of)


class Endless(Ones):
    def values(self, *of: Any) -> Any:
        return super().values(*of) / (of[1] - 1)


class Unseeded(Ones):
    def values(self, *of: Any) -> Any:
        return torch.rand_like(super().values(*of))


class Editing(Ones):
    def prepare(self, batch: Any) -> None:
        for weight in named_weights(self.model).values():
            weight.data.mul_(1.1)


class Turning(Ones):
    """Others from the third one on, that of the masked model."""

    made = 0

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        Turning.made += 1

    def values(self, *of: Any) -> Any:
        return super().values(*of) * (1 if self.made < 3 else 2)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (Narrow, r"fill Narrow: values\('z', layer=0\) gave .* expected a tensor \(6, 20\)"),
        (Endless, r"values\('z', 1\) are NaN or infinite; expected numbers"),
        (Unseeded, r"values\('z', 0\) differ between two fills of one seed; expected equal ones"),
        (Editing, "logits of the model before and after differ by .*; expected at most 0.0001"),
        (Turning, "logits under a mask of zeros and of the model with values put in differ by"),
    ],
)
def test_broken_fills(broken: Any, line: str) -> None:
    assert re.match(f"fill {broken.__name__}: {line}", line_of(testing.check_fill, broken))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_own_architectures(name: str, cases: Cases) -> None:
    testing.check_architecture(name, cases.path(name))


class Shifted(GPT2):
    def stack(self, model: Any) -> Any:
        stack = super().stack(model)
        embed = stack.embed
        return type(stack)(**{**vars(stack), "embed": lambda inputs: 1.5 * embed(inputs)})


class Misfolded(GPT2):
    projections = ("h.1.attn.c_proj", "h.1.mlp.c_proj")


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (Shifted, "logits of the stack and of the model differ by .*; expected at most"),
        (Misfolded, "logits of the masked model and of its export differ by .*; expected at most"),
    ],
)
def test_broken_architectures(
    broken: Any, line: str, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ARCHITECTURES["gpt2"] is GPT2
    monkeypatch.setitem(ARCHITECTURES._imported, "gpt2", broken)
    assert re.search(line, line_of(testing.check_architecture, broken, cases.path("gpt2")))


_numbers = itertools.count()


def edit(request: Any) -> Any:
    for weight in named_weights(request.model).values():
        weight.data.mul_(1.1)
    return METHODS["random"](request)


def changed(request: Any, **values: Any) -> Any:
    return [replace(subnetwork, **values) for subnetwork in METHODS["random"](request)]


def drifting(request: Any) -> Any:
    shape, seed = ModelShape.of(request.model), next(_numbers)
    drawn = random_subnetworks(shape, target_sparsities=request.target_sparsities, seeds=[seed])
    return [Subnetwork(x.mask, x.target_sparsity, 1, x.scores, "drifting") for x in drawn]


def masks_of(request: Any, change: Callable[..., Any]) -> Any:
    subnetworks = METHODS["random"](request)
    change(subnetworks[0].mask.values)
    return subnetworks


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (edit, r"changes \d+ weights of the model; expected none"),
        (lambda r: [x.mask for x in METHODS["random"](r)], "AttributeError: 'Mask' object"),
        (
            lambda r: METHODS["random"](r)[:3],
            r"gives the targets and seeds \[.*; expected \[\(0.25",
        ),
        (partial(changed, target_sparsity=0.5), "gives the targets and seeds"),
        (drifting, "drifting-s0.25-seed1 has another mask the second time; expected the same"),
        (partial(changed, method="Mine"), "subnetwork file .*: found a mask without its"),
        (partial(changed, scores=torch.ones(2)), "subnetwork file .*"),
        (partial(masks_of, change=lambda v: v.mul_(0.5)), ".* a mask of 10.5; expected 21 ones of"),
        (partial(masks_of, change=lambda v: v.fill_(1)), ".* a mask of 28; expected 21 ones of 28"),
    ],
)
def test_broken_pruning_methods(broken: Any, line: str) -> None:
    assert re.match(f"pruning method .*: {line}", line_of(testing.check_pruning_method, broken))


def causal(tokens: Any) -> Any:
    assert tokens.causal
    return tokens.at_distance(2)


def test_a_category_of_causal_models_is_not_asked_about_others() -> None:
    testing.check_category(Category("mine", causal, causal_only=True))
    assert "category mine: " in line_of(testing.check_category, Category("mine", causal))
    assert "unknown" in line_of(testing.check_category, "mine")


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda tokens: tokens.allowed.float(), "gives torch.float32 of .*; expected torch.bool"),
        (lambda tokens: tokens.real, "gives torch.bool of .*; expected torch.bool of"),
        (
            lambda tokens: tokens.key_is(tokens.positions == len(tokens.positions) - 2),
            r"gives other pairs for text \d+ alone than in a batch; expected the same",
        ),
    ],
)
def test_broken_categories(function: Any, line: str) -> None:
    broken = Category("mine", function)
    assert re.match(f"category mine: {line}", line_of(testing.check_category, broken))


Guest = Callable[..., type[Analysis]]


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """The analysis of docs/extend.md with an edit, registered as ``lengths``."""
    text = re.findall(
        r"<!-- file: \S+analysis.py -->\n```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M
    )
    added = []

    def make(old: str = "", new: str = "") -> type[Analysis]:
        assert old in text[0]
        module = f"guest_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(text[0].replace(old, new, 1))
        monkeypatch.syspath_prepend(tmp_path)
        ANALYSES.register("lengths")(importlib.import_module(module).Lengths)
        added.append("lengths")
        return ANALYSES["lengths"]

    yield make
    for name in {*added}:
        ANALYSES.remove(name)


SETTING = 'setting(10, "Tokens of the longest text that is not long.", least=1)'
BROKEN = {
    "changeable": ("frozen=True", "frozen=False", "is no frozen dataclass; expected @dataclass"),
    "another name": ('kind = "lengths"', 'kind = "lenghts"', "unknown .did you mean 'lengths'"),
    "no setting": (SETTING, "10", "field longest has no help; expected setting"),
    "a default": ("setting(10", "setting(0", "lengths: longest is 0; expected a whole"),
    "torch": ("import pandas as pd", "import pandas as pd, torch", "loads torch, too; expected"),
    "without a value": ("longest: int = setting(10", "longest: int | None = setting(None",
        "setting longest: pass another value than None in others"),
    "a setting": (
        "    def compute", "    def settings(self):\n        return {}\n\n    def compute",
        "setting longest: 10 and 11 make the same jobs; expected others"),
    "without effect": (
        SETTING, f"{SETTING}\n    without_effect = frozenset(['longest'])\n\n"
        "    def settings(self):\n        return {'longest': self.longest}",
        "setting longest: 10 and 11 make other jobs; expected the same"),
    "columns": ('"n": len(data),', "", "StudyError: .*table lengths: found the columns"),
    "a table more": (
        'return {"lengths": pd.DataFrame(rows)}',
        'return {name: pd.DataFrame(rows) for name in ("lengths", "more")}',
        "tables {'more'} have no schema; expected one for each"),
    "chance": ('"n": len(data)', '"n": __import__("time").time_ns()', "table lengths.csv differs"),
    "a headline": ("yield f\"{table", 'yield ""; f"{table', "has an empty headline"),
    "a block": ("yield table_of(", "yield str(", "TypeError: "),
    "an empty run": (
        '        if table is not None:\n            yield f"{table',
        '        if True:\n            yield f"{table is None or table', "TypeError: "),
    "a line of an empty run": (
        "        if table is not None:\n            yield f\"",
        '        if table is None:\n            yield "Nothing."\n        else:\n            f"',
        r"shows \['Nothing.'\] of a run without its tables; expected at most notes"),
}  # fmt: skip


@pytest.mark.everyday
def test_a_guest(guest: Guest) -> None:
    with undrawn():
        testing.check_analysis(guest(), {"longest": 8}, others={"longest": 4})


@pytest.mark.parametrize("name", BROKEN)
def test_broken_analyses(name: str, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "torch":
        monkeypatch.setattr(testing, "_check_import", lambda module: None)
    old, new, line = BROKEN[name]
    assert re.match(f"analysis Lengths: .*{line}", line_of(testing.check_analysis, guest(old, new)))
