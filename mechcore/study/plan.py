"""From a study's configuration to its units of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.pruning.settings import PruneSettings
from mechcore.study.config import DataConfig, ModelConfig, SizesConfig, StudyConfig
from mechcore.study.fingerprints import Hasher, hash_file
from mechcore.study.inputs import ROLES, TEST_ROLES, check_sources
from mechcore.study.sizes import EMBEDDED, checkpoint_series
from mechcore.study.units import Recipes, Unit


@dataclass(frozen=True)
class Part:
    """The study of one model.

    Attributes:
        name: of the model; empty if it is the only one.
        config: the study of this model alone.
        units: by what they are to its results: ``means``, ``accuracy``, ``core`` and so on.
        pruned: the units that find its subnetworks.
        made: all units that these need, too.
    """

    name: str
    config: StudyConfig
    units: Mapping[str, Unit]
    pruned: Sequence[Unit]
    made: Sequence[Unit]


@dataclass(frozen=True)
class Plan:
    """All units of a study by key, each after those that it needs; equal ones occur once."""

    config: StudyConfig
    parts: Sequence[Part]
    units: Mapping[str, Unit]


def make_plan(config: StudyConfig, hasher: Hasher = hash_file) -> Plan:
    """Work out the units; of files only the content is read.

    Raises:
        InputError: a file or checkpoint is missing, or settings contradict each other.
    """
    parts = [_Planner(name, each, hasher).part() for name, each in config.each_model().items()]
    units: dict[str, Unit] = {}
    for unit in [unit for part in parts for unit in part.made]:
        units.setdefault(unit.key, unit)
    return Plan(config, parts, units)


class _Planner:
    """Makes the units of one model's study, and keeps them in the order of their making."""

    def __init__(self, name: str, config: StudyConfig, hasher: Hasher) -> None:
        self.name, self.config, self.hasher = name, config, hasher
        self.made: list[Unit] = []
        self._recipes = self._recipes_of(config.model)
        self._names = data_names(config.model, config.data)
        self._test_names = {role: self._names[role] for role in TEST_ROLES}

    def part(self) -> Part:
        """The units of the whole study."""
        describe = self._unit("describe", "inputs", {"names": self._names}, roles=ROLES)
        found = {"describe": describe}
        if self.config.sparsities:
            found |= self._subnetworks(self.config.sparsities)
        pruned = [unit for unit in self.made if unit.kind == "prune"]
        if pruned:
            found |= self._analyses(found["means"], pruned)
        sizes = self.config.analyses.effective_size
        if self.config.checkpoints and sizes is not None:
            found["sizes"] = self._sizes(sizes)
        return Part(self.name, self.config, found, pruned, self.made)

    def _unit(self, kind: str, name: str, *args: Any, **options: Any) -> Unit:
        unit = self._recipes.unit(kind, name, *args, **options)
        unit = replace(unit, name=f"{self.name}: {name}") if self.name else unit
        self.made.append(unit)
        return unit

    def _recipes_of(self, model: ModelConfig) -> Recipes:
        data = self.config.data
        check_sources(model, data, ROLES)
        for role in ROLES if model.source is not None else ():
            path = Path(str(getattr(data, role)))
            if not path.is_file():
                raise InputError(f"{path}: no such file (data: {role})")
        return Recipes(model, data, self.hasher)

    def _subnetworks(self, sparsities: Sequence[float], of: str = "") -> dict[str, Unit]:
        """Means and accuracies, and what these need; ``of`` is what the units' names end with."""
        config, n = self.config, self.config.seeds_per_unit
        seeds = sorted(config.seeds)
        means = self._unit("means", f"means{of}", roles=("train",))
        needs = {f"full {role}": self._answers("full model", role, of, {}) for role in TEST_ROLES}
        for target in sorted(sparsities):
            for chunk in (seeds[i : i + n] for i in range(0, len(seeds), n)):
                name = f"sparsity {target!r}, seed {' '.join(map(str, chunk))}"
                settings = {
                    "target": target,
                    "seeds": chunk,
                    "schedule": _schedule(config.prune),
                    "data_seed": config.data.seed,
                }
                pruned = self._unit(
                    "prune",
                    f"prune {name}{of}",
                    settings,
                    roles=("train",),
                    needs={"means": means},
                    without_effect={"save_every": config.prune.save_every},
                )
                needs[f"prune {name}"] = pruned
                for role in TEST_ROLES:
                    needs[f"answers {role} {name}"] = self._answers(
                        name, role, of, {"means": means, "subnetworks": pruned}
                    )
        settings = {"names": self._test_names, "n_resamples": config.n_resamples}
        accuracy = self._unit(
            "accuracy", f"accuracies{of}", settings, needs=needs, with_model=False
        )
        return {"means": means, "accuracy": accuracy}

    def _answers(self, name: str, role: str, of: str, needs: Mapping[str, Unit]) -> Unit:
        settings = {"role": role, "batch_size": self.config.batch_size}
        name = f"answers {role}, {name}{of}"
        return self._unit("answers", name, settings, roles=(role,), needs=needs)

    def _analyses(self, means: Unit, pruned: Sequence[Unit]) -> dict[str, Unit]:
        config, wanted = self.config, self.config.analyses
        parts = {_mask_names(unit): unit for unit in pruned}
        found = {"core": self._unit("core", "core", needs=parts, with_model=False)}
        if wanted.heads is not None:
            sample = {"max_examples": wanted.heads.max_examples, "seed": config.data.seed}
            heads = self._unit("heads", "head categories", sample, roles=("id",))
            found["heads"] = self._unit(
                "pictures",
                "pictures of attention",
                sample,
                roles=("id",),
                needs={"core": found["core"], "heads": heads},
            )
        common = {
            "names": self._test_names,
            "seed": config.data.seed,
            "batch_size": config.batch_size,
            "n_resamples": config.n_resamples,
        }
        if wanted.ablation is not None:
            found["ablate"] = self._unit(
                "ablate",
                "ablation of the core",
                {**asdict(wanted.ablation), **common},
                roles=TEST_ROLES,
                needs={"means": means, "core": found["core"]},
            )
        if wanted.sweep is not None:
            found["sweep"] = self._unit(
                "sweep",
                f"ablation of {wanted.sweep} one by one",
                {"components": wanted.sweep, **common},
                roles=TEST_ROLES,
                needs={"means": means},
            )
        return found

    def _sizes(self, sizes: SizesConfig) -> Unit:
        """Effective sizes, from all checkpoints; units that the model itself has occur again."""
        config = self.config
        paths = () if config.checkpoints == (EMBEDDED,) else config.checkpoints
        accuracies, own = {}, self._recipes
        series = checkpoint_series(paths, config.model)
        for step, model in series.items():
            self._recipes = self._recipes_of(model)
            of = f", checkpoint {step}"
            accuracies[str(step)] = self._subnetworks(sizes.sparsities, of)["accuracy"]
        self._recipes = own
        settings = {"margin": sizes.margin, "checkpoints": list(series)}
        return self._unit("sizes", "effective size", settings, needs=accuracies, with_model=False)


def _mask_names(unit: Unit) -> str:
    """Which masks a unit finds."""
    return f"{unit.settings['target']!r} {unit.settings['seeds']}"


def data_names(model: ModelConfig, data: DataConfig) -> dict[str, str]:
    """What the data of each role is called in tables."""
    if model.source is None:
        return {role: role for role in ROLES}
    return {role: Path(str(getattr(data, role))).name.split(".")[0] for role in ROLES}


def _schedule(settings: PruneSettings) -> dict[str, Any]:
    """What of a schedule enters into the masks."""
    return {name: value for name, value in asdict(settings).items() if name != "save_every"}
