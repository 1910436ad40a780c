"""One model with its data, and a one-line method for each question about it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin
from urllib.parse import quote

from mechcore.ablation import ComponentSet
from mechcore.analyses import ANALYSES, question_names
from mechcore.analyses.roles import Roles
from mechcore.attention import attention_examples
from mechcore.components import Component, ComponentLike
from mechcore.data.encoding import EncodedExamples
from mechcore.data.given import EXPECTED, given_examples, given_sources, is_task
from mechcore.data.sources import Source
from mechcore.data.task import SPLITS, TASKS
from mechcore.errors import InputError, MechcoreError, shown
from mechcore.files import write_bytes
from mechcore.lab.answers import Answer
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.plan import Part, make_plan
from mechcore.main_study.study import STUDY
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import encode_for
from mechcore.pruning.settings import as_runs
from mechcore.report.attention_views import AttentionView, attention_view
from mechcore.report.run_folder import RunFolder
from mechcore.settings import Entry, entries, with_values
from mechcore.showing import Shown
from mechcore.steps.base import MEANS_FILE, subnetworks_in
from mechcore.steps.bench import DataInput, ModelInput, bench_of
from mechcore.steps.config import Embedded
from mechcore.steps.inputs import Inputs, data_name, open_model, resolved
from mechcore.steps.masks import missing_in, no_mask
from mechcore.study.engine import Study, perform
from mechcore.study.run import run_study
from mechcore.study.step import TABLES_FOLDER, Input, Job, plain
from mechcore.study.store import Store

if TYPE_CHECKING:
    from mechcore.pruning import Subnetwork


@dataclass(frozen=True, eq=False, repr=False)
class Lab(Shown):
    """A model and its data, made by `open`; answers refer to its files at the first question."""

    config: StudyConfig
    store: Store
    _used: dict[str, Job] = field(default_factory=dict)
    _contents: dict[str, Any] = field(default_factory=dict)
    """What the files of model and data held at the first question."""

    def _summary(self) -> str:
        model = self.config.model
        name = model.source or f"embedded {model.embedded}"
        return f"{name}, results in {self.store.path}"

    def ask(self, name: str, **settings: Any) -> Answer:
        """Answer a question, with its settings or those of its needs; raises `InputError`."""
        kind, owners = ANALYSES[name], _owners(name)
        if unknown := settings.keys() - owners.keys():
            expected = f"expected {', '.join(owners)}" if owners else "it has none"
            raise InputError(f"{name}: no setting {min(unknown)!r}; {expected}")
        analyses = self.config.analyses
        for setting, value in settings.items():
            base: Any = getattr(analyses, owners[setting]) or ANALYSES[owners[setting]]()
            changed = replace(base, **{setting: written(value, entries(type(base))[setting])})
            analyses = with_values(analyses, {owners[setting]: changed})
        part = self.plan(analyses=analyses, only=(name,))
        self.done(part.jobs[name])
        tables = {}
        for job in part.jobs.values():
            for schema in job.step.schemas:
                path = self.store.folder(job.key) / TABLES_FOLDER / f"{schema.name}.csv"
                if path.is_file():
                    tables[schema.name] = schema.read(path)
        config = {"settings": plain(part.config), "model": {"source": self.config.model.source}}
        return Answer(kind, RunFolder(Path(), config, tables))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in question_names():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self.ask, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *question_names()})

    def blame(self, **settings: Any) -> Answer:
        """``lab.roles()`` by a friendlier name: which components are to blame?"""
        return self.ask(Roles.kind, **settings)

    def show_attention(
        self, text: str | tuple[str, str], heads: str | Sequence[ComponentLike]
    ) -> AttentionView:
        """The attention of heads on a text as it stands, or on a pair as the model reads it."""
        self._check_same()
        opened = self._inputs
        examples = given_examples([text], "id", labelled=False)
        if examples is None:
            raise InputError(
                f"show_attention: found {text!r}; expected a text, or a pair of them such as "
                '("The cat sat.", "A cat sat.")'
            )
        prompt = None if isinstance(text, str) else opened.config.prompt
        encoded = encode_for(opened.model, opened.tokenizer, examples, prompt=prompt, words=True)
        named: Any = heads.split("+") if isinstance(heads, str) else heads
        return attention_view(attention_examples(opened.model, encoded, opened.tokenizer, named))

    def subnetworks(
        self,
        target_sparsities: float | Sequence[float] | None = None,
        seeds: int | Sequence[int] | None = None,
    ) -> list[Subnetwork]:
        """Trained subnetworks for shares to prune and seeds; by default those of the settings.

        Raises `InputError` if they are invalid, `MechcoreError` if no mask reached its target.
        """
        shares, numbers = as_runs(
            self.config.target_sparsities if target_sparsities is None else target_sparsities,
            self.config.seeds if seeds is None else seeds,
        )
        part = self.plan(target_sparsities=tuple(shares), seeds=tuple(numbers))
        folders = self.done(*part.masks)
        if trained := subnetworks_in(*folders):
            return trained
        raise MechcoreError(no_mask(missing_in(folders)))

    def report(self, out: str | Path = "mechcore-report") -> ReportPath:
        """Run the whole main study into a folder; return its report's path, a notebook link."""
        self._check_data()
        (path,) = run_study(self.config, out, store=self.store.path)
        return ReportPath(path)

    @property
    def model(self) -> Any:
        """The TransformerLens model."""
        self._check_same()
        return self._inputs.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        self._check_same()
        return self._inputs.tokenizer

    @property
    def data(self) -> dict[str, EncodedExamples]:
        """The drawn examples of each split."""
        self._check_data()
        return self._inputs.data

    @property
    def means(self) -> MeanActivations:
        """The model's mean activations on the training data."""
        (folder,) = self.done(self.plan().jobs["means"])
        return MeanActivations.load(folder / MEANS_FILE, self.model)

    @cached_property
    def _inputs(self) -> Inputs:
        place = self.config.resources.place
        if self._has_data:
            return bench_of(self.store, place).inputs(self.plan().jobs["describe"])
        inputs = open_model(self.config.model, device=place)
        self._check_same()
        return inputs

    def _check_same(self) -> None:
        model, data = self.config.model, self.config.data
        read: dict[str, Input] = {f"model {model.source}": ModelInput(model)}
        for split in SPLITS if self._has_data else ():
            read[f"{split} data {data_name(split, model, data)}"] = DataInput(split, model, data)
        for name, what in read.items():
            try:
                now = plain(what.content(self.store.hash_file))
            except (InputError, OSError):
                continue  # of files that are gone nothing else could be answered
            if self._contents.setdefault(name, now) != now:
                raise InputError(
                    f"lab: the files of {name} changed since the first question, so earlier "
                    "answers are about their old content; open a new lab (mechcore.open)"
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
        self._check_same()

    def plan(self, **changes: Any) -> Part:
        """The plan of the main study with changed settings."""
        self._check_data()
        (part,) = make_plan(replace(self.config, **changes), self.store.hash_file).parts
        return part

    def done(self, *jobs: Job) -> list[Path]:
        """The folders of jobs, run first if needed."""
        wanted = self._used | {job.key: job for job in jobs}
        self.store.create()
        executor = STUDY.executor(self.config)
        perform(Study([*wanted.values()]), self.store, executor, self.store.path)
        self._used.update(wanted)  # not before: one that fails is not tried with every question
        return [self.store.whole(job.key) for job in jobs]


class ReportPath(type(Path())):  # type: ignore[misc]
    """The path of a report, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        href = quote(os.path.relpath(self).replace(os.sep, "/"))
        return f'<a href="{href}" target="_blank">{escape(str(self))}</a>'


def _owners(name: str) -> dict[str, str]:
    kind, owners = ANALYSES[name], dict[str, str]()
    for need in kind.needs:
        owners |= _owners(need) if need in ANALYSES else {}
    return owners if kind.always else owners | dict.fromkeys(entries(kind), name)


def written(value: Any, entry: Entry) -> Any:
    """A value in the form used in files: components by name, single values as lists."""
    if get_origin(entry.choices[0]) is not tuple or value is None:
        return value
    named = (str, Component, ComponentSet)
    several = value if isinstance(value, Iterable) and not isinstance(value, named) else [value]
    return tuple(str(item) if isinstance(item, named) else item for item in several)


EMBEDDED: dict[str, Embedded] = {
    "embedded": "encoder",
    "embedded-encoder": "encoder",
    "embedded-failing": "failing",
    "embedded-decoder": "decoder",
}

STORE = "mechcore-store"


def open(
    checkpoint: str | Path,
    train: Any = None,
    id: Any = None,
    ood: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[Any, str] | None = None,
    store: str | Path = STORE,
    prompt: str | None = None,
    answers: Mapping[str, str] | None = None,
    settings: StudyConfig | None = None,
) -> Lab:
    """A model and its data, ready for questions; nothing is loaded yet.

    ``checkpoint`` is a directory in Hugging Face format, a hub id, or one that comes with mechcore:
    ``"embedded"``, ``"embedded-failing"`` or ``"embedded-decoder"``. ``train`` and the test data
    ``id`` and ``ood`` are examples of any form (`mechcore.data.given`); the name of a task as
    ``train`` stands for all three. ``columns`` says which column serves as ``text_a``, ``text_b``,
    ``label``, ``subset`` or ``cluster`` if its name differs, ``label_map`` what labels mean, such
    as ``{0: "entailment"}``. ``store`` is shared with other labs and ``mechcore run --store``. For
    a language model, ``prompt`` is text with ``{a}`` and ``{b}``, and ``answers`` has the answer of
    each label, of one token or several. ``settings`` are any others. An `InputError` says that
    there is no checkpoint, or that data or the store cannot be used.
    """
    if not isinstance(checkpoint, (str, Path)):
        raise InputError(
            f"open: checkpoint is a {type(checkpoint).__name__}; expected a directory or a hub id "
            "(functions such as mechcore.ablation.sweep take a loaded model)"
        )
    config = settings or StudyConfig()
    if config.variants or config.training is not None:
        raise InputError(
            "open: settings contain variants or training; expected one trained model; run such "
            "studies with mechcore.study.run.run_study"
        )
    given = {"train": train, "id": id, "ood": ood}
    missing = [split for split in SPLITS if given[split] is None]
    task = is_task(train) and len(missing) == 2
    if not task and 0 < len(missing) < len(SPLITS):
        raise InputError(
            f"open: {' and '.join(missing)} missing; expected data of all three splits"
            + f", or one of the tasks {', '.join(TASKS)}" * (len(missing) == 2)
        )
    embedded, no_data = EMBEDDED.get(str(checkpoint)), len(missing) == len(SPLITS)
    if embedded is not None and no_data and (columns or label_map):
        raise InputError(
            "open: columns and label_map apply to your own data, but the embedded model uses "
            "its own; name data (train, id, ood), or leave them out"
        )
    model = replace(config.model, source=str(checkpoint))
    if embedded is not None:
        model = replace(model, source=None, embedded=embedded)
        model = model if no_data else resolved(model)
    if prompt is not None or answers is not None:
        model = replace(model, prompt=prompt, answers=answers)
    kept = Store(Path(store).expanduser().absolute())  # whatever the working directory later
    known = config.data
    named = {**known.columns, **(columns or {})}
    meant = {**known.label_map, **{str(name): label for name, label in (label_map or {}).items()}}
    sources: dict[str, Any] = {"task": str(train)} if task else {}
    if not missing:
        sources = {split: _sources(data, split, named, kept) for split, data in given.items()}
    data = replace(known, columns=named, label_map=meant, **sources)
    return Lab(STUDY.located(replace(config, model=model, data=data), Path.cwd()), kept)


def _sources(data: Any, split: str, columns: Mapping[str, str], store: Store) -> tuple[Source, ...]:
    """Sources of a split's examples; those in memory are written to the store by content hash."""
    if sources := given_sources(data, split):
        return sources
    if isinstance(data, EncodedExamples):
        data = data.examples
    examples = given_examples(data, split, columns=columns, labelled=split != "train")
    if examples is None:
        raise InputError(
            f"{split} data: found {shown(repr(data))} ({type(data).__name__}); expected {EXPECTED}"
        )
    frame = examples.frame.loc[:, (examples.frame != "").any()]
    content = frame.to_parquet(index=False)
    path = store.path / "examples" / sha256(content).hexdigest()[:16] / f"{split}.parquet"
    if not path.exists():
        store.create()
        write_bytes(path, content)
    columns = {name: name for name in map(str, frame)}
    return (Source(path=str(path.resolve()), columns=columns),)
