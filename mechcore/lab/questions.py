"""One model with its data, and every question that can be asked of it in a line.

    lab = mechcore.open("my-bert-mnli", train=frame, id="dev.tsv", ood="mnli-hans")
    lab.roles()

Answers are those of the main study: its run store has their results, also those of an earlier lab
and of ``mechcore run --store``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from mechcore.ablation import ComponentSet
from mechcore.analyses import ANALYSES, question_names
from mechcore.attention import attention_examples
from mechcore.components import Component, ComponentLike
from mechcore.data.given import given_examples
from mechcore.errors import InputError, MechcoreError
from mechcore.lab.answers import Answer
from mechcore.lab.opened import Opened, ReportPath
from mechcore.models.encoded import encode_for
from mechcore.pruning.settings import as_runs
from mechcore.report.attention_views import AttentionView, attention_view
from mechcore.report.run_folder import RunFolder
from mechcore.settings import Entry, check, entries, with_values
from mechcore.steps.base import subnetworks_in
from mechcore.steps.masks import missing_in, no_mask
from mechcore.study.run import run_study
from mechcore.study.step import TABLES_FOLDER, plain

if TYPE_CHECKING:
    from mechcore.pruning import Subnetwork


class Lab(Opened):
    """What `open` gives: a model and its data, with a method for each analysis."""

    def ask(self, name: str, **settings: Any) -> Answer:
        """Answer a question, see `mechcore.analyses`; ``lab.roles()`` is ``lab.ask("roles")``.

        Args:
            name: of the analysis, one of mechcore or one that was added.
            settings: of the analysis, or of one that it needs, where they are others than those of
                the lab.

        Raises:
            InputError: there is no such analysis or setting, or a value cannot be used.
        """
        kind, owners = ANALYSES[name], _owners(name)
        if unknown := settings.keys() - owners.keys():
            expected = f"expected {', '.join(owners)}" if owners else "it has none"
            raise InputError(f"{name}: no setting {min(unknown)!r}; {expected}")
        changes: dict[str, Any] = {}
        for setting, value in settings.items():
            owner = owners[setting]
            base: Any = changes.get(owner) or getattr(self.config.analyses, owner)
            base = base or ANALYSES[owner]()
            value = written(value, entries(type(base))[setting])
            changes[owner] = replace(base, **{setting: value})
            check(changes[owner], owner)
        part = self.plan(analyses=with_values(self.config.analyses, changes), only=(name,))
        self.done(part.jobs[name])
        tables = {
            schema.name: schema.read(path)
            for job in part.jobs.values()
            for schema in job.step.schemas
            if (path := self.store.folder(job.key) / TABLES_FOLDER / f"{schema.name}.csv").is_file()
        }
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
        return self.ask("roles", **settings)

    def show_attention(
        self, text: str | tuple[str, str], heads: str | Sequence[ComponentLike]
    ) -> AttentionView:
        """The attention of heads on a text as it stands, or on a pair as the model reads it.

        Raises:
            InputError: it is neither a text nor a pair of them, or a head is out of range.
        """
        opened = self._opened
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
        sparsity: float | Sequence[float] | None = None,
        seeds: int | Sequence[int] | None = None,
    ) -> list[Subnetwork]:
        """Trained subnetworks by sparsity, then seed; by default those of the settings.

        Args:
            sparsity: shares of components to prune.
            seeds: one subnetwork each.

        Raises:
            InputError: a sparsity is outside [0, 1), or a seed is no whole number from 0.
            MechcoreError: no mask reached its target.
        """
        targets, numbers = as_runs(
            self.config.sparsities if sparsity is None else sparsity,
            self.config.seeds if seeds is None else seeds,
        )
        part = self.plan(sparsities=tuple(targets), seeds=tuple(numbers))
        folders = self.done(*part.masks)
        trained = [subnetwork for folder in folders for subnetwork in subnetworks_in(folder)]
        if not trained:
            raise MechcoreError(no_mask(missing_in(folders)))
        return sorted(trained, key=lambda subnetwork: (subnetwork.target, subnetwork.seed))

    def report(self, out: str | Path = "mechcore-report") -> ReportPath:
        """Do the whole main study into a folder; the path of its report, a link in notebooks."""
        self._check_data()
        self._check_same()
        (path,) = run_study(self.config, out, store=self.store.path)
        return ReportPath(path)


def _owners(name: str) -> dict[str, str]:
    """The settings that a question takes, each with the analysis that has it."""
    kind, owners = ANALYSES[name], dict[str, str]()
    for need in kind.needs:
        owners |= _owners(need) if need in ANALYSES else {}
    return owners if kind.always else owners | dict.fromkeys(entries(kind), name)


def written(value: Any, entry: Entry) -> Any:
    """A value as files have it: components by name, and a list also where only one is given."""
    if get_origin(entry.choices[0]) is not tuple or value is None:
        return value
    named = (str, Component, ComponentSet)
    several = value if isinstance(value, Iterable) and not isinstance(value, named) else [value]
    return tuple(str(each) if isinstance(each, named) else each for each in several)
