"""Ways to predict interactions: each against loops of its own."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from ablation.few import encoded, means_of, plain_logits, plain_margin
from ablation.planted import examples, game
from helpers import Cases

from mechcore.ablation import ComponentSet
from mechcore.ablation.joint.predictors import MaskedMargins, PairRequest
from mechcore.bench.methods import PREDICTORS
from mechcore.bench.predictors import N_POINTS
from mechcore.components import ModelShape, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost

NAMES = ("L0.H1", "L0.MLP", "L1.MLP")
PAIRS = list(itertools.combinations(range(len(NAMES)), 2))
DATA = examples()


def predict(name: str, request: PairRequest) -> dict[str, float]:
    pairs = PREDICTORS[name](request).interactions
    return {str(pair): value for pair, value in pairs.items()}


class Plain:
    """A random model of Hugging Face's, in double precision, beside a request to predict."""

    def __init__(self, cases: Cases, name: str) -> None:
        case, data = cases.get(name), encoded(name).part(range(4))
        means = means_of(case.model, data)
        components = parse_components(NAMES)
        run: dict[str, Any] = {"batch_size": 3, "sweep": {"split": "ood"}}
        self.request = PairRequest(case.model, data, means, components, **run)
        self.shape = ModelShape.of(case.model)
        self.places = [self.shape.index(c) for c in components]
        self.given = (copy.deepcopy(case.reference).double(), data, means)

    def values(self, changes: dict[int, float], rest: float = 1.0) -> torch.Tensor:
        """Mask values: ``rest`` for the components asked for, but for some of them."""
        values = torch.ones(self.shape.n_layers, self.shape.columns, dtype=torch.float64)
        for i, place in enumerate(self.places):
            values[place] = changes.get(i, rest)
        return values

    @torch.no_grad()
    def margin(self, changes: dict[int, float], rest: float = 1.0) -> float:
        return float(plain_margin(*self.given, self.values(changes, rest)))

    @torch.no_grad()
    def logits(self, *without: int) -> torch.Tensor:
        return plain_logits(*self.given, self.values(dict.fromkeys(without, 0.0)))

    def mixed(self, a: int, b: int, at: float, h: float = 1e-3) -> float:
        """The mixed second derivative by central differences."""
        signs = itertools.product((1, -1), (1, -1))
        terms = [s * t * self.margin({a: at + s * h, b: at + t * h}, at) for s, t in signs]
        return sum(terms) / (4 * h * h)

    def by_pair(self, values: Any) -> dict[str, float]:
        return {f"{NAMES[a]}+{NAMES[b]}": values(a, b) for a, b in PAIRS}


@pytest.fixture(scope="module")
def plain(cases: Cases) -> Plain:
    return Plain(cases, "bert")


@pytest.fixture(scope="module")
def decoder(cases: Cases) -> Plain:
    return Plain(cases, "gpt2")


def assert_near(pairs: dict[str, float], expected: dict[str, float], tolerance: float) -> None:
    """And that there is something to be right about."""
    assert pairs == pytest.approx(expected, abs=tolerance)
    assert max(map(abs, expected.values())) > 20 * tolerance


def test_exact_and_hessian_are_those_of_four_runs(plain: Plain, decoder: Plain) -> None:
    """Of the model without them and, for second derivatives, of finite differences."""
    for model in (plain, decoder):
        margins = {
            without: model.margin(dict.fromkeys(without, 0.0))
            for without in [(), (0,), (1,), (2,), *PAIRS]
        }
        expected = model.by_pair(lambda a, b, m=margins: m[a, b] + m[()] - m[a,] - m[b,])
        assert_near(predict("exact", model.request), expected, 1e-5)
        expected = model.by_pair(lambda a, b, of=model: of.mixed(a, b, 1.0))
        assert_near(predict("hessian", model.request), expected, 2e-4)


def test_the_integrated_hessian_is_a_weighted_mean_on_the_way_down(plain: Plain) -> None:
    assert N_POINTS == 4
    points = [1 / 8, 3 / 8, 5 / 8, 7 / 8]
    weights = [-t * math.log(t) for t in points]
    mixed = {pair: [plain.mixed(*pair, t) for t in points] for pair in PAIRS}
    expected = plain.by_pair(lambda a, b: np.average(mixed[a, b], weights=weights))
    assert_near(predict("integrated-hessian", plain.request), expected, 2e-4)


def test_co_ablation_is_the_growth_of_an_effect_on_the_answers(plain: Plain) -> None:
    full = plain.logits()
    chances = full.softmax(-1)

    def energy(before: torch.Tensor, after: torch.Tensor) -> float:
        """Half the variance of the change, example by example."""
        rows = []
        for p, change in zip(chances, before - after, strict=True):
            mean = sum(p[i] * change[i] for i in range(3))
            rows.append(float(sum(p[i] * (change[i] - mean) ** 2 for i in range(3)) / 2))
        return sum(rows) / len(rows)

    def grown(b: int, a: int) -> float:
        """How much more b does once a is gone."""
        return energy(plain.logits(a), plain.logits(a, b)) - energy(full, plain.logits(b))

    expected = plain.by_pair(lambda a, b: -(grown(b, a) + grown(a, b)) / 2)
    assert_near(predict("co-ablation", plain.request), expected, 2e-6)


def played(monkeypatch: pytest.MonkeyPatch, change: Any, n: int) -> Any:
    """The proxy of a game of ``n`` heads in place of a model, and the sets that it played."""
    names = [f"L0.H{i}" for i in range(n)]
    seen: list[ComponentSet] = []

    def ablate(self: PairRequest, sets: list[ComponentSet]) -> Any:
        seen.extend(sets)
        players = [[c.head for c in cut.components] for cut in sets]
        return game({str(s): change(p) for s, p in zip(sets, players, strict=True)})

    monkeypatch.setattr(PairRequest, "ablate", ablate)
    request = PairRequest(None, DATA, None, parse_components(names))
    return PREDICTORS["proxy"](request), seen


def test_the_proxy_recovers_every_pair_of_a_game(monkeypatch: pytest.MonkeyPatch) -> None:
    n, rng = 9, np.random.default_rng(0)
    alone, both = rng.normal(size=n), np.triu(rng.normal(size=(n, n)), 1)

    def change(players: list[int]) -> float:
        pairs = itertools.combinations(players, 2)
        return sum(alone[i] for i in players) + sum(both[i, j] for i, j in pairs)

    proxy, seen = played(monkeypatch, change, n)
    got = {str(pair): value for pair, value in proxy.interactions.items()}
    pairs = itertools.combinations(range(n), 2)
    expected = {f"L0.H{i}+L0.H{j}": both[i, j] for i, j in pairs}
    assert got == pytest.approx(expected, abs=3e-3)  # shrunk
    assert len(set(seen)) == len(seen)
    assert {len(cut) for cut in seen} == {1, 2, 3, 4, 5, 6}
    assert proxy.cost == Cost(forwards=1 + len(seen))
    request = PairRequest(None, DATA, None, parse_components(["L0.H0", "L0.H1", "L0.H2"]))
    message = "proxy: 4 different sets of 3 components; expected at least 10"
    with pytest.raises(InputError, match=message):
        predict("proxy", request)


@pytest.mark.parametrize(
    ("name", "backwards"), [("screening", 4), ("hessian", 7), ("integrated-hessian", 28)]
)
def test_costs_are_passes(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, name: str, backwards: int
) -> None:
    """Of four examples; second derivatives go back through both passes."""
    request, rows, back = Plain(cases, "bert").request, [], []
    total, grad = MaskedMargins.total, torch.autograd.grad

    def watched(self: MaskedMargins, values: Any, batch: Any) -> Any:
        rows.extend(batch)
        return total(self, values, batch)

    def counted(*arguments: Any, **options: Any) -> Any:
        back.append(2 if "retain_graph" in options else 1)
        return grad(*arguments, **options)

    monkeypatch.setattr(MaskedMargins, "total", watched)
    monkeypatch.setattr(torch.autograd, "grad", counted)
    cost = PREDICTORS[name](request).cost
    n_batches = 2
    assert cost == Cost(len(rows) / 4, sum(back) / n_batches)
    assert cost.backwards == backwards
