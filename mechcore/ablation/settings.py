"""Settings of searches, and of the roles of components."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from mechcore.settings import check, setting

SCREENING_EXAMPLES = 256
GUARANTEE = 0.05
"""Default error rate of races."""

OOD_MEAN = "ood_mean"
"""Suffix of out-of-domain columns whose fill is the mean of the out-of-domain texts."""


@dataclass(frozen=True)
class RoleSettings:
    """How to judge roles."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    alpha: float = setting(
        0.05,
        "Roles: false discovery rate of the components with a role, and level of the "
        "equivalence tests.",
        "--alpha",
        rare=True,
        above=0,
        below=1,
    )
    least: float = setting(
        0.01,
        "Roles: smallest effect of interest, as a share of balanced accuracy.",
        "--least-effect",
        rare=True,
        above=0,
        below=1,
    )
    minor: float = setting(
        0.25,
        "Roles: a change below this share of the change in the other domain counts as absent.",
        "--minor-share",
        rare=True,
        above=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check(self, "roles")
