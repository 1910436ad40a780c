"""Ways to predict interactions: each against loops of its own, and on models of known truth."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation.few import encoded, means_of, plain_logits, plain_margin
from ablation.planted import DIRECT, PAIR, SIZE, TRIPLE, examples, game, planted
from helpers import Cases

from mechcore.ablation import ComponentSet
from mechcore.ablation.joint.predictors import MaskedMargins, PairRequest
from mechcore.bench.methods import PREDICTORS
from mechcore.bench.predictors import N_POINTS
from mechcore.components import ModelShape, parse_components
from mechcore.errors import InputError
from mechcore.evaluation.cost import Cost

NAMES = ("L0.H1", "L0.MLP", "L1.H0", "L1.MLP")
PAIRS = list(itertools.combinations(range(len(NAMES)), 2))
DATA = examples()
RULES = ("or", "and", "or of three")
WHOLE = "+".join(PAIR)
TOLERANCE = 1e-4


def predict(name: str, request: PairRequest) -> dict[str, float]:
    found = PREDICTORS[name](request).interactions
    return {str(pair): value for pair, value in found.items()}


# -- against loops over the plain model -----------------------------------------------------------


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


def assert_near(found: dict[str, float], expected: dict[str, float], tolerance: float) -> None:
    """And that there is something to be right about."""
    assert found == pytest.approx(expected, abs=tolerance)
    assert max(map(abs, expected.values())) > 20 * tolerance


def test_exact_interactions_are_those_of_four_runs(plain: Plain, decoder: Plain) -> None:
    for model in (plain, decoder):
        margins = {
            without: model.margin(dict.fromkeys(without, 0.0))
            for without in [(), (0,), (1,), (2,), (3,), *PAIRS]
        }
        expected = model.by_pair(lambda a, b, m=margins: m[a, b] + m[()] - m[a,] - m[b,])
        assert_near(predict("exact", model.request), expected, 1e-5)


def test_the_hessian_is_that_of_finite_differences(plain: Plain, decoder: Plain) -> None:
    for model in (plain, decoder):
        expected = model.by_pair(lambda a, b, of=model: of.mixed(a, b, 1.0))
        assert_near(predict("hessian", model.request), expected, 2e-4)


def test_the_integrated_hessian_is_a_weighted_mean_on_the_way_down(plain: Plain) -> None:
    assert N_POINTS == 4
    points = [1 / 8, 3 / 8, 5 / 8, 7 / 8]
    weights = [-t * math.log(t) for t in points]
    expected = plain.by_pair(
        lambda a, b: (
            sum(w * plain.mixed(a, b, t) for w, t in zip(weights, points, strict=True))
            / sum(weights)
        )
    )
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


# -- on models of known truth ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {rule: planted(tmp_path_factory.mktemp(rule), rule) for rule in RULES}  # type: ignore[arg-type]


def of_planted(model: Any, names: Any = None, **options: Any) -> PairRequest:
    components = ModelShape.of(model).components if names is None else parse_components(names)
    run: dict[str, Any] = {"fill": "zero", "batch_size": 5, "sweep": {"split": "ood"}}
    return PairRequest(model, DATA, None, components, **run, **options)


@pytest.mark.parametrize(("rule", "size"), [("or", -SIZE), ("and", SIZE), ("or of three", 0.0)])
def test_screening_sees_a_backup_but_not_how_far_it_goes(
    models: Any, rule: str, size: float
) -> None:
    """With one head ablated the rule is a slope in the other, up to the kink and not to zero."""
    found = predict("screening", of_planted(models[rule], (*TRIPLE, DIRECT)))
    expected = dict.fromkeys(found, 0.0) | {WHOLE: size / 0.75}
    assert found == pytest.approx(expected, abs=TOLERANCE)


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_curvature(x: float) -> float:
    return (2 - x * x) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def rule_of(function: Any, x: float) -> float:
    """The OR of `planted` as a function of the sum of what its two heads write, in nats."""
    return SIZE * (function(x) - function(x - 1.25) / 0.75)


def test_second_derivatives_see_a_backup_where_the_model_is_smooth(tmp_path: Path) -> None:
    model = planted(tmp_path, "or", activation="gelu")
    request = of_planted(model, (*PAIR, DIRECT))
    exact = rule_of(gelu, 2) - 2 * rule_of(gelu, 1) + rule_of(gelu, 0)
    assert predict("exact", request)[WHOLE] == pytest.approx(exact, abs=TOLERANCE)
    # At mask values t the heads write 2t, the derivative of which is 1 by either value.
    hessian = rule_of(gelu_curvature, 2)
    found = predict("hessian", request)
    assert found == pytest.approx(dict.fromkeys(found, 0.0) | {WHOLE: hessian}, abs=TOLERANCE)
    points = [1 / 8, 3 / 8, 5 / 8, 7 / 8]
    weights = [-t * math.log(t) for t in points]
    curves = [rule_of(gelu_curvature, 2 * t) for t in points]
    integrated = np.dot(weights, curves) / sum(weights)
    found = predict("integrated-hessian", request)
    assert found == pytest.approx(dict.fromkeys(found, 0.0) | {WHOLE: integrated}, abs=TOLERANCE)
    assert max(exact, hessian) < -1.5


# -- the proxy on games ---------------------------------------------------------------------------


def played(monkeypatch: pytest.MonkeyPatch, change: Any, n: int) -> Any:
    """The proxy of a game of ``n`` heads in place of a model, and the sets that it played."""
    names = [f"L0.H{i}" for i in range(n)]
    seen: list[ComponentSet] = []

    def ablate(self: PairRequest, sets: list[ComponentSet]) -> Any:
        seen.extend(sets)
        players = [[c.head for c in each.components] for each in sets]
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

    found, seen = played(monkeypatch, change, n)
    got = {str(pair): value for pair, value in found.interactions.items()}
    pairs = itertools.combinations(range(n), 2)
    assert got == pytest.approx(
        {f"L0.H{i}+L0.H{j}": both[i, j] for i, j in pairs}, abs=3e-3
    )  # shrunk
    assert len(set(seen)) == len(seen)
    assert {len(each) for each in seen} == {1, 2, 3, 4, 5, 6}
    assert found.cost == Cost(forwards=1 + len(seen))


def test_the_proxy_needs_different_masks(models: Any) -> None:
    message = "proxy: 4 different sets of 3 components; expected at least 10"
    with pytest.raises(InputError, match=message):
        predict("proxy", of_planted(models["or"], TRIPLE))


# -- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backwards"),
    [("screening", 5), ("hessian", 9), ("integrated-hessian", 36)],
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
