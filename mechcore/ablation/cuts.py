"""Sets of components, or of paths between them, to ablate or cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mechcore.components import Component, ComponentLike, Mask, ModelShape, parse_components
from mechcore.components.names import Path, PathSet
from mechcore.errors import InputError
from mechcore.models.model_identity import check_masks


@dataclass(frozen=True)
class ComponentSet:
    """Components ablated together, in order, with an optional name for tables.

    >>> str(ComponentSet.of([Component(2, 1), Component(0, 3)]))
    'L0.H3+L2.H1'
    """

    components: tuple[Component, ...]
    name: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, components: SetLike, name: str | None = None) -> ComponentSet:
        """A set from components or their names in any order, or from what a mask ablates."""
        if isinstance(components, ComponentSet):
            return components if name is None else cls(components.components, name)
        if isinstance(components, Mask):
            return cls(tuple(components.ablated), name)
        return cls(tuple(sorted(set(parse_components(components)))), name)

    def mask(self, shape: ModelShape) -> Mask:
        """The full model's mask without these components; an InputError out of range."""
        return Mask.full(shape).without(self.components)

    def __str__(self) -> str:
        return self.name or "+".join(map(str, self.components)) or "nothing"

    def __len__(self) -> int:
        return len(self.components)


SetLike: TypeAlias = ComponentSet | Mask | ComponentLike | Iterable[ComponentLike]

Cut: TypeAlias = ComponentSet | PathSet
"""What is cut out of a model: components, or paths between them."""

CutLike: TypeAlias = SetLike | PathSet | Path


def as_sets(sets: Mapping[str, CutLike] | Iterable[CutLike], model: Any | None = None) -> list[Cut]:
    """Sets from lists of component names, masks, paths, or a dict of these by name.

    A string of component names separated by ``+`` is also a set; with ``>`` it is a set of
    paths, see `mechcore.components.names.PathSet.of`. Masks are checked against the model.

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
