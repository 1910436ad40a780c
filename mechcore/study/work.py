"""How each kind of unit is done: read what it needs, fill its folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mechcore.ablation import ComponentSet, find_superadditive
from mechcore.components import ModelShape, parse_components
from mechcore.errors import MechcoreError, MechcoreWarning
from mechcore.evaluation.evaluate import Evaluation
from mechcore.files import copy_linked, write_json
from mechcore.masking.means import MeanActivations
from mechcore.models.running import ModelIdentity, class_names, kind_of, n_parameters
from mechcore.pruning import (
    PruningError,
    Subnetwork,
    prune,
    prune_settings,
    subnetwork_name,
)
from mechcore.pruning.mask_training import OffTrackError, accepted
from mechcore.pruning.settings import READING
from mechcore.report.run_folder import ATTENTION_FILE, TABLES_FOLDER, read_table
from mechcore.report.run_folder import TABLES as COLUMNS
from mechcore.state import StateError
from mechcore.study import steps
from mechcore.study.ablation import core_ablation_tables, sweep_tables
from mechcore.study.answers import load_answers, save_answers
from mechcore.study.bench import CHECKPOINTS, Workbench
from mechcore.study.config import TEST_ROLES
from mechcore.study.fitting import fitting_of
from mechcore.study.folder import write_tables
from mechcore.study.inputs import Inputs
from mechcore.study.sizes import accuracies_by_checkpoint, size_tables
from mechcore.study.store import Store
from mechcore.study.units import Unit

MEANS = "means.safetensors"
ANSWERS = "answers.safetensors"
FACTS = "facts.json"
HEADS = "heads.parquet"
MASKS = "masks"
MISSING = "missing.json"


@dataclass(frozen=True)
class Context:
    """What a unit is done with.

    Attributes:
        unit: the unit.
        folder: to fill with its results.
        store: holds those of others.
        bench: holds models and data.
    """

    unit: Unit
    folder: Path
    store: Store
    bench: Workbench

    @property
    def settings(self) -> Mapping[str, Any]:
        """The unit's settings."""
        return self.unit.settings

    def inputs(self) -> Inputs:
        """The unit's model and data."""
        return self.bench.inputs(self.unit)

    def needed(self, what: str) -> Path:
        """Folder of a unit that this one needs.

        Raises:
            Damaged: it is not what was written.
        """
        return self.store.whole(self.unit.needs[what])

    def means(self, inputs: Inputs) -> MeanActivations:
        """The means that the unit needs."""
        return MeanActivations.load(self.needed("means") / MEANS, inputs.model)

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write tables as CSV."""
        write_tables(self.folder / TABLES_FOLDER, tables)

    def table(self, what: str, name: str) -> pd.DataFrame:
        """A table of a unit that this one needs."""
        return read_table(self.needed(what) / TABLES_FOLDER / f"{name}.csv", COLUMNS[name])


def subnetworks_in(folder: Path) -> list[Subnetwork]:
    """The subnetworks of a pruning unit, by seed."""
    found = [Subnetwork.load(path) for path in (folder / MASKS).glob("*.safetensors")]
    return sorted(found, key=lambda each: each.seed)


def trained(context: Context) -> None:
    """A model trained for the task, with its checkpoints; interrupted, it goes on."""
    place = context.store.partial(context.unit.key)
    history = fitting_of(context.unit, context.bench.device).run(place)
    copy_linked(place, context.folder / CHECKPOINTS)
    history.insert(1, "data", history["dataset"].map(context.settings["names"]))
    context.write_tables({"training": history.rename(columns={"dataset": "role"})})


def describe(context: Context) -> None:
    """What the study works on, for ``config.json`` and the report."""
    inputs = context.inputs()
    model = inputs.model
    data = {
        role: {
            "name": encoded.examples.name,
            "n": len(encoded),
            "n_available": inputs.available[role],
            "n_cut": encoded.n_cut,
            "subsets": encoded.examples.subset_names,
            "fingerprint": encoded.fingerprint,
        }
        for role, encoded in inputs.data.items()
    }
    facts = {
        "kind": kind_of(model),
        "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
        **asdict(ModelShape.of(model)),
        "n_parameters": n_parameters(model),
        "class_labels": list(inputs.config.class_labels or class_names(model) or []),
        "identity": asdict(ModelIdentity.of(model)),
    }
    mapping = {role: inputs.readout(role).mapping for role in TEST_ROLES}
    write_json(context.folder / FACTS, {"model": facts, "data": data, "label_mapping": mapping})
    context.write_tables({"data": steps.data_table(inputs.data)})


def means(context: Context) -> None:
    """Mean activations on the training data."""
    inputs = context.inputs()
    MeanActivations.compute(inputs.model, inputs.data["train"]).save(context.folder / MEANS)


def pruned(context: Context) -> None:
    """Trainings of masks of one sparsity and some seeds, wherever they ended.

    Interrupted, it goes on from the last saving.
    """
    inputs, settings = context.inputs(), context.settings
    averages = context.means(inputs)
    state = context.store.partial(context.unit.key) / "masks.safetensors"

    # Which of them are accepted, and as which zeros and ones, is for `masks` to say.
    schedule = prune_settings(
        **settings["schedule"], tolerance=1.0, save_every=settings["save_every"]
    )

    def train() -> tuple[list[Subnetwork], Mapping[str, str]]:
        try:
            found = prune(
                inputs.model,
                inputs.data["train"],
                averages,
                sparsity=settings["target"],
                seeds=settings["seeds"],
                preset=schedule,
                data_seed=settings["data_seed"],
                state=state,
            )
        except PruningError as error:
            return error.finished, error.missing
        return found, {}

    try:
        found, diverged = train()
    except StateError as error:
        warnings.warn(
            f"{context.unit.name}: begun anew, as its unfinished state cannot be used: {error}",
            MechcoreWarning,
            stacklevel=2,
        )
        state.unlink(missing_ok=True)
        found, diverged = train()
    for each in found:
        each.save(context.folder / MASKS / f"{each.name}.safetensors")
    write_json(context.folder / MISSING, diverged)


def masks(context: Context) -> None:
    """The masks of trainings that reached their target; of the others, why they are missing."""
    settings, trained = context.settings, context.needed("trained")
    reading = prune_settings(**{name: settings[name] for name in READING})
    missing = json.loads((trained / MISSING).read_text(encoding="utf-8"))
    for each in subnetworks_in(trained):
        try:
            accepted(each, reading).save(context.folder / MASKS / f"{each.name}.safetensors")
        except OffTrackError as error:
            missing[each.name] = str(error)
    for name, why in missing.items():
        message = f"{context.unit.name}: {name} is missing: {why}"
        warnings.warn(message, MechcoreWarning, stacklevel=2)
    target = settings["target"]
    names = {subnetwork_name(target, seed): seed for seed in settings["seeds"]}
    rows = [
        {"subnetwork": name, "target_sparsity": target, "seed": seed, "reason": missing[name]}
        for name, seed in names.items()
        if name in missing
    ]
    write_json(context.folder / MISSING, rows)


def missing_in(folders: Iterable[Path]) -> pd.DataFrame:
    """The masks that units of `masks` lack.

    Returns:
        Columns subnetwork (the name it would have), target_sparsity, seed and reason.
    """
    rows = [
        row
        for folder in folders
        for row in json.loads((folder / MISSING).read_text(encoding="utf-8"))
    ]
    columns = ["subnetwork", "target_sparsity", "seed", "reason"]
    return pd.DataFrame(rows, columns=columns).sort_values(columns[1:3], ignore_index=True)


def answers(context: Context) -> None:
    """What the full model, or subnetworks, answer to the test data of one role."""
    inputs, role = context.inputs(), context.settings["role"]
    size = context.settings["batch_size"]
    if "subnetworks" in context.unit.needs:
        found = subnetworks_in(context.needed("subnetworks"))
        averages = context.means(inputs)
        answered = steps.evaluate_subnetworks(inputs, role, found, averages, size) if found else []
        named = dict(zip([each.name for each in found], answered, strict=True))
    else:
        named = {steps.FULL: steps.evaluate_full(inputs, role, size)}
    save_answers(context.folder / ANSWERS, named)


def accuracy(context: Context) -> None:
    """Tables of accuracies, and of masks that are missing."""
    found: list[Subnetwork] = []
    folders: list[Path] = []
    full: dict[str, Evaluation] = {}
    masked: dict[str, list[Evaluation]] = {role: [] for role in TEST_ROLES}
    for what in context.unit.needs:
        kind, _, rest = what.partition(" ")
        if kind == "masks":
            folders.append(context.needed(what))
            part = subnetworks_in(folders[-1])
            found += part
            for role in TEST_ROLES:
                named = load_answers(context.needed(f"answers {role} {rest}") / ANSWERS)
                masked[role] += [named[each.name] for each in part]
        elif kind == "full":
            full[rest] = load_answers(context.needed(what) / ANSWERS)[steps.FULL]
    order = sorted(range(len(found)), key=lambda i: (found[i].target, found[i].seed))
    context.write_tables(
        steps.answer_tables(
            full,
            [found[i] for i in order],
            {role: [each[i] for i in order] for role, each in masked.items()},
            context.settings["names"],
            context.settings["n_resamples"],
            context.settings["groups"],
        )
    )
    missing = missing_in(folders)
    if len(missing):
        context.write_tables({"missing_masks": missing})


def core(context: Context) -> None:
    """The heuristic core, and what else subnetworks share."""
    folders = [context.needed(what) for what in context.unit.needs]
    found = [each for folder in folders for each in subnetworks_in(folder)]
    if not found:
        raise MechcoreError(
            f"no mask reached its target: {'. '.join(missing_in(folders)['reason'])}"
        )
    found.sort(key=lambda each: (each.target, each.seed))
    _, tables = steps.core_tables(found)
    context.write_tables(tables)


def heads(context: Context) -> None:
    """What every head attends to."""
    inputs = context.inputs()
    table = steps.category_table(inputs.model, _sampled(context, inputs))
    table.to_parquet(context.folder / HEADS)


def pictures(context: Context) -> None:
    """Attention of the core's heads, and categories with the core marked."""
    inputs = context.inputs()
    members = context.table("core", "core")["component"].tolist()
    table = pd.read_parquet(context.needed("heads") / HEADS)
    table["in_core"] = table["component"].isin(members)
    shown = steps.attention_pictures(
        inputs, _sampled(context, inputs), table, parse_components(members)
    )
    write_json(context.folder / ATTENTION_FILE, shown)
    context.write_tables({"head_categories": table})


def _sampled(context: Context, inputs: Inputs) -> Any:
    settings = context.settings
    examples = inputs.data["id"].examples.sample(settings["max_examples"], settings["seed"])
    return inputs.encode(examples, words=True)


def ablation(context: Context) -> None:
    """Ablation of the core, alone and jointly, beside other heads."""
    inputs, settings = context.inputs(), context.settings
    members = context.table("core", "core")["component"].tolist()
    context.write_tables(
        core_ablation_tables(
            inputs,
            context.means(inputs),
            parse_components(members),
            max_joint=settings["max_joint"],
            max_non_core=settings["max_non_core"],
            seed=settings["seed"],
            batch_size=settings["batch_size"],
            n_resamples=settings["n_resamples"],
        )
    )


def sweep(context: Context) -> None:
    """Every component of a kind ablated alone."""
    inputs, settings = context.inputs(), context.settings
    shape = ModelShape.of(inputs.model)
    kinds = {ComponentSet((each,)): "single" for each in shape.kind(settings["components"])}
    tables, _ = sweep_tables(
        inputs,
        context.means(inputs),
        kinds,
        batch_size=settings["batch_size"],
        n_resamples=settings["n_resamples"],
        seed=settings["seed"],
    )
    context.write_tables({"sweep": tables["ablation"]})


def search(context: Context) -> None:
    """The sets that lose most beyond the sum of their members' losses."""
    inputs, settings = context.inputs(), context.settings
    role = settings["role"]
    shape = ModelShape.of(inputs.model)
    found = find_superadditive(
        inputs.model,
        inputs.data[role],
        context.means(inputs),
        components=shape.kind(settings["components"]),
        subset=settings["subset"],
        max_size=settings["max_size"],
        n_pairs=settings["n_pairs"],
        n_resamples=settings["n_resamples"],
        seed=settings["seed"],
        class_labels=inputs.config.class_labels,
        batch_size=settings["batch_size"],
        role=role,
    )
    context.write_tables({"superadditive": found.found, "screening": found.screening})


def sizes(context: Context) -> None:
    """Effective sizes over checkpoints, of the masks that there are."""
    settings = context.settings
    found = {step: context.table(str(step), "accuracy") for step in settings["checkpoints"]}
    lost = [
        read_table(path, COLUMNS["missing_masks"]).assign(checkpoint=step)
        for step in found
        if (path := context.needed(str(step)) / TABLES_FOLDER / "missing_masks.csv").is_file()
    ]
    missing = pd.concat(lost, ignore_index=True) if lost else None
    full, grid, groups = accuracies_by_checkpoint(found, settings["groups"])
    if grid.empty and missing is not None:
        raise MechcoreError(f"no mask reached its target: {'. '.join(missing['reason'])}")
    context.write_tables(size_tables(full, grid, groups, settings["margin"]))
    if missing is not None:
        columns = ["checkpoint", "subnetwork", "target_sparsity", "seed", "reason"]
        context.write_tables({"missing_grid_masks": missing[columns].astype({"seed": int})})


KINDS: Mapping[str, Callable[[Context], None]] = {
    "train": trained,
    "describe": describe,
    "means": means,
    "prune": pruned,
    "masks": masks,
    "answers": answers,
    "accuracy": accuracy,
    "core": core,
    "heads": heads,
    "pictures": pictures,
    "ablate": ablation,
    "sweep": sweep,
    "search": search,
    "sizes": sizes,
}


def perform(
    unit: Unit, store: Store, bench: Workbench, waiting: Callable[[], None] = lambda: None
) -> bool:
    """Do a unit unless it is done, by this process or meanwhile by another.

    Returns:
        Whether it was done here.

    Raises:
        MechcoreError: it failed; nothing of it stays but the state of its pruning.
    """
    with store.lock(unit.key, waiting):
        if store.has(unit.key):
            return False
        with store.making(unit.key, unit.kind, unit.name, unit.recipe) as folder:
            KINDS[unit.kind](Context(unit, folder, store, bench))
            if unit.model is not None:
                bench.check(unit)
        store.forget_partial(unit.key)
    return True
