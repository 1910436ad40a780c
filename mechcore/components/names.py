"""Names of components, which of them a model has, and paths ``S > R`` between them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


INPUTS = ("all", "q", "k", "v")
"""The inputs of a head that can be blind: all of them, or its queries, keys or values."""

ANSWER = "answer"


@total_ordering
@dataclass(frozen=True)
class Receiver:
    """A reader of the residual stream: a component (None: the answer), or one of its `INPUTS`.

    >>> str(Receiver.parse("3.9.q"))
    'L3.H9.q'
    """

    component: Component | None
    input: str = "all"

    def __post_init__(self) -> None:
        head = self.component is not None and self.component.is_head
        if self.input not in INPUTS or (self.input != "all" and not head):
            raise InputError(
                f"receiver {self}: input {self.input!r}; expected q, k or v of a head, such as "
                "L3.H9.q, or no input for all of them"
            )

    @classmethod
    def parse(cls, name: ReceiverLike) -> Receiver:
        """Read ``L3.H9``, ``L3.H9.q``, ``L2.MLP`` or ``answer``, else raise `InputError`."""
        if isinstance(name, Receiver):
            return name
        if isinstance(name, Component):
            return cls(name)
        text = name.strip() if isinstance(name, str) else ""
        if text == ANSWER:
            return cls(None)
        stem, dot, end = text.rpartition(".")
        if dot and end in INPUTS[1:]:
            return cls(Component.parse(stem), end)
        try:
            return cls(Component.parse(text))
        except InputError as error:
            raise InputError(
                f"receiver {name!r}: cannot be read; write a head as L3.H9, one of "
                f"its inputs as L3.H9.q, .k or .v, an MLP layer as L2.MLP, or {ANSWER}"
            ) from error

    def __str__(self) -> str:
        if self.component is None:
            return ANSWER
        return f"{self.component}" + ("" if self.input == "all" else f".{self.input}")

    def __lt__(self, other: Receiver) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[bool, Component, int]:
        component = self.component or Component(0)
        return self.component is None, component, INPUTS.index(self.input)


ReceiverLike: TypeAlias = Receiver | ComponentLike


@total_ordering
@dataclass(frozen=True, init=False)
class Path:
    """A path from one component to a receiver.

    >>> str(Path("L1.H1", "L3.H9.q"))
    'L1.H1>L3.H9.q'
    """

    sender: Component
    receiver: Receiver

    def __init__(self, sender: ComponentLike, receiver: ReceiverLike) -> None:
        object.__setattr__(self, "sender", Component.parse(sender))
        object.__setattr__(self, "receiver", Receiver.parse(receiver))

    def __str__(self) -> str:
        return f"{self.sender}>{self.receiver}"

    def __lt__(self, other: Path) -> bool:
        return (self.receiver, self.sender) < (other.receiver, other.sender)

    def runs(self, shape: ModelShape, *, parallel: bool = False) -> bool:
        """Whether the receiver runs after the sender, so that it can read the sender's output.

        ``parallel``: a layer's MLP reads what its heads read, not what they write.
        """
        shape.index(self.sender)
        to = self.receiver.component
        if to is None:
            return True
        shape.index(to)
        below = self.sender.layer == to.layer and self.sender.is_head and not to.is_head
        return self.sender.layer < to.layer or (below and not parallel)

    def check(self, shape: ModelShape, *, parallel: bool = False) -> None:
        """Raise `InputError` unless the model has both ends and `runs` is true of them."""
        if self.runs(shape, parallel=parallel):
            return
        beside = parallel and self.runs(shape)
        why = " (attention and MLP of a layer run side by side in this model)" if beside else ""
        raise InputError(
            f"path {self}: the receiver does not run after the sender{why}; expected a "
            "sender in an earlier layer, or a head and the MLP of its own layer"
        )


@dataclass(frozen=True)
class PathSet:
    """Paths that are cut together; ``name`` stands for them in tables.

    >>> str(PathSet.of("L1.H1+L2.H9>L3.H9.q+L4.MLP"))
    'L1.H1+L2.H9>L3.H9.q+L4.MLP'
    """

    paths: tuple[Path, ...]
    name: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, paths: PathSetLike, name: str | None = None) -> PathSet:
        """A set from paths, or from text: ``senders>receivers`` separated by commas.

        Senders and receivers are separated by ``+``; every sender goes to every receiver.

        Raises:
            InputError: a name cannot be read, or a head is listed both with all inputs and with
                one of them.
        """
        if isinstance(paths, PathSet):
            return paths if name is None else cls(paths.paths, name)
        given = [paths] if isinstance(paths, (str, Path)) else list(paths)
        distinct: set[Path] = set()
        for part in given:
            distinct |= {part} if isinstance(part, Path) else set(_read(part))
        made = cls(tuple(sorted(distinct)), name)
        receivers = made.senders
        for receiver in receivers:
            if receiver.input != "all" and Receiver(receiver.component) in receivers:
                raise InputError(
                    f"paths: {receiver.component} is listed with all its inputs and as "
                    f"{receiver}; expected one of the two"
                )
        return made

    @classmethod
    def between(
        cls,
        senders: ComponentLike | Iterable[ComponentLike],
        receivers: ReceiverLike | Iterable[ReceiverLike],
    ) -> PathSet:
        """All paths from some components to some receivers; raises as `of`."""
        to = [receivers] if isinstance(receivers, (str, Component, Receiver)) else receivers
        ends = itertools.product(parse_components(senders), map(Receiver.parse, to))
        return cls.of([Path(sender, receiver) for sender, receiver in ends])

    @property
    def senders(self) -> Mapping[Receiver, frozenset[Component]]:
        """The senders to which each receiver is blind."""
        senders: dict[Receiver, frozenset[Component]] = {}
        for path in self.paths:
            senders[path.receiver] = senders.get(path.receiver, frozenset()) | {path.sender}
        return senders

    def __str__(self) -> str:
        if self.name:
            return self.name
        by_senders: dict[frozenset[Component], list[Receiver]] = {}
        for receiver, senders in self.senders.items():
            by_senders.setdefault(senders, []).append(receiver)
        parts = [
            f"{'+'.join(map(str, sorted(senders)))}>{'+'.join(map(str, sorted(receivers)))}"
            for senders, receivers in by_senders.items()
        ]
        return ",".join(parts) or "no path"

    def __len__(self) -> int:
        return len(self.paths)


PathSetLike: TypeAlias = PathSet | Path | str | Iterable[Path | str]


def _read(text: str) -> Iterable[Path]:
    for part in text.split(","):
        senders, arrow, receivers = part.partition(">")
        if not arrow or ">" in receivers:
            raise InputError(
                f"path {part.strip()!r}: cannot be read; write senders>receivers, such as "
                "L1.H1>L3.H9.q or L1.H1+L2.H9>L4.MLP"
            )
        for sender, receiver in itertools.product(senders.split("+"), receivers.split("+")):
            yield Path(sender, receiver)
