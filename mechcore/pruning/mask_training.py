"""The training of one mask: scores, multipliers, their optimiser, noise and history.

Loss: KL(full model || subnetwork) + lambda1 (t - s) + lambda2 (t - s)^2, with gradient ascent on
both multipliers (arXiv 2403.03942, section 3 and appendix).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.components import Mask, ModelShape
from mechcore.errors import MechcoreError
from mechcore.pruning import hard_concrete
from mechcore.pruning.discretise import DISCRETISATIONS
from mechcore.pruning.settings import MAX_SEED, PruneSettings
from mechcore.pruning.subnetwork import HISTORY, Subnetwork, subnetwork_name

_ADAM = ("exp_avg", "exp_avg_sq", "step")


class OffTrackError(MechcoreError):
    """The training of one mask is not finite, or its sparsity did not follow its target."""


class MaskTraining:
    """One mask in training; call `draw` and `update` in turn until it `is_done`."""

    def __init__(
        self, settings: PruneSettings, shape: ModelShape, target_sparsity: float, seed: int
    ) -> None:
        self.settings, self.shape = settings, shape
        self.target_sparsity, self.seed = target_sparsity, seed
        self.name = subnetwork_name(target_sparsity, seed)
        self.step = 0
        self.generator = torch.Generator().manual_seed(seed)
        start = torch.randn(shape.n_layers, shape.columns, generator=self.generator)
        self.log_alpha = settings.log_alpha_mean + settings.log_alpha_std * start
        self.multipliers = torch.zeros(2)
        self.history = torch.zeros(settings.total_steps(target_sparsity), len(HISTORY))
        self._drawn: Tensor | None = None
        groups: list[dict[str, Any]] = [
            {"params": [self.log_alpha.requires_grad_()]},
            {"params": [self.multipliers.requires_grad_()], "maximize": True},
        ]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)

    @property
    def is_done(self) -> bool:
        """Whether all steps are taken."""
        return self.step == len(self.history)

    @property
    def dropout_seed(self) -> int:
        """Seed of the dropout in the next step, independent of masks trained together with it."""
        return (self.seed * 2**20 + self.step) % MAX_SEED

    def draw(self) -> Float[Tensor, "*draw layer component"]:
        """Mask values for the next step; of several draws, if the settings have several."""
        n = self.settings.draws_per_step
        size = self.log_alpha.shape if n == 1 else (n, *self.log_alpha.shape)
        noise = torch.rand(size, generator=self.generator)
        self._drawn = hard_concrete.sample(self.log_alpha, noise)
        return self._drawn.detach()

    def update(self, kl: float, gradient: Float[Tensor, "*draw layer component"]) -> None:
        """Step by the last draw's KL, nats, and its gradient; `OffTrackError` if not finite."""
        assert self._drawn is not None
        if self.settings.sparsity == "expected":
            sparsity = hard_concrete.probability_of_zero(self.log_alpha).mean()
        else:
            sparsity = 1 - self._drawn.mean((-2, -1))  # per draw
        wanted = self.settings.wanted_sparsity(self.target_sparsity, self.step)
        distance = wanted - sparsity
        lagrangian = (self.multipliers[0] * distance + self.multipliers[1] * distance**2).mean()
        torch.autograd.backward([self._drawn, lagrangian], [gradient.to(self._drawn), None])
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_([self.log_alpha], self.settings.clip)
        rate = self.settings.rate(self.target_sparsity, self.step)
        rates = (rate * self.settings.lr, rate * self.settings.lr_lambda)
        for group, value in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = value
        row = [kl, sparsity.mean().item(), wanted, *self.multipliers.tolist()]
        self.optimiser.step()
        self.optimiser.zero_grad()
        self._drawn = None
        self.history[self.step] = torch.tensor(row)
        if not (math.isfinite(kl) and bool(self.log_alpha.isfinite().all())):
            raise OffTrackError(
                f"the training of target {self.target_sparsity}, seed {self.seed} diverged: its "
                f"loss or scores are not finite after step {self.step}; lower lr or lr_lambda, or "
                "set clip (such as --prune-settings clip=1)"
            )
        self.step += 1

    def subnetwork(self) -> Subnetwork:
        """The result after all steps, see `accepted`."""
        scores = self.log_alpha.detach().clone()
        history = pd.DataFrame(self.history.numpy(), columns=list(HISTORY))
        full = Mask.full(self.shape)
        trained = Subnetwork(full, self.target_sparsity, self.seed, scores, history=history)
        return accepted(trained, self.settings)

    # -- saving and resuming ----------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that the next steps depend on, and the history so far."""
        state = {
            "step": torch.tensor(self.step),
            "log_alpha": self.log_alpha.detach().clone(),
            "multipliers": self.multipliers.detach().clone(),
            "generator": self.generator.get_state(),
            "history": self.history.clone(),
        }
        for i, moments in self.optimiser.state_dict()["state"].items():
            state |= {f"adam{i}.{name}": moments[name].clone() for name in _ADAM}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a `state` of a training with the same arguments."""
        self.step = int(state["step"])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
            self.multipliers.copy_(state["multipliers"])
        self.generator.set_state(state["generator"])
        self.history = state["history"].clone()
        if self.step:
            optimiser = self.optimiser.state_dict()
            optimiser["state"] = {
                i: {name: state[f"adam{i}.{name}"].clone() for name in _ADAM} for i in range(2)
            }
            self.optimiser.load_state_dict(optimiser)


def accepted(trained: Subnetwork, settings: PruneSettings) -> Subnetwork:
    """A trained subnetwork with its scores discretised according to ``settings``.

    Raises:
        OffTrackError: the sparsity ended further from its target than ``tolerance``, or nothing is
            kept.
    """
    course = trained.history["sparsity"].to_numpy()
    reached = float(course[-1])
    if abs(reached - trained.target_sparsity) > settings.tolerance:
        raise OffTrackError(_diagnosis(trained, settings))
    mask = DISCRETISATIONS[settings.discretisation](
        trained.scores, trained.target_sparsity, trained.mask.shape
    )
    if not mask.kept:
        raise OffTrackError(
            f"the mask of target {trained.target_sparsity}, seed {trained.seed} keeps no component "
            "at any threshold; use a lower sparsity (--target-sparsities), or rank the components "
            "(--prune-settings discretisation=ranking)"
        )
    return replace(trained, mask=mask.with_identity(trained.mask.identity))


def _diagnosis(trained: Subnetwork, settings: PruneSettings) -> str:
    tolerance, rate = settings.tolerance, settings.lr_lambda
    course = trained.history["sparsity"].to_numpy()
    wanted = trained.history["wanted_sparsity"].to_numpy()
    places = [round(part * (len(course) - 1)) for part in (0.25, 0.5, 0.75)]
    shown = ", ".join(f"{course[i]:.2f} at step {i} (wanted {wanted[i]:.2f})" for i in places)
    change, to, why = "larger", 2 * rate or PruneSettings.lr_lambda, "react too late"
    if float((course - wanted).max()) > tolerance:
        change, to, why = "smaller", rate / 2, "overshoot"
    return (
        f"the sparsity of target {trained.target_sparsity}, seed {trained.seed} ended at "
        f"{course[-1]:.3f} (tolerance: {tolerance}), so its ranking means little. It was {shown}; "
        f"use more steps (now {settings.steps}: --prune-steps {2 * settings.steps}) or a {change} "
        f"lr_lambda (now {rate:g}: --prune-settings lr_lambda={to:g}): the multipliers {why}"
    )
