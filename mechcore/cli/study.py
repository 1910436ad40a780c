"""Commands for studies, for single questions, and for the embedded world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from mechcore.analyses import ANALYSES
from mechcore.cli.execution import (
    BASE,
    COMMAND_LINE,
    MODEL,
    PRUNING,
    TASK,
    TEST,
    TRAIN,
    ResourceOptions,
    RunOptions,
    must_not_exist,
    run_table,
    show,
    show_part,
)
from mechcore.cli.options import From, Given, grouped, split
from mechcore.errors import InputError
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.settings import entries, origins, setting, with_values
from mechcore.steps.config import Embedded

if TYPE_CHECKING:
    from mechcore.analyses.base import Analysis
    from mechcore.report.run_folder import RunFolder

_COMMON = (*MODEL, *TRAIN, *TEST, *TASK, *PRUNING, "method", "n_resamples", "analyses.fill")

_Where = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of a run to add to, or a YAML configuration; by default only the options.",
        show_default=False,
    ),
]


def question(name: str) -> Callable[..., None]:
    """The command for one question, with an option for each setting of the analysis."""
    kind, own = ANALYSES[name], f"analyses.{name}"
    # Settings left open take the study's values; all others belong to the analysis.
    known, shared = entries(kind).values(), entries(StudyConfig)
    of_both = [entry.name for entry in known if entry.name in shared and not entry.optional]
    without = [*left_to_study(name), *of_both]
    names = (*_COMMON, *kind.study_options, own)

    def ask(given: Any, resources: Any, how: RunOptions, where: Path | None = None) -> None:
        from mechcore.report.run_folder import read_run

        base, folder = _begun(where)
        if not kind.always and getattr(base.analyses, name) is None:
            base = replace(base, analyses=with_values(base.analyses, {name: kind()}))
        study = given.over(base)
        # A folder keeps its earlier answers.
        only = dict.fromkeys((*base.only, name)) if base.only or folder is None else ()
        if "model.embedded" in given.values and study.model.source is not None:
            raise InputError(
                f"--embedded {study.model.embedded} and the model {study.model.source} exclude "
                "each other; leave one of them out"
            )
        stages = [("defaults", StudyConfig()), (f"{where}", base)]
        out = str(folder or f"mechcore-{name.replace('_', '-')}")
        study = replace(study, only=tuple(only))
        do_study(study, resources, how, out, stages, lambda run: _show(read_run(run), kind))

    ask.__name__ = name
    ask.__doc__ = f"{kind.__doc__}\n\nRerun to resume; existing results are reused."
    ask.__annotations__ = {
        "given": Annotated[Given[StudyConfig], From(StudyConfig, names, without, every=own)],
        "resources": ResourceOptions,
        "how": RunOptions,
        "where": _Where,
    }
    return grouped(ask)


def do_study(
    study: StudyConfig,
    resources: Given[Resources],
    how: RunOptions,
    out: str,
    stages: Sequence[tuple[str, Any]],
    show: Callable[[Path], None],
    workers: int = 1,
) -> None:
    """Run the main study with the command line's resources; ``stages`` made its settings."""
    study = replace(study, resources=resources.over(study.resources))
    if resources.values.get("device") and study.model.device_map is not None:
        raise InputError(
            f"--device {study.resources.device} and device_map {study.model.device_map} exclude "
            "each other, since a map names its devices; leave one of them out"
        )
    from mechcore.report.kinds import DEFAULT

    origin = origins(*stages, (COMMAND_LINE, study))
    how.do(DEFAULT, study, study.resources, out=out, origins=origin, workers=workers, show=show)


def left_to_study(name: str) -> list[str]:
    """Settings of an analysis that take the study's values if left open."""
    known, shared = entries(ANALYSES[name]).values(), entries(StudyConfig)
    both = (entry.name for entry in known if entry.optional and entry.name in shared)
    return [f"analyses.{name}.{setting}" for setting in both]


def _begun(where: Path | None) -> tuple[StudyConfig, Path | None]:
    from mechcore.study.kinds import read_study
    from mechcore.study.run import opened

    if where is None:
        return StudyConfig(), None
    folder = where if where.is_dir() else None
    study = read_study(where)[1] if folder is None else opened(folder)[1]
    if not isinstance(study, StudyConfig) or (folder and study.variants):
        raise InputError(
            f"{where}: found a study of another kind, or of several models; expected the folder or "
            "configuration of a run of one model"
        )
    return study, folder


def show_run(run: Path) -> None:
    """Print what opens the page of a run: a table, and its story after all other headlines."""
    from mechcore.main_study.report import story
    from mechcore.report.run_folder import read_run

    folder, kinds = read_run(run), [ANALYSES[name] for name in ANALYSES]
    for kind in kinds:
        for sentence in () if kind.story or kind.opens else islice(kind.headlines(folder), 1):
            print(sentence)
    for kind in [kind for kind in kinds if kind.opens][:1]:
        _show(folder, kind, int(kind.story))
    for i, line in enumerate(story(folder), 1):
        print(f"{i}. {line.question} {line.text}")


def _show(folder: RunFolder, kind: type[Analysis], first: int = 0) -> None:
    """Print as much of an analysis's first table as fits, and its headlines from one on."""
    from mechcore.report.blocks import Table

    blocks = (block for section in kind.sections(folder) for block in section.blocks)
    table = next((block for block in blocks if isinstance(block, Table)), None)
    if table is not None:
        show_part(table.header, table.rows)
    for sentence in islice(kind.headlines(folder), first, None):
        print(sentence)


_ANALYSES = [f"analyses.{name}" for name in ANALYSES if not ANALYSES[name].asked]
"""Analyses that run by default: only these have options here."""

_LEFT = [setting for name in ANALYSES for setting in left_to_study(name)]
_RUN = (*_COMMON, "only", "beside", *_ANALYSES)
_OWN = (
    *BASE,
    "model.embedded",
    *("data.train", "data.id", "data.ood", "data.task", "data.folder", "data.columns"),
    "data.label_map",
)


@dataclass(frozen=True)
class Chosen:
    """Changes to the analyses that a study consists of."""

    asked: tuple[str, ...] = setting((), "Also run: halves, search or an added one.", "--with")
    left_out: tuple[str, ...] = setting((), "Skip, such as sweep,paths,dose.", "--without")

    panel: ClassVar[str] = "Analyses"

    def over(self, study: StudyConfig) -> StudyConfig:
        """The study with these changes; raises `InputError` if they are impossible."""
        changes: dict[str, Any] = {}
        for name in (*self.asked, *self.left_out):
            kind = ANALYSES[name]
            if kind.always:
                raise InputError(f"analyses: {name} is always part of a study; remove the option")
            if name in changes:
                raise InputError(f"--with and --without both name {name}; choose one")
            had = getattr(study.analyses, name)
            changes[name] = (had or kind()) if name in self.asked else None
        return replace(study, analyses=with_values(study.analyses, changes))


@grouped
def run(
    given: Annotated[Given[StudyConfig], From(StudyConfig, _RUN, ("model.embedded", *_LEFT))],
    chosen: Chosen,
    resources: ResourceOptions,
    how: RunOptions,
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML configuration (mechcore study init); options override it."),
    ] = None,
) -> None:
    """Run a whole study: evaluation, pruning, core, head categories, ablations, roles, report.

    Rerun to resume: finished work is kept, and only what depends on a change is redone.
    """
    from mechcore.report.kinds import DEFAULT
    from mechcore.study.kinds import STUDIES, read_study

    how.check()
    if config is None and "model.source" not in given.values:
        raise InputError(
            "run: no model; name one with its data (--model DIR --train FILE --id FILE --ood FILE, "
            "or --model DIR --task TASK), or study an embedded one: mechcore demo"
        )
    kind, base = (DEFAULT, StudyConfig()) if config is None else read_study(config)
    stages = [("defaults", STUDIES[kind].settings()), (f"file {config}", base)]
    out = "mechcore-out" if config is None else config.stem
    if not isinstance(base, StudyConfig):
        if given.values or chosen != Chosen():
            raise InputError(
                f"{config}: found a study of kind {kind!r}, but options of the main study are "
                "given; put the settings into the file"
            )
        how.do(kind, base, resources.over(Resources()), out=out, origins=origins(*stages))
        return
    variants = {name: given.over(chosen.over(own)) for name, own in base.variants.items()}
    study = replace(given.over(chosen.over(base)), variants=variants)
    do_study(study, resources, how, out, stages, show_run)


@grouped
def demo(
    given: Annotated[Given[StudyConfig], From(StudyConfig, _RUN, (*_OWN, *_LEFT))],
    chosen: Chosen,
    resources: ResourceOptions,
    how: RunOptions,
    model: Annotated[
        Embedded, typer.Argument(help="Which embedded model.", show_default=True)
    ] = "failing",
) -> None:
    """Run the whole study of an embedded model on embedded data; mechcore run studies yours."""
    from mechcore.study.executors import n_cores
    from mechcore.study.kinds import read_study
    from mechcore.worlds.embedded import data_dir

    base = StudyConfig()
    stages: list[tuple[str, Any]] = [("defaults", base)]
    if (file := data_dir() / f"tiny_{model}" / "study.yaml").is_file():
        base = read_study(file)[1]
        stages.append((f"file {file.parent.name}/{file.name}", base))
    study = given.over(chosen.over(replace(base, model=replace(base.model, embedded=model))))
    how.check()
    # On small models, two jobs on a core each are faster than one job on two.
    do_study(study, resources, how, "mechcore-demo", stages, show_run, min(2, n_cores()))


def init(
    file: Annotated[Path, typer.Argument(help="File to write, .yaml.")] = Path("study.yaml"),
    kind: Annotated[str, typer.Option("--kind", help="Kind of study.")] = "heuristic-core",
) -> None:
    """Write a study's settings, with defaults and descriptions, to a file to edit."""
    from mechcore.files import write_text
    from mechcore.study.kinds import template

    text = template(file, kind)
    must_not_exist(file, file=True)
    write_text(file, text)
    print(f"study: {file} (edit it, then: mechcore run {file})")


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, its --out.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check all results against their checksums.")
    ] = False,
) -> None:
    """Show which jobs of a study are done and which remain."""
    from mechcore.study.run import job_table, status_table

    jobs, store = job_table(folder)
    show(status_table(jobs))
    left = jobs[jobs["state"] != "done"]
    if len(left):
        columns = ["kind", "name", "state", *(["why"] if left["why"].any() else [])]
        show(left[columns])
    size = jobs["bytes"].sum() / 2**20
    print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are done; {size:.1f} MiB")
    # Before that, the table is of an earlier run.
    if len(left) == 0 and (folder / "tables" / "missing_masks.csv").exists():
        for row in run_table(folder, "missing_masks").to_dict("records"):
            print(f"missing: {row['subnetwork']}: {row['reason']}")
    if verify:
        problems = store.damaged()
        for problem in problems:
            print(f"damaged: {problem}")
        print(f"{len(store.all_keys()) - len(problems)} results match their checksums")
        if problems:
            raise typer.Exit(1)


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, its --out.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
) -> None:
    """Remove results that no study uses any more, and leftovers of killed runs, from the store."""
    from mechcore.study.run import opened

    _, _, store = opened(folder)
    keys, leftovers, size = store.removable()
    if not dry_run:
        keys = [key for key in keys if store.remove(key)]  # except those in use elsewhere
        store.leftovers(remove=True)
    word = "would remove" if dry_run else "removed"
    print(
        f"{word} {len(keys)} results and {len(leftovers)} leftover files, {size / 2**20:.1f} MiB, "
        f"from {store.path}"
    )


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    figures: Annotated[
        str, typer.Option("--figures", help="Formats of every figure: some of png, svg, pdf.")
    ] = "svg,png",
) -> None:
    """Rebuild the report of a finished run from its tables."""
    from mechcore.report import build_report

    print(f"report: {build_report(folder, figures=split(figures))}")


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    mask: Annotated[
        str, typer.Option("--mask", help="Name of the subnetwork, such as s0.50-seed42.")
    ],
    fill: Annotated[
        Literal["mean", "zero"], typer.Option("--fill", help="What replaces a pruned output.")
    ] = "mean",
    out: Annotated[Path, typer.Option("--out", help="Folder for the checkpoint.")] = Path(
        "mechcore-export"
    ),
) -> None:
    """Export a subnetwork as an ordinary Hugging Face checkpoint, means folded into weights."""
    from mechcore.components import Mask
    from mechcore.masking.means import MeanActivations
    from mechcore.models.export import export_checkpoint
    from mechcore.report.run_folder import read_run
    from mechcore.steps.base import MASKS, MEANS_FILE

    config = read_run(folder).config
    files = {path.stem: path for path in sorted((folder / MASKS).glob("*.safetensors"))}
    if mask not in files:
        raise InputError(
            f"{folder}: has no mask {mask!r} (--mask); expected one of "
            f"{', '.join(files) or 'those of a run that prunes, and it has none'}"
        )
    must_not_exist(out)
    values = Mask.load(files[mask])
    averages = MeanActivations.load(folder / MEANS_FILE) if fill == "mean" else None
    # A model that the study trained is not read like its base model.
    how = {} if "base" in config["model"] else config["settings"]["model"]
    export_checkpoint(
        *(config["model"]["source"], out, values, averages, fill),
        revision=how.get("revision"),
        allow_pickle=how.get("allow_pickle", False),
    )
    print(f"checkpoint: {out} ({len(values.kept)} components kept, {len(values.ablated)} folded)")
