"""The command that cuts paths: who reads what some components write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechcore import progress
from mechcore.cli.ablation import (
    COMMON,
    MOST_CONTROLS,
    Core,
    check_components,
    state_file,
)
from mechcore.cli.options import From, Given, grouped, split
from mechcore.cli.shared import Means, Resume, check_out, load_ablated, show
from mechcore.errors import InputError
from mechcore.main_study.config import StudyConfig
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
    find: Annotated[
        int,
        typer.Option(
            "--find",
            help="Search: screen all by derivatives on half of the out-of-domain examples, and "
            "measure this many on the other half; 0: measure all on all data.",
            min=0,
        ),
    ] = 0
    measured: Annotated[
        int,
        typer.Option(
            "--measured", help="How many are measured on the half that is searched.", min=1
        ),
    ] = 100

    def senders_of(self) -> list[Any]:
        """The senders by name, or names of groups of components."""
        from mechcore.ablation.reading import read_components

        named: list[Any] = [] if self.core is None else [*read_components(self.core)]
        named += split(self.senders)
        if not named:
            raise InputError("no sender; name some with --senders or --core")
        return named

    def check(self) -> None:
        """Make sure that options go together."""
        if self.controls and self.find:
            raise InputError("--find: takes no --controls; measure what it finds with controls")
        if self.find > self.measured:
            raise InputError(
                f"--find: is {self.find}, more than the {self.measured} that are measured; raise "
                "--measured"
            )
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
    resume: Resume = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path(
        "mechcore-paths"
    ),
) -> None:
    """What is lost when receivers do not see what senders write: who reads whom."""
    state = out / "path-search.safetensors" if chosen.find else state_file(out, "id")
    check_out(out, state, resume)
    chosen.check()
    senders = chosen.senders_of()
    check_components(chosen.senders)
    check_components(chosen.receivers, receive=True)
    from mechcore.ablation import sets
    from mechcore.paths.dependence import CORE_DEPENDENCE
    from mechcore.paths.search import PATH_SCREENING
    from mechcore.paths.tables import PATH_INFORMATION, PATHS
    from mechcore.steps.config import TEST_ROLES
    from mechcore.tables import write_tables

    config = given.settings
    tested = TEST_ROLES[1:] if chosen.find else TEST_ROLES
    inputs, averages = load_ablated(given, tested, means)
    cuts = sets.paths(
        senders,
        split(chosen.receivers),
        inputs.model,
        inputs=chosen.inputs,
        together=chosen.together,
    )
    options: dict[str, Any] = {"fill": config.analyses.fill, "batch_size": config.batch_size}
    work = _Work(inputs, cuts, out, config, options)
    if chosen.controls:
        work.check_controls()  # before means, which take time
    with progress.shown():
        if chosen.find:
            tables = work.found(averages(), chosen.find, chosen.measured)
        else:
            tables = work.measured(averages(), chosen.controls)
    write_tables(out, tables, (PATHS, PATH_INFORMATION, CORE_DEPENDENCE, PATH_SCREENING))
    for path in [*out.glob("sweep-*.safetensors*"), *out.glob("path-search.safetensors*")]:
        path.unlink()
    _show_largest(tables)
    print(f"tables: {out}")


@dataclass(frozen=True)
class _Work:
    """What one run of the command works on."""

    inputs: Any
    cuts: list[Any]
    out: Path
    config: StudyConfig
    options: dict[str, Any]

    @property
    def groups(self) -> Any:
        from mechcore.steps.inputs import groups_of

        return groups_of(self.config.model, self.config.data)

    @property
    def statistics(self) -> dict[str, Any]:
        return {"n_resamples": self.config.n_resamples, "seed": self.config.data.seed}

    @property
    def senders(self) -> list[Any]:
        return sorted({path.sender for each in self.cuts for path in each.paths})

    @property
    def readers(self) -> list[Any]:
        """Receivers that are components."""
        found = [receiver.component for each in self.cuts for receiver in each.senders]
        return [each for each in found if each is not None]

    def check_controls(self) -> None:
        """Make sure that there can be controls."""
        from mechcore.components import ModelShape
        from mechcore.paths import random_senders

        if not self.readers:
            raise InputError("--controls: stand beside components; found the answer only")
        random_senders(self.senders, ModelShape.of(self.inputs.model), 1)

    def measured(self, means: Any, n_controls: int) -> dict[str, Any]:
        """Tables of all paths on both kinds of data."""
        import pandas as pd

        from mechcore.paths import core_dependence_table
        from mechcore.steps.ablation import known_groups
        from mechcore.steps.config import TEST_ROLES
        from mechcore.steps.paths import path_tables, readers_on

        options = self.options
        tables = path_tables(
            self.inputs, means, self.cuts, self.groups, state=self.out, **self.statistics, **options
        )
        told = []
        for role in TEST_ROLES if n_controls else ():
            state = state_file(self.out, f"readers-{role}")
            found = readers_on(
                self.inputs,
                means,
                self.senders,
                role,
                receivers=self.readers,
                n_controls=n_controls,
                seed=self.config.data.seed,
                state=state,
                **options,
            )
            known = known_groups(found, self.groups)
            told.append(core_dependence_table(found, known, **self.statistics))
        return tables | ({"core_dependence": pd.concat(told, ignore_index=True)} if told else {})

    def found(self, means: Any, n_found: int, n_cut: int) -> dict[str, Any]:
        """Tables of the paths that a search finds out of domain."""
        from mechcore.paths import find_paths
        from mechcore.steps.paths import tables_of

        search = find_paths(
            self.inputs.model,
            self.inputs.data["ood"],
            means,
            self.cuts,
            n_cut=n_cut,
            n_found=n_found,
            seed=self.config.data.seed,
            class_names=self.inputs.config.class_names,
            role="ood",
            state=self.out,
            **self.options,
        )
        print(
            f"{len(search.screening)} sets of paths: {search.n_screened_out} screened out by "
            f"derivatives, the others measured (rank correlation with the prediction "
            f"{search.rank_correlation:.2f}); what follows is from the half of the data that the "
            "search did not see"
        )
        tables = tables_of([search.found], self.groups, **self.statistics)
        return {**tables, "path_screening": search.screening}


def _show_largest(tables: dict[str, Any]) -> None:
    """Changes over all examples of the receivers that matter most, out of domain first."""
    import pandas as pd

    from mechcore.paths.tables import PATH_INFORMATION, PATHS

    place = ["set", "role"]
    table = tables["paths"].query("subset == 'all'").set_index(place)
    figures = {"accuracy": PATHS["accuracy_change"], "margin (nats)": PATHS["margin_change"]}
    if "path_information" in tables:
        told = tables["path_information"].query("subset == 'all'").set_index(place)
        table = table.join(told[[name for name in told if name not in table]])
        parts = {each: PATH_INFORMATION[f"{each}_change"] for each in ("information", "threshold")}
        figures = parts | figures
    outside = table.xs("ood", level="role")
    known = "information_change" in outside and outside["information_change"].notna().all()
    by = "information_change" if known else "margin_change"
    names = outside[by].abs().sort_values(ascending=False, kind="stable").index[:MOST_SHOWN]
    if len(outside) > MOST_SHOWN:
        what = by.removesuffix("_change")
        print(f"the {MOST_SHOWN} of {len(outside)} with the largest changes of {what}:")
    print("change (points) when the receiver does not see the senders; negative: worse so")
    roles = [role for role in OUT_FIRST if role in table.index.unique("role")]
    rows = table.loc[[(name, role) for name in names for role in roles]].reset_index()
    ends = (
        ["senders", "receiver", "input"]
        if (rows["input"] != "all").any()
        else ["senders", "receiver"]
    )
    columns = [*ends, "role", "n"]
    show(pd.DataFrame({**rows[columns], **{k: c.texts(rows) for k, c in figures.items()}}))
