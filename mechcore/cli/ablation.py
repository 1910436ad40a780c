"""The command that ablates sets of components."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from mechcore import progress
from mechcore.ablation.settings import GUARANTEE
from mechcore.analyses.search import Search
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import (
    DEVICE,
    MODEL,
    TASK,
    TEST,
    TRAIN,
    AnyModel,
    Means,
    Resume,
    check_out,
    load_ablated,
    show,
)
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig

COMMON = (*MODEL, *DEVICE, *TRAIN, *TEST, *TASK, "analyses.fill")
"""Settings that the commands here have options for."""

Core: TypeAlias = Annotated[
    Path | None, typer.Option("--core", help="Components of a core table or a run's folder.")
]

GOAL = ("guarantee", "least", "largest", "bound")
"""Settings of races."""
Precision: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16"],
    typer.Option(
        "--precision",
        help="Of the tree's matrix products; float16 is for GPUs that are slow at bfloat16.",
    ),
]

MOST_CONTROLS = 10_000
"""Each costs as much as any other set."""


@dataclass(frozen=True)
class SetOptions:
    """What is ablated."""

    components: Annotated[
        str | None,
        typer.Option(
            "--components", help="L1.H0,L2.MLP by commas; or heads, mlps or all of the model."
        ),
    ] = None
    core: Core = None
    joint: Annotated[
        bool, typer.Option("--joint/--no-joint", help="Ablate the components named together, too.")
    ] = True
    pairs: Annotated[bool, typer.Option("--pairs", help="Ablate all pairs of them, too.")] = False
    subsets: Annotated[
        bool, typer.Option("--subsets", help="Ablate all subsets of them, too (10 at most).")
    ] = False
    sets: Annotated[
        str | None, typer.Option("--sets", help="Sets besides, as in L1.H0+L2.MLP,L0.H3+L1.H1.")
    ] = None
    sets_file: Annotated[
        Path | None,
        typer.Option("--sets-file", help="Sets besides: one a line, CSV, JSON or a mask file."),
    ] = None
    any_model: AnyModel = False
    controls: Annotated[
        int,
        typer.Option(
            "--controls",
            help="Random sets with as many components per layer as all named.",
            min=0,
            max=MOST_CONTROLS,
        ),
    ] = 0

    def check(self) -> None:
        """Make sure that names can be read, before model and data are."""
        from mechcore.ablation import ComponentSet

        check_components(self.components)
        for text in split(self.sets):
            if not ComponentSet.of(text.split("+")):
                raise InputError(
                    f"--sets {text!r}: names no component; expected some, as in L1.H0+L2.MLP"
                )
        if not (split(self.components) or split(self.sets) or self.core or self.sets_file):
            raise InputError("no component; name some with --components, --core or --sets")

    def kinds(self, shape: Any, seed: int, model: Any = None) -> dict[Any, str]:
        """The sets, and what each is called in the tables; masks must be those of ``model``."""
        from mechcore.ablation import ComponentSet, as_sets, sets
        from mechcore.ablation.reading import read_components, read_sets
        from mechcore.components import KINDS

        self.check()
        named = [] if self.core is None else read_components(self.core)
        whole = self.components in KINDS
        for part in split(self.components):
            named += (part in KINDS and shape.kind(part)) or ComponentSet.of([part]).components
        named = sorted(set(named))
        chosen = [ComponentSet((c,)) for c in named]
        if self.subsets:
            chosen += sets.subsets(named)
        if self.pairs:
            chosen += sets.pairs(named)
        if self.joint and not whole and len(named) > 1:
            chosen.append(ComponentSet.of(named))
        more = [ComponentSet.of(text.split("+")) for text in split(self.sets)]
        if self.sets_file is not None:
            more += read_sets(self.sets_file, model, any_model=self.any_model)
        members = sorted({c for each in more for c in each.components})
        chosen += [ComponentSet((c,)) for c in members]  # which interactions compare with
        named_last = {each: each for each in [*chosen, *more]}  # names are those of ``more``
        kinds = {each: "joint" if len(each) > 1 else "single" for each in named_last.values()}
        if not kinds:
            raise InputError("no component; name some with --components, --core or --sets")
        if self.controls:
            drawn = sets.matched_random(
                named or members, shape, self.controls, besides=kinds, seed=seed
            )
            kinds |= {ComponentSet(each.components, name): "random" for name, each in drawn.items()}
        as_sets(list(kinds))
        for each in kinds:
            each.mask(shape)
        return kinds


def check_components(text: str | None, *, receive: bool = False) -> None:
    """Make sure that names of components, and of groups of them, can be read; or of receivers.

    Raises:
        InputError: one cannot.
    """
    from mechcore.components import KINDS, Component
    from mechcore.components.paths import Receiver

    for part in split(text):
        if part not in KINDS:
            (Receiver if receive else Component).parse(part)


@grouped
def ablate(
    chosen: SetOptions,
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*COMMON, "n_resamples"))],
    how: Annotated[Given[Search], From(Search, GOAL)],
    means: Means = None,
    precision: Precision = "float32",
    resume: Resume = False,
    raced: Annotated[
        bool,
        typer.Option(
            "--race",
            help="Decide by the margin alone how large the change without each set is, on as many "
            "examples as it takes.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for tables and figures.")] = Path(
        "mechcore-ablation"
    ),
) -> None:
    """Accuracy, margin and information without sets of components, and their interactions."""
    check_out(out, out / "race-id" if raced else state_file(out, "id"), resume)
    chosen.check()
    from mechcore.components import ModelShape
    from mechcore.report.ablation_figures import save_figures
    from mechcore.steps.ablation import SWEEP_TABLES, sweep_tables
    from mechcore.steps.inputs import groups_of
    from mechcore.tables import write_tables

    config = given.settings
    inputs, averages = load_ablated(given, ("id", "ood"), means)
    with progress.shown():
        kinds = chosen.kinds(ModelShape.of(inputs.model), config.data.seed, inputs.model)
        if raced:
            _race(inputs, averages(), list(kinds), how.settings, config, precision, out)
            return
        tables, found = sweep_tables(
            inputs,
            averages(),
            kinds,
            fill=config.analyses.fill,
            precision=precision,
            batch_size=config.batch_size,
            seed=config.data.seed,
            groups=groups_of(config.model, config.data),
            n_resamples=config.n_resamples,
            state=out,
        )
    write_tables(out, tables, SWEEP_TABLES)
    save_figures(out, tables)
    for role in ("id", "ood"):
        state_file(out, role).unlink(missing_ok=True)
    drawn = [each for each, kind in kinds.items() if kind == "random"]
    _show_worst(tables["ablation"], {str(s): "+".join(map(str, s.components)) for s in drawn})
    _show_interactions(tables["interactions"])
    for each in found:
        if each.agreement is not None:
            print(
                f"{precision}: {100 * each.agreement:.2f} % of the answers on a sample of "
                f"{each.data} are those of float32"
            )
    print(f"tables and figures: {out}")


def _race(
    inputs: Any,
    means: Any,
    sets: list[Any],
    goal: Search,
    config: StudyConfig,
    precision: Any,
    out: Path,
) -> None:
    """Decide how large the changes are, on both kinds of data."""
    import pandas as pd

    from mechcore.ablation import race
    from mechcore.ablation.deciding import DECISIONS
    from mechcore.tables import write_tables

    found = {
        role: race(
            inputs.model,
            sets,
            inputs.data[role],
            means,
            effect="change",
            least=goal.least if goal.largest is None else None,
            largest=goal.largest,
            error=goal.guarantee or GUARANTEE,
            bound=goal.bound,
            seed=config.data.seed,
            state=out / f"race-{role}",
            role=role,
            fill=config.analyses.fill,
            class_names=inputs.config.class_names,
            batch_size=config.batch_size,
            precision=precision,
        )
        for role in ("id", "ood")
    }
    table = pd.concat([each.decisions for each in found.values()], ignore_index=True)
    write_tables(out, {"race": table}, [DECISIONS])
    for role, each in found.items():
        shutil.rmtree(out / f"race-{role}")
        best = each.decisions.sort_values("effect", kind="stable")
        show(best[["set", "role", "decision", "effect", "low", "high", "n"]].head(MOST_SHOWN))
        print(f"{role}: {each.describe()}")
    print(f"tables: {out}")


def state_file(out: Path, role: str) -> Path:
    """Where an interrupted sweep leaves what it has done."""
    return out / f"sweep-{role}.safetensors"


MOST_SHOWN = 20


def _show_worst(ablation: Any, drawn: dict[str, str]) -> None:
    """Changes over all examples: all sets, or those that cost most; and what random sets are."""
    from mechcore.ablation.effects import ABLATION

    overall = ablation.query("subset == 'all'")
    names = overall.groupby("set", sort=False)["margin_change"].min()
    if len(names) > MOST_SHOWN:
        print(f"the {MOST_SHOWN} of {len(names)} sets with the largest changes in margin:")
        names = names.nsmallest(MOST_SHOWN)
    shown = overall[overall["set"].isin(names.index)]
    if len(names) == MOST_SHOWN:
        shown = shown.sort_values("margin_change")
    changes = {"accuracy_change": "accuracy (points)", "margin_change": "margin (nats)"}
    shown = shown.assign(**{name: ABLATION[name].texts(shown) for name in changes})
    shown = shown[["set", "role", "n", "accuracy", *changes, "kl"]]
    print("change without each set, with its 95 % interval; negative: worse without it")
    show(shown.rename(columns={"accuracy": "accuracy_without", **changes}))
    for name in [*dict.fromkeys(shown["set"][shown["set"].isin(drawn)])]:
        print(f"{name}: {drawn[name]}")


def _show_interactions(interactions: Any) -> None:
    """Interactions over all examples: all, or the largest and smallest ones."""
    overall = interactions.query("subset == 'all' and metric == 'margin'")
    if overall.empty:
        return
    if len(overall) > MOST_SHOWN:
        print(f"interactions on the margin, the largest and smallest of {len(overall)}:")
        ordered = overall.sort_values("interaction")
        overall = ordered.iloc[[*range(MOST_SHOWN // 2), *range(-MOST_SHOWN // 2, 0)]]
    show(interaction_columns(overall))


def interaction_columns(table: Any) -> Any:
    """The columns of interactions, under short names."""
    columns = {"joint_change": "joint", "sum_of_single_changes": "sum"}
    return (
        table[["set", "role", *columns, "interaction", "low", "high"]]
        .assign(p=small(table["p_adjusted"]))
        .rename(columns=columns)
    )


def small(p: Any) -> Any:
    """A column of p-values as text."""
    return p.map(lambda each: "< 0.001" if each < 0.001 else f"{each:.3f}")
