"""The result of every pruning method: which components are kept, and how they were chosen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore.components import Mask
from mechcore.errors import InputError, reason
from mechcore.files import write_safetensors
from mechcore.identity import Identity
from mechcore.showing import Shown

Method: TypeAlias = str
"""Name of a pruning method, see `mechcore.pruning.methods`."""

_METHOD = re.compile(r"[a-z0-9][a-z0-9_-]*")

HISTORY = ("kl", "sparsity", "wanted_sparsity", "lambda1", "lambda2")
"""Columns of a training history: KL of the batch in nats, the s of the Lagrangian and its
target (shares), and the two multipliers."""


@dataclass(frozen=True, eq=False, repr=False)
class Subnetwork(Shown):
    """A pruned model: which components are kept, and how they were chosen.

    Attributes:
        mask: a binary mask, with the identity of the pruned model.
        seed: seed of the initialisation and the noise, or of the random draw.
        scores: ranking scores of the components, highest first, [layer, component]: log_alpha for
            ``"l0"``; uniform random numbers for the random controls.
        history: one row per training step with the columns `HISTORY`; empty without training.
        means: ``data`` of the `mechcore.MeanActivations` used in pruning; empty if none were.
    """

    mask: Mask
    target_sparsity: float
    seed: int
    scores: Float[Tensor, "layer component"]
    method: Method = "l0"
    history: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=list(HISTORY), dtype="float32")
    )
    means: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_sparsity", float(self.target_sparsity))
        object.__setattr__(self, "seed", int(self.seed))  # NumPy has numbers of its own

    @property
    def name(self) -> str:
        """See `subnetwork_name`."""
        return subnetwork_name(self.target_sparsity, self.seed, self.method)

    def with_identity(self, identity: Identity | None) -> Subnetwork:
        """This subnetwork as one of the model ``identity``, see `Mask.with_identity`."""
        return replace(self, mask=self.mask.with_identity(identity))

    @property
    def sparsity(self) -> float:
        """The sparsity achieved: share of components pruned."""
        return float(self.mask.sparsity)

    def save(self, path: str | Path) -> None:
        """Write everything as safetensors, atomically; `Mask.load` reads the mask."""
        facts = {
            "target_sparsity": repr(self.target_sparsity),
            "seed": repr(self.seed),
            "method": self.method,
            "means": self.means,
            **self.mask.facts,
        }
        history = torch.tensor(self.history[list(HISTORY)].to_numpy(dtype="float32"))
        tensors = {"mask": self.mask.values, "scores": self.scores, "history": history}
        write_safetensors(path, {name: t.cpu().contiguous() for name, t in tensors.items()}, facts)

    @classmethod
    def load(cls, path: str | Path, *, any_model: bool = False) -> Subnetwork:
        """Read what `save` wrote, else `InputError`; for ``any_model`` see `Mask.load`."""
        mask = Mask.load(path, any_model=any_model)
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                method, target_sparsity = facts["method"], float(facts["target_sparsity"])
                scores = file.get_tensor("scores")
                if not _METHOD.fullmatch(method):
                    raise ValueError(f"method {method!r}, expected a name in small letters")
                if not 0 <= target_sparsity <= 1:
                    raise ValueError(f"target sparsity {target_sparsity}, expected a share")
                if mask.is_batched or scores.shape != mask.values.shape:
                    raise ValueError(
                        f"scores {tuple(scores.shape)} for mask {tuple(mask.values.shape)}, "
                        "expected [layer, component] for both"
                    )
                return cls(
                    mask,
                    target_sparsity,
                    int(facts["seed"]),
                    scores,
                    method,
                    pd.DataFrame(file.get_tensor("history").numpy(), columns=list(HISTORY)),
                    facts.get("means", ""),
                )
        except (KeyError, ValueError, SafetensorError) as error:
            raise InputError(
                f"subnetwork file {path}: found a mask without its target sparsity, seed, method "
                f"and scores ({reason(error)}); expected a mask of a run"
            ) from error

    def _summary(self) -> str:
        return f"{self.name}, sparsity={self.sparsity:.3f}, {self.mask!r}"

    def _rows(self) -> pd.DataFrame | None:
        return self.mask._rows()


def draws_of(subnetworks: Sequence[Subnetwork]) -> list[int]:
    """The random draw of each subnetwork, as the index of the first one with the same draw.

    Two share a draw if they have the same scores, or the same method and seed on one model; for
    ``"l0"``, on any model: masks of one seed start with the same scores and get the same noise, so
    they keep much the same components even if none matters.
    """
    return [
        next(i for i, other in enumerate(subnetworks) if _are_of_one_draw(one, other))
        for one in subnetworks
    ]


def _are_of_one_draw(one: Subnetwork, other: Subnetwork) -> bool:
    named = (one.method, one.seed) == (other.method, other.seed)
    shared = one.method == "l0" or one.mask.identity == other.mask.identity
    return (named and shared) or torch.equal(one.scores, other.scores)


def subnetwork_name(target_sparsity: float, seed: int, method: Method = "l0") -> str:
    """Short name, such as ``s0.50-seed42``, unique among those of one model and data."""
    prefix = "" if method == "l0" else f"{method}-"
    return f"{prefix}{target_name(target_sparsity)}-seed{seed}"


def target_name(target_sparsity: float) -> str:
    """The form of a target sparsity in names, such as ``s0.50``; unique for each value."""
    short = f"{target_sparsity:.2f}"
    return f"s{short if float(short) == target_sparsity else repr(target_sparsity)}"
