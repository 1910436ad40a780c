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
from helpers import Cases, gpt2_language_model, word_tokenizer

from mechcore import testing
from mechcore.analyses import ANALYSES
from mechcore.analyses.base import Analysis
from mechcore.attention.categories import BUILT_IN, Category
from mechcore.components import ModelShape
from mechcore.masking.fills import FILLS, Fill
from mechcore.models.architectures.base import ARCHITECTURES
from mechcore.models.architectures.gpt2 import GPT2
from mechcore.models.running import named_weights
from mechcore.pruning.controls import random_subnetworks
from mechcore.pruning.methods import METHODS, by_ranking
from mechcore.pruning.rankings import Ranking
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.pruning.uniform_sampling import ugs_scores

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extend.md"


def line_of(check: Callable[..., None], *arguments: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check(*arguments, **options)
    (line,) = str(caught.value).splitlines()
    return line


# -- fills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILLS])
def test_own_fills(name: str) -> None:
    testing.check_fill(name)


class Ones(Fill):
    """Ones, to be spoiled."""

    needs_means = False
    is_finite = True

    def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Any:
        cfg = self.model.cfg
        return torch.ones((cfg.n_heads, cfg.d_head) if kind == "z" else (cfg.d_model,))


class Whole(Ones):
    def values(self, *of: Any) -> Any:
        return super().values(*of).long()


class Narrow(Ones):
    def values(self, *of: Any) -> Any:
        return super().values(*of)[None, :, :-1] if of[0] == "z" else super().values(*of)


class Endless(Ones):
    def values(self, *of: Any) -> Any:
        return super().values(*of) / (of[1] - 1)


class Unseeded(Ones):
    def values(self, *of: Any) -> Any:
        return torch.rand_like(super().values(*of))


class Halving(Fill):
    def values(self, kind: Any, layer: int, positions: Any, draws: Any) -> Any:
        return getattr(self.means, kind)[layer].mul_(0.5)


class Editing(Ones):
    def prepare(self, batch: Any) -> None:
        for weight in named_weights(self.model).values():
            weight.data.mul_(1.1)


class Turning(Ones):
    """Others from the third round on, that of the masked model."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        Turning.made = getattr(Turning, "made", 0) + 1

    def values(self, *of: Any) -> Any:
        return super().values(*of) * (1 if self.made < 3 else 2)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Whole, r"values\('z', 0\) gave torch.int64 of shape \(6, 20\); expected floating point"),
        (Narrow, r"fill Narrow: values\('z', layer=0\) gave .* expected a tensor \(6, 20\)"),
        (Endless, r"values\('z', 1\) gave NaN or infinity; expected numbers"),
        (Unseeded, r"values\('z', 0\) gave other values the second time; expected the same"),
        (Halving, r"values\('z', 0\) gave other values the second time.*means that stay"),
        (Editing, "logits with m = 1 and of the model are .* apart; expected at most 0.0001"),
        (Turning, "logits with m = 0 and of values are .* apart; expected at most 0.0001"),
        (dict, "TypeError: dict expected at most 1 argument, got 3"),
    ],
)
def test_broken_fills(broken: Any, said: str) -> None:
    assert re.match(f"fill {broken.__name__}: {said}", line_of(testing.check_fill, broken))


# -- architectures --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_own_architectures(name: str, cases: Cases) -> None:
    testing.check_architecture(name, cases.path(name))


class Shifted(GPT2):
    def stack(self, model: Any) -> Any:
        found = super().stack(model)
        embed = found.embed
        return type(found)(**{**vars(found), "embed": lambda inputs: 1.5 * embed(inputs)})


class Misfolded(GPT2):
    projections = ("h.1.attn.c_proj", "h.1.mlp.c_proj")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Shifted, "logits of the stack and of the model are .* apart; expected at most"),
        (Misfolded, "logits masked by zero and of an export are .* apart; expected at most"),
    ],
)
def test_broken_architectures(
    broken: Any, said: str, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ARCHITECTURES["gpt2"] is GPT2
    monkeypatch.setitem(ARCHITECTURES._imported, "gpt2", broken)
    line = line_of(testing.check_architecture, broken, cases.path("gpt2"))
    assert re.match(f"architecture {broken.__name__}: {said}", line)


def test_checkpoints_that_show_nothing(cases: Cases, tmp_path: Path) -> None:
    line = line_of(testing.check_architecture, "bert", cases.path("gpt2"))
    assert "the checkpoint is of gpt2, whose class is GPT2; expected Bert, registered" in line
    model = gpt2_language_model()
    for weight in model.parameters():
        weight.data.mul_(1e-3)
    model.save_pretrained(tmp_path)
    word_tokenizer(segments=False).save_pretrained(tmp_path)
    line = line_of(testing.check_architecture, "gpt2", tmp_path)
    assert re.search("logits change by .* without 5 components; expected more: give it", line)


# -- pruning methods ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ugs"])
def test_own_pruning_methods(name: str) -> None:
    testing.check_pruning_method(name)


def test_a_ranking_by_chance() -> None:
    """The method ugs takes minutes."""
    few = partial(ugs_scores, steps=2, n_masks=2)
    testing.check_pruning_method(by_ranking("ugs", Ranking(few, "masks")))


_calls = itertools.count()


def _edit(request: Any) -> Any:
    for weight in named_weights(request.model).values():
        weight.data.mul_(1.1)
    return METHODS["random"](request)


def _changed(request: Any, **values: Any) -> Any:
    return [replace(each, **values) for each in METHODS["random"](request)]


def _drifting(request: Any) -> Any:
    seed, shape = next(_calls), ModelShape.of(request.model)
    found = random_subnetworks(shape, sparsity=request.sparsities, seeds=[seed])
    return [Subnetwork(x.mask, x.target, 1, x.scores, "drifting") for x in found]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_edit, r"changed \d+ weights of the model; expected none"),
        (lambda r: [x.mask for x in METHODS["random"](r)], "gave Mask; expected a list of Subnet"),
        (lambda r: METHODS["random"](r)[:3], r"gave the targets and seeds \[.*; expected \[\(0.25"),
        (partial(_changed, target=0.5), "gave the targets and seeds"),
        (lambda r: [x for x in _changed(r, seed=1) for _ in (1,)], "gave the targets and seeds"),
        (_drifting, "drifting-s0.25-seed1: has another mask or scores the second time; expected"),
        (partial(_changed, method="Mine"), "subnetwork file .*: holds a mask, but not its"),
        (partial(_changed, scores=torch.ones(2)), "subnetwork file .*"),
    ],
)
def test_broken_pruning_methods(broken: Any, said: str) -> None:
    line = line_of(testing.check_pruning_method, broken)
    assert re.match(f"pruning method .*: {said}", line), line


def test_pruning_methods_with_other_masks_or_names() -> None:
    def odd(request: Any, change: Callable[..., Any]) -> Any:
        found = METHODS["random"](request)
        change(found[0].mask.values)
        return found

    for change, said in (
        (lambda values: values.mul_(0.5), "mask values {0.5}; expected 0 and 1 alone"),
        (lambda values: values.fill_(1), "keeps 28 of 28 components; expected 21"),
    ):
        assert said in line_of(testing.check_pruning_method, partial(odd, change=change))
    METHODS.register("mine")(METHODS["random"])
    try:
        line = line_of(testing.check_pruning_method, "mine")
    finally:
        METHODS.remove("mine")
    assert line.endswith("its method is 'random'; expected the name 'mine'")


# -- categories -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [each.name for each in BUILT_IN])
def test_own_categories(name: str) -> None:
    testing.check_category(name)


def test_a_category_that_is_not_registered_leaves_no_trace() -> None:
    mine = Category("mine", lambda tokens: tokens.at_distance(2), causal_only=True)
    testing.check_category(mine)
    assert "unknown" in line_of(testing.check_category, "mine")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda tokens: tokens.allowed.float(), "gave torch.float32 of shape .*; expected torch.b"),
        (lambda tokens: tokens.real, "gave torch.bool of shape .*; expected torch.bool of"),
        (
            lambda tokens: tokens.key_is(tokens.positions == len(tokens.positions) - 2),
            r"gave other pairs for text \d+ alone than in a batch; expected the same",
        ),
    ],
)
def test_broken_categories(function: Any, said: str) -> None:
    line = line_of(testing.check_category, Category("mine", function))
    assert re.match(f"category mine: {said}", line), line


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda table: table.drop(columns="share_self"), "found the columns .*; expected"),
        (lambda table: table.assign(mass_self=1.5), "are from .* to 1.5; expected 0 to 1"),
    ],
)
def test_tables_of_heads(spoil: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = testing.attention_scores
    monkeypatch.setattr(testing, "attention_scores", lambda *of, **how: spoil(scores(*of, **how)))
    assert re.search(said, line_of(testing.check_category, "self"))


# -- analyses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy", "smallest", "core", "halves", "heads", "dose"])
def test_own_analyses(name: str) -> None:
    """Those that take a second or a few."""
    testing.check_analysis(name)


Guest = Callable[..., type[Analysis]]
_numbers = itertools.count()


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
    "another name": ('kind = "lengths"', 'kind = "lenghts"', "kind 'lenghts' is that of what is"),
    "a name that is there": ('kind = "lengths"', 'kind = "core"', r"registered as \['core', 'len"),
    "no docstring": ('"""How many test texts', 'about = """', "has no docstring; expected a line"),
    "no setting": (SETTING, "10", "field longest has no help; expected setting"),
    "no help": ('"Tokens of the longest text that is not long."', '""', "field longest has no"),
    "a default": ("setting(10", "setting(0", "default settings: longest is 0; expected a whole"),
    "a column": ('"texts", header', '"", header', "table lengths says nothing of n; expected a m"),
    "torch": ("import pandas as pd", "import pandas as pd, torch", "loads torch; expected compute"),
    "a setting": (
        "    def compute",
        "    def settings(self):\n        return {}\n\n    def compute",
        "setting longest: jobs with 11 and with 10 are the same; expected others",
    ),
    "without effect": (
        SETTING,
        f"{SETTING}\n    without_effect = frozenset(['longest'])\n\n"
        "    def settings(self):\n        return {'longest': self.longest}",
        "setting longest: jobs with 11 and with 10 are others; expected the same",
    ),
    "columns": ('"n": len(data),', "", "job 'lengths' failed: table lengths: found the columns"),
    "a table more": (
        'return {"lengths": pd.DataFrame(rows)}',
        'return {name: pd.DataFrame(rows) for name in ("lengths", "more")}',
        "tables without a schema are {'more'}; expected none",
    ),
    "chance": ('"n": len(data)', '"n": id(object())', "table lengths is another one the second"),
    "a headline": ("yield f\"{table", 'yield ""; f"{table', r"shows \[''\]; expected blocks of"),
    "a block": ("yield table_of(", "yield str(", "TypeError: "),
    "an empty run": (
        '        if table is not None:\n            yield f"{table',
        '        if True:\n            yield f"{table is None or table',
        "TypeError: ",
    ),
    "a line of an empty run": (
        '        if table is not None:\n            yield f"',
        '        if table is None:\n            yield "Nothing."\n'
        '        else:\n            yield f"',
        r"shows \['Nothing.'\] of a run without its tables; expected nothing",
    ),
}  # fmt: skip


def test_a_guest(guest: Guest) -> None:
    testing.check_analysis(guest(), {"longest": 8})


@pytest.mark.parametrize("name", BROKEN)
def test_broken_analyses(name: str, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "torch":
        monkeypatch.setattr(testing, "_check_import", lambda module: None)
    old, new, said = BROKEN[name]
    line = line_of(testing.check_analysis, guest(old, new))
    assert re.match(f"analysis Lengths: .*{said}", line), line
