"""Steps that ask what subnetworks, heads and sets of components do, each from a model to tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from mechcore.ablation import find_superadditive
from mechcore.ablation.deciding import DECISIONS
from mechcore.ablation.predicting import INTERACTION_METHODS
from mechcore.ablation.search import FOUND, SCREENING, SUPERADDITIVE
from mechcore.ablation.settings import SCREENING_EXAMPLES
from mechcore.ablation.stability import SEARCH_STABILITY
from mechcore.attention.categories import registered_categories
from mechcore.attention.examples import ATTENTION_FILE
from mechcore.attention.labels import HEAD_CATEGORIES
from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import MechcoreError, warn
from mechcore.evaluation.evaluate import Evaluation
from mechcore.files import write_json
from mechcore.pruning import Subnetwork
from mechcore.steps import tables
from mechcore.steps.ablation import Ablating
from mechcore.steps.analyses_config import SearchConfig
from mechcore.steps.answers import load_answers, save_answers
from mechcore.steps.base import (
    ANSWERS_FILE,
    HEADS_FILE,
    SHARED,
    WITH_GRADIENT,
    MainStep,
    Size,
    core_of,
    inputs_of,
    means_of,
    subnetworks_in,
)
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.groups import GROUP_ACCURACY
from mechcore.steps.inputs import Inputs
from mechcore.steps.masks import (
    MISSING_GRID_MASKS,
    MISSING_MASKS,
    AcceptMasks,
    missing_in,
    no_mask,
)
from mechcore.steps.sizes import FULL_TABLE, GRID_TABLE, accuracies_by_checkpoint, size_tables
from mechcore.study.folder import TABLES_FOLDER
from mechcore.study.step import Job, Work
from mechcore.subnetworks.core import (
    ACCURACY_SPREAD,
    HEAD_FREQUENCY,
    HEAD_OVERLAP,
    JOINT_FREQUENCY,
)
from mechcore.subnetworks.effective_size import EFFECTIVE_SIZE, MEAN_EFFECTIVE_SIZE
from mechcore.subnetworks.smallest import SMALLEST, smallest_subnetworks
from mechcore.tables import Schema


@dataclass(frozen=True)
class Answers(MainStep):
    """What the full model, or the subnetworks that it needs, answer to test data."""

    kind: ClassVar[str] = "answers"
    role: str
    batch_size: int

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        masks = job.needs.get("subnetworks")
        n = len(masks.step.seeds) if masks and isinstance(masks.step, AcceptMasks) else 1
        return float(size.examples[self.role] * n)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        if "subnetworks" in work.job.needs:
            found = subnetworks_in(work.needed("subnetworks"))
            means, size = means_of(work, inputs), self.batch_size
            answered = (
                tables.evaluate_subnetworks(inputs, self.role, found, means, size) if found else []
            )
            named = dict(zip([each.name for each in found], answered, strict=True))
        else:
            named = {tables.FULL: tables.evaluate_full(inputs, self.role, self.batch_size)}
        save_answers(work.folder / ANSWERS_FILE, named)


@dataclass(frozen=True)
class Accuracy(MainStep):
    """Tables of accuracies, and of masks that are missing."""

    kind: ClassVar[str] = "accuracy"
    schemas: ClassVar[tuple[Schema, ...]] = (
        tables.ACCURACY,
        GROUP_ACCURACY,
        tables.SUBNETWORKS,
        ACCURACY_SPREAD,
        MISSING_MASKS,
    )
    names: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        found = answers_of(work)
        work.write_tables(
            tables.answer_tables(
                found.full, found.subnetworks, found.masked, self.names, self.groups
            )
        )
        missing = missing_in(found.folders)
        if len(missing):
            work.write_tables({"missing_masks": missing})


@dataclass(frozen=True)
class Answered:
    """All that models answered that a job needs, by role; subnetworks by target and seed."""

    full: dict[str, Evaluation]
    subnetworks: list[Subnetwork]
    masked: dict[str, list[Evaluation]]
    folders: list[Path]


def answers_of(work: Work) -> Answered:
    """The answers that the job needs."""
    found: list[Subnetwork] = []
    folders: list[Path] = []
    full: dict[str, Evaluation] = {}
    masked: dict[str, list[Evaluation]] = {role: [] for role in TEST_ROLES}
    for what in work.job.needs:
        kind, _, rest = what.partition(" ")
        if kind == "masks":
            folders.append(work.needed(what))
            part = subnetworks_in(folders[-1])
            found += part
            for role in TEST_ROLES:
                named = load_answers(work.needed(f"answers {role} {rest}") / ANSWERS_FILE)
                masked[role] += [named[each.name] for each in part]
        elif kind == "full":
            full[rest] = load_answers(work.needed(what) / ANSWERS_FILE)[tables.FULL]
    order = sorted(range(len(found)), key=lambda i: (found[i].target, found[i].seed))
    in_order = {role: [each[i] for i in order] for role, each in masked.items()}
    return Answered(full, [found[i] for i in order], in_order, folders)


@dataclass(frozen=True)
class Smallest(MainStep):
    """The smallest subnetwork within a loss, accepted as a share."""

    kind: ClassVar[str] = "smallest"
    schemas: ClassVar[tuple[Schema, ...]] = (SMALLEST,)
    loss: float
    n_resamples: int
    seed: int

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        found = answers_of(work)
        names = [each.name for each in found.subnetworks]
        table = smallest_subnetworks(
            {each.name: each.mask for each in found.subnetworks},
            found.full,
            {role: dict(zip(names, each, strict=True)) for role, each in found.masked.items()},
            self.loss,
            n_resamples=self.n_resamples,
            seed=self.seed,
        )
        work.write_tables({"smallest": table})


@dataclass(frozen=True)
class Core(MainStep):
    """The heuristic core, and what else the subnetworks that it needs share."""

    kind: ClassVar[str] = "core"
    schemas: ClassVar[tuple[Schema, ...]] = (
        tables.CORE,
        tables.CORE_SUMMARY,
        HEAD_FREQUENCY,
        JOINT_FREQUENCY,
        HEAD_OVERLAP,
    )

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        folders = [work.needed(what) for what in work.job.needs]
        found = [each for folder in folders for each in subnetworks_in(folder)]
        if not found:
            warn(
                "no mask reached its target, so there is no core; what follows is about the full "
                "model alone"
            )
            work.write_empty_tables()
            return
        found.sort(key=lambda each: (each.target, each.seed))
        work.write_tables(tables.core_tables(found)[1])


@dataclass(frozen=True)
class Heads(MainStep):
    """What every head attends to, on in-domain examples drawn by the seed."""

    kind: ClassVar[str] = "heads"
    roles: ClassVar[tuple[str, ...]] = ("id",)
    max_examples: int
    seed: int

    def settings(self) -> dict[str, Any]:
        """With the categories that there are."""
        known = [[each.name, each.causal_only] for each in registered_categories()]
        return {**super().settings(), "categories": known}

    def uses(self) -> list[object]:
        """The functions of the categories."""
        return [each.function for each in registered_categories()]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return float(min(self.max_examples, size.examples["id"]))

    def sampled(self, inputs: Inputs) -> EncodedExamples:
        """The examples, with their words."""
        examples = inputs.data["id"].examples.sample(self.max_examples, self.seed)
        return inputs.encode(examples, words=True)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        table = tables.category_table(inputs.model, self.sampled(inputs))
        table.to_parquet(work.folder / HEADS_FILE)


@dataclass(frozen=True)
class Pictures(Heads):
    """Attention of the core's heads, and categories with the core marked."""

    kind: ClassVar[str] = "pictures"
    schemas: ClassVar[tuple[Schema, ...]] = (HEAD_CATEGORIES,)
    needs: ClassVar[tuple[str, ...]] = ("core", "heads")

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs, core = inputs_of(work), core_of(work)
        table = pd.read_parquet(work.needed("heads") / HEADS_FILE)
        table["in_core"] = table["component"].isin([str(head) for head in core])
        shown = tables.attention_pictures(inputs, self.sampled(inputs), table, core)
        write_json(work.folder / ATTENTION_FILE, shown)
        work.write_tables({"head_categories": table})


RACED = 0.4
"""Share of its examples that a race is expected to need."""

OF_ALL_PAIRS = 0.3
"""Share of a pass that one of all pairs costs on the prefix tree: MiniLM, 6 layers."""


REPORTED = 2 * FOUND
"""Sets of a size that are ablated on the other half: those found, and members of theirs."""


@dataclass(frozen=True)
class Search(Ablating):
    """The sets that lose most beyond the sum of their members' losses."""

    kind: ClassVar[str] = "search"
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn",)
    schemas: ClassVar[tuple[Schema, ...]] = (
        SUPERADDITIVE,
        SCREENING,
        DECISIONS,
        SEARCH_STABILITY,
    )
    needs: ClassVar[tuple[str, ...]] = ("means",)
    n_resamples: int
    how: SearchConfig

    def uses(self) -> list[object]:
        """The fill, and the way to predict interactions."""
        return [*super().uses(), INTERACTION_METHODS[self.how.screening_by]]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        how, n_examples = self.how, size.examples[self.how.role]
        n = size.components(how.components)
        all_pairs, half = n * (n + 1) / 2, n_examples / 2
        grown = how.max_size - 1
        reported = SHARED * REPORTED * grown * half
        if how.all_pairs:
            larger = SHARED * how.n_pairs * (grown - 1)
            return (OF_ALL_PAIRS * all_pairs + larger) * half * RACED + reported
        per_example = {"screening": WITH_GRADIENT * (n + 1), "exact": SHARED * all_pairs}
        seen = min(SCREENING_EXAMPLES, half)
        share = 1.0 if how.guarantee is None else RACED
        measured = SHARED * how.n_pairs * grown * half * share
        return measured + per_example.get(how.screening_by, 0) * seen + reported

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs, how = inputs_of(work), self.how
        found = find_superadditive(
            inputs.model,
            inputs.data[how.role],
            means_of(work, inputs),
            components=ModelShape.of(inputs.model).kind(how.components),
            **how.options,
            fill=self.fill,
            n_resamples=self.n_resamples,
            seed=self.seed,
            class_names=inputs.config.class_names,
            batch_size=self.batch_size,
            role=how.role,
            state=work.partial,
        )
        work.write_tables(found.tables)


@dataclass(frozen=True)
class Sizes(MainStep):
    """Effective sizes over checkpoints, of the masks that there are; the tolerance is a share.

    ``checkpoints`` are the names of the needs that are their accuracies, in order.
    """

    kind: ClassVar[str] = "sizes"
    schemas: ClassVar[tuple[Schema, ...]] = (
        FULL_TABLE,
        GRID_TABLE,
        EFFECTIVE_SIZE,
        MEAN_EFFECTIVE_SIZE,
        MISSING_GRID_MASKS,
    )
    tolerance: float
    groups: Mapping[str, tuple[str, ...]]
    checkpoints: tuple[int | str, ...]

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        found = {step: work.table(str(step), "accuracy") for step in self.checkpoints}
        lost: list[pd.DataFrame] = []
        for step in self.checkpoints:
            path = work.needed(str(step)) / TABLES_FOLDER / "missing_masks.csv"
            if path.is_file():
                lost.append(MISSING_MASKS.read(path).assign(checkpoint=step))
        missing = pd.concat(lost, ignore_index=True) if lost else None
        kept = {step: _subnetworks(work, str(step)) for step in self.checkpoints}
        full, grid, groups = accuracies_by_checkpoint(found, self.groups, kept)
        if grid.empty and missing is not None:
            raise MechcoreError(no_mask(missing))
        work.write_tables(size_tables(full, grid, groups, self.tolerance))
        if missing is not None:
            columns = MISSING_GRID_MASKS.required
            work.write_tables({"missing_grid_masks": missing[columns].astype({"seed": int})})


def _subnetworks(work: Work, what: str) -> pd.DataFrame:
    """The table of that name, without a row where no mask was made."""
    path = work.needed(what) / TABLES_FOLDER / f"{tables.SUBNETWORKS.name}.csv"
    if path.is_file():
        return tables.SUBNETWORKS.read(path)
    return pd.DataFrame(columns=tables.SUBNETWORKS.names)
