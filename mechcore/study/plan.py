"""From a study's configuration to its units of work."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mechcore.data.task import ROLES
from mechcore.errors import MechcoreWarning
from mechcore.pruning.settings import READING, PruneSettings
from mechcore.study.config import (
    EMBEDDED,
    TEST_ROLES,
    TRAINED,
    SizesConfig,
    StudyConfig,
)
from mechcore.study.fingerprints import Hasher, hash_file
from mechcore.study.inputs import check_sources, classes_of, data_name, groups_of, read_role
from mechcore.study.sizes import checkpoint_series
from mechcore.study.units import Recipes, Unit
from mechcore.training import TrainSettings
from mechcore.training.run_folder import FINAL, checkpoint_path


@dataclass(frozen=True)
class Part:
    """The study of one model.

    Attributes:
        name: of the model; empty if it is the only one.
        config: the study of this model alone.
        units: by what they are to its results: ``means``, ``accuracy``, ``core`` and so on.
        pruned: the units that hold its subnetworks.
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
        check_sources(config.model, config.data, ROLES)
        self._names = {role: data_name(role, config.model, config.data) for role in ROLES}
        self._test_names = {role: self._names[role] for role in TEST_ROLES}
        self._groups = groups_of(config.data)
        self._series: dict[Any, Recipes] = {}
        self._recipes = Recipes(config.model, config.data, hasher)

    def part(self) -> Part:
        """The units of the whole study."""
        config, found = self.config, {}
        if config.training is not None:
            found["training"] = self._train(config.training)
        found["describe"] = self._unit("describe", "inputs", {"names": self._names}, roles=ROLES)
        if config.sparsities:
            found |= self._subnetworks(config.sparsities, config.seeds, config.prune)
        pruned = [unit for unit in self.made if unit.kind == "masks"]
        if pruned:
            found |= self._analyses(found["means"], pruned)
        sizes = config.analyses.effective_size
        if config.checkpoints and sizes is not None:
            found["sizes"] = self._sizes(sizes)
        return Part(self.name, self.config, found, pruned, self.made)

    def _unit(self, kind: str, name: str, *args: Any, **options: Any) -> Unit:
        unit = self._recipes.unit(kind, name, *args, **options)
        unit = replace(unit, name=f"{self.name}: {name}") if self.name else unit
        self.made.append(unit)
        return unit

    def _train(self, settings: TrainSettings) -> Unit:
        """The training, on all training data; from now on units are of what comes of it."""
        base = self.config.model
        data = replace(self.config.data, max_train=None)
        with warnings.catch_warnings():  # they come when the examples are used
            warnings.simplefilter("ignore", MechcoreWarning)
            n = len(read_role("train", base, data, labelled=True)[0])
        steps = {step: checkpoint_path(Path(), step).name for step in settings.checkpoint_steps(n)}
        steps[settings.total_steps(n)] = FINAL
        self._recipes = Recipes(base, data, self.hasher)
        facts = {"training": settings.facts(), "steps": max(steps), "names": self._names}
        if base.class_labels is None and (classes := classes_of(base, data)):
            facts["classes"] = classes
        unit = self._unit("train", "training", facts, roles=ROLES)
        # Its classes have names of their own from now on.
        model = replace(base, class_labels=None, revision=None, allow_pickle=False)
        self._series = {
            step: Recipes(model, self.config.data, self.hasher, (unit, name))
            for step, name in steps.items()
        }
        self._recipes = self._series[max(steps)]
        return unit

    def _subnetworks(
        self,
        sparsities: Sequence[float],
        seeds: Sequence[int],
        schedule: PruneSettings,
        of: str = "",
    ) -> dict[str, Unit]:
        """Means and accuracies, and what these need; ``of`` is what the units' names end with."""
        config, n = self.config, self.config.seeds_per_unit
        seeds = sorted(seeds)
        means = self._unit("means", f"means{of}", roles=("train",))
        needs = {f"full {role}": self._answers("full model", role, of, {}) for role in TEST_ROLES}
        for target in sorted(sparsities):
            for chunk in (seeds[i : i + n] for i in range(0, len(seeds), n)):
                name = f"sparsity {target!r}, seed {' '.join(map(str, chunk))}"
                settings = {
                    "target": target,
                    "seeds": chunk,
                    "schedule": _schedule(schedule),
                    "data_seed": config.data.seed,
                }
                pruned = self._unit(
                    "prune",
                    f"prune {name}{of}",
                    settings,
                    roles=("train",),
                    needs={"means": means},
                    without_effect={"save_every": schedule.save_every},
                )
                reading = {each: getattr(schedule, each) for each in READING}
                masks = self._unit(
                    "masks",
                    f"masks {name}{of}",
                    {"target": target, "seeds": chunk, **reading},
                    needs={"trained": pruned},
                    with_model=False,
                )
                needs[f"masks {name}"] = masks
                for role in TEST_ROLES:
                    needs[f"answers {role} {name}"] = self._answers(
                        name, role, of, {"means": means, "subnetworks": masks}
                    )
        settings = {
            "names": self._test_names,
            "groups": self._groups,
            "n_resamples": config.n_resamples,
        }
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
        if wanted.search is not None:
            search = asdict(wanted.search)
            found["search"] = self._unit(
                "search",
                "search for superadditive sets",
                {**search, **common},
                roles=(search["role"],),
                needs={"means": means},
            )
        return found

    def _sizes(self, sizes: SizesConfig) -> Unit:
        """Effective sizes, from all checkpoints; units that the model itself has occur again."""
        config = self.config
        accuracies, own = {}, self._recipes
        series = self._checkpoints()
        seeds = config.seeds if sizes.seeds is None else sizes.seeds
        schedule = config.prune if sizes.prune is None else sizes.prune
        for step, recipes in series.items():
            self._recipes = recipes
            of = f", checkpoint {step}"
            found = self._subnetworks(sizes.sparsities, seeds, schedule, of)
            accuracies[str(step)] = found["accuracy"]
        self._recipes = own
        settings = {
            "margin": sizes.margin,
            "groups": self._groups,
            "checkpoints": list(series),
        }
        return self._unit("sizes", "effective size", settings, needs=accuracies, with_model=False)

    def _checkpoints(self) -> dict[Any, Recipes]:
        config = self.config
        if config.checkpoints == (TRAINED,):
            return self._series
        paths = () if config.checkpoints == (EMBEDDED,) else config.checkpoints
        return {
            step: Recipes(model, config.data, self.hasher)
            for step, model in checkpoint_series(paths, config.model).items()
        }


def _mask_names(unit: Unit) -> str:
    """Which masks a unit finds."""
    return f"{unit.settings['target']!r} {unit.settings['seeds']}"


def _schedule(settings: PruneSettings) -> dict[str, Any]:
    """What of a schedule enters into the training of masks."""
    without = ("save_every", *READING)
    return {name: value for name, value in asdict(settings).items() if name not in without}
