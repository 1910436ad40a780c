"""Which heads components are made blind to: those of the core, or random ones beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mechcore.components import Component, ModelShape
from mechcore.components.paths import Path, PathSet
from mechcore.errors import InputError
from mechcore.masking.blinding import runs_in_parallel
from mechcore.wording import count


def random_senders(
    core: Sequence[Component], shape: ModelShape, n_controls: int, seed: int = 0
) -> list[tuple[Component, ...]]:
    """Random sets of as many heads of each layer as the core has, without core heads.

    Args:
        core: heads.
        shape: of the model.
        n_controls: how many sets, all different; fewer where there are not as many.
        seed: of the draws.

    Raises:
        InputError: a layer has too few other heads, or an MLP layer is in the core.
    """
    if not n_controls:
        return []
    layers: dict[int, int] = {}
    for head in dict.fromkeys(core):
        if not head.is_head:
            raise InputError(f"senders: found {head}; expected heads")
        layers[head.layer] = layers.get(head.layer, 0) + 1
    pools: list[tuple[list[Component], int]] = []
    for layer, n in sorted(layers.items()):
        others = [c for h in range(shape.n_heads) if (c := Component(layer, h)) not in core]
        if len(others) < n:
            there = count(len(others), "head")
            raise InputError(
                f"controls: layer {layer} has {there} outside the core, which has {n} there; "
                "expected at least as many: leave controls out"
            )
        pools.append((others, n))
    n_different = math.prod(math.comb(len(others), n) for others, n in pools)
    generator = np.random.default_rng(seed)
    drawn: dict[tuple[Component, ...], None] = {}  # in order
    while len(drawn) < min(n_controls, n_different):
        found: list[Component] = []
        for others, n in pools:
            found += [others[i] for i in generator.choice(len(others), n, replace=False)]
        drawn[tuple(sorted(found))] = None
    return [*drawn]


def cuts_behind(
    senders: Iterable[Component], receivers: Iterable[Component], model: Any
) -> dict[Component, PathSet]:
    """The paths to each receiver from those senders that run before it, where there are any."""
    shape, parallel = ModelShape.of(model), runs_in_parallel(model)
    found = {}
    for receiver in receivers:
        paths = [Path(sender, receiver) for sender in senders]
        if earlier := [path for path in paths if path.runs(shape, parallel=parallel)]:
            found[receiver] = PathSet.of(earlier)
    return found


def random_cuts(
    core: Sequence[Component],
    receivers: Iterable[Component],
    model: Any,
    n_controls: int,
    seed: int,
) -> list[dict[Component, PathSet]]:
    """The paths to each receiver from each of the random sets of `random_senders`."""
    drawn = random_senders(core, ModelShape.of(model), n_controls, seed)
    behind = list(receivers)
    return [cuts_behind(each, behind, model) for each in drawn]
