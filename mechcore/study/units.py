"""Units of work, and the recipes that give them their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from mechcore.data.sources import sources_content
from mechcore.study.config import DataConfig, ModelConfig, plain
from mechcore.study.fingerprints import Hasher, checkpoint_content, digest_of, hash_file
from mechcore.study.folder import versions
from mechcore.study.inputs import embedded_draw, resolved, sources_of

WORK_FORMAT = 2
"""Counts up whenever the same recipe gives other results than before."""

TRAINING = "training"
"""Among what a unit needs: the unit that trains its model."""


@dataclass(frozen=True, eq=False)
class Unit:
    """One piece of a study that is done as a whole.

    Attributes:
        kind: what is done, a name in `mechcore.study.work.KINDS`.
        name: for people, unique within a study.
        recipe: everything that the results depend on, by content; the key is its digest.
        settings: what the work reads besides data and other units.
        needs: keys of the units whose results it reads, by what they are to it.
        model: where the model is; None if it reads none.
        data: where the data are.
        roles: which of them it reads.
        checkpoint: which checkpoint of the training among ``needs`` the model is; None if it is
            ``model`` itself.
    """

    kind: str
    name: str
    recipe: Mapping[str, Any]
    settings: Mapping[str, Any]
    needs: Mapping[str, str]
    model: ModelConfig | None
    data: DataConfig
    roles: tuple[str, ...]
    checkpoint: str | None = None

    @cached_property
    def key(self) -> str:
        """Digest of the recipe."""
        return digest_of(self.recipe)


class Recipes:
    """Makes units for one model and its data.

    Args:
        model: the model.
        data: the data.
        hasher: of files.
        trained: the unit that trains the model first, and which checkpoint of it is meant.
    """

    def __init__(
        self,
        model: ModelConfig,
        data: DataConfig,
        hasher: Hasher = hash_file,
        trained: tuple[Unit, str] | None = None,
    ) -> None:
        self.model, self.data, self.hasher, self.trained = model, data, hasher, trained
        self._versions = {"mechcore": version("mechcore"), **versions()}
        self._contents: dict[str, Any] = {}

    def unit(
        self,
        kind: str,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        roles: tuple[str, ...] = (),
        needs: Mapping[str, Unit] | None = None,
        with_model: bool = True,
        without_effect: Mapping[str, Any] | None = None,
    ) -> Unit:
        """A unit with its recipe, which leaves out settings ``without_effect`` on the results."""
        settings = plain(settings or {})
        keys = {what: unit.key for what, unit in (needs or {}).items()}
        checkpoint = None
        if with_model and self.trained is not None:
            training, checkpoint = self.trained
            keys[TRAINING] = training.key
        recipe = {
            "kind": kind,
            "format": WORK_FORMAT,
            "settings": settings,
            "needs": keys,
            "model": self._content("model") if with_model else None,
            "data": {role: self._content(role) for role in roles},
            "versions": self._versions,
        }
        model = self.model if with_model else None
        settings = {**settings, **plain(without_effect or {})}
        return Unit(kind, name, recipe, settings, keys, model, self.data, roles, checkpoint)

    def _content(self, what: str) -> Any:
        if what not in self._contents:
            if what != "model":
                content = data_content(what, self.model, self.data, self.hasher)
            elif self.trained is None:
                content = model_content(self.model, self.hasher)
            else:
                content = {"checkpoint": self.trained[1], **_reading(self.model)}
            self._contents[what] = content
        return self._contents[what]


def model_content(model: ModelConfig, hasher: Hasher = hash_file) -> dict[str, Any]:
    """What a model is, and how its answers are read, as a JSON value; not where it lies.

    Raises:
        InputError: there is no such checkpoint.
    """
    config = resolved(model)
    assert config.source is not None
    files = checkpoint_content(config.source, config.revision, hasher)
    return {"files": files, **_reading(config)}


def _reading(model: ModelConfig) -> dict[str, Any]:
    """How a model is used, without what it is and where it lies."""
    place = ("source", "embedded", "checkpoint", "revision", "allow_pickle", "device_map")
    return plain({name: value for name, value in asdict(model).items() if name not in place})


def data_content(
    role: str, model: ModelConfig, data: DataConfig, hasher: Hasher = hash_file
) -> dict[str, Any]:
    """What the examples of a role are drawn from, and how, as a JSON value; not where it lies."""
    content: dict[str, Any] = {"limit": getattr(data, f"max_{role}"), "seed": data.seed}
    if model.source is None:
        content |= {"world": role, **embedded_draw(role, data)}
    else:
        content["sources"] = sources_content(sources_of(role, data), hasher)
    if role == "ood":
        content |= {"label": data.ood_label, "subsets": data.ood_subsets}
    return plain(content)
