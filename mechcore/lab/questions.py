"""One model with its data, and every question that can be asked of it in a line.

    lab = mechcore.open("my-bert-mnli", train=frame, id="dev.tsv", ood="mnli-hans")
    lab.blame()

What takes long are steps of the main study: their results lie in its run store, where ``mechcore
run --store`` finds them, and the lab finds what that has done. The rest calls the functions that
it is named after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mechcore.ablation import (
    Ablations,
    ComponentSet,
    RoleSettings,
    ablate,
    ablation_table,
    component_roles,
    confirm_roles,
    information_table,
    interactions,
    sets,
)
from mechcore.ablation.flips import FLIPS
from mechcore.ablation.information import INFORMATION
from mechcore.ablation.settings import OOD_MEAN
from mechcore.analyses import ANALYSES, question_names
from mechcore.analyses.sweep import Sweep
from mechcore.attention import attention_examples
from mechcore.components import Component, ComponentLike, ModelShape
from mechcore.components.paths import ReceiverLike
from mechcore.data.examples import ALL
from mechcore.data.given import given_examples
from mechcore.errors import InputError, MechcoreError
from mechcore.lab.answers import Answer
from mechcore.lab.opened import Opened, Planned, ReportPath
from mechcore.lab.subnetworks import Pruned, Smallest
from mechcore.main_study.config import StudyConfig
from mechcore.masking.fills import FILLS
from mechcore.models.encoded import encode_for
from mechcore.paths import path_table
from mechcore.paths.dependence import CORE_DEPENDENCE
from mechcore.pruning.settings import as_runs
from mechcore.report.attention_views import AttentionView, attention_view
from mechcore.report.run_folder import RunFolder
from mechcore.settings import check, entries, with_values
from mechcore.steps.ablation import INFORMATION_OOD_MEAN, known_groups, swept_answers
from mechcore.steps.base import HEADS_FILE, subnetworks_in
from mechcore.steps.masks import missing_in, no_mask
from mechcore.steps.tables import accuracy_table, evaluate_full
from mechcore.study.folder import TABLES_FOLDER
from mechcore.study.run import run_study
from mechcore.study.step import plain
from mechcore.tables import Schema
from mechcore.wording import OUT_FIRST


class Lab(Opened):
    """What `open` gives: questions about a model and its data, a method each."""

    def ask(self, name: str, **settings: Any) -> Answer:
        """Answer a question, see `mechcore.analyses`; ``lab.roles()`` is ``lab.ask("roles")``.

        Args:
            name: of the analysis, one of mechcore or one that was added.
            settings: of the analysis, where they are others than those of the lab.

        Raises:
            InputError: there is no such analysis or setting, or a value cannot be used.
        """
        kind, changes = ANALYSES[name], {}
        if not kind.always:
            base: Any = getattr(self.config.analyses, name, None) or kind()
            if unknown := settings.keys() - entries(kind):
                raise InputError(
                    f"{name}: no setting {min(unknown)!r}; expected {', '.join(entries(kind))}"
                )
            changes = {name: replace(base, **settings)}
            check(changes[name], name)
        analyses = with_values(self.config.analyses, changes)
        part = self.plan(analyses=analyses, only=(name,))
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

    def accuracy(self) -> pd.DataFrame:
        """Accuracy of the whole model on every subset, out of domain first.

        Returns:
            A row per data set and subset: n, accuracy with the ends of its 95 % interval (shares),
            and the mean margin (nats).
        """
        inputs, size = self._inputs, self.config.batch_size
        full = {role: evaluate_full(inputs, role, size) for role in OUT_FIRST}
        names = {role: data.examples.name for role, data in inputs.data.items()}
        table = accuracy_table(full, [], {role: [] for role in full}, names)
        outside = table["role"] == "ood"
        return pd.concat([table[outside], table[~outside]], ignore_index=True)[_ACCURACY]

    def blame(self, subset: str = ALL, settings: RoleSettings | None = None) -> pd.DataFrame:
        """What each component alone is needed for, those that matter most out of domain first.

        Args:
            subset: of the out-of-domain data, or a group of subsets.
            settings: how roles are judged.

        Returns:
            The columns of `mechcore.ablation.component_roles`, and of
            `mechcore.ablation.confirm_roles` what holds on the half that did not select it.
        """
        if not isinstance(settings, (RoleSettings, type(None))):
            raise InputError(
                f"blame: settings are a {type(settings).__name__}; expected RoleSettings of "
                "mechcore, as in RoleSettings(alpha=0.1)"
            )
        table = self._swept("sweep", INFORMATION)
        known = table.loc[table["role"] == "ood", "subset"].unique().tolist()
        if subset not in known:
            raise InputError(f"blame: no subset {subset!r}; the data has {', '.join(known)}")
        inside = table[(table["role"] == "id") & (table["subset"] == ALL)]
        outside = table[(table["role"] == "ood") & (table["subset"] == subset)]
        own = None
        if OOD_MEAN in self._asked("sweep").jobs:
            own = self._swept("sweep", INFORMATION_OOD_MEAN).query("subset == @subset")
        settings = settings or self.config.analyses.roles or RoleSettings()
        roles = component_roles(inside, outside, settings, ood_mean=own)
        job = self._asked("sweep").jobs["sweep"]
        assert isinstance(job.step, Sweep)
        folders = dict(zip(job.needs, self.done(*job.needs.values()), strict=True))
        answers = swept_answers(folders, job.step.names)
        roles = confirm_roles(
            roles,
            answers,
            settings,
            subset=subset,
            groups=known_groups(answers["ood"], job.step.groups),
            seed=job.step.seed,
        )
        return roles.sort_values("information_change_ood", ignore_index=True)

    def flips(self, component: ComponentLike) -> pd.DataFrame:
        """Examples whose answer flips without a component alone, see `mechcore.ablation.flips`.

        Args:
            component: such as ``"L3.H5"``; look at the head with `show_attention`.

        Returns:
            The columns of `mechcore.ablation.flip_table`; no row where no answer flips.
        """
        wanted = Component.parse(component)
        sweep = self.config.analyses.sweep or Sweep()
        swept = ModelShape.of(self.model).kind(sweep.components)
        if wanted not in swept:
            raise InputError(
                f"flips: {wanted} was not ablated; expected one of {len(swept)} components from "
                f"{swept[0]} to {swept[-1]}"
            )
        table = self._swept("flips", FLIPS)
        return table[table["component"] == str(wanted)].reset_index(drop=True)

    def ablate(
        self, *components: str | Sequence[ComponentLike], fill: str | None = None
    ) -> pd.DataFrame:
        """What each set of components costs, out of domain and in domain.

        Args:
            components: sets: ``"L3.H5"``, ``"L3.H5+L1.H0"`` or ``["L3.H5", "L1.H0"]``.
            fill: what replaces their outputs, such as ``"zero"``; by default that of the settings.

        Returns:
            A row per set, data and subset: the columns of `mechcore.ablation.ablation_table`, and
            the changes in information and by a moved threshold of
            `mechcore.ablation.information_table`.

        Raises:
            InputError: there is no set, or a component is out of range.
        """
        if not all(len(each) if isinstance(each, Sized) else 1 for each in components or ((),)):
            raise InputError("ablate: no set; expected at least one, as in lab.ablate('L3.H5')")
        found = self._ablated(components, fill).values()
        return pd.concat([_costs(each, **self.statistics) for each in found], ignore_index=True)

    def interaction(self, *components: ComponentLike, fill: str | None = None) -> pd.DataFrame:
        """What components cost together beyond what each costs alone: above 0, they are redundant.

        Args:
            components: two or more.
            fill: see `ablate`.

        Returns:
            The columns of `mechcore.interactions`, out of domain first.
        """
        joint = ComponentSet.of([_members(each) for each in components])
        if len(joint) < 2:
            raise InputError(f"interaction: found {joint}; expected two components or more")
        found = self._ablated([*(ComponentSet((each,)) for each in joint.components), joint], fill)
        tables = [interactions(each, **self.statistics) for each in found.values()]
        return pd.concat(tables, ignore_index=True)

    def paths(
        self,
        senders: str | Sequence[ComponentLike],
        receivers: str | Sequence[ReceiverLike] = "all",
        *,
        fill: str | None = None,
        **options: Any,
    ) -> pd.DataFrame:
        """What is lost when each receiver alone does not see the senders.

        Args:
            senders: ``"L1.H1+L2.H9"``, components, or ``"heads"``, ``"mlps"`` or ``"all"``.
            receivers: likewise; also ``"answer"``.
            fill: see `ablate`.
            options: of `mechcore.ablation.sets.paths`: ``inputs`` of heads, ``together``.

        Returns:
            As `ablate`, with the columns senders, receiver and input; out of domain first.
        """
        of, to = _members(senders), _members(receivers)
        found = self._ablated(sets.paths(of, to, self.model, **options), fill).values()
        tables = [_costs(each, path_table, **self.statistics) for each in found]
        return pd.concat(tables, ignore_index=True)

    def readers(self) -> pd.DataFrame:
        """How much of what each component does depends on the core, see `mechcore.paths`.

        Returns:
            The columns of `mechcore.paths.core_dependence_table`; no row if the core is empty.
        """
        return self._swept("paths", CORE_DEPENDENCE)

    def heads(self) -> pd.DataFrame:
        """What every head attends to, see `mechcore.categorize_heads`."""
        heads = self.config.analyses.heads
        if heads is None:
            raise InputError("heads: settings leave this analysis out (analyses: heads)")
        jobs = self.plan(analyses=with_values(StudyConfig().analyses, {"heads": heads})).jobs
        (folder,) = self.done(jobs["scores"])
        return pd.read_parquet(folder / HEADS_FILE)

    def show_attention(
        self, text: str | tuple[str, str], heads: str | Sequence[ComponentLike]
    ) -> AttentionView:
        """The attention of heads on a text as it stands, or on a pair as the model reads it.

        Raises:
            InputError: it is neither a text nor a pair of them, or a head is out of range.
        """
        found = self._opened
        examples = given_examples([text], "id", labelled=False)
        if examples is None:
            raise InputError(
                f"show_attention: found {text!r}; expected a text, or a pair of them such as "
                '("The cat sat.", "A cat sat.")'
            )
        prompt = None if isinstance(text, str) else found.config.prompt
        encoded = encode_for(found.model, found.tokenizer, examples, prompt=prompt, words=True)
        named = _members(heads)
        return attention_view(attention_examples(found.model, encoded, found.tokenizer, named))

    def prune(
        self,
        sparsity: float | Sequence[float] | None = None,
        seeds: int | Sequence[int] | None = None,
    ) -> Pruned:
        """Subnetworks, by default of the sparsities and seeds of the settings.

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
        self.done(*part.masks, part.jobs["core"])
        folders = [self.store.whole(job.key) for job in part.masks]
        found = [each for folder in folders for each in subnetworks_in(folder)]
        if not found:
            raise MechcoreError(no_mask(missing_in(folders)))
        return Pruned(self, part, sorted(found, key=lambda each: (each.target, each.seed)))

    def smallest(
        self, loss: float = 0.01, by: Literal["accuracy", "information"] = "accuracy"
    ) -> Smallest:
        """The smallest of the settings' subnetworks within a loss, see `Pruned.smallest`."""
        return self.prune().smallest(loss, by)

    def report(self, out: str | Path = "mechcore-report") -> ReportPath:
        """Do the whole main study into a folder; the path of its report, a link in notebooks."""
        self._check_data()
        self._check_same()
        (path,) = run_study(self.config, out, store=self.store.path)
        return ReportPath(path)

    def _swept(self, name: str, schema: Schema) -> pd.DataFrame:
        """A table that an analysis makes of the ablation of every component, or of its paths."""
        (folder,) = self.done(self._asked(name).jobs[name])
        return schema.read(folder / TABLES_FOLDER / f"{schema.name}.csv")

    def _asked(self, name: str) -> Planned:
        """The plan of a study that asks one question, and ablates every component."""
        sweep = self.config.analyses.sweep or Sweep()
        analyses = with_values(self.config.analyses, {"sweep": sweep})
        return self.plan(analyses=analyses, only=(name,))

    def _ablated(self, chosen: Any, fill: str | None = None) -> dict[str, Ablations]:
        """Answers without each set, out of domain first."""
        fill = self.config.analyses.fill if fill is None else fill
        FILLS[fill]  # before the means, which take time
        return {
            role: ablate(
                self.model,
                chosen,
                self.data[role],
                self.means,
                role=role,  # type: ignore[arg-type]
                fill=fill,
                class_names=self.config.model.class_names,
                batch_size=self.config.batch_size,
                seed=self.config.data.seed,
            )
            for role in OUT_FIRST
        }


def _members(given: Any) -> Any:
    """What is joined by plus in a text; anything else as it is."""
    if isinstance(given, str):
        return given.split("+")
    return given if isinstance(given, Iterable) else [given]


_ACCURACY = [
    *("data", "role", "subset", "n"),
    *("accuracy", "accuracy_low", "accuracy_high", "margin"),
]
_ENDS = ("change", "change_low", "change_high", "p_adjusted")


def _costs(
    ablations: Ablations, table: Callable[..., pd.DataFrame] = ablation_table, **options: Any
) -> pd.DataFrame:
    """What each set costs in accuracy, margin, information and by a moved threshold."""
    place = ["set", "size", "data", "role", "subset", "n"]
    parts = [f"{part}_{end}" for part in ("information", "threshold") for end in _ENDS]
    information = information_table(ablations, **options)[[*place, *parts, "reason"]]
    return table(ablations, **options).merge(information, on=place)
