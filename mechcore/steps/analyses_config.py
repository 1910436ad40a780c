"""What a study can be asked to do with its subnetworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict

from mechcore.ablation.settings import GUARANTEE, RoleSettings
from mechcore.data.examples import ALL
from mechcore.pruning.settings import PruneSettings, check_runs
from mechcore.settings import check, setting

_FORBID = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class HeadsConfig:
    """Head categories and pictures of attention."""

    __pydantic_config__ = _FORBID

    max_examples: int = setting(512, "Examples on which attention is scored.", least=1)

    def __post_init__(self) -> None:
        check(self, "heads")


@dataclass(frozen=True)
class AblationConfig:
    """Ablation of the core beside other heads."""

    __pydantic_config__ = _FORBID

    max_joint: int = setting(
        4, "Core heads to ablate in pairs, those that matter most out of domain.", least=0
    )
    max_non_core: int = setting(
        16,
        "Heads outside the core to ablate for comparison, drawn at random from its layers.",
        "--max-non-core",
        rare=True,
        least=0,
    )
    controls: int = setting(
        99,
        "Random sets of as many other heads of the same layers to ablate beside the whole core; "
        "all there are, if there are fewer.",
        least=0,
    )
    control_examples: int = setting(
        100, "Examples of each kind of test data for these, at most.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "ablation")


@dataclass(frozen=True)
class PathsConfig:
    """Who reads the core, see `mechcore.paths.dependence`."""

    __pydantic_config__ = _FORBID

    controls: int = setting(
        20,
        "Random sets of heads in place of the core, out of domain, for the components that change "
        "most and those that the verdict is about; fewer than 20 can neither support the claim "
        "nor speak against it.",
        least=0,
    )
    max_examples: int = setting(300, "Examples of each kind of test data at most.", least=1)
    dose: int = setting(
        6,
        "Components, those whose role matters most, that are also ablated by degrees and cut off "
        "from the answer alone, see `mechcore.ablation.dose`.",
        least=0,
    )

    def __post_init__(self) -> None:
        check(self, "paths")


@dataclass(frozen=True)
class SearchConfig:
    """Search for superadditive sets, see `mechcore.find_superadditive`."""

    __pydantic_config__ = _FORBID

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


@dataclass(frozen=True)
class SizesConfig:
    """Effective size over the checkpoints of a training run."""

    __pydantic_config__ = _FORBID

    sparsities: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "Grid of sparsities, in [0, 1), that every checkpoint is pruned to.",
    )
    tolerance: float = setting(
        0.03,
        "Accuracy (share) that a subnetwork may lose and still be faithful.",
        "--tolerance",
        least=0,
        below=1,
    )
    seeds: tuple[int, ...] | None = setting(
        None, "Seeds of the pruning runs; else those of the study."
    )
    prune: Annotated[PruneSettings | None, BeforeValidator(PruneSettings.presets.read)] = setting(
        None, "The pruning schedule; else that of the study.", example="{preset: paper}"
    )

    def __post_init__(self) -> None:
        check_runs((0,) if self.seeds is None else self.seeds, self.sparsities)
        check(self, "effective_size")


@dataclass(frozen=True)
class Analyses:
    """What is done with the subnetworks; null leaves an analysis out."""

    __pydantic_config__ = _FORBID
    panel: ClassVar[str] = "Analyses"

    heads: HeadsConfig | None = setting(HeadsConfig(), "Head categories.")
    ablation: AblationConfig | None = setting(
        AblationConfig(), "Single and joint ablation of the core."
    )
    sweep: Literal["heads", "mlps", "all"] | None = setting(
        "all",
        "Ablate components one by one for their roles.",
        "--no-sweep",
    )
    ood_mean: bool = setting(
        True,
        "Out of domain, ablate also with the mean of the texts there, and take for lost or gained "
        "what is so with both means; without effect with another fill than the mean.",
        "--ood-mean",
    )
    roles: RoleSettings = setting(RoleSettings(), "How roles are judged.")
    paths: PathsConfig | None = setting(
        PathsConfig(), "Ask who reads the core, and who writes the answer.", "--no-paths"
    )
    loss: float = setting(
        0.01,
        "Accuracy or information (share) that the smallest subnetwork may lose.",
        "--loss",
        least=0,
        below=1,
    )
    halves: bool = setting(
        False,
        "Find subnetworks again on each of two random halves of the training data, to see how far "
        "the core depends on them: three times the pruning.",
        "--halves",
    )
    search: SearchConfig | None = setting(
        None,
        "Search for superadditive sets.",
        example="{role: ood, components: heads, max_size: 3}",
    )
    effective_size: SizesConfig | None = setting(
        SizesConfig(), "Effective sizes of the study's checkpoints, if it has any."
    )
    fill: str = setting(
        "mean",
        "What replaces an ablated output: mean, zero, resample, counterfactual (the output on an "
        "example of another label) or a registered fill.",
        "--fill",
    )
    more: Mapping[str, Mapping[str, Any]] = setting(
        {}, "Steps that packages add, by name, each with its settings."
    )

    def __post_init__(self) -> None:
        check(self, "analyses")

    @property
    def both_means(self) -> bool:
        """Whether roles are judged with the out-of-domain mean, too."""
        return self.ood_mean and self.fill == "mean"
