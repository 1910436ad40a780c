"""The section on the smallest subnetwork within a loss, and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mechcore.report.blocks import Block, Command, Gallery, Paragraph, Section, Shown, table_of
from mechcore.report.run_folder import RunFolder
from mechcore.subnetworks.smallest import (
    SMALLEST,
    explain_smallest,
    export_command,
    is_for_export,
)
from mechcore.wording import OUT_FIRST, PLACES


def smallest_section(run: RunFolder, gallery: Gallery) -> Section | None:
    """What can go together; None for a run that did not ask."""
    del gallery
    table = run.filled("smallest")
    if table is None:
        return None
    caption = (
        "The sparsest subnetwork whose loss is within the limit in domain and out of domain, by "
        "the upper ends of its intervals; where there is none, the one that comes closest. "
        "Information is measured with a new bias, accuracy as the subnetwork stands"
    )
    limits = [f"{100 * limit:g}" for limit in table["limit"]]
    shown: list[Shown] = ["measure", ("loss accepted (points)", limits), "within", "subnetwork"]
    shown += ["sparsity", "kept"]
    for role in OUT_FIRST:
        shown.append(SMALLEST[f"{role}_loss"].called(f"change {PLACES[role]}", negated=True))
    for role in OUT_FIRST:
        header = f"accuracy {PLACES[role]}"
        shown.append(SMALLEST[f"{role}_accuracy_loss"].called(header, negated=True))
    for role in OUT_FIRST:
        header = f"{PLACES[role]}, others choose"
        shown.append(SMALLEST[f"{role}_loss_held_out"].called(header, negated=True))
    shown.append(SMALLEST["n_masks"].called("masks"))
    blocks: list[Block] = [Paragraph(text) for text in smallest_sentences(run)]
    blocks.append(table_of(table, SMALLEST, caption, shown))
    source = str((run.config.get("model") or {}).get("source") or "MODEL")
    if Path(source).is_dir():
        source = str(Path(source).resolve())
    good = filter(is_for_export, table.to_dict("records"))
    commands = dict.fromkeys(export_command(source, Path(), row) for row in good)
    if commands:
        text = "To write it as an ordinary checkpoint, in the folder of this run:"
        blocks += [Paragraph(text), *map(Command, commands)]
    return Section("smallest", "What can go?", blocks, ["smallest.csv"])


def smallest_sentences(run: RunFolder) -> Iterator[str]:
    """The smallest subnetwork by each measure of loss."""
    table = run.filled("smallest")
    for row in [] if table is None else table.to_dict("records"):
        text = explain_smallest(row)
        yield f"{text[:1].upper()}{text[1:]}."
