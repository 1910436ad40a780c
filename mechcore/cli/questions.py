"""Commands made from the analyses, one per question."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechcore.analyses import ANALYSES
from mechcore.cli.execution import COMMAND_LINE, ResourceOptions, RunOptions
from mechcore.cli.options import From, Given, grouped
from mechcore.cli.shared import MODEL, PRUNING, TASK, TEST, TRAIN, show_part
from mechcore.errors import InputError
from mechcore.main_study.config import Resources, StudyConfig
from mechcore.settings import entries, origins, with_values

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
) -> None:
    """Run the main study with the command line's resources; ``stages`` made its settings."""
    study = replace(study, resources=resources.over(study.resources))
    if resources.values.get("device") and study.model.device_map is not None:
        raise InputError(
            f"--device {study.resources.device} and device_map {study.model.device_map} exclude "
            "each other, since a map names its devices; leave one of them out"
        )
    from mechcore.study.kinds import DEFAULT

    origin = origins(*stages, (COMMAND_LINE, study))
    how.do(DEFAULT, study, study.resources, out=out, origins=origin, show=show)


def left_to_study(name: str) -> list[str]:
    """Settings of an analysis that take the study's values if left open."""
    known, shared = entries(ANALYSES[name]).values(), entries(StudyConfig)
    both = (entry.name for entry in known if entry.optional and entry.name in shared)
    return [f"analyses.{name}.{setting}" for setting in both]


def _begun(where: Path | None) -> tuple[StudyConfig, Path | None]:
    from mechcore.study.kinds import read_study
    from mechcore.study.results import opened

    if where is None:
        return StudyConfig(), None
    folder = where if where.is_dir() else None
    study = read_study(where)[1] if folder is None else opened(folder).settings
    if not isinstance(study, StudyConfig) or (folder and study.variants):
        raise InputError(
            f"{where}: found a study of another kind, or of several models; expected the folder or "
            "configuration of a run of one model"
        )
    return study, folder


def show_run(run: Path) -> None:
    """Print the headline of each analysis of a run, ending with those that open its page."""
    from mechcore.report.run_folder import read_run

    folder, kinds = read_run(run), [ANALYSES[name] for name in ANALYSES]
    for kind in kinds:
        for sentence in () if kind.opens else islice(kind.headlines(folder), 1):
            print(sentence)
    for kind in [kind for kind in kinds if kind.opens][:1]:
        _show(folder, kind)


def _show(folder: "RunFolder", kind: "type[Analysis]") -> None:
    """Print as much of an analysis's first table as fits, and its headlines."""
    from mechcore.report.blocks import Table

    blocks = (block for section in kind.sections(folder) for block in section.blocks)
    table = next((block for block in blocks if isinstance(block, Table)), None)
    if table is not None:
        show_part(table.header, table.rows)
    for sentence in kind.headlines(folder):
        print(sentence)
