"""Fills: what replaces an ablated output, by name; docs/extend.md adds one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import ModelShape
from mechcore.errors import InputError, NotFiniteError, shown
from mechcore.masking.means import MeanActivations, check_means
from mechcore.models.devices import sent
from mechcore.models.hooks import Hook
from mechcore.models.protocol import Batch, device_of
from mechcore.registry import Registry

Kind: TypeAlias = Literal["z", "mlp"]


def is_per_token(kind: Kind, values: Tensor) -> bool:
    """Whether a layer's fill differs by token, [batch, pos, *rest], or is the same for all."""
    return values.ndim == (4 if kind == "z" else 3)


def by_mask(
    rows: Tensor, n_rows: int, positions: Int[Tensor, "batch *mask pos"]
) -> Float[Tensor, "*masks batch *rest"]:
    """What was read of a masked run, in the shape of `Fill.values`: mask by mask, if several."""
    if positions.ndim == 3:  # a mask for each row
        return rows[:, None]
    return rows if len(rows) == n_rows else rows.unflatten(0, (-1, n_rows))


class Fill(ABC):
    """What replaces the ablated outputs of one model.

    ``means`` may be None only if the fill does not need them; ``seed`` is that of all random draws.

    Attributes:
        needs_means: whether the fill needs means.
        is_finite: whether values are finite if the model is, so they need no check.
        follows_the_run: whether a component's values depend on which others are ablated.
    """

    needs_means: ClassVar[bool] = True
    is_finite: ClassVar[bool] = False
    follows_the_run: ClassVar[bool] = False

    def __init__(self, model: Any, means: MeanActivations | None, seed: int) -> None:
        self.model, self._means, self.seed = model, means, seed

    @cached_property
    def means(self) -> MeanActivations:
        """The model's mean activations, on its device; raises `InputError` without any."""
        if self._means is None:
            raise _without_means(type(self).__name__)
        return self._means.to(device_of(self.model))

    def prepare(self, batch: Batch) -> None:  # noqa: B027
        """Prepare for a batch before it is run; the model is not masked meanwhile.

        ``index`` of the batch has the rows of its examples, if known.
        """

    def check(self, values: Float[Tensor, "*masks layer component"]) -> None:  # noqa: B027
        """Raise `InputError` if the fill cannot replace the outputs that a mask ablates."""

    def hooks(self) -> Sequence[tuple[str, Hook]]:
        """Hooks to read from the run itself if the whole model is masked."""
        return ()

    def draws(
        self, kind: Kind, layer: int, shape: Sequence[int]
    ) -> Int[Tensor, "batch pos"] | None:
        """Random draws for outputs [batch, pos, ...]; None without randomness."""
        return None

    def draws_of_batch(
        self, shape: ModelShape, size: Sequence[int]
    ) -> dict[tuple[Kind, int], Tensor | None]:
        """The result of `draws` for every layer's outputs of a batch [batch, pos]."""
        kinds: tuple[Kind, ...] = ("z", "mlp") if shape.has_mlps else ("z",)
        return {
            (kind, layer): self.draws(kind, layer, size)
            for layer in range(shape.n_layers)
            for kind in kinds
        }

    @abstractmethod
    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """One layer's fill: [*rest] for all tokens, or [batch, pos, *rest].

        Args:
            kind: ``"z"`` for heads, where rest is head and d_head, or ``"mlp"``, d_model.
            layer: number of the layer.
            positions: position of every token, counted from its row's first real one, [batch, pos].
            draws: the result of `draws` for the batch.
        """

    def checked(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """`values`, after checking their shape and that they are finite."""
        values = self.values(kind, layer, positions, draws)
        cfg = self.model.cfg
        rest = (cfg.n_heads, cfg.d_head) if kind == "z" else (cfg.d_model,)
        given = tuple(values.shape) if torch.is_tensor(values) else type(values).__name__
        if given[-len(rest) :] != rest or len(given) - len(rest) not in (0, 2, 3):
            size, what = ("[head, d_head]", "heads") if kind == "z" else ("[d_model]", "the MLP")
            raise InputError(
                f"fill {type(self).__name__}: values({kind!r}, layer={layer}) gave {given} for "
                f"{what}; expected a tensor {rest}, {size}, or one for every token, "
                f"{size.replace('[', '[batch, pos, ')}"
            )
        if not self.is_finite and not bool(values.isfinite().all()):
            raise NotFiniteError(
                f"fill {type(self).__name__}: values({kind!r}, layer={layer}) gave values that are "
                "NaN or infinite; expected finite ones for every token, padding included"
            )
        return values


class Mean(Fill):
    """The component's mean activation (arXiv 2403.03942, section 3), over all or by position."""

    is_finite: ClassVar[bool] = True

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`; `InputError` if per-position means lack a position."""
        mean = getattr(self.means, kind)
        if not self.means.per_position:
            return mean[layer]
        if positions is None:
            raise InputError(
                "masked: means per position need the attention mask; call the value of the with "
                "statement instead of the model"
            )
        if positions.shape[-1] > len(mean) <= int(positions.max()):
            raise InputError(
                f"masked: input has {int(positions.max()) + 1} positions, the means per position "
                f"only {len(mean)}; compute them on longer texts, or pool positions"
            )
        return mean[positions, layer]


class Zero(Fill):
    """Zeros."""

    needs_means: ClassVar[bool] = False
    is_finite: ClassVar[bool] = True

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`."""
        cfg = self.model.cfg
        size = (cfg.n_heads, cfg.d_head) if kind == "z" else (cfg.d_model,)
        return torch.zeros(size, device=device_of(self.model))


class Resample(Fill):
    """The output at a random token of the data that the means were computed on."""

    is_finite: ClassVar[bool] = True

    def __init__(self, model: Any, means: MeanActivations | None, seed: int) -> None:
        super().__init__(model, means, seed)
        if len(self.means.samples_z) == 0:
            raise InputError(
                "masked: these means hold no sampled activations, which fill 'resample' needs; "
                "compute them with n_samples > 0"
            )
        self._generators: dict[tuple[Kind, int], torch.Generator] = {}

    def draws(
        self, kind: Kind, layer: int, shape: Sequence[int]
    ) -> Int[Tensor, "batch pos"] | None:
        """Every layer's heads and MLP draw independently, one batch after another."""
        key = (kind, layer)
        if key not in self._generators:
            seed = 2 * (self.seed * 10_007 + layer) + (kind == "mlp")
            self._generators[key] = torch.Generator().manual_seed(seed % 2**63)
        n_samples = len(getattr(self.means, f"samples_{kind}"))
        return torch.randint(n_samples, tuple(shape[:2]), generator=self._generators[key])

    def values(
        self, kind: Kind, layer: int, positions: Tensor | None, draws: Tensor | None
    ) -> Float[Tensor, "*tokens rest"]:
        """See `Fill.values`."""
        assert draws is not None
        samples = getattr(self.means, f"samples_{kind}")
        return samples[sent(draws, samples.device), layer]


FILLS: Registry[type[Fill]] = Registry(
    "fill",
    "mechcore.fills",
    {
        "mean": "mechcore.masking.fills:Mean",
        "zero": "mechcore.masking.fills:Zero",
        "resample": "mechcore.masking.fills:Resample",
        "counterfactual": "mechcore.masking.counterfactual:Counterfactual",
    },
)
"""Fills by name."""


FillMaker: TypeAlias = str | Callable[[Any, MeanActivations | None, int], Fill]
"""Name of a fill, or a function that makes one from model, means and seed."""


def fill_of(model: Any, means: MeanActivations | None, name: FillMaker, seed: int) -> Fill:
    """The fill of that name for a model; raises where means are needed, or another model's."""
    if means is not None:
        check_means(means, None)
    if not isinstance(name, str):
        fill: Any = name(model, means, seed) if callable(name) else name
        if isinstance(fill, Fill):
            return fill
        raise InputError(
            f"fill: {getattr(name, '__name__', shown(name))} gave a {type(fill).__name__}; "
            f"expected a name ({', '.join(FILLS)}), or a function of model, means and seed that "
            "makes a Fill"
        )
    kind = FILLS[name]
    if not kind.needs_means:
        return kind(model, None, seed)
    if means is None:
        raise _without_means(name)
    means.check(model)
    return kind(model, means, seed)


def _without_means(fill: str) -> InputError:
    others = [name for name in FILLS if not FILLS[name].needs_means]
    return InputError(
        f"masked: fill {fill!r} needs means; pass MeanActivations.compute(model, batches), "
        f"or use fill={others[0]!r}"
    )
