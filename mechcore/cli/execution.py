"""What commands share: options of those that run a study, running it, checks and output."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from mechcore import progress
from mechcore.cli.options import From, Given
from mechcore.errors import InputError, MechcoreError
from mechcore.main_study.config import Resources
from mechcore.settings import setting

if TYPE_CHECKING:
    from mechcore.study.executors import Executor
    from mechcore.study.step import Job

ResourceOptions: TypeAlias = Annotated[Given[Resources], From(Resources)]

COMMAND_LINE = "command line"

MODEL = ("model",)
BASE = (
    *("model.source", "model.class_names", "model.prompt", "model.chat_template", "model.answers"),
    *("model.revision", "model.allow_pickle"),
)
TASK = ("data.columns", "data.label_map", "data.seed", "data.task", "data.folder")
TRAIN = ("data.train", "data.max_train")
TEST_DATA = (
    *("data.id", "data.ood", "data.ood_label", "data.ood_subsets", "data.max_id", "data.max_ood"),
    "data.population",
)
TEST = (*TEST_DATA, "batch_size")
PRUNING = ("prune", "seeds", "target_sparsities")
"""Settings of the main study with options in several commands."""

MOST_SHOWN, MOST_TEXT = 15, 40


@dataclass(frozen=True)
class RunOptions:
    """How to run a study."""

    out: Path | None = setting(None, "Folder for the results; by default the study's name.")
    store: Path | None = setting(
        None, "Run store, shareable between studies; by default in --out.", rare=True
    )
    executor: Literal["in-process", "ray"] = setting(
        "in-process", "Run jobs on this machine, or on Ray workers.", panel="Compute"
    )
    address: str | None = setting(
        None,
        "Ray cluster (auto, HOST:PORT); by default a new local one.",
        panel="Compute",
        rare=True,
    )
    workers: int | None = setting(
        None, "Concurrent jobs on this machine, sharing its cores.", panel="Compute"
    )
    wandb: str | None = setting(None, "Log the results to this project of Weights & Biases.")
    wandb_mode: Literal["offline", "online"] | None = setting(
        None, "Log to a folder to sync later (offline), or online.", rare=True
    )
    dry_run: bool = setting(False, "Only list the jobs and their forward passes.")

    panel: ClassVar[str] = "Output"

    def check(self) -> None:
        """Raise `InputError` for options without the options they belong to; check for wandb."""
        if self.executor != "ray" and self.address is not None:
            raise InputError("--address needs --executor ray; add it, or leave --address out")
        if self.executor == "ray" and self.workers is not None:
            raise InputError(
                "--workers is for jobs on this machine; with --executor ray, Ray sets the number: "
                "leave it out"
            )
        if self.wandb is None and self.wandb_mode is not None:
            raise InputError(
                "--wandb-mode needs --wandb, which names the project to log to; add it, or leave "
                "out --wandb-mode"
            )
        if self.wandb is not None:
            from mechcore.study.tracking import check_can_log

            check_can_log(self.wandb, self.wandb_mode or "offline")

    def do(
        self,
        kind: str,
        settings: Any,
        resources: Resources,
        *,
        out: str,
        origins: Mapping[str, str],
        workers: int = 1,
        show: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Run a study, or list its jobs, and print the main results with ``show``."""
        self.check()
        if self.executor == "in-process" or self.dry_run:  # a cluster has its own devices
            from mechcore.models.devices import check_device

            check_device(resources.place)
        folder = self.out or Path(out)
        from mechcore.study.run import prepare, run_study
        from mechcore.study.step import in_order

        how: dict[str, Any] = {"kind": kind, "store": self.store}
        if self.dry_run:
            study, _, pending = prepare(settings, folder, **how, device=resources.place)
            _show_jobs(len(in_order(study.jobs())), pending)
            return
        executor = self._executor(resources, workers)
        with progress.shown():
            reports = run_study(settings, folder, **how, executor=executor, origins=origins)
        for report in reports:
            if len(reports) > 1:
                print(f"{report.parent.name}:")
            show(report.parent)
            print(f"report: {report}")
        if self.wandb is not None:
            for report in reports:
                self._log(report.parent, self.wandb)

    def _executor(self, resources: Resources, workers: int) -> Executor:
        from mechcore.study.executors import Local

        if self.executor == "ray":
            from mechcore.study.executors import OnRay

            return OnRay(self.address, resources.cpus or 1, resources.gpus, resources.place)
        workers = workers if self.workers is None else self.workers
        return Local(workers, resources.cpus, resources.place)

    def _log(self, run: Path, project: str) -> None:
        from mechcore.study.tracking import log_run

        try:
            place = log_run(run, project=project, mode=self.wandb_mode or "offline")
        except MechcoreError as error:
            raise MechcoreError(
                f"the run is done, but not logged: {error}; rerun the same command to log it "
                "without repeating any work"
            ) from error
        print(f"Weights & Biases: {place}")


def _show_jobs(n: int, pending: Sequence[Job]) -> None:
    import pandas as pd

    if not pending:
        print(f"all {n} jobs are done; a run would only write the results")
        return
    passes = [round(job.step.cost(job)) for job in pending]
    show(pd.DataFrame({"job": [job.name for job in pending], "passes": passes}))
    print(
        f"{len(pending)} of {n} jobs known so far remain: about {sum(passes)} forward passes of "
        "one example"
    )


def must_not_exist(out: Path, *, file: bool = False) -> None:
    """Raise if an output exists or cannot be written."""
    from mechcore.files import check_can_write

    if out.exists() and (file or out.is_file() or any(out.iterdir())):
        raise InputError(f"{out}: already exists; choose another --out or remove it")
    check_can_write(out)


def show(frame: Any) -> None:
    """Print a table; long texts wrap if the terminal is narrow."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in frame.columns:
        is_number = is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name])
        words = str(name).replace("_", " ").split()
        table.add_column(
            ("\n" if is_number else " ").join(words),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=max(map(len, ["", *words])),
        )
    for row in frame.itertuples(index=False):
        table.add_row(*map(_cell, frame.columns, row))
    Console(markup=False, emoji=False).print(table)  # names may have brackets and colons


def show_part(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the first columns and rows of a table of texts, as many as fit the terminal."""
    import pandas as pd
    from rich.console import Console

    part = [[textwrap.shorten(cell, MOST_TEXT, placeholder="…") for cell in row] for row in rows]
    part, room, n = part[:MOST_SHOWN], Console().width, 0
    for i, title in enumerate(header):
        room -= max(map(len, (*title.split(), *(row[i] for row in part)))) + 2
        n += room >= -2
    show(pd.DataFrame([row[:n] for row in part], columns=list(header[:n])))
    if len(rows) > len(part):
        print(f"and {len(rows) - len(part)} more rows in the report")
    if hidden := header[n:]:
        print(f"columns that this terminal is too narrow for: {', '.join(hidden)}")


def _cell(name: Any, value: Any) -> str:
    if value is None or str(value) in ("nan", "<NA>"):
        return "\u2013" if str(name).endswith(("low", "high")) else ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def run_table(out: Path, name: str) -> Any:
    """A table of a run as written: whole numbers stay whole even with missing values."""
    import pandas as pd

    return pd.read_csv(out / "tables" / f"{name}.csv", dtype_backend="numpy_nullable")
