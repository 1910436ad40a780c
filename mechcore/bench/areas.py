"""CPR and CMD: areas under the faithfulness of circuits of rising size.

They are those of the Mechanistic Interpretability Benchmark (MIB, arXiv 2504.13151): the areas
under the faithfulness f, and under ``|1 - f|``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.integrate import trapezoid

from mechcore.errors import InputError

Axis: TypeAlias = Literal["linear", "log"]
Compat: TypeAlias = Literal["mib"]

MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The sizes of MIB's circuits, as shares of all components."""


@dataclass(frozen=True)
class CircuitSizes:
    """Sizes of circuits: how many components each keeps, and as shares of all, on the axis."""

    shares: tuple[float, ...]
    kept: tuple[int, ...]

    @classmethod
    def of(
        cls,
        n_components: int,
        kept: Iterable[int] | None = None,
        *,
        axis: Axis = "linear",
        compat: Compat | None = None,
    ) -> CircuitSizes:
        """Sizes of circuits of a model.

        Args:
            n_components: of the model.
            kept: how many components to keep; by default every number from 0, on a logarithmic
                axis from 1.
            axis: which the sizes are for.
            compat: ``"mib"`` for MIB's ten shares, each of which keeps its share of components
                rounded down. Circuits stand at their nominal share, and several may be the same.

        Raises:
            InputError: there is no component, or a size is out of range or given with ``compat``.
        """
        if n_components < 1:
            raise InputError("circuit sizes: no component has a score; expected at least one")
        if compat is not None:
            if compat != "mib" or kept is not None:
                raise InputError(
                    f"circuit sizes: compat is {compat!r}; expected 'mib', without other sizes"
                )
            return cls(MIB_SHARES, tuple(int(share * n_components) for share in MIB_SHARES))
        sizes = sorted(set(range(axis == "log", n_components + 1) if kept is None else kept))
        if sizes and not 0 <= sizes[0] <= sizes[-1] <= n_components:
            raise InputError(
                f"circuit sizes: found {sizes[0]} to {sizes[-1]} components; expected 0 to "
                f"{n_components}"
            )
        return cls(tuple(size / n_components for size in sizes), tuple(sizes))


def faithfulness(
    circuits: ArrayLike, full: ArrayLike, ablated: ArrayLike
) -> Float[np.ndarray, "*rest size"]:
    """f(C) = (m(C) - m(ablated)) / (m(full) - m(ablated)) of every circuit.

    Args:
        circuits: a metric m of each circuit, [*rest, size].
        full: that of the full model, [*rest].
        ablated: that of the model with everything ablated, [*rest].

    Returns:
        Infinite or NaN where the metric of the full and of the ablated model are the same.
    """
    of_circuits, of_full, of_ablated = (
        np.asarray(each, dtype=float) for each in (circuits, full, ablated)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return (of_circuits - of_ablated[..., None]) / (of_full - of_ablated)[..., None]


def cpr(
    shares: Sequence[float], f: ArrayLike, *, axis: Axis = "linear"
) -> Float[np.ndarray, " *rest"]:
    """Area under the faithfulness of circuits over their sizes, by trapezoids (MIB's CPR).

    Args:
        shares: the circuits' shares of all components, rising.
        f: their `faithfulness`, [*rest, size].
        axis: of the sizes: as they are, or ``"log"`` for their natural logarithms.

    Raises:
        InputError: there are not two sizes or more that rise from 0 (above 0 on a logarithmic
            axis) to 1 at most, or not as many f.
    """
    values = np.asarray(f, dtype=float)
    return np.asarray(trapezoid(values, _places(shares, values.shape[-1], axis)))


def cmd(
    shares: Sequence[float], f: ArrayLike, *, axis: Axis = "linear"
) -> Float[np.ndarray, " *rest"]:
    """Area between the faithfulness of circuits and 1, over their sizes (MIB's CMD); see `cpr`.

    Args:
        shares: see `cpr`.
        f: see `cpr`.
        axis: see `cpr`.

    Raises:
        InputError: see `cpr`.
    """
    return cpr(shares, np.abs(1 - np.asarray(f, dtype=float)), axis=axis)


def _places(shares: Sequence[float], n: int, axis: Axis) -> Float[np.ndarray, " size"]:
    places = np.asarray(shares, dtype=float)
    if axis not in ("linear", "log"):
        raise InputError(f"circuit sizes: axis is {axis!r}; expected 'linear' or 'log'")
    rising = len(places) > 1 and bool((np.diff(places) > 0).all())
    if len(places) != n or not rising or places[0] < 0 or places[-1] > 1:
        raise InputError(
            f"circuit sizes: found the shares {', '.join(f'{each:g}' for each in places)} for {n} "
            "circuits; expected two or more from 0 to 1, each larger than the one before"
        )
    if axis == "log" and places[0] == 0:
        raise InputError("circuit sizes: size 0 has no logarithm; leave it out, or axis='linear'")
    return np.log(places) if axis == "log" else places
