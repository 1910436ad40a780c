"""Names of components, and which of them a model has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

from mechcore.errors import InputError, shown

Kind: TypeAlias = Literal["heads", "mlps", "all"]
KINDS = get_args(Kind)
"""Names of groups of components, see `ModelShape.kind`."""

_NAME = re.compile(r"[Ll]?(\d+)\.(?:[Hh]?(\d+)|([Mm][Ll][Pp]))")


@total_ordering
@dataclass(frozen=True, init=False)
class Component:
    """One attention head, or one MLP layer when ``head`` is None. Ordered by layer, MLP last.

    ``layer`` may also be the component's name. Numbers are whole, from 0, else an `InputError`.

    >>> Component("4.0"), str(Component(3))
    (Component(layer=4, head=0), 'L3.MLP')
    """

    layer: int
    head: int | None = None

    def __init__(self, layer: int | str, head: int | None = None) -> None:
        if isinstance(layer, str) and head is None:
            named = Component.parse(layer)
            layer, head = named.layer, named.head
        for name, value in (("layer", layer), ("head", 0 if head is None else head)):
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
                raise InputError(f"component: {name} is {value!r}; expected an integer from 0")
        object.__setattr__(self, "layer", int(layer))
        object.__setattr__(self, "head", None if head is None else int(head))

    @classmethod
    def parse(cls, name: ComponentLike) -> Component:
        """Read ``L4.H0``, ``4.0``, ``L3.MLP`` or ``3.mlp``, else raise `InputError`."""
        if isinstance(name, Component):
            return name
        match = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is None:
            raise InputError(
                f"component {shown(repr(name))}: not a component name; write heads as L4.H0 or 4.0 "
                "and MLP layers as L3.MLP"
            )
        return cls(int(match[1]), None if match[2] is None else int(match[2]))

    @property
    def is_head(self) -> bool:
        """Whether this is an attention head."""
        return self.head is not None

    def __str__(self) -> str:
        return f"L{self.layer}.MLP" if self.head is None else f"L{self.layer}.H{self.head}"

    def __lt__(self, other: Component) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, float]:
        return (self.layer, float("inf") if self.head is None else self.head)


ComponentLike: TypeAlias = Component | str


def parse_components(*names: ComponentLike | Iterable[ComponentLike]) -> list[Component]:
    """Components of names and iterables of names; comma-separated strings are split."""
    components: list[Component] = []
    for name in names:
        if isinstance(name, str):
            components += [Component.parse(part) for part in name.split(",") if part.strip()]
        elif isinstance(name, Iterable):
            components += parse_components(*name)
        else:
            components.append(Component.parse(name))
    return components


@dataclass(frozen=True)
class ModelShape:
    """How many layers and heads a model has, and whether its layers have an MLP."""

    n_layers: int
    n_heads: int
    has_mlps: bool = True

    @classmethod
    def of(cls, model: Any) -> ModelShape:
        """Read the shape from ``cfg`` of a TransformerLens model; else raise `InputError`."""
        if isinstance(model, ModelShape):
            return model
        cfg = getattr(model, "cfg", None)
        if cfg is None or not hasattr(cfg, "n_layers") or not hasattr(cfg, "n_heads"):
            raise InputError(
                f"model: found {type(model).__name__} without cfg.n_layers and cfg.n_heads; "
                "expected a HookedTransformer, HookedEncoder or TransformerBridge: "
                "pass it through mechcore.load_model first"
            )
        return cls(int(cfg.n_layers), int(cfg.n_heads), not getattr(cfg, "attn_only", False))

    @property
    def columns(self) -> int:
        """Components per layer."""
        return self.n_heads + self.has_mlps

    @property
    def heads(self) -> list[Component]:
        """All heads, by layer."""
        return [Component(la, h) for la in range(self.n_layers) for h in range(self.n_heads)]

    @property
    def mlps(self) -> list[Component]:
        """All MLP layers."""
        return [Component(layer) for layer in range(self.n_layers)] if self.has_mlps else []

    @property
    def components(self) -> list[Component]:
        """All components, by layer, heads before the MLP: the order of a flattened mask."""
        return sorted(self.heads + self.mlps)

    def kind(self, name: str) -> list[Component]:
        """The heads, the MLP layers, or all components, by a name in `KINDS`."""
        return dict(zip(KINDS, (self.heads, self.mlps, self.components), strict=True))[name]

    def index(self, component: ComponentLike) -> tuple[int, int]:
        """Position of a component in a mask's last two axes; `InputError` without one."""
        component = Component.parse(component)
        column = self.n_heads if component.head is None else component.head
        inside = component.layer < self.n_layers and (
            self.has_mlps if component.head is None else component.head < self.n_heads
        )
        if not inside:
            mlps = ", each with an MLP" if self.has_mlps else " and no MLPs"
            raise InputError(
                f"component {component}: out of range; the model has layers 0-"
                f"{self.n_layers - 1} with heads 0-{self.n_heads - 1}{mlps}"
            )
        return component.layer, column

    def __str__(self) -> str:
        return f"{self.n_layers} layers x {self.n_heads} heads" + (
            " with MLPs" if self.has_mlps else " without MLPs"
        )
