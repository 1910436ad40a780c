"""Sets of components, or of paths between them, to ablate or cut; and ready-made ones."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from mechcore.components import KINDS, Component, ComponentLike, Mask, ModelShape, parse_components
from mechcore.components.names import Path, PathSet, Receiver, ReceiverLike
from mechcore.errors import InputError, check_seed, shown
from mechcore.masking.blinding import runs_in_parallel
from mechcore.models.model_identity import check_masks

MOST_EXACT = 10
"""Maximum number of components whose subsets are all ablated."""


@dataclass(frozen=True)
class ComponentSet:
    """Components ablated together, in order, with an optional name for tables.

    ``at`` is the position where outputs are replaced, or its name, see `mechcore.ablate`; None is
    all. Names of components can end with it.

    >>> str(ComponentSet.of([Component(2, 1), Component(0, 3)]))
    'L0.H3+L2.H1'
    >>> ComponentSet.of(["L9.H6@-1"]).at
    -1
    """

    components: tuple[Component, ...]
    name: str | None = field(default=None, compare=False)
    at: int | str | None = None

    @classmethod
    def of(cls, components: SetLike, name: str | None = None) -> ComponentSet:
        """A set from components or their names in any order, or from what a mask ablates."""
        if isinstance(components, ComponentSet):
            return components if name is None else replace(components, name=name)
        if isinstance(components, Mask):
            return cls(tuple(components.ablated), name)
        named, at = _apart(components)
        return cls(tuple(sorted(set(parse_components(named)))), name, at)

    def mask(self, shape: ModelShape) -> Mask:
        """The full model's mask without these components; an InputError out of range."""
        return Mask.full(shape).without(self.components)

    @property
    def members(self) -> list[ComponentSet]:
        """Sets of each component alone."""
        return [replace(self, components=(c,), name=None) for c in self.components]

    def __str__(self) -> str:
        there = "" if self.at is None else f"@{self.at}"
        return self.name or "+".join(f"{c}{there}" for c in self.components) or "nothing"

    def __len__(self) -> int:
        return len(self.components)


SetLike: TypeAlias = ComponentSet | Mask | ComponentLike | Iterable[ComponentLike]


def _apart(
    names: ComponentLike | Iterable[ComponentLike],
) -> tuple[list[ComponentLike], int | str | None]:
    """Names without their position, and the position, which is that of all."""
    listed = [names] if isinstance(names, (str, Component)) else list(names)
    split = [name.partition("@") if isinstance(name, str) else (name, "", "") for name in listed]
    bare, places = [name for name, *_ in split], {place if at else None for _, at, place in split}
    if places <= {None}:
        return bare, None
    at = "" if len(places) > 1 else str(*places).strip()
    if re.fullmatch(r"[+-]?\d+", at):
        return bare, int(at)
    if not at.isidentifier():
        raise InputError(
            f"set {shown('+'.join(map(str, listed)))}: expected one position of all components, as "
            "in L0.H3@-1+L2.H1@-1 or L0.H3@subject, or none"
        )
    return bare, at


Cut: TypeAlias = ComponentSet | PathSet
"""What is cut out of a model: components, or paths between them."""

CutLike: TypeAlias = SetLike | PathSet | Path


def as_sets(sets: Mapping[str, CutLike] | Iterable[CutLike], model: Any | None = None) -> list[Cut]:
    """Sets from lists of component names, masks, paths, or a dict of these by name.

    A string of component names separated by ``+`` is also a set, ``L0.H3@-1`` one at a position
    only (`ComponentSet`); with ``>`` it is a set of paths, see
    `mechcore.components.names.PathSet.of`. Masks are checked against the model.

    Raises:
        InputError: a name cannot be read, or a set or name is repeated.
        MismatchError: a mask belongs to another model.
    """
    if isinstance(sets, (str, Mask, Component, ComponentSet, Path, PathSet)):
        raise InputError(
            f"sets: found {type(sets).__name__} {str(sets)[:40]!r}; expected a list of sets; put "
            "it in brackets"
        )
    named = sets.items() if isinstance(sets, Mapping) else ((None, value) for value in sets)
    pairs: list[tuple[str | None, CutLike]] = list(named)
    if model is not None:
        check_masks([value for _, value in pairs if isinstance(value, Mask)], model)
    cuts = [_cut(value, name) for name, value in pairs]
    seen: dict[Any, str] = {}
    for cut in cuts:
        for key in (cut, str(cut)):
            if key in seen:
                same = f", as {seen[key]}" if seen[key] != str(cut) else ""
                raise InputError(f"sets: {cut} is given more than once{same}; leave one out")
        seen |= {cut: str(cut), str(cut): str(cut)}
    return cuts


def _cut(value: CutLike, name: str | None) -> Cut:
    if isinstance(value, (Path, PathSet)) or (isinstance(value, str) and ">" in value):
        return PathSet.of(value, name)
    return ComponentSet.of(value.split("+") if isinstance(value, str) else value, name)


# -- ready-made ------------------------------------------------------------------------------------


def singles(model: Any, *, heads: bool = True, mlps: bool = True) -> list[ComponentSet]:
    """Every head and every MLP layer of ``model`` on its own."""
    shape = ModelShape.of(model)
    chosen = [c for c in shape.components if (heads if c.is_head else mlps)]
    return [ComponentSet((component,)) for component in chosen]


def pairs(components: Iterable[ComponentLike]) -> list[ComponentSet]:
    """All pairs of ``components``, of which there are at least two."""
    return subsets(components, sizes=(2,))


def subsets(
    components: Iterable[ComponentLike], sizes: Iterable[int] | None = None
) -> list[ComponentSet]:
    """All subsets of ``components`` of these sizes; by default all, of at most 10 components."""
    chosen = sorted(set(parse_components(components)))
    if sizes is None and len(chosen) > MOST_EXACT:
        raise InputError(
            f"subsets: {len(chosen)} components have {2 ** len(chosen) - 1} subsets; give sizes, "
            f"or at most {MOST_EXACT} components"
        )
    wanted = list(range(1, len(chosen) + 1) if sizes is None else sizes)
    if not wanted or not all(1 <= size <= len(chosen) for size in wanted):
        raise InputError(
            f"subsets: sizes {wanted} of {len(chosen)} distinct components; expected sizes from 1 "
            "to their number"
        )
    return [ComponentSet(some) for size in wanted for some in itertools.combinations(chosen, size)]


def paths(
    senders: ComponentLike | Iterable[ComponentLike],
    receivers: ReceiverLike | Iterable[ReceiverLike],
    model: Any,
    *,
    inputs: Literal["all", "q", "k", "v", "qkv"] = "all",
    together: bool = True,
) -> list[PathSet]:
    """Sets of paths to every single receiver, from the senders that run before it.

    Either are components, their names, or ``heads``, ``mlps`` or ``all`` of the model, receivers
    also ``answer``. Of the ``inputs`` of heads ``"qkv"`` takes the three in turn. A receiver is
    blind to all senders ``together``, or to one at a time.

    Raises:
        InputError: no sender runs before any receiver, or there is no such component.
    """
    shape, parallel = ModelShape.of(model), runs_in_parallel(model)
    cuts: list[PathSet] = []
    sending = parse_components(_of_kinds(senders, shape))
    receiving = list(map(Receiver.parse, _of_kinds(receivers, shape, Receiver(None))))
    for receiver in receiving:
        of_head = receiver.component is not None and receiver.component.is_head
        named = receiver.input != "all" or not of_head or inputs == "all"
        for what in [receiver.input] if named else inputs:
            to = Receiver(receiver.component, what)
            possible = [Path(sender, to) for sender in sending]
            cut = [path for path in possible if path.runs(shape, parallel=parallel)]
            cuts += [PathSet.of(cut)] * bool(cut) if together else map(PathSet.of, cut)
    if not cuts:
        ends = [shown(" ".join(map(str, names))) or "none" for names in (sending, receiving)]
        raise InputError(
            f"paths: no sender runs before any receiver (senders: {ends[0]}; receivers: "
            f"{ends[1]}); expected a receiver in a later layer, or the answer"
        )
    return list(dict.fromkeys(cuts))


def _of_kinds(given: Any, shape: ModelShape, *in_all: Receiver) -> list[Any]:
    """Names, with kinds of components replaced by their members."""
    named: list[Any] = []
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    for name in given if listed else [given]:
        named += shape.kind(name) if isinstance(name, str) and name in KINDS else [name]
        named += in_all if name == "all" else ()
    return list(dict.fromkeys(named))


def matched_random(
    components: Iterable[ComponentLike],
    model: Any,
    n: int = 10,
    *,
    fewer: bool = False,
    seed: int = 0,
) -> dict[str, ComponentSet]:
    """``n`` random sets of other components: as many heads of each layer, and as many MLPs.

    Raises:
        InputError: a component is out of range; or, unless ``fewer`` are allowed, a layer or the
            model has too few other components, or fewer distinct sets exist.
    """
    shape, chosen = ModelShape.of(model), set(parse_components(components))
    for component in chosen:
        shape.index(component)
    check_seed(seed)
    rng = np.random.default_rng(seed)
    layers = range(shape.n_layers)
    alike = [*([c for c in shape.heads if c.layer == layer] for layer in layers), shape.mlps]
    sizes = [len(chosen.intersection(pool)) for pool in alike]
    pools = [[c for c in pool if c not in chosen] for pool in alike]
    n_different = math.prod(map(math.comb, map(len, pools), sizes))
    if fewer:
        n = min(n, n_different)
    for pool, size in zip(pools, sizes, strict=True):
        if n and size > len(pool):
            raise InputError(
                f"matched random sets: {size} other components needed, but {len(pool)} available "
                f"({', '.join(map(str, pool)) or 'none'}); expected a smaller set"
            )
    if n > n_different:
        raise InputError(
            f"matched random sets: only {n_different} distinct ones exist, {n} requested; request "
            "fewer"
        )
    drawn: dict[ComponentSet, None] = {}  # in order
    while len(drawn) < n:
        members = [
            pool[i]
            for pool, size in zip(pools, sizes, strict=True)
            for i in rng.choice(len(pool), size, replace=False)
        ]
        drawn[ComponentSet.of(members)] = None
    return {f"random {i}": cut for i, cut in enumerate(drawn, 1)}
