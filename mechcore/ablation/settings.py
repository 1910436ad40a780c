"""Settings of searches, and of the roles of components."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from mechcore.settings import check, setting

SCREENING_EXAMPLES = 256
GUARANTEE = 0.05
"""Of races, unless another is given."""

OOD_MEAN = "ood_mean"
"""Suffix of out-of-domain columns whose fill is the mean of the out-of-domain texts."""


ROLES_NAME = "roles"
"""What the roles of components are called in tables and messages."""


@dataclass(frozen=True)
class RoleSettings:
    """How roles are judged."""

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
        "Roles: least effect of interest, as a share of balanced accuracy.",
        "--least-effect",
        rare=True,
        above=0,
        below=1,
    )
    minor: float = setting(
        0.25,
        "Roles: share of the change in one domain up to which the change in the other counts as "
        "absent.",
        "--minor-share",
        rare=True,
        above=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check(self, ROLES_NAME)
