"""What the commands share: loading, checking and showing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Column, Table

from mechcore.errors import InputError
from mechcore.files import check_can_write, read_csv
from mechcore.options import MeansOptions, ModelOptions

Resume: TypeAlias = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


def load(model: ModelOptions, data: Any, roles: tuple[str, ...], *, answers: bool = True) -> Any:
    """The model and data of the options; ``answers``: whether the model's are needed."""
    from mechcore.study.inputs import load_inputs

    return load_inputs(model.config(), data, roles, answers=answers)


def means_of(inputs: Any, options: MeansOptions) -> Any:
    """Means from a file, or computed on the training data."""
    from mechcore.means import MeanActivations

    if options.means is not None:
        return MeanActivations.load(options.means, inputs.model)
    return MeanActivations.compute(inputs.model, inputs.data["train"])


def mask_files(path: Path) -> list[Path]:
    """The mask files of a path."""
    if path.is_dir():
        inside = path / "masks"  # of a run's folder
        # Names with a leading dot are files that were never finished.
        files = sorted((inside if inside.is_dir() else path).glob("[!.]*.safetensors"))
        if not files:
            raise InputError(f"{path}: no mask files (*.safetensors) in this folder")
        return files
    return [path]


def must_not_exist(out: Path, *, file: bool = False) -> None:
    """Refuse an output that exists or cannot be written."""
    if out.exists() and (file or out.is_file() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; choose another --out or remove it")
    check_can_write(out)


# -- output ---------------------------------------------------------------------------------------


def show(frame: Any) -> None:
    """A table on the terminal."""
    # What a row is about stays whole where there is little room.
    columns = [
        Column(str(name), overflow="fold", no_wrap=i == 0) for i, name in enumerate(frame.columns)
    ]
    table = Table(*columns)
    for row in frame.itertuples(index=False):
        table.add_row(*map(_cell, row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None or str(value) in ("nan", "<NA>"):
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def show_subnetworks(table: Any) -> None:
    """The table ``subnetworks``, shortened."""
    columns = {
        "heads_kept": "heads",
        "mlps_kept": "MLPs",
        "id_accuracy": "id",
        "ood_accuracy": "ood",
    }
    show(table[["subnetwork", "sparsity", "kl", *columns]].rename(columns=columns))


def show_core(members: Any, summary: Any) -> None:
    """The core in a sentence."""
    facts = summary.iloc[0]
    print(
        f"heuristic core of {facts.n_subnetworks:.0f} subnetworks: {len(members)} of "
        f"{facts.n_heads:.0f} heads ({' '.join(members['component']) or 'empty'}); "
        f"{facts.expected_by_chance:.2g} expected by chance, p = {facts.p_value:.2g}"
    )


def show_run(out: Path) -> None:
    """The main results of a run."""
    names = ("accuracy", "subnetworks", "core", "core_summary")
    tables = {name: read_csv(out / "tables" / f"{name}.csv") for name in names}
    full = tables["accuracy"].query("subnetwork == 'full'")
    show(full[["role", "subset", "n", "accuracy", "accuracy_low", "accuracy_high"]])
    show_subnetworks(tables["subnetworks"])
    show_core(tables["core"], tables["core_summary"])
