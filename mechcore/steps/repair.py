"""The ladder of repairs as a study does it: from its inputs to tables and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mechcore.ablation.effects.failure import label_names
from mechcore.masking.means import MeanActivations
from mechcore.repair.fitting import Settings
from mechcore.repair.ladder import MOST_TESTED, Labelled, Ladder, check_rungs, runs_of
from mechcore.repair.model import RepairableModel
from mechcore.repair.outcome import (
    REPAIR_TRANSFER,
    choices_table,
    gates_table,
    repair_table,
)
from mechcore.repair.rungs import RUNGS
from mechcore.steps.inputs import Inputs

if TYPE_CHECKING:
    from mechcore.analyses.repair import Repair

CHECKPOINTS = "repaired"
_MOST_SUBSETS = 40  # subsets in the transfer matrix


def labelled(inputs: Inputs, split: str, *, seed: int | None = None) -> Labelled:
    """The examples of a split, with what is correct; with a seed, as many as are tested at most."""
    data = inputs.data[split]
    if seed is not None:
        data = data.part(data.examples.sample_rows(MOST_TESTED, seed))
    return Labelled(data, inputs.readout(split).correct_classes(data))


def repair_tables(
    step: Repair, inputs: Inputs, means: MeanActivations, folder: Path, partial: Path
) -> dict[str, pd.DataFrame]:
    """All tables of the ladder; ``folder`` gets rungs to save, ``partial`` runs that are done."""
    rungs = check_rungs(step.rungs)
    gated = any(RUNGS[name].gated for name in (*rungs, *step.save))
    source, how = str(inputs.config.source), (means if gated else None, inputs.config.revision)
    model = RepairableModel(inputs.model, source, inputs.tokenizer, *how)
    outside, inside = labelled(inputs, "ood"), labelled(inputs, "id", seed=step.seed)
    train = inputs.data["train"]
    guard = train.part(train.examples.sample_rows(step.guard_examples, step.seed))
    settings = Settings(step.steps, guard=step.guard, seed=step.seed)
    ladder = Ladder(model, outside, inside, guard, settings)
    plan = runs_of(outside, step.examples, step.draws, step.folds, step.seed, len(inside.data))
    done = list(ladder.outcomes(plan, rungs, partial))
    names: dict[str, Sequence[str]] = {
        split: label_names(of.correct.numpy(), of.data.examples.frame["label"].tolist())
        for split, of in (("ood", outside), ("id", inside))
    }
    tables = {
        "repair": repair_table(done, outside, inside, names, least=step.least),
        "repair_choices": choices_table(done),
    }
    most = max(step.examples)
    if "gates" in rungs:
        largest = [o for o in done if o.run.n_examples == most]
        tables["repair_gates"] = gates_table(largest, model.shape.components, model.shape.index)
    subsets = np.unique(outside.data.examples.frame["subset"].astype(str))
    if 1 < len(subsets) <= _MOST_SUBSETS:
        changes = pd.DataFrame(ladder.transfer(most), subsets, subsets).stack(future_stack=True)
        tables["repair_transfer"] = changes.reset_index().set_axis(REPAIR_TRANSFER.names, axis=1)
    if step.save:
        (run,) = runs_of(outside, [most], 1, 1, step.seed, len(inside.data))
        fitting = ladder.fitting(run.repair)
        for name in step.save:
            facts = {"repair": name, "source": source, "examples": most}
            model.save(fitting.fit(name).weights, folder / CHECKPOINTS / name, facts)
    return tables
