"""Which components read the core, or other senders, and which write the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, of_study, tables_in
from mechcore.analyses.roles import Roles
from mechcore.components import KINDS, Component, ComponentLike
from mechcore.components.names import ANSWER, PathSet, Receiver
from mechcore.settings import entries, setting, with_values
from mechcore.steps.base import core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Job, Work
from mechcore.wording import ALL, count, listed

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.steps.inputs import Inputs

_MOST_NAMED = 3  # senders that sentences name


@dataclass(frozen=True)
class Paths(Ablating, Analysis):
    """Which components read the core, and which write the answer.

    Other senders and receivers can be chosen; the verdict is about the core alone.
    """

    kind = "paths"
    section = "readers"
    title = "Who reads the core"
    label = "readers of the core"
    needs = ("means", "core")
    reads = (Roles.kind, "swept")
    splits = TEST_SPLITS
    per_text = 200.0
    cuts_paths = True
    schemas = tables_in(
        "mechcore.ablation.paths.dependence:CORE_DEPENDENCE",
        "mechcore.ablation.paths.tables:PATHS",
        "mechcore.steps.paths:CORE_READ",
    )

    senders: tuple[str, ...] = setting(
        (), "Senders instead of the core's heads: L1.H0,L2.MLP; or heads, mlps or all."
    )
    receivers: tuple[str, ...] = setting(
        (),
        "Receivers, tested one at a time: L3.H1,L3.H2.q,L2.MLP,answer; or heads, mlps or all. By "
        "default each component after the senders, and single paths to those that change most.",
    )
    inputs: Literal["all", "q", "k", "v", "qkv"] = setting(
        "all", "Inputs of receiving heads to cut: all, q, k or v; qkv: each of the three in turn."
    )
    together: bool = setting(False, "Cut the paths from all senders at once, not one by one.")
    controls: int = setting(
        20,
        "Number of random control sets of heads, out of domain, for the components that change "
        "most and those in the verdict; fewer than 20 leave the claim inconclusive.",
        least=0,
    )
    max_examples: int = setting(300, "Maximum number of examples of each test split.", least=1)
    names: Mapping[str, str] = of_study()
    groups: Mapping[str, tuple[str, ...]] = of_study()
    n_resamples: int = of_study()
    least: float = of_study()
    """Smallest effect of interest, a share of balanced accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in {*self.senders} - {*KINDS}:
            Component.parse(name)
        for name in {*self.receivers} - {*KINDS}:
            Receiver.parse(name)

    @property
    def chosen(self) -> bool:
        """Whether ends of the paths are named, so that there is no verdict on the core."""
        return bool(self.senders or self.receivers)

    def wants(self) -> Sequence[str]:
        """See `MainStep.wants`; the core is not needed if senders are named."""
        return [name for name in self.needs if name != "core" or not self.senders]

    def may_read(self) -> Sequence[str]:
        """See `MainStep.may_read`; without a verdict, nothing that only the verdict needs."""
        return () if self.chosen else self.reads

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        if self.senders:
            self.cuts(self.senders, inputs.model)

    def cuts(
        self, senders: Iterable[ComponentLike], model: Any, receivers: Iterable[str] = ()
    ) -> list[PathSet]:
        """The paths from senders, by default to the receivers named, or to all."""
        from mechcore.ablation import sets

        to = [*(receivers or self.receivers or ("all",))]
        return sets.paths(senders, to, model, inputs=self.inputs, together=self.together)

    def _reuses(self, job: Job) -> bool:
        """Whether to reuse the sweep's changes; other fills draw again for other examples."""
        return "swept" in job.needs and self.fill in ("mean", "zero")

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import numpy as np

        from mechcore.ablation.effects.confirmation import half_of
        from mechcore.steps.answers import ablations_in
        from mechcore.steps.paths import path_tables

        inputs = inputs_of(work)
        cuts = self.cuts(self.senders, inputs.model) if self.senders else []
        named = sorted({path.sender for cut in cuts for path in cut.paths})  # before a receiver
        senders = named if self.senders else core_of(work)
        if not senders:
            return {name: of for name, of in work.empty_tables().items() if name != "core"}
        roles = work.table(Roles.kind) if Roles.kind in work.job.needs else None
        sampled = inputs.sampled(TEST_SPLITS, self.max_examples, self.seed)
        needed = "swept" in work.job.needs
        swept = ablations_in(work.needed("swept"), self.names) if needed else {}
        rows = {
            split: np.array(inputs.data[split].examples.sample_rows(self.max_examples, self.seed))
            for split in swept
        }
        half = half_of(swept["ood"].full, self.seed)[rows["ood"]] if "ood" in swept else None
        reused = swept if self._reuses(work.job) else {}
        known = {split: of.part(rows[split]) for split, of in reused.items()}
        tables = path_tables(sampled, means_of(work, inputs), senders, self, roles, known, half)
        if (verdict := tables.pop("core_verdict", None)) is not None:
            tables["core"] = work.table("core").assign(**verdict.iloc[0])
        return tables

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The verdict, the graph of paths, the components that change most, and direct effects."""
        from mechcore.ablation.paths.dependence import largest_readers

        blocks = report.ablation_tables
        paths, dependence = run.table("path_information"), run.table("core_dependence")
        if paths is None or dependence is None:
            return
        if paths.empty:
            text = f"{run.no_core.capitalize()}, so no path was cut."
            yield report.Paragraph(text, note=True)
            return
        asked, who = _asked(run), _called(run)
        verdict = [report.Paragraph(text, lead=True) for text in cls.headlines(run)]
        if verdict or not asked.chosen:
            yield from verdict or [report.Paragraph(_NO_VERDICT, note=True)]
        overall = dependence[dependence["subset"] == ALL]
        outside = overall[overall["split"] == "ood"].set_index(["receiver", "metric"])
        has_information = "information" in outside.index.get_level_values("metric")
        metric = "information"
        known = has_information or dependence.empty
        column = f"{metric}_change"
        if not known or column not in paths or blocks.cut_on(run, "ood")[column].isna().all():
            metric = "margin"
            yield report.Paragraph(_MARGIN_ALONE, note=True)
        readers = largest_readers(dependence)
        if asked.receivers and not readers:  # none changes at all
            readers = [*overall["receiver"].unique()]
        if asked.together or asked.inputs != "all":
            yield blocks.cut_table(run, metric, direct=False)
        else:
            blind = overall[overall["metric"] == metric]
            yield blocks.graph_of(run, metric, blind, readers, (_sending(run), who))
        if readers:
            yield blocks.reader_table(overall, metric, readers, who)
        if readers and has_information:
            yield blocks.kinds_note(outside, readers, who)
        yield blocks.cut_table(run, metric, direct=True)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The verdict, if any; with chosen senders or receivers, the largest change."""
        table = run.filled("core")
        for row in [] if table is None else table.to_dict("records"):
            if row.get("verdict"):
                claim = "The claim that components that generalise read the core is"
                yield f"{claim} {row['verdict']}: {row['explanation']}."
        dependence = run.filled("core_dependence")
        if dependence is not None and _asked(run).chosen:
            yield from _largest(dependence, _called(run))

    @classmethod
    def sections(cls, run: report.RunFolder) -> Iterator[report.Section]:
        """Its section, with the senders in its title."""
        for section in super().sections(run):
            yield replace(section, title=f"Who reads {_called(run)}")


def _asked(run: report.RunFolder) -> Paths:
    """The run's settings of this analysis."""
    known = run.analyses.get(Paths.kind) or {}
    return with_values(Paths(), {n: v for n, v in known.items() if n in entries(Paths)})


def _called(run: report.RunFolder) -> str:
    """A name for the senders."""
    named = _asked(run).senders
    if len(named) > _MOST_NAMED or {*named} & {*KINDS}:
        return "the senders"
    return listed([f"{Component.parse(name)}" for name in named]) if named else "the core"


def _largest(dependence: pd.DataFrame, who: str) -> Iterator[str]:
    """The component that changes most out of domain when its paths from the senders are cut."""
    from mechcore.ablation.paths.dependence import largest_readers

    rows = dependence[(dependence["subset"] == ALL) & (dependence["split"] == "ood")]
    of = rows[rows["metric"] == "information"]
    metric = "margin" if of.empty else "information"
    rows = rows[rows["metric"] == metric].set_index("receiver")
    for name in largest_readers(dependence, 1):
        change = report.ablation_tables.change_of(rows.loc[name].to_dict(), "blind_change", metric)
        yield (
            f"Of {count(len(rows), 'component')} cut off from {who}, {name} changes {metric} most "
            f"out of domain: by {change}."
        )


def _sending(run: report.RunFolder) -> list[str]:
    """The heads of the core, or the named senders that run before a receiver."""
    named, cut = {*_asked(run).senders}, run.tables["path_information"]
    if not named:
        return run.core
    to_answer = cut["receiver"] == ANSWER
    alone = {str(Component.parse(name)) for name in named - {*KINDS}}
    sending = alone.union(cut.loc[~to_answer, "senders"])
    return [name for name in cut.loc[to_answer, "senders"].unique() if name in sending]


_NO_VERDICT = "There is no verdict: the roles of components are not known (analyses: sweep)."
_MARGIN_ALONE = (
    "Out of domain, information could not be measured. The graph and the tables show the change in "
    "margin, which may only reflect a shifted threshold."
)
