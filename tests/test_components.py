"""Components and masks: names, set algebra, sparsity, files."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from mechcore.components import Component, Mask, ModelShape, parse_components
from mechcore.errors import InputError, MismatchError

SHAPE = ModelShape(3, 2)
# The order of a flattened mask, written out.
ORDER = ["L0.H0", "L0.H1", "L0.MLP", "L1.H0", "L1.H1", "L1.MLP", "L2.H0", "L2.H1", "L2.MLP"]


def keeping(names: set[str], shape: ModelShape = SHAPE) -> Mask:
    """A mask made from its tensor, without the package's own constructors."""
    values = torch.zeros(shape.n_layers, shape.columns)
    for i, name in enumerate(str(c) for c in shape.components):
        values.view(-1)[i] = float(name in names)
    return Mask(values, has_mlps=shape.has_mlps)


def kept(mask: Mask) -> set[str]:
    return {ORDER[i] for i, value in enumerate(mask.values.flatten().tolist()) if value == 1}


sets = st.sets(st.sampled_from(ORDER))
components = st.builds(Component, st.integers(0, 200), st.one_of(st.none(), st.integers(0, 200)))


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layer", "head"),
    [
        ("L4.H0", 4, 0),
        ("4.0", 4, 0),
        ("l4.h0", 4, 0),
        ("L11.10", 11, 10),
        (" 3.11 ", 3, 11),
        ("L3.MLP", 3, None),
        ("3.mlp", 3, None),
        ("L3.Mlp", 3, None),
    ],
)
def test_reads_every_form_of_a_name(name: str, layer: int, head: int | None) -> None:
    component = Component.parse(name)
    assert (component.layer, component.head) == (layer, head)
    assert component.is_head == (head is not None)


@pytest.mark.parametrize(
    "name", ["", "L4", "L4.", "4,0", "H4.L0", "L-1.H0", "L1.H0.5", "L1.MLP2", "x4.0", "4.0x", 4.0]
)
def test_refuses_other_names(name: Any) -> None:
    with pytest.raises(InputError, match=r"not a component name; write heads as L4\.H0"):
        Component.parse(name)


@given(components)
def test_a_name_reads_back(component: Component) -> None:
    assert Component.parse(str(component)) == component
    assert Component.parse(component) is component


def test_components_are_ordered_by_layer_with_the_mlp_last() -> None:
    assert [str(c) for c in SHAPE.components] == ORDER
    assert [str(c) for c in sorted(map(Component.parse, reversed(ORDER)))] == ORDER
    assert Component(2, 10) > Component(2, 9)  # by number, not by text
    assert Component(1) > Component(1, 999)
    assert Component(1) < Component(2, 0)


def test_lists_of_names_may_be_nested_and_separated_by_commas() -> None:
    parts = parse_components("4.0, L1.H2,", ["3.MLP", ("0.1", Component(5, 5))])
    assert [str(c) for c in parts] == ["L4.H0", "L1.H2", "L3.MLP", "L0.H1", "L5.H5"]


def test_a_model_without_mlps_has_heads_only() -> None:
    cfg = SimpleNamespace(n_layers=2, n_heads=3, attn_only=True)
    shape = ModelShape.of(SimpleNamespace(cfg=cfg))
    assert shape == ModelShape(2, 3, has_mlps=False)
    assert len(shape.components) == 6
    assert shape.mlps == []
    mask = Mask.full(shape).without("1.2")
    assert mask.values.shape == (2, 3)
    assert mask.sparsity == pytest.approx(1 / 6)
    assert mask.head_sparsity == mask.sparsity
    assert mask.mlps.tolist() == [1, 1]
    with pytest.raises(InputError, match=r"L0\.MLP: out of range.* no MLPs"):
        mask.without("0.MLP")


def test_something_that_is_no_model_is_named() -> None:
    with pytest.raises(InputError, match=r"found Linear without cfg\.n_layers"):
        ModelShape.of(torch.nn.Linear(1, 1))


def test_a_component_out_of_range_is_an_error() -> None:
    full = Mask.full(SHAPE)
    for name, change in itertools.product(("L3.H0", "L0.H2", "L3.MLP"), (full.without, full.only)):
        with pytest.raises(InputError, match=rf"{name}: out of range.*0-2 with heads 0-1"):
            change(name)


# -- making masks -------------------------------------------------------------------------------


@given(sets)
def test_without_and_only_split_the_components(names: set[str]) -> None:
    full = Mask.full(SHAPE)
    assert kept(full) == set(ORDER)
    assert kept(full.without(*names)) == set(ORDER) - names
    assert kept(full.only(*names)) == names
    assert kept(full) == set(ORDER)  # the original is left as it was


def test_without_and_only_change_every_mask_of_a_batch() -> None:
    batch = Mask.stack([keeping({"L0.H0", "L1.MLP"}), keeping(set(ORDER))])
    assert [kept(m) for m in batch.without("L1.MLP")] == [{"L0.H0"}, set(ORDER) - {"L1.MLP"}]
    assert [kept(m) for m in batch.only("L0.H0", "L0.H1")] == [{"L0.H0"}, {"L0.H0", "L0.H1"}]


@pytest.mark.parametrize("value", [float("nan"), -1e-6, 1.0001, float("inf"), -float("inf"), 2])
def test_values_outside_zero_to_one_are_refused(value: float) -> None:
    for size in ((2, 3, 3), (3, 3)):
        values = torch.ones(size)
        values[..., 1, 2] = value
        with pytest.raises(InputError, match=r"found the value .*expected values from 0 to 1"):
            Mask(values)


def test_other_shapes_are_refused() -> None:
    odd: list[Any] = [torch.ones(size) for size in ((3,), (1, 2, 3, 4), (0, 3), (0, 2, 3))]
    for values in [*odd, [[1.0, 1.0]]]:
        with pytest.raises(InputError, match="expected a non-empty tensor of shape"):
            Mask(values)
    with pytest.raises(InputError, match="leaves no column for heads"):
        Mask(torch.ones(3, 1))
    assert Mask(torch.ones(3, 1), has_mlps=False).shape == ModelShape(3, 1, has_mlps=False)


def test_whole_numbers_and_booleans_become_floats() -> None:
    values = torch.tensor([[1, 0, 1]])
    for mask in (Mask(values), Mask(values.bool())):
        assert mask.values.is_floating_point()
        assert mask == Mask(values.float())
    assert Mask(values.double()).values.dtype == torch.float64


def test_values_keep_their_gradient() -> None:
    values = torch.full((3, 3), 0.5, requires_grad=True)
    mask = Mask(values).without("0.0") & Mask.full(SHAPE)
    mask.values.sum().backward()
    expected = torch.ones(3, 3)
    expected[0, 0] = 0
    assert torch.equal(values.grad, expected)
    sparsity = Mask(values).sparsity
    assert sparsity.requires_grad
    assert sparsity.item() == 0.5


# -- set algebra ----------------------------------------------------------------------------------


@given(sets, sets)
def test_operators_are_those_of_sets(a: set[str], b: set[str]) -> None:
    first, second = keeping(a), keeping(b)
    assert kept(first & second) == a & b
    assert kept(first | second) == a | b
    assert kept(first - second) == a - b
    assert kept(~first) == set(ORDER) - a
    assert (first == second) == (a == b)


@given(sets)
def test_sparsity_counts_heads_and_mlps_equally(names: set[str]) -> None:
    mask = keeping(names)
    heads = {name for name in names if "H" in name}
    assert mask.sparsity == pytest.approx(1 - len(names) / 9, abs=1e-12)
    assert mask.head_sparsity == pytest.approx(1 - len(heads) / 6, abs=1e-12)
    assert mask.is_discrete


def test_operators_on_continuous_masks_take_the_smaller_and_the_larger_value() -> None:
    a = Mask(torch.tensor([[0.25, 1.0, 0.5]]))
    b = Mask(torch.tensor([[0.5, 0.0, 0.75]]))
    assert (a & b).values.tolist() == [[0.25, 0.0, 0.5]]
    assert (a | b).values.tolist() == [[0.5, 1.0, 0.75]]
    assert (a - b).values.tolist() == [[0.25, 1.0, 0.25]]
    assert (~a).values.tolist() == [[0.75, 0.0, 0.5]]
    assert a.sparsity == pytest.approx(1 - 1.75 / 3)
    assert not a.is_discrete


def test_continuous_and_batched_masks_have_no_sets() -> None:
    for mask in (Mask(torch.full((2, 3), 0.5)), Mask(torch.ones(2, 2, 3))):
        for ask in (lambda m: m.kept, lambda m: m.ablated):
            with pytest.raises(InputError, match="single mask of zeros and ones"):
                ask(mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_mask_stays_as_it_was_made(dtype: torch.dtype) -> None:
    values = torch.ones(2, 3, 3, dtype=dtype)
    made = Mask(values)
    first = made[0]
    values.fill_(0)
    assert made == Mask(torch.ones(2, 3, 3))
    made.values.fill_(0)
    assert first == Mask.full(SHAPE)


def test_a_mask_follows_the_parameter_that_it_was_made_from() -> None:
    values = torch.full((3, 3), 0.5, requires_grad=True)
    mask = Mask(values)
    mask.values.sum().backward()
    torch.optim.SGD([values], lr=0.25).step()
    assert torch.equal(mask.values, torch.full((3, 3), 0.25))


@pytest.mark.parametrize(
    "other", [Mask.full(ModelShape(2, 2)), Mask.full(ModelShape(3, 3, has_mlps=False))]
)
def test_masks_of_other_shapes_cannot_be_combined(other: Mask) -> None:
    full = Mask.full(SHAPE)
    for combine in (full.__and__, full.__or__, full.__sub__, lambda m: Mask.stack([full, m])):
        with pytest.raises(MismatchError, match="3 layers x 2 heads with MLPs in mask 1, "):
            combine(other)
    assert full != other


def test_a_mask_of_another_model_is_refused() -> None:
    model = SimpleNamespace(cfg=SimpleNamespace(n_layers=3, n_heads=4))
    with pytest.raises(MismatchError, match=r"mask has 3 layers x 2 heads.*model has .* 4 heads"):
        Mask.full(SHAPE).check(model)
    assert Mask.full(model).check(model) is None


# -- batches --------------------------------------------------------------------------------------


@given(st.lists(sets, min_size=1, max_size=4))
def test_a_stack_holds_its_masks_in_order(families: list[set[str]]) -> None:
    batch = Mask.stack([keeping(names) for names in families])
    assert len(batch) == len(families)
    assert [kept(mask) for mask in batch] == families
    assert [kept(batch[i]) for i in range(-1, -len(families) - 1, -1)] == families[::-1]
    assert batch.sparsity.tolist() == pytest.approx([1 - len(names) / 9 for names in families])
    assert batch.head_sparsity.shape == (len(families),)
    assert [kept(mask) for mask in ~batch] == [set(ORDER) - names for names in families]


def test_a_single_mask_has_no_length_and_an_empty_stack_no_shape() -> None:
    mask = Mask.full(SHAPE)
    with pytest.raises(TypeError, match="single mask"):
        len(mask)
    with pytest.raises(TypeError, match="single mask"):
        mask[0]
    with pytest.raises(InputError, match="at least one"):
        Mask.stack([])


def test_masks_say_what_they_are() -> None:
    full = Mask.full(SHAPE)
    assert repr(full) == "Mask(3 layers x 2 heads with MLPs, 9/9 kept)"
    assert repr(full.without("1.MLP")).endswith("8/9 kept, without L1.MLP)")
    assert repr(full.only("2.1")).endswith("1/9 kept, only L2.H1)")
    assert repr(full.only()).endswith("0/9 kept, nothing kept)")
    assert "continuous, sparsity 0.500" in repr(Mask(torch.full((1, 2), 0.5)))
    assert "2 masks" in repr(Mask.stack([full, full.only()]))
    assert "0.000-1.000 sparsity" in repr(Mask.stack([full, full.only()]))


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_mlps", [True, False])
def test_a_saved_mask_reads_back(tmp_path: Path, has_mlps: bool) -> None:
    mask = Mask.full(ModelShape(3, 4, has_mlps)).without("0.0", "2.3")
    path = tmp_path / "new folder" / "mask.safetensors"
    mask.save(path)
    loaded = Mask.load(path)
    assert loaded == mask
    assert loaded.shape == mask.shape
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_every_value_of_continuous_and_batched_masks_survives(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in ((3, 3), (2, 3, 3)):
        mask = Mask(torch.rand(size, generator=generator).requires_grad_())
        mask.save(tmp_path / "m.safetensors")
        loaded = Mask.load(tmp_path / "m.safetensors")
        assert torch.equal(loaded.values, mask.values.detach())
        assert not loaded.values.requires_grad


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected the suffix \.safetensors"):
        Mask.full(SHAPE).save(tmp_path / "mask.pt")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.safetensors"
    with pytest.raises(InputError, match="no such file"):
        Mask.load(path)
    for make in (
        lambda: path.write_bytes(b"not safetensors"),
        lambda: save_file({"other": torch.ones(2, 2)}, path, {"has_mlps": "true"}),
        lambda: save_file({"mask": torch.ones(2, 2)}, path),
        lambda: save_file({"mask": torch.full((2, 2), 3.0)}, path, {"has_mlps": "true"}),
        lambda: save_file({"mask": torch.ones(2, 2)}, path, {"has_mlps": "0.5"}),
    ):
        make()
        with pytest.raises(InputError, match="not a mask written by mechcore"):
            Mask.load(path)


@pytest.mark.parametrize("arguments", [(-1,), (-1, 0), (0, -1), (0.5,), (True,), (0, "1")])
def test_impossible_components_are_refused(arguments: tuple) -> None:
    with pytest.raises(InputError, match="expected an integer from 0"):
        Component(*arguments)
    for names in (5, None, ["L0.H1", 2.5]):
        with pytest.raises(InputError, match="not a component name"):
            parse_components(names)
