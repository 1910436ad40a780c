"""What a lab works on: a model with its data, the plan of the main study, and its store."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mechcore.data.encoding import EncodedExamples
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.plan import Part, make_plan
from mechcore.main_study.study import STUDY
from mechcore.masking.means import MeanActivations
from mechcore.showing import Shown
from mechcore.steps.base import MEANS_FILE
from mechcore.steps.bench import CheckpointInput, DataInput, bench_of
from mechcore.steps.inputs import Inputs, data_name, open_model
from mechcore.study.engine import Jobs, perform
from mechcore.study.step import Input, Job, plain
from mechcore.study.store import Store


@dataclass(frozen=True, eq=False, repr=False)
class Opened(Shown):
    """The settings of the main study of a model and its data, and the store of its results.

    Whatever is asked is answered about the files as they were at the first question; data in
    memory are those that were there when the lab was opened.
    """

    config: StudyConfig
    store: Store
    _used: dict[str, Job] = field(default_factory=dict)
    _contents: dict[str, Any] = field(default_factory=dict)
    """What the files of model and data held at the first question."""

    def _summary(self) -> str:
        model = self.config.model
        name = model.source or f"embedded {model.embedded}"
        return f"{name}, results in {self.store.path}"

    # -- what it works on -----------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The TransformerLens model."""
        return self._opened.model

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self._opened.tokenizer

    @property
    def data(self) -> dict[str, EncodedExamples]:
        """The examples of each split, those that were drawn."""
        return self._inputs.data

    @property
    def means(self) -> MeanActivations:
        """The model's mean activations on the training data."""
        self._check_same()
        return self._means

    @property
    def _opened(self) -> Inputs:
        """The model, with its data if it has any."""
        self._check_same()
        return self._loaded

    @property
    def _inputs(self) -> Inputs:
        self._check_data()
        return self._opened

    @cached_property
    def _loaded(self) -> Inputs:
        place = self.config.resources.place
        if self._has_data:
            return bench_of(self.store, place).inputs(self.plan().jobs["describe"])
        inputs = open_model(self.config.model, device=place)
        self._check_same()
        return inputs

    @cached_property
    def _means(self) -> MeanActivations:
        (folder,) = self.done(self.plan().jobs["means"])
        return MeanActivations.load(folder / MEANS_FILE, self.model)

    def _check_same(self) -> None:
        """Make sure that the files of model and data are those of the first question.

        Raises:
            InputError: they are others. Of those that are gone nothing else could be answered.
        """
        config = self.config
        read: dict[str, Input] = {f"model {config.model.source}": CheckpointInput(config.model)}
        for split in SPLITS if self._has_data else ():
            name = f"{split} data {data_name(split, config.model, config.data)}"
            read[name] = DataInput(split, config.model, config.data)
        for name, what in read.items():
            with suppress(InputError, OSError):
                now = plain(what.content(self.store.hash_file))
                if self._contents.setdefault(name, now) != now:
                    break
        else:
            return
        raise InputError(
            f"lab: the files of {name} changed since the first question, and earlier answers are "
            "about what they held then; open a new lab (mechcore.open) to ask about what they hold "
            "now"
        )

    @property
    def _has_data(self) -> bool:
        data = self.config.data
        return self.config.model.source is None or data.task is not None or data.ood is not None

    def _check_data(self) -> None:
        if not self._has_data:
            raise InputError(
                "lab: opened without data; expected train, id and ood: "
                f"mechcore.open({self.config.model.source!r}, train=..., id=..., ood=...)"
            )

    def plan(self, **changes: Any) -> Part:
        """The plan of the main study, with changes of its settings."""
        self._check_data()
        self._check_same()
        (part,) = make_plan(replace(self.config, **changes), self.store.hash_file).parts
        return part

    def done(self, *jobs: Job) -> list[Path]:
        """The folders of jobs, which are done if need be."""
        wanted = self._used | {job.key: job for job in jobs}
        self.store.create()
        executor = STUDY.executor(self.config)
        perform(Jobs(list(wanted.values())), self.store, executor, self.store.path)
        self._used.update(wanted)  # not before: one that fails is not tried with every question
        return [self.store.whole(job.key) for job in jobs]


class ReportPath(type(Path())):  # type: ignore[misc]
    """The path of a report, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        href = quote(os.path.relpath(self).replace(os.sep, "/"))
        return f'<a href="{href}" target="_blank">{escape(str(self))}</a>'
