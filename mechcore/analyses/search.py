"""Which sets of components cost most beyond the sum of their members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mechcore import report
from mechcore.ablation.settings import GUARANTEE
from mechcore.analyses.base import Ablating, Analysis, of_study, tables_in
from mechcore.components import KINDS, Component
from mechcore.data.examples import ALL
from mechcore.settings import setting
from mechcore.steps.base import inputs_of, means_of
from mechcore.study.step import Work
from mechcore.wording import SIGNIFICANT, count, split_name, whole, with_interval

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.steps.inputs import Inputs

_MOST_ROWS = 40


@dataclass(frozen=True)
class Search(Ablating, Analysis):
    """A search for sets that cost more than the sum of their members."""

    kind = "search"
    title = "Search for superadditive sets"
    label = "search for superadditive sets"
    asked = True
    packages = ("scikit-learn",)
    needs = ("means",)
    per_text = 300.0
    shows = ("superadditive", "screening", "race")
    schemas = tables_in(
        "mechcore.ablation.joint.search:SUPERADDITIVE",
        "mechcore.ablation.joint.search:SCREENING",
        "mechcore.ablation.joint.decisions:DECISIONS",
        "mechcore.ablation.effects.stability:STABILITY",
    )

    split: Literal["id", "ood"] = setting("ood", "Test split to search on.", "--search-on")
    subset: str = setting(ALL, "Subset of that split to search on, or all.")
    components: str = setting(
        "all", "Candidate components: heads, mlps, all, or comma-separated names."
    )
    max_size: int = setting(3, "Maximum size of a set.", least=2)
    n_pairs: int = setting(
        100, "Number of pairs to ablate or race, the best by screening.", "--pairs", least=1
    )
    all_pairs: bool = setting(
        False, "Race all pairs, without screening; the guarantee defaults to 0.05.", "--all"
    )
    guarantee: float | None = setting(
        None,
        "Race sets: sample examples adaptively, with this probability of any wrong decision.",
        above=0,
        below=1,
    )
    least: float = setting(0.1, "Racing: smallest effect of interest, nats of margin.", least=0)
    largest: int | None = setting(
        None,
        "Racing: find this many sets with the largest effects, instead of all above the smallest "
        "effect of interest.",
        least=1,
    )
    bound: float | None = setting(
        None,
        "Racing: largest effect of a set on one example, nats of margin, raised if a larger one "
        "occurs; by default 50 times the smallest effect of interest, or with --largest the span "
        "of the full model's margins.",
        above=0,
    )
    screening_by: str = setting(
        "screening",
        "How to predict the interactions of all pairs: screening (gradients), exact (ablation) "
        "or a registered predictor.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the tree's matrix products; float16 for GPUs slow at bfloat16."
    )
    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self._named:
            Component.parse(name)

    @property
    def _named(self) -> list[str]:
        """The named components, if the candidates are given by name."""
        return [] if self.components in KINDS else self.components.split(",")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `mechcore.ablation.find_superadditive`."""
        names = ("subset", "max_size", "screening_by", "n_pairs", "guarantee")
        options = {name: getattr(self, name) for name in names}
        if self.all_pairs:
            options |= {"n_pairs": None, "guarantee": self.guarantee or GUARANTEE}
        if options["guarantee"] is not None:
            goal = {"largest": self.largest} if self.largest else {"least": self.least}
            options |= {"bound": self.bound, **goal}
        return options

    def check_inputs(self, inputs: Inputs) -> None:
        """See `Analysis.check_inputs`."""
        from mechcore.ablation.joint.search import check_search
        from mechcore.components import ModelShape

        shape = ModelShape.of(inputs.model)
        among = self._named or shape.kind(self.components)
        check_search(shape, inputs.data[self.split], among, **self.options)

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Only fills that the predictors support."""
        return fill in ("mean", "zero")

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        """The split to search on."""
        return (self.split,)

    def uses(self) -> list[object]:
        """The fill and the predictor of interactions."""
        from mechcore.ablation.joint.predictors import INTERACTION_METHODS

        return [*super().uses(), INTERACTION_METHODS[self.screening_by]]

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation import find_superadditive
        from mechcore.components import ModelShape

        inputs = inputs_of(work)
        given = (inputs.model, inputs.data[self.split], means_of(work, inputs))
        among = self._named or ModelShape.of(inputs.model).kind(self.components)
        names = ("precision", "fill", "n_resamples", "seed", "batch_size", "split")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        own |= {"class_names": inputs.config.class_names, "state": work.partial, **self.options}
        return find_superadditive(*given, components=among, **own).tables

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The selected sets, measured on data that the search did not see."""
        if (table := run.table("superadditive")) is None:
            return
        overall = table[table["subset"] == ALL]
        yield from map(report.Paragraph, _raced(run))
        if overall.empty:
            yield report.Paragraph("The search found no set.", note=True)
        else:
            texts = [*_searched(run, overall), *cls.headlines(run)]
            yield from map(report.Paragraph, texts)
            yield from report.groups.one_label_notes(run, table)
            n = overall["set"].nunique()
            drawn = report.ablation_figures.largest_interactions(overall)
            some = f" Only the {len(drawn)} largest of {n} are drawn."
            yield report.Drawing(
                report.ablation_figures.interactions(overall, drawn),
                "superadditive",
                "Interaction of the sets that the search found, in its ranking order, "
                "on the half of the data that it did not see."
                f"{some * (len(drawn) < n)}",
                "Dot plot of interactions on accuracy and margin; the numbers are in the table "
                "below.",
            )
            caption = "Sets that the search found, measured on all examples of the unseen half; "
            caption += "every subset is in superadditive.csv"
            yield report.ablation_tables.interaction_table(overall, caption, folded=n > _MOST_ROWS)
        yield from _atlas(run)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """How many of the selected sets are superadditive on data that the search did not see."""
        from mechcore.ablation.joint.exact import directions

        if (table := run.filled("superadditive")) is None:
            return
        overall = table[table["subset"] == ALL]
        largest = overall["set"].iloc[int(overall["interaction_in_search"].argmin())]
        for metric, name in (("margin", "the margin"), ("accuracy", "accuracy")):
            part = overall[overall["metric"] == metric].dropna(subset=["interaction"])
            if part.empty:
                continue
            n, data = int((directions(part, SIGNIFICANT) < 0).sum()), part["data"].iloc[0]
            result = f"{n} {'is' if n == 1 else 'are'} superadditive on {name} on the other half "
            result += f"(interval below zero, adjusted p at most {SIGNIFICANT:g})"
            if part["low"].isna().all():
                result = f"none has an interval for {name} on the other half"
            row = part[part["set"] == largest].iloc[0]
            size = with_interval(row["interaction"], row["low"], row["high"], metric, unit=True)
            text = f"Of {count(len(part), 'set')} selected on one half of {data}, "
            text += f"{result}. The largest in the search, {largest}, has an "
            text += f"interaction of {size} there."
            if metric == "accuracy" and part["floor"].any():
                floors = f"{part['floor'].sum()} of {len(part)}"
                text += f" For {floors}, accuracy is close to its floor."
            yield text


def _searched(run: report.RunFolder, overall: pd.DataFrame) -> Iterator[str]:
    """How sets were selected without a race, and on which data they are measured."""
    screening = run.filled("screening")
    if run.table("race") is None and screening is not None:
        exact = int(screening["interaction"].notna().sum())
        by = (run.analyses.get("search") or {}).get("screening_by", "screening")
        grown = "; larger sets grew from the best smaller ones" if overall["size"].max() > 2 else ""
        yield (
            f"Screening by {'gradients' if by == 'screening' else by} ranked "
            f"{count(len(screening), 'pair')} of components; the best {whole(exact)} were "
            f"ablated exactly{grown}."
        )
    first = overall.iloc[0]
    yield (
        f"All values are from the half of {first['data']} ({split_name(first['split'])}) that the "
        f"search did not see: {count(first['n'], 'example')}. Values from the selecting "
        "half stand beside them; they are too large, as the largest of many."
    )


def _raced(run: report.RunFolder) -> Iterator[str]:
    """What a race decided, by size of set."""
    race, search = run.table("race"), run.analyses.get("search") or {}
    least = f"{search.get('least', 0.1):g} nats"
    names = {
        "below": f"superadditive by more than {least} of margin",
        "above": f"subadditive by more than {least}",
        "within": f"within {least} of zero",
        "top": "among the largest",
        "rest": "not among them",
        "open": "undecided",
    }
    for size, part in race.groupby("size") if race is not None else []:
        counts = part["decision"].value_counts()
        decided = [f"{whole(counts[key])} {name}" for key, name in names.items() if key in counts]
        yield (
            f"A race decided {count(len(part), 'set')} of {whole(float(str(size)))} components: "
            f"{', '.join(decided)}. The median set took {part['n'].median():g} examples. Any "
            "decision about the searched half is wrong with a probability of at most "
            f"{search.get('guarantee') or GUARANTEE:g}, if no example has an effect far larger "
            "than those seen. All decisions are in race.csv."
        )


def _atlas(run: report.RunFolder) -> Iterator[report.Drawing]:
    """A heat map of all raced pairs, if they are more than a table shows."""
    race, figures = run.table("race"), report.ablation_figures
    if race is None or figures.by_components(race, 2)["set"].nunique() <= _MOST_ROWS:
        return
    where = race.iloc[0]
    yield report.Drawing(
        figures.atlas({f"{split_name(where['split'])}: {where['data']}": race}),
        "atlas",
        "Interaction of every pair of components on the margin, as estimated by the race; "
        "negative (red) where both together cost more than the sum. Pairs decided "
        "early have wider intervals (race.csv). The colour scale saturates at the largest one "
        "per cent. Components are in order of layers, MLPs after heads.",
        "Heat map of the interactions of pairs of components; the numbers are in race.csv.",
    )
