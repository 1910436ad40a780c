"""The command that cuts paths: who reads what some components write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore import progress
from mechcore.cli.ablation import COMMON, MOST_CONTROLS, Core, Engine, check_out, state_file
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import Means, Resume, load, means_of, show
from mechcore.errors import InputError
from mechcore.steps.config import StudyConfig
from mechcore.wording import OUT_FIRST

MOST_SHOWN = 15


@dataclass(frozen=True)
class PathOptions:
    """Which paths are cut."""

    senders: Annotated[
        str | None,
        typer.Option(
            "--senders", help="What is not seen: L1.H1,L2.H9 by commas; or heads, mlps or all."
        ),
    ] = None
    core: Core = None
    receivers: Annotated[
        str,
        typer.Option(
            "--receivers",
            help="What does not see it, each alone: components by commas, heads, mlps, answer; or "
            "all.",
        ),
    ] = "all"
    inputs: Annotated[
        Literal["all", "q", "k", "v", "qkv"],
        typer.Option(
            "--inputs", help="What of a head does not: all that it reads, or q, k or v; qkv: each."
        ),
    ] = "all"
    together: Annotated[
        bool, typer.Option("--together/--each", help="Hide all senders at once, or each in turn.")
    ] = True
    controls: Annotated[
        int,
        typer.Option(
            "--controls",
            help="Random sets with as many heads per layer as the senders, to compare with.",
            min=0,
            max=MOST_CONTROLS,
        ),
    ] = 0

    def senders_of(self) -> list[Any]:
        """The senders by name, or names of groups of components."""
        from mechcore.ablation.reading import read_components

        named: list[Any] = [] if self.core is None else [*read_components(self.core)]
        named += split(self.senders)
        if not named:
            raise InputError("no sender; name some with --senders or --core")
        return named

    def check(self) -> None:
        """Make sure that controls are of something that has them."""
        if self.controls and not (self.together and self.inputs == "all"):
            raise InputError(
                "--controls: stand beside receivers that see none of the senders; leave --each and "
                "--inputs out"
            )


@grouped
def paths(
    chosen: PathOptions,
    given: Annotated[Given[StudyConfig], From(StudyConfig, (*COMMON, "n_resamples"))],
    means: Means = None,
    engine: Engine = "auto",
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-paths"
    ),
) -> None:
    """What is lost when receivers do not see what senders write: who reads whom."""
    check_out(out, state_file(out, "id"), resume)
    chosen.check()
    senders = chosen.senders_of()
    import pandas as pd

    from mechcore.ablation import sets
    from mechcore.components import ModelShape
    from mechcore.masking.fills import FILLS
    from mechcore.paths import core_dependence_table, random_senders
    from mechcore.paths.dependence import CORE_DEPENDENCE
    from mechcore.paths.tables import PATH_INFORMATION, PATHS
    from mechcore.steps.ablation import known_groups
    from mechcore.steps.config import TEST_ROLES
    from mechcore.steps.inputs import groups_of
    from mechcore.steps.paths import path_tables, readers_on
    from mechcore.tables import write_tables

    config = given.settings
    needs_means = FILLS[config.analyses.fill].needs_means
    roles = ("train", *TEST_ROLES) if needs_means and means is None else TEST_ROLES
    inputs = load(given, roles)
    cuts = sets.paths(
        senders,
        split(chosen.receivers),
        inputs.model,
        inputs=chosen.inputs,
        together=chosen.together,
    )
    options: dict[str, Any] = {"fill": config.analyses.fill, "engine": engine}
    options |= {"batch_size": config.batch_size}
    statistics = {"n_resamples": config.n_resamples, "seed": config.data.seed}
    groups = groups_of(config.model, config.data)
    beside = [r.component for each in cuts for r in each.senders if r.component is not None]
    heads = sorted({path.sender for each in cuts for path in each.paths})
    if chosen.controls:
        if not beside:
            raise InputError("--controls: stand beside components; found the answer only")
        random_senders(heads, ModelShape.of(inputs.model), 1)  # before means, which take time
    with progress.shown():
        activations = means_of(inputs, means) if needs_means else None
        tables = path_tables(inputs, activations, cuts, groups, state=out, **statistics, **options)
        if chosen.controls:
            more = {"receivers": beside, "n_controls": chosen.controls, "seed": config.data.seed}
            told = []
            for role in TEST_ROLES:
                state = state_file(out, f"readers-{role}")
                found = readers_on(inputs, activations, heads, role, state=state, **more, **options)
                known = known_groups(found, groups)
                told.append(core_dependence_table(found, known, **statistics))
            tables["core_dependence"] = pd.concat(told, ignore_index=True)
    write_tables(out, tables, (PATHS, PATH_INFORMATION, CORE_DEPENDENCE))
    for path in out.glob("sweep-*.safetensors*"):
        path.unlink()
    _show_largest(tables)
    print(f"tables: {out}")


def _show_largest(tables: dict[str, Any]) -> None:
    """Changes over all examples of the receivers that matter most, out of domain first."""
    import pandas as pd

    from mechcore.paths.tables import PATH_INFORMATION, PATHS

    place = ["set", "role"]
    table = tables["paths"].query("subset == 'all'").set_index(place)
    figures = {"accuracy": PATHS["accuracy_drop"], "margin (nats)": PATHS["margin_drop"]}
    if "path_information" in tables:
        told = tables["path_information"].query("subset == 'all'").set_index(place)
        table = table.join(told[[name for name in told if name not in table]])
        parts = {each: PATH_INFORMATION[f"{each}_drop"] for each in ("information", "threshold")}
        figures = {k: c.called("", negated=True) for k, c in parts.items()} | figures
    outside = table.xs("ood", level="role")
    known = "information_drop" in outside and outside["information_drop"].notna().all()
    by = "information_drop" if known else "margin_drop"
    names = outside[by].abs().sort_values(ascending=False, kind="stable").index[:MOST_SHOWN]
    if len(outside) > MOST_SHOWN:
        what = by.removesuffix("_drop")
        print(f"the {MOST_SHOWN} of {len(outside)} with the largest changes of {what}:")
    print("change (points) when the receiver does not see the senders; negative: worse so")
    rows = table.loc[[(name, role) for name in names for role in OUT_FIRST]].reset_index()
    ends = (
        ["senders", "receiver", "input"]
        if (rows["input"] != "all").any()
        else ["senders", "receiver"]
    )
    columns = [*ends, "role", "n"]
    show(pd.DataFrame({**rows[columns], **{k: c.texts(rows) for k, c in figures.items()}}))
