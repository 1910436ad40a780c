"""The prefix tree: counts written out by hand, and the logits of masks run one by one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from helpers import ARCHITECTURES, Cases, padded, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mechcore.ablation.engines.tree import Node, TreeRunner, Work, grow
from mechcore.components import Mask, ModelShape
from mechcore.masking.fills import fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models.architectures.layers import stack_of
from mechcore.models.protocol import is_causal, last_real_position, model_inputs
from mechcore.models.stack import Stack

HUGE = 10**9


SMALL = ModelShape(2, 2)
ATTENTION_ONLY = ModelShape(2, 2, has_mlps=False)


def masks_of(shape: ModelShape, *ablated: Sequence[str]) -> Tensor:
    return torch.stack([Mask.full(shape).without(*names).values for names in ablated])


def written(node: Node) -> Any:
    """A tree as plain lists: numbers of masks at the leaves, values and what follows elsewhere."""
    if not node.children:
        return list(node.masks)
    return [(values.tolist(), written(child)) for values, child in node.children]


def test_trees_written_out() -> None:
    singles = [[], ["0.0"], ["0.1"], ["0.mlp"], ["1.0"], ["1.1"], ["1.mlp"]]
    tree = grow(masks_of(SMALL, *singles), SMALL)
    assert written(tree) == [
        (
            [1, 1],
            [
                (
                    [1],
                    [
                        ([1, 1], [([1], [0]), ([0], [6])]),
                        ([1, 0], [([1], [5])]),
                        ([0, 1], [([1], [4])]),
                    ],
                ),
                ([0], [([1, 1], [([1], [3])])]),
            ],
        ),
        ([1, 0], [([1], [([1, 1], [([1], [2])])])]),
        ([0, 1], [([1], [([1, 1], [([1], [1])])])]),
    ]
    assert tree.masks == (0, 6, 5, 4, 3, 2, 1)
    assert [child.masks for _, child in tree.children] == [(0, 6, 5, 4, 3), (2,), (1,)]
    # Layer 0 attends once for all; its MLP runs after each of three kinds of heads. Four streams
    # reach layer 1, which attends to each; six its MLP: two come out of one of the four.
    assert Work.of(tree, SMALL) == Work(attention=(1, 4), mlp=(3, 6))
    values = masks_of(ATTENTION_ONLY, [], ["0.0"], ["0.1"], ["1.0"], ["1.1"])
    tree = grow(values, ATTENTION_ONLY)
    assert written(tree) == [
        ([1, 1], [([1, 1], [0]), ([1, 0], [4]), ([0, 1], [3])]),
        ([1, 0], [([1, 1], [2])]),
        ([0, 1], [([1, 1], [1])]),
    ]
    assert Work.of(tree, ATTENTION_ONLY) == Work(attention=(1, 3), mlp=(0, 0))


def test_what_every_mask_ablates_is_not_computed(cases: Cases) -> None:
    def work(*ablated: list[str]) -> Work:
        return Work.of(grow(masks_of(SMALL, *ablated), SMALL), SMALL)

    every = [str(component) for component in SMALL.components]
    assert work([]) == Work((1, 1), (1, 1))
    assert work(["0.mlp"]) == Work((1, 1), (0, 1))
    assert work(["0.0", "0.1"]) == Work((0, 1), (1, 1))
    assert work(every) == Work((0, 0), (0, 0))
    assert work([], every) == Work((1, 1), (1, 1))
    # With one head of layer 0 left in one of two masks it attends, and both streams go on.
    assert work(["0.0"], ["0.0", "0.1"]) == Work((1, 2), (2, 2))
    stack = stack_of(cases.get("bert").model)
    # Attention has 4 matrices of 16 x 16, the MLP 2 of 16 x 24: 1024 and 768 of 1792 weights.
    assert Work((2, 50), (3, 50)).layers(stack) == pytest.approx((2 * 1024 + 3 * 768) / 1792)
    assert Work((1, 1), (1, 1)).layers(stack) == pytest.approx(1)


def test_equal_masks_share_a_leaf() -> None:
    shape = ModelShape(1, 1)
    values = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    tree = grow(values[:, None], shape)
    assert written(tree) == [([1], [([1], [1]), ([0], [3])]), ([0], [([1], [0, 2])])]
    assert Work.of(tree, shape) == Work((1,), (2,))


MODELS = [*ARCHITECTURES, "gpt2-lm"]


@dataclass(frozen=True)
class Models:
    """Models, their stacks and means by name, each made once."""

    model: Callable[[str], Any]
    stack: Callable[[str], Stack]
    means: Callable[[str, bool], MeanActivations]


@pytest.fixture(scope="module")
def models(cases: Cases) -> Models:
    batch = padded(texts((9, 3, 8, 9), seed=9))

    def model(name: str) -> Any:
        return cases.get(name).model

    def means(name: str, per_position: bool) -> MeanActivations:
        options: dict[str, Any] = {"per_position": per_position, "n_samples": 8}
        return MeanActivations.compute(model(name), batch, **options)

    return Models(model, cache(lambda name: stack_of(model(name))), cache(means))


def read_positions(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    if is_causal(model):
        return last_real_position(inputs["attention_mask"])
    return torch.zeros(len(inputs["input_ids"]), dtype=torch.long)


def tree_logits(
    runner: TreeRunner, model: Any, batch: Any, tree: Node
) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Logits [mask, batch, out], and the numbers of masks in the order they came."""
    inputs, stack = model_inputs(model, batch), runner.stack
    by_mask: dict[int, Tensor] = {}
    order: list[tuple[int, ...]] = []

    def emit(nodes: Sequence[Sequence[int]], x: Tensor) -> None:
        order.extend(map(tuple, nodes))
        for masks, rows in zip(nodes, x, strict=True):
            by_mask.update((mask, stack.out(stack.head(rows))) for mask in masks)

    runner.run(inputs, read_positions(model, inputs), tree, emit)
    assert sorted(n for masks in order for n in masks) == sorted(tree.masks)
    return torch.stack([by_mask[n] for n in range(len(tree.masks))]), order


@torch.no_grad()
def masked_logits(model: Any, values: Tensor, batch: Any, means: Any, fill: Any) -> Tensor:
    """The same from the plain intervention."""
    mask = Mask(values, has_mlps=ModelShape.of(model).has_mlps)
    with masked(model, mask, means, fill, seed=3) as run:
        logits = run(batch)
    if logits.ndim == 4:
        read = read_positions(model, model_inputs(model, batch))
        logits = logits[:, torch.arange(len(read)), read]
    return logits


def check(logits: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance * scale)


FILLS: list[tuple[Any, bool]] = [
    ("mean", False),
    ("mean", True),
    ("zero", False),
    ("resample", False),
]
"""What stands in, and whether means are per position."""


@st.composite
def mask_sets(draw: st.DrawFn, columns: int) -> Tensor:
    """Few masks that share much: equal ones, full ones and empty ones among them."""
    kinds = [
        st.just([1.0] * columns),
        st.just([0.0] * columns),
        st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.0]), min_size=columns, max_size=columns),
        st.lists(st.sampled_from([0.0, 1.0]), min_size=columns, max_size=columns),
    ]
    rows = draw(st.lists(st.one_of(kinds), min_size=1, max_size=7))
    again = draw(st.lists(st.sampled_from(range(len(rows))), max_size=2))
    return torch.tensor(rows + [rows[i] for i in again]).reshape(-1, 2, columns // 2)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=24)
@given(data=st.data())
def test_trees_give_the_logits_of_masks_alone(
    models: Models, name: str, data: st.DataObject
) -> None:
    model = models.model(name)
    shape = ModelShape.of(model)
    values = data.draw(mask_sets(shape.n_layers * shape.columns))
    fill, per_position = data.draw(st.sampled_from(FILLS))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    side, extra = data.draw(st.sampled_from([("right", 0), ("right", 2), ("left", 3)]))
    max_tokens = data.draw(st.sampled_from([1, 40, 130, HUGE]))
    means, batch = models.means(name, per_position), padded(texts(lengths), side, extra, noise=4)
    runner = TreeRunner(models.stack(name), shape, fill_of(model, means, fill, 3), max_tokens)
    runner.begin(model_inputs(model, batch))
    logits, order = tree_logits(runner, model, batch, grow(values, shape))
    check(logits, masked_logits(model, values, batch, means, fill))
    full = {n for n, mask in enumerate(values) if bool((mask == 1).all())}
    assert not full or set(order[0]) == full
    for masks in order:
        assert all(torch.equal(logits[masks[0]], logits[n]) for n in masks)


class Watched:
    """A stack that notes what runs."""

    def __init__(self, stack: Stack, n_examples: int) -> None:
        self.stack, self.n_examples = stack, n_examples
        self.calls: Counter[tuple[str, int]] = Counter()
        self.nodes: Counter[tuple[str, int]] = Counter()
        self.heads: dict[int, set[tuple[int, ...]]] = {}
        self.tokens: list[int] = []
        self.projected: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    def _noted(self, part: str, layer: int, rows: int) -> None:
        self.calls[part, layer] += 1
        self.nodes[part, layer] += rows // self.n_examples

    def z(self, layer: int, x: Tensor, context: Any, heads: list[int]) -> Tensor:
        self._noted("attention", layer, len(x))
        self.heads.setdefault(layer, set()).add(tuple(heads))
        self.tokens.append(x.shape[0] * x.shape[1])
        return self.stack.z(layer, x, context, heads)

    def project_each(self, layer: int, z: Tensor, heads: Tensor) -> Tensor:
        self.projected.append(heads.numel() * z.shape[-1])
        return self.stack.project_each(layer, z, heads)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        self._noted("mlp", layer, len(x))
        self.tokens.append(x.shape[0] * x.shape[1])
        return self.stack.mlp(layer, x)


def watched_run(models: Models, name: str, values: Tensor, max_tokens: int) -> Watched:
    model, batch = models.model(name), padded(texts((5, 3)))
    shape = ModelShape.of(model)
    stack = Watched(models.stack(name), 2)
    fills = fill_of(model, None, "zero", 0)
    runner = TreeRunner(stack, shape, fills, max_tokens)  # type: ignore[arg-type]
    runner.begin(model_inputs(model, batch))
    tree_logits(runner, model, batch, grow(values, shape))
    return stack


def counted(stack: Watched, n_layers: int) -> Work:
    parts = ("attention", "mlp")
    return Work(*(tuple(stack.nodes[part, i] for i in range(n_layers)) for part in parts))


PLANS: dict[str, list[list[str]]] = {
    "singles": [[], *([f"{la}.{c}"] for la in (0, 1) for c in (0, 1, 2, 3, "mlp"))],
    "pairs": [["0.0", "1.0"], ["0.0", "1.mlp"], ["0.mlp", "1.1"], ["0.0", "0.1"], ["0.0", "0.mlp"]],
    "all but one": [
        [f"{la}.{c}" for la in (0, 1) for c in (0, 1, 2, 3, "mlp") if c != kept]
        for kept in (0, 3, "mlp")
    ],
    "one": [["0.0"]],
    "nothing left": [[f"{la}.{c}" for la in (0, 1) for c in (0, 1, 2, 3, "mlp")]],
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral"])
def test_parts_run_as_often_as_counted(models: Models, name: str, plan: str) -> None:
    shape = ModelShape(2, 4)
    values = masks_of(shape, *PLANS[plan])
    stack = watched_run(models, name, values, max_tokens=1)
    assert counted(stack, 2) == Work.of(grow(values, shape), shape)
    assert set(stack.tokens) <= {2 * 5, 2}  # one node at a time; one position after the last z
    assert stack.calls == stack.nodes


def test_nodes_of_a_level_run_together_without_heads_of_no_mask(models: Models) -> None:
    values = masks_of(ModelShape(2, 4), *PLANS["singles"])
    together = watched_run(models, "gpt2", values, HUGE)
    assert together.calls == {(part, i): 1 for part in ("attention", "mlp") for i in (0, 1)}
    assert together.nodes["mlp", 0] == 5
    limited = watched_run(models, "gpt2", values, max_tokens=25)  # nodes have 10 tokens
    assert max(limited.tokens) == 20
    assert limited.calls["mlp", 0] == 3  # 2 + 2 + 1
    assert counted(limited, 2) == counted(together, 2)
    ablated = [["0.1"], ["0.1", "0.2"], ["0.1", "1.0", "1.1", "1.2", "1.3"]]
    stack = watched_run(models, "bert", masks_of(ModelShape(2, 4), *ablated), HUGE)
    assert stack.heads == {0: {(0, 2, 3)}, 1: {(0, 1, 2, 3)}}
    ablated = [[*names, "1.0", "1.1", "1.2", "1.3"] for names in ablated[:2]]
    stack = watched_run(models, "bert", masks_of(ModelShape(2, 4), *ablated), HUGE)
    assert stack.heads == {0: {(0, 2, 3)}}
