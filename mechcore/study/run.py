"""The main job: a checkpoint and its data in, tables, figures and a report out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from mechcore.components import Component, ModelShape
from mechcore.files import write_json
from mechcore.means import MeanActivations
from mechcore.models.running import ModelIdentity, class_names, kind_of, weights_of
from mechcore.pruning import Subnetwork, subnetwork_name
from mechcore.report import build_report
from mechcore.study import steps
from mechcore.study.ablation import core_ablation_tables
from mechcore.study.comparison import find_subnetworks
from mechcore.study.config import RunConfig
from mechcore.study.folder import IfExists, RunFolder, check_folder, open_folder
from mechcore.study.inputs import Inputs, load_inputs

ALL_ROLES = ("train", "id", "ood")


def run(config: RunConfig, out: str | Path, *, if_exists: IfExists = "fail") -> Path:
    """Evaluate, prune, find the core, categorise heads, ablate, and report.

    Everything is checked before anything is written; every file is written atomically; a step
    that has finished is not repeated when the run is resumed, and pruning goes on from the step
    last saved.

    Args:
        config: what to do.
        out: folder for the results.
        if_exists: what to do if ``out`` is not empty: fail, finish the interrupted run in it, or
            overwrite the run in it.

    Returns:
        The report's path.

    Raises:
        InputError: the configuration, a file or the folder cannot be used.
        MechcoreError: a step failed.
    """
    inputs, folder = _open(config, Path(out), if_exists)
    means, subnetworks = _pruned(config, inputs, folder)
    core = _core(folder, subnetworks)
    _heads(config, inputs, folder, core)
    _ablation(config, inputs, folder, means, core)
    return build_report(folder.path)


def run_pruning(config: RunConfig, out: str | Path, *, if_exists: IfExists = "fail") -> RunFolder:
    """The beginning of `run`, up to the accuracies of the subnetworks; `run` can resume it."""
    inputs, folder = _open(config, Path(out), if_exists)
    _pruned(config, inputs, folder)
    return folder


def _open(config: RunConfig, out: Path, if_exists: IfExists) -> tuple[Inputs, RunFolder]:
    resumed = check_folder(out, if_exists, config)
    inputs = load_inputs(config.model, config.data, ALL_ROLES)
    return inputs, open_folder(out, config, resumed, _facts(inputs))


def _pruned(
    config: RunConfig, inputs: Inputs, folder: RunFolder
) -> tuple[MeanActivations, list[Subnetwork]]:
    means = _means(inputs, folder)
    subnetworks = _subnetworks(config, inputs, folder, means)
    _accuracy(config, inputs, folder, means, subnetworks)
    return means, subnetworks


def _means(inputs: Inputs, folder: RunFolder) -> MeanActivations:
    if not folder.is_done("means"):
        with folder.step("means"):
            MeanActivations.compute(inputs.model, inputs.data["train"]).save(folder.means)
    return MeanActivations.load(folder.means, inputs.model)


def _subnetworks(
    config: RunConfig, inputs: Inputs, folder: RunFolder, means: MeanActivations
) -> list[Subnetwork]:
    if not folder.is_done("prune"):
        with folder.step("prune"):
            find_subnetworks("l0", config, inputs, means, folder.masks, state=folder.pruning)
    return [
        Subnetwork.load(folder.masks / f"{subnetwork_name(target, seed)}.safetensors")
        for target in sorted(config.sparsities)
        for seed in sorted(config.seeds)
    ]


def _accuracy(
    config: RunConfig,
    inputs: Inputs,
    folder: RunFolder,
    means: MeanActivations,
    subnetworks: list[Subnetwork],
) -> None:
    if folder.is_done("evaluate"):
        return
    with folder.step("evaluate"):
        folder.write_tables(
            steps.accuracy_tables(
                inputs,
                subnetworks,
                means,
                batch_size=config.batch_size,
                n_resamples=config.n_resamples,
            )
        )


def _core(folder: RunFolder, subnetworks: list[Subnetwork]) -> tuple[Component, ...]:
    core, tables = steps.core_tables(subnetworks)
    if not folder.is_done("core"):
        with folder.step("core"):
            folder.write_tables(tables)
    return core.heads


def _heads(
    config: RunConfig, inputs: Inputs, folder: RunFolder, core: tuple[Component, ...]
) -> None:
    if folder.is_done("heads"):
        return
    with folder.step("heads"):
        examples = inputs.data["id"].examples.sample(config.max_heads_examples, config.data.seed)
        texts = inputs.encode(examples, words=True)
        categories = steps.category_table(inputs.model, texts, core)
        shown = steps.attention_pictures(inputs, texts, categories, core)
        write_json(folder.path / "attention_examples.json", shown)
        folder.write_tables({"head_categories": categories})


def _ablation(
    config: RunConfig,
    inputs: Inputs,
    folder: RunFolder,
    means: MeanActivations,
    core: tuple[Component, ...],
) -> None:
    if folder.is_done("ablate"):
        return
    with folder.step("ablate"):
        folder.write_tables(
            core_ablation_tables(
                inputs,
                means,
                core,
                max_joint=config.max_joint,
                max_non_core=config.max_non_core,
                seed=config.data.seed,
                batch_size=config.batch_size,
                n_resamples=config.n_resamples,
            )
        )


def _facts(inputs: Inputs) -> dict[str, Any]:
    """What the run works on, for ``config.json`` and the report."""
    model = inputs.model
    data = {
        role: {
            "name": encoded.examples.name,
            "n": len(encoded),
            "n_available": inputs.available[role],
            "subsets": encoded.examples.subset_names,
            "fingerprint": encoded.fingerprint,
        }
        for role, encoded in inputs.data.items()
    }
    return {
        "model": {
            "source": inputs.config.source,
            "kind": kind_of(model),
            "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
            **asdict(ModelShape.of(model)),
            "n_parameters": sum(p.numel() for p in weights_of(model).parameters()),
            "class_labels": list(inputs.config.class_labels or class_names(model) or []),
            "identity": asdict(ModelIdentity.of(model)),
        },
        "data": data,
        "label_mapping": {role: inputs.readout(role).mapping for role in steps.ROLES},
    }
