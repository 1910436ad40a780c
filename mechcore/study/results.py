"""The folder of results: brought there from the store, under one name for each thing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.files import check_can_write, write_atomically, write_json
from mechcore.report.blocks import FIGURES_FOLDER
from mechcore.report.page import REPORT_FILES
from mechcore.report.run_folder import ATTENTION_FILE, CONFIG_FILE, TABLES_FOLDER
from mechcore.study.bench import CHECKPOINTS, trained_path
from mechcore.study.config import StudyConfig
from mechcore.study.config_file import from_json
from mechcore.study.folder import versions
from mechcore.study.inputs import resolved
from mechcore.study.plan import Part, Plan
from mechcore.study.store import Store
from mechcore.study.units import Unit
from mechcore.study.work import FACTS, MASKS, MEANS, MISSING

STUDY = "study.json"
STORE = "store"
OWN_FILES = (MEANS, ATTENTION_FILE, *REPORT_FILES.values())
OWN_FOLDERS = (MASKS, TABLES_FOLDER, FIGURES_FOLDER)


def check_out(out: Path) -> None:
    """See whether a study may put its results into ``out``; nothing is written.

    Raises:
        InputError: it is a file, cannot be written, or holds something else than a study.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; expected a folder (--out)")
    check_can_write(out)
    # A store alone: killed before there was more.
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    alone = {STORE, *(path.name for path in out.glob(f".*.{STUDY}"))}
    if there - alone and STUDY not in there:
        raise InputError(
            f"{out}: the folder is not empty and is not that of a study (no {STUDY}); choose "
            "another --out"
        )


def check_parts(out: Path, plan: Plan) -> None:
    """See whether the folders of several models are free for them.

    Raises:
        InputError: another study's results are in one of them.
    """
    own = _own_folders(out)
    for name in [part.name for part in plan.parts if part.name]:
        taken = any((out / name / file).exists() for file in (STUDY, CONFIG_FILE))
        if taken and not (name in own and _is_of_study(out / name)):
            raise InputError(
                f"models: {out / name} holds the results of another study, which those of model "
                f"{name!r} would replace; choose another name for the model, or another --out"
            )


def begin(out: Path, config: StudyConfig, store: Store) -> None:
    """Note in ``out`` which study it is, so that it can be looked at and gone on with."""
    inside = store.path.resolve() == (out / STORE).resolve()
    write_json(
        out / STUDY,
        {
            "mechcore": version("mechcore"),
            "store": STORE if inside else str(store.path.resolve()),
            "settings": config.as_json(),
            # Also those of settings that no longer hold, to be removed at the end.
            "folders": sorted({*_own_folders(out), *config.models}),
        },
    )


def _own_folders(out: Path) -> set[str]:
    """Names of the folders in ``out`` that its study wrote, one for each of several models."""
    try:
        content = json.loads((out / STUDY).read_text(encoding="utf-8"))
        return set(content.get("folders", content["settings"]["models"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def opened(out: Path) -> tuple[StudyConfig, Store]:
    """The study in a folder.

    Raises:
        InputError: there is none.
    """
    path = out / STUDY
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        config = from_json(content["settings"], str(path))
        store = Store(out / content["store"])
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(
            f"{out}: no study in this folder (no {STUDY}); expected the --out of mechcore run"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error}); run the study again") from error
    return config, store


def write_results(plan: Plan, store: Store, out: Path) -> list[Path]:
    """Bring the results of a finished study to ``out``.

    Returns:
        The folder of each model.
    """
    folders = []
    names = {part.name for part in plan.parts}
    for name in _own_folders(out) - names:  # of models that the study no longer has
        if _is_of_study(out / name):
            _remove_results(out / name)
    if "" not in names:  # what is left of a study of one model
        _remove_results(out)
    for part in plan.parts:
        folder = out / part.name
        wanted = _files(part, store)
        _remove_others(folder, wanted)
        for name, source in wanted.items():
            _copy(source, folder / name)
        write_json(folder / CONFIG_FILE, _facts(part, store))
        folders.append(folder)
    return folders


def _files(part: Part, store: Store) -> dict[str, Path]:
    """Where each file of the results is in the store."""
    found: dict[str, Path] = {}
    for unit in _units(part):
        folder = store.whole(unit.key)
        files = store.manifest(unit.key).files
        notes = (FACTS, MISSING, CHECKPOINTS)
        names = [name for name in files if Path(name).parts[0] not in notes]
        found |= {name: folder / name for name in names}
    return found


def _units(part: Part) -> Iterable[Unit]:
    return [*part.units.values(), *part.pruned]


def _remove_others(folder: Path, wanted: Mapping[str, Path]) -> None:
    """Remove results of settings that no longer hold, and temporary files of a killed process."""
    for name in OWN_FILES:
        if name not in wanted:
            (folder / name).unlink(missing_ok=True)
    for path in [p for inner in OWN_FOLDERS for p in (folder / inner).glob("*")]:
        if path.relative_to(folder).as_posix() not in wanted and not path.is_dir():
            path.unlink(missing_ok=True)
    own = (*OWN_FILES, CONFIG_FILE, STUDY)
    for path in [p for name in own for p in folder.glob(f".*.{name}")]:
        path.unlink(missing_ok=True)


def _is_of_study(folder: Path) -> bool:
    if (folder / STUDY).exists():  # one of its own
        return False
    try:
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return {"mechcore", "units", "seconds"} <= content.keys() and "kind" not in content
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _remove_results(folder: Path) -> None:
    _remove_others(folder, {})
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    for inner in (*(folder / name for name in OWN_FOLDERS), folder):
        with suppress(OSError):  # not empty: it holds things of others
            inner.rmdir()


def _copy(source: Path, target: Path) -> None:
    def write(temporary: Path) -> None:
        shutil.copyfile(source, temporary)

    write_atomically(target, write)


def _facts(part: Part, store: Store) -> dict[str, Any]:
    """What ``config.json`` says of a run."""
    config = part.config
    facts = json.loads((store.whole(part.units["describe"].key) / FACTS).read_text())
    seconds: dict[str, float] = {}
    for unit in {unit.key: unit for unit in part.made}.values():
        spent = store.manifest(unit.key).seconds
        seconds[unit.kind] = round(seconds.get(unit.kind, 0.0) + spent, 1)
    facts["model"] = {**_origin(part, store), **facts["model"]}
    return {
        "mechcore": version("mechcore"),
        "versions": versions(),
        "command": " ".join(["mechcore", *sys.argv[1:]]),
        **facts,
        "seeds": list(config.seeds),
        "sparsities": list(config.sparsities),
        "settings": config.as_json(),
        "seconds": seconds,
        "units": {unit.name: unit.key for unit in _units(part)},
    }


def _origin(part: Part, store: Store) -> dict[str, str | None]:
    """Where the model is from; one that the study trained lies in the store."""
    base = resolved(part.config.model).source
    if "training" not in part.units:
        return {"source": base}
    return {"source": str(trained_path(store, part.units["describe"])), "base": base}
