"""Which sets of components lose most beyond the sum of their members' losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mechcore.ablation.settings import GUARANTEE, SCREENING_EXAMPLES
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.sweep import Ablating
from mechcore.data.examples import ALL
from mechcore.settings import check, setting
from mechcore.steps.base import SHARED, WITH_GRADIENT, Size, inputs_of, means_of
from mechcore.study.step import Job, Work

if TYPE_CHECKING:
    import pandas as pd

RACED = 0.4
"""Share of its examples that a race is expected to need."""

OF_ALL_PAIRS = 0.3
"""Share of a pass that one of all pairs costs on the prefix tree: MiniLM, 6 layers."""

REPORTED = 20
"""Sets of a size, about, that are ablated on the other half: those found, and their members."""


@dataclass(frozen=True)
class Search(Ablating, Analysis):
    """The sets that lose most beyond the sum of their members' losses."""

    kind: ClassVar[str] = "search"
    title: ClassVar[str] = "Superadditive sets"
    label: ClassVar[str] = "search for superadditive sets"
    asked: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn",)
    needs: ClassVar[tuple[str, ...]] = ("means",)
    schemas = tables_in(
        "mechcore.ablation.search:SUPERADDITIVE",
        "mechcore.ablation.search:SCREENING",
        "mechcore.ablation.deciding:DECISIONS",
        "mechcore.ablation.stability:SEARCH_STABILITY",
    )

    role: Literal["id", "ood"] = setting(
        "ood", "Which of the test data to search on.", "--search-on"
    )
    subset: str = setting(ALL, "Subset of that data; all: every one.", "--subset")
    components: Literal["heads", "mlps", "all"] = setting("all", "Components to choose from.")
    max_size: int = setting(3, "Components of the largest sets.", "--max-size", least=2)
    n_pairs: int = setting(
        100, "Pairs ablated or raced, the best by screening.", "--pairs", least=1
    )
    all_pairs: bool = setting(
        False,
        "Race all pairs, without screening, with a guarantee of 0.05 unless another is given.",
        "--all",
    )
    guarantee: float | None = setting(
        None,
        "Race sets: ablate each on as many examples as it takes, with this probability of any "
        "wrong decision.",
        "--guarantee",
        above=0,
        below=1,
    )
    least: float = setting(
        0.1, "Racing: least effect of interest, nats of margin.", "--least", least=0
    )
    largest: int | None = setting(
        None,
        "Racing: find so many sets with the largest effects, in place of those over the least of "
        "interest.",
        "--largest",
        least=1,
    )
    bound: float | None = setting(
        None,
        "Racing: largest effect of a set on one example, nats of margin, unless a larger one is "
        "seen; by default 50 times the least of interest, or the span of the full model's margins "
        "for the largest.",
        "--bound",
        above=0,
    )
    screening_by: str = setting(
        "screening",
        "How the interactions of all pairs are predicted: screening (gradients), exact (ablating "
        "them) or a registered way.",
        "--screening-by",
    )

    n_resamples: int = of_study()

    def __post_init__(self) -> None:
        check(self, "search")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `mechcore.find_superadditive`."""
        guarantee = GUARANTEE if self.all_pairs and self.guarantee is None else self.guarantee
        raced = guarantee is not None
        return {
            "subset": self.subset,
            "max_size": self.max_size,
            "n_pairs": None if self.all_pairs else self.n_pairs,
            "guarantee": guarantee,
            "least": self.least if raced and self.largest is None else None,
            "largest": self.largest if raced else None,
            "bound": self.bound if raced else None,
            "screening_by": self.screening_by,
        }

    @classmethod
    def works_with(cls, fill: str) -> bool:
        """Predictions are for these alone."""
        return fill in ("mean", "zero")

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """The data that is searched on."""
        return (self.role,)

    def uses(self) -> list[object]:
        """The fill, and the way to predict interactions."""
        from mechcore.ablation.predicting import INTERACTION_METHODS

        return [*super().uses(), INTERACTION_METHODS[self.screening_by]]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        n_examples, n = size.examples[self.role], size.components(self.components)
        all_pairs, half = n * (n + 1) / 2, n_examples / 2
        grown = self.max_size - 1
        reported = SHARED * REPORTED * grown * half
        if self.all_pairs:
            larger = SHARED * self.n_pairs * (grown - 1)
            return (OF_ALL_PAIRS * all_pairs + larger) * half * RACED + reported
        per_example = {"screening": WITH_GRADIENT * (n + 1), "exact": SHARED * all_pairs}
        seen = min(SCREENING_EXAMPLES, half)
        share = 1.0 if self.guarantee is None else RACED
        measured = SHARED * self.n_pairs * grown * half * share
        return measured + per_example.get(self.screening_by, 0) * seen + reported

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation import find_superadditive
        from mechcore.components import ModelShape

        inputs = inputs_of(work)
        return find_superadditive(
            inputs.model,
            inputs.data[self.role],
            means_of(work, inputs),
            components=ModelShape.of(inputs.model).kind(self.components),
            **self.options,
            fill=self.fill,
            n_resamples=self.n_resamples,
            seed=self.seed,
            class_names=inputs.config.class_names,
            batch_size=self.batch_size,
            role=self.role,
            state=work.partial,
        ).tables
